"""What the engine keeps for captchas and mock players: it holds for the handlers, and over a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pyservice.auth import keyring
from pyservice.auth.authorization import Authorizer
from pyservice.calls import Call, Caller
from pyservice.dataplane.admission_checks import CaptchaCheck
from pyservice.dataplane.development_mocks import MockOperations
from pyservice.dataplane.engine import Engine, EngineLimits, open_engine
from pyservice.dataplane.operation_table import operation_table
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.gated_scene import GatedScene, gated_scene, refusal
from tests.dataplane.other_server import OtherServer, other_server
from tests.dataplane.scene import Scene

pytestmark = pytest.mark.anyio

RULE = {
    "captcha_a": {"secret_key": "s", "site_key": "k"},
    "requests_before_reverify": 3,
    "verification_ttl": 60_000,
}
NAMESPACE = raw_id(NAMESPACE_ID)
TOKEN_ID = raw_id("0192f000-0000-7000-8000-0000000000d1")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Engine]:
    """The engine of this folder, once more."""
    for name in ("journal", "keys"):
        (folder / name).mkdir(exist_ok=True)
    ring = keyring.load_or_create(folder / "keys")
    engine = open_engine(folder / "journal", ring, EngineLimits(segment_bytes=1 << 20))
    engine.start()
    yield engine
    await engine.close()


@asynccontextmanager
async def durable_scene(folder: Path, provider: OtherServer) -> AsyncIterator[GatedScene]:
    async with opened(folder) as engine, gated_scene(engine, captcha_a=provider.url()) as scene:
        endpoints = scene.entrance._captcha._endpoints
        scene.entrance._captcha = CaptchaCheck(scene.to_providers, engine.player_records, endpoints)
        scene.ask(RULE)
        yield scene


async def test_who_passed_a_captcha_has_passed_after_a_restart_and_not_more_often(
    tmp_path: Path,
) -> None:
    proof = pb.Captcha(captcha_a=pb.CaptchaAnswer(client_response="human"))
    async with other_server() as provider:
        provider.answers(200, b'{"success": true}')
        async with durable_scene(tmp_path, provider) as scene:
            lobby_id = (await scene.attach("tagged")).lobby_id
            await scene.join(lobby_id, captcha=proof)
            await scene.join(lobby_id)
        async with durable_scene(tmp_path, provider) as scene:
            await scene.join(lobby_id)
            error = await refusal(scene.join(lobby_id, scene.client(2)))
            assert error.code == "CAPTCHA_REQUIRED"
        async with durable_scene(tmp_path, provider) as scene:
            await scene.join(lobby_id)
            assert (await refusal(scene.join(lobby_id))).code == "CAPTCHA_REQUIRED"
            await scene.join(lobby_id, captcha=proof)
        assert len(provider.seen) == 2


async def test_a_mock_player_that_connected_has_connected_after_a_restart(tmp_path: Path) -> None:
    async def call(engine: Engine, name: str, request: object) -> object:
        scene = Scene(engine)
        table = operation_table(
            Authorizer(engine, scene.namespaces, lambda: 0, engine),
            scene.matchmaker,
            scene.fleet,
            MockOperations(scene.namespaces, engine.player_records, engine.idempotency),
        )
        operation = table[f"hosting.v1.Matchmaker.{name}"]
        token = engine.development_token(NAMESPACE, TOKEN_ID, 1)
        caller = operation.authorize(
            Call("0" * 32, bytes(4), f"Bearer {token}", idempotency_key="key")
        )
        assert isinstance(caller, Caller)
        return await operation.run(request, caller)

    find = pb.FindLobbyRequest(game_modes=["duel"], party_size=2)
    async with opened(tmp_path) as engine:
        found = await call(engine, "FindLobby", find)
        assert isinstance(found, pb.FindLobbyResponse)
        assert await call(engine, "FindLobby", find) == found
        first, second = (
            pb.PlayerConnectedRequest(player_token=player.token) for player in found.players
        )
        await call(engine, "PlayerConnected", first)
    async with opened(tmp_path) as engine:
        with pytest.raises(ServiceError) as caught:
            await call(engine, "PlayerConnected", first)
        assert caught.value.code == "PLAYER_TOKEN_CONSUMED"
        await call(engine, "PlayerConnected", second)
