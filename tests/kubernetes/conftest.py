from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyservice.kubernetes.api import KubernetesApi
from tests.support.kubernetes_api_server import ApiServer, open_api, open_server


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with open_server() as server:
        yield server


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[KubernetesApi]:
    async with open_api(server) as api:
        yield api
