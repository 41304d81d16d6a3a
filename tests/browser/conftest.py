"""One browser for all tests of the folder; a window of its own, offline, for each page that is opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import launch


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium."""
    with sync_playwright() as driver:
        made = launch(driver)
        yield made
        made.close()
