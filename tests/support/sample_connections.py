"""Fixtures with connections to the sample service, on its event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.sample_service import Connect, SmallService, connections_to


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of the service."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def service() -> SmallService:
    return SmallService()


@pytest.fixture
async def connect(service: SmallService) -> AsyncIterator[Connect]:
    async with connections_to(service) as opens:
        yield opens
