"""Which Chromium the tests drive. `python -m tests.browser.chromium` prints it, or fails and says what is missing."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which

from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.servers.waiting import WITHIN_S

NAMES = ("chromium", "google-chrome", "google-chrome-stable", "chrome")
"""As distributions call it. Ubuntu's `chromium-browser` may be a stub that only asks for a snap: it is not one."""
FLAGS = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find(playwright: Playwright) -> str:
    """The one that SIGNALBOX_TEST_CHROMIUM names, the system's, or playwright's own. RuntimeError where there is none:
    the tests are then red, since nothing was looked at."""
    named = os.environ.get("SIGNALBOX_TEST_CHROMIUM")
    found = named or next(filter(None, map(which, NAMES)), None) or playwright.chromium.executable_path
    if not Path(found).exists():
        raise RuntimeError(f"no Chromium: there is no {found}; install chromium, or set SIGNALBOX_TEST_CHROMIUM")
    return found


def launch(playwright: Playwright) -> Browser:
    """A browser without a screen."""
    return playwright.chromium.launch(executable_path=find(playwright), args=list(FLAGS), timeout=WITHIN_S * 1000)


if __name__ == "__main__":
    with sync_playwright() as driver:
        print(find(driver))
