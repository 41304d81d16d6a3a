"""One browser for the tests of a module; a window of its own, offline, for each page that is opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import launch


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, closed with the module: while its driver is open, no event loop of another test can run here."""
    with sync_playwright() as driver:
        made = launch(driver)
        yield made
        made.close()
