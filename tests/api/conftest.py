"""Fixtures for the api."""

from collections.abc import AsyncIterator

import pytest

from tests.api.site import Site, site


@pytest.fixture
async def api(postgres_dsn: str) -> AsyncIterator[Site]:
    """A site of the test's own, with a leader and a projector."""
    async with site(postgres_dsn) as made:
        yield made
