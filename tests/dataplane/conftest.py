from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyservice.dataplane.engine import Engine
from tests.support.matchmaker_scene import MatchmakerScene
from tests.support.runtime_scene import RuntimeScene, connected_scene
from tests.support.third_party_server import ThirdPartyServer, third_party_server


@pytest.fixture
def scene(engine: Engine) -> MatchmakerScene:
    return MatchmakerScene(engine)


@pytest.fixture
async def connected(engine: Engine) -> RuntimeScene:
    return await connected_scene(engine)


@pytest.fixture
async def game() -> AsyncIterator[ThirdPartyServer]:
    async with third_party_server() as server:
        yield server
