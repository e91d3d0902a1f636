"""Fixtures with connections to the sample service, on its event loop."""

from __future__ import annotations

import pytest

from tests.support.sample_service import SmallService


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of the service."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def service() -> SmallService:
    return SmallService()
