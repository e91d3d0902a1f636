"""Fixtures with connections to the sample service, on both event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.sample_service import Connect, SmallService, connections_to


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def service() -> SmallService:
    return SmallService()


@pytest.fixture
async def connect(service: SmallService) -> AsyncIterator[Connect]:
    async with connections_to(service) as opens:
        yield opens
