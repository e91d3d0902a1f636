"""Fair division of requests to third parties between tenants."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.outbound_http import OutboundHttpClient, OutboundResponse
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.network.hosts import allow_any
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.admission_scene import AdmissionScene, admission_scene
from tests.support.matchmaker_scene import MODES, attach_request
from tests.support.namespace_configurations import OTHER_NAMESPACE_ID, configuration, version
from tests.support.third_party_server import ThirdPartyServer, hold_responses, third_party_server
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = pytest.mark.anyio

SLOW_GAME = {
    "game_id": "0192f000-0000-7000-8000-0000000000a2",
    "name_id": "slow",
    "display_name": "Slow",
}
JOINS = 560
PRESENT_MAX = 512
AT_ONE_HOST = 56


GROUP_ID = "0192f000-0000-7000-8000-0000000000b1"


class SlowGame:
    def __init__(self, scene: AdmissionScene, game: dict[str, str] = SLOW_GAME) -> None:
        self._scene = scene
        self._game = game
        self.lobby_id = ""

    def ask(self, url: str) -> None:
        join = {"enabled": True, "verification": {"url": url}}
        mode = {**MODES["duel"], "max_players": 200, "actions": {"join": join}}
        self._scene.namespaces.put(
            configuration(
                namespace_id=OTHER_NAMESPACE_ID,
                game=self._game,
                versions=[version(duel=mode)],
                matchmaker={"lobby_count_max": 9, "max_players": 10_000},
            )
        )

    async def attach(self) -> None:
        back_end = self._scene.back_end()
        back_end.namespace_id = raw_id(OTHER_NAMESPACE_ID)
        lobby = await self._scene.fleet.attach(attach_request(game_id="slow"), back_end)
        self._scene.lobby_tokens[lobby.lobby_id] = lobby.lobby_token
        await self._scene.fleet.ready(pb.LobbyReadyRequest(), self._scene.server(lobby.lobby_id))
        self.lobby_id = lobby.lobby_id

    async def join(self) -> str:
        request = pb.JoinLobbyRequest(lobby_id=self.lobby_id)
        try:
            caller = self._scene.client(namespace_id=OTHER_NAMESPACE_ID)
            await self._scene.matchmaker.join(request, caller)
        except ServiceError as error:
            return error.code
        return "OK"


@pytest.fixture
async def scene(engine: Engine) -> AsyncIterator[AdmissionScene]:
    async with admission_scene(engine, timeout_ms=60_000) as scene:
        yield scene


async def good_joins(scene: AdmissionScene, count: int) -> None:
    async with third_party_server() as game:
        scene.ask(duel_join=game.url())
        for _ in range(count):
            lobby = await scene.attach()
            await asyncio.wait_for(scene.join(lobby.lobby_id), PATIENCE_S)
        assert len(game.requests) == count


async def test_slow_verification_does_not_block_other_games(scene: AdmissionScene) -> None:
    slow = SlowGame(scene)
    async with third_party_server() as server:
        free = hold_responses(server)
        slow.ask(server.url())
        await slow.attach()
        joins = [asyncio.create_task(slow.join()) for _ in range(JOINS)]
        try:
            await until_met(lambda: server.now >= AT_ONE_HOST)
            await until_met(lambda: sum(join.done() for join in joins) >= 48)
            await good_joins(scene, 20)
            assert sum(not join.done() for join in joins) == PRESENT_MAX
            early_codes = {join.result() for join in joins if join.done()}
            assert early_codes == {"MATCHMAKER_VERIFICATION_UNAVAILABLE"}
            assert server.most == AT_ONE_HOST
        finally:
            free.set()
            codes = await asyncio.gather(*joins)
        assert codes.count("OK") == 200
        assert server.most == AT_ONE_HOST


@pytest.mark.full
async def test_slow_dns_does_not_block_other_games(
    scene: AdmissionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, hosts = threading.Event(), []

    def look_up(host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        hosts.append(host)
        if host.endswith(".hole.example"):
            answered.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    slow, joins = SlowGame(scene), list[asyncio.Task[str]]()
    slow.ask("http://nobody.hole.example/")
    await slow.attach()
    try:
        for number in range(80):
            slow.ask(f"http://n{number}.hole.example/")
            joins.append(asyncio.create_task(slow.join()))
            await asyncio.sleep(0)
        await until_met(lambda: sum(join.done() for join in joins) >= 72)
        assert len(hosts) == 8
        async with third_party_server() as game:
            scene.ask(duel_join=game.url(host="good.example"))
            lobby = await scene.attach()
            await asyncio.wait_for(scene.join(lobby.lobby_id), PATIENCE_S)
            assert len(game.requests) == 1
    finally:
        answered.set()
        codes = await asyncio.gather(*joins)
    assert set(codes) == {"MATCHMAKER_VERIFICATION_UNAVAILABLE"}


async def test_slow_captcha_provider_serves_games_in_turn(engine: Engine) -> None:
    rule = {
        "captcha_a": {"secret_key": "s", "site_key": "k"},
        "requests_before_reverify": 0,
        "verification_ttl": 1,
    }
    async with third_party_server() as provider:
        free = hold_responses(provider)
        async with admission_scene(engine, 60_000, captcha_a=provider.url()) as scene:
            scene.ask(rule)
            proof = pb.Captcha(captcha_a=pb.CaptchaAnswer(client_response="x"))
            many = [
                asyncio.create_task(scene.find("duel", scene.client(n % 250), captcha=proof))
                for n in range(100)
            ]
            await until_met(lambda: provider.now >= AT_ONE_HOST)
            provider.answers(200, b'{"success": true}')
            scene.namespaces.put(
                configuration(
                    namespace_id=OTHER_NAMESPACE_ID,
                    game=SLOW_GAME,
                    versions=[version(level={"captcha": rule}, **MODES)],
                )
            )
            caller = scene.client(251, namespace_id=OTHER_NAMESPACE_ID)
            with pytest.raises(ServiceError, match="NO_AVAILABLE_LOBBIES"):
                # Admitted, but there is no lobby.
                await asyncio.wait_for(scene.find("duel", caller, captcha=proof), PATIENCE_S)
            last_pass = scene.engine.player_records.last_pass
            assert last_pass(caller.namespace_id, caller.call.address) != (None, 0)
            assert provider.now == AT_ONE_HOST
            free.set()
            await asyncio.gather(*many, return_exceptions=True)


@pytest.mark.parametrize("group", [None, GROUP_ID])
async def test_tenant_is_the_developer_group(
    scene: AdmissionScene, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    game = SLOW_GAME if group is None else {**SLOW_GAME, "developer_group_id": group}
    slow, tenants, real = SlowGame(scene, game), list[bytes](), scene.to_games.post

    def noted(*words: Any, tenant: bytes) -> Coroutine[Any, Any, OutboundResponse]:
        tenants.append(tenant)
        return real(*words, tenant=tenant)

    async with third_party_server() as server:
        slow.ask(server.url())
        await slow.attach()
        monkeypatch.setattr(scene.to_games, "post", noted)
        assert await slow.join() == "OK"
    assert tenants == [raw_id(group or SLOW_GAME["game_id"])]


@pytest.mark.full
async def test_slow_tenant_leaves_connections_to_others(
    game: ThirdPartyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    free = hold_responses(game)
    outbound = OutboundHttpClient(allow_any, timeout_ms=60_000)

    def post(url: str, tenant: bytes) -> Coroutine[Any, Any, OutboundResponse]:
        return outbound.post(url, b"{}", {}, "0" * 32, tenant=tenant)

    slow = [
        asyncio.create_task(post(game.url(host=f"slow{number}.example"), b"slow"))
        for number in range(10)
        for _ in range(60)
    ]
    try:
        await until_met(lambda: sum(task.done() for task in slow) >= 600 - 512)
        refused = {str(task.exception()) for task in slow if task.done()}
        assert refused == {"too many requests of this tenant wait already"}
        await until_met(lambda: game.now >= 128)
        async with third_party_server() as good_server:
            for _ in range(20):
                url = good_server.url(host="good.example")
                assert (await post(url, b"good")).status == 200
            game.answers(200)
            url = game.url(host="slow0.example")
            assert (await post(url, b"good")).status == 200
        assert game.most <= 129
        assert sum(not task.done() for task in slow) == 512
        free.set()
        answers = [answer.status for answer in await asyncio.gather(*slow[:512])]
        assert answers == [200] * 512
        assert game.most <= 129
    finally:
        free.set()
        await asyncio.gather(*slow, return_exceptions=True)
        await outbound.close()
