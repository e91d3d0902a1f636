"""A disk that stalls or fails syncs: no response is sent before its data is durable."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.faults.conftest import MakePlane, OpenClients
from tests.support.data_plane_clients import (
    PlaneClient,
    PlaneClients,
    PlaneGrpcClient,
    ResponseLost,
    TransportResponse,
)
from tests.support.killable_plane import GAME, Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby, attach_fields, until
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

SOURCE_LIMIT = 4
IN_FLIGHT = "hosting_requests_in_flight"
PENDING = "hosting_journal_pending_events"
MODES = {
    "large": {"max_players": 100, "player_token_ttl": 600_000},
    "single": {"max_players": 1, "player_token_ttl": 600_000},
    "closing": {"max_players": 8, "player_token_ttl": 600_000},
    "ending": {"max_players": 8, "player_token_ttl": 600_000},
}


@dataclass(frozen=True)
class Ask:
    operation: str
    fields: dict[str, Any]
    token: str
    code: str = "OK"
    key: str | None = None


@dataclass
class PreparedLobbies:
    large: AttachedLobby
    starting: AttachedLobby
    full: AttachedLobby
    closing: AttachedLobby
    ending: AttachedLobby
    reserved: str
    leaving: str
    connected: str
    keyed: str
    counted: list[str] = field(default_factory=list)


async def prepare(session: ApiSession) -> PreparedLobbies:
    large_lobby = await session.attach("large")
    full = await session.attach("single")
    await session.join(full)
    keyed = await session.player(large_lobby)
    await session.must(
        "connected", {"player_token": keyed}, token=large_lobby.token, key=f"socket-{keyed}"
    )
    prepared = PreparedLobbies(
        large=large_lobby,
        starting=await session.attach("ending", is_ready=False),
        full=full,
        closing=await session.attach("closing"),
        ending=await session.attach("ending"),
        reserved=await session.player(large_lobby),
        leaving=await session.player(large_lobby),
        connected=await session.player(large_lobby, is_connected=True),
        keyed=keyed,
    )
    for number in range(SOURCE_LIMIT // 2):
        answer = await session.must(
            "join",
            {"lobby_id": large_lobby.id},
            token=session.client_token,
            key=f"{keyed}-{number}",
        )
        prepared.counted += answer.tokens
    return prepared


def changes(session: ApiSession, prepared: PreparedLobbies) -> list[Ask]:
    """Returns requests that write an event to each lobby, which is not durable during the stall."""
    env = session.plane.service_token
    token = prepared.large.token
    return [
        Ask("find", {"game_modes": ["large"]}, env),
        Ask("find", {"game_modes": ["large"], "party_size": 3}, env),
        Ask("join", {"lobby_id": prepared.large.id}, env),
        Ask("connected", {"player_token": prepared.reserved}, token),
        Ask("disconnected", {"player_token": prepared.leaving}, token),
        Ask("ready", {}, prepared.starting.token),
        Ask("closed", {"is_closed": True}, prepared.closing.token),
        Ask("set_state", {"state": b'{"round": 1}'}, prepared.large.token),
        Ask("set_state", {"state": b'{"round": 2}'}, prepared.full.token),
        Ask("attach", attach_fields("ending"), env),
    ]


def derived(session: ApiSession, prepared: PreparedLobbies) -> list[Ask]:
    """Returns requests that write nothing, but read data that is not durable."""
    env = session.plane.service_token
    token = prepared.large.token
    return [
        Ask("get_state", {"lobby_id": prepared.large.id}, token),
        Ask("get_state", {"lobby_id": prepared.large.id}, env),
        Ask("ready", {}, token),
        Ask("heartbeat", {}, token),
        Ask("connected", {"player_token": prepared.connected}, token, "PLAYER_TOKEN_CONSUMED"),
        Ask("connected", {"player_token": prepared.reserved}, token, "PLAYER_TOKEN_CONSUMED"),
        Ask("connected", {"player_token": prepared.keyed}, token, key=f"socket-{prepared.keyed}"),
        Ask("connected", {"player_token": prepared.leaving}, token, "PLAYER_REMOVED"),
        Ask("disconnected", {"player_token": prepared.leaving}, token),
        Ask(
            "join", {"lobby_id": prepared.large.id}, session.client_token, key=f"{prepared.keyed}-0"
        ),
        Ask("join", {"lobby_id": prepared.full.id}, env, "MATCHMAKER_LOBBY_FULL"),
        Ask("join", {"lobby_id": prepared.closing.id}, env, "MATCHMAKER_LOBBY_CLOSED"),
        Ask("find", {"game_modes": ["single"]}, env, "MATCHMAKER_TOO_MANY_LOBBIES"),
        Ask(
            "join",
            {"lobby_id": prepared.large.id},
            session.client_token,
            "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
        ),
        Ask("attach", attach_fields("ending"), env, "MATCHMAKER_TOO_MANY_LOBBIES"),
    ]


def endings(session: ApiSession, prepared: PreparedLobbies) -> list[Ask]:
    env = session.plane.service_token
    return [Ask("detach", {"game_id": GAME, "lobby_id": prepared.ending.id}, env)]


def derived_from_endings(session: ApiSession, prepared: PreparedLobbies) -> list[Ask]:
    env = session.plane.service_token
    return [
        Ask("join", {"lobby_id": prepared.ending.id}, env, "MATCHMAKER_LOBBY_STOPPED"),
        Ask("ready", {}, prepared.ending.token, "MATCHMAKER_LOBBY_STOPPED"),
        Ask("detach", {"game_id": GAME, "lobby_id": prepared.ending.id}, env),
    ]


class Waiting:
    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[TransportResponse], tuple[PlaneClient, Ask]] = {}

    def send(self, client: PlaneClient, asks: Iterable[Ask]) -> None:
        for ask in asks:
            request = client.call(ask.operation, ask.fields, token=ask.token, key=ask.key)
            self.tasks[asyncio.create_task(request)] = (client, ask)

    async def wait_until(self, plane: Plane, metric: str, at_least: int) -> None:
        async def is_reached() -> bool:
            self.check_none_was_answered()
            return await plane.metric(metric) >= at_least

        await until(is_reached, f"{metric} to be {at_least}")

    def check_none_was_answered(self) -> None:
        early = [(self.tasks[task][1], task.result()) for task in self.tasks if task.done()]
        assert not early, early

    async def check_all_are_answered(self) -> None:
        for task, (client, ask) in self.tasks.items():
            answer = await task
            assert answer.code == ask.code, (client.name, ask, answer)

    async def count_answered(self) -> int:
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        unexpected = [r for r in results if not isinstance(r, ResponseLost | TransportResponse)]
        assert not unexpected, unexpected
        return sum(isinstance(result, TransportResponse) for result in results)


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    waiting = Waiting()
    yield waiting
    for task in waiting.tasks:
        task.cancel()
    await asyncio.gather(*waiting.tasks, return_exceptions=True)


async def open_sessions(
    plane: Plane, clients: PlaneClients
) -> list[tuple[ApiSession, PreparedLobbies]]:
    client_token = await plane.public_token()
    sessions = [ApiSession(plane, client, client_token) for client in clients]
    return [(session, await prepare(session)) for session in sessions]


async def read_everything(plane: Plane, clients: PlaneClients, client_token: str) -> None:
    for client in clients:
        for operation in ("list", "regions", "statistics"):
            answer = await client.call(operation, token=client_token, timeout_s=PATIENCE_S)
            assert answer.code == "OK", answer
        response = await client.call(
            "list", {"include_state": True}, token=client_token, timeout_s=PATIENCE_S
        )
        assert response.body["lobbies"]
        missing = await client.call("find", {"game_modes": ["large"]}, timeout_s=PATIENCE_S)
        assert missing.code == "TOKEN_MISSING"
        invalid = await client.call("ready", token="lobby_" + "A" * 40, timeout_s=PATIENCE_S)
        assert invalid.code == "TOKEN_INVALID"
        unknown = await client.call(
            "find", {"game_modes": ["?"]}, token=client_token, timeout_s=PATIENCE_S
        )
        assert unknown.code == "BODY_INVALID"
        nowhere = await client.call(
            "find", {"game_modes": ["nothing"]}, token=client_token, timeout_s=PATIENCE_S
        )
        assert nowhere.code == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    assert isinstance(clients.grpc, PlaneGrpcClient)
    assert await clients.grpc.is_serving(timeout_s=PATIENCE_S)
    for path in ("/livez", "/metrics"):
        status, text = await plane.look(path)
        assert status == 200, text
    status, text = await plane.look("/readyz?verbose")
    assert status in (200, 503), text


async def test_stalled_disk_delays_every_answer_that_needs_durability(
    make_plane: MakePlane, open_clients: OpenClients, waiting: Waiting
) -> None:
    plane = make_plane(modes=MODES, limits={"lobby_count_max": 12, "max_players": SOURCE_LIMIT})
    await plane.start()
    clients = open_clients(plane)
    sessions = await open_sessions(plane, clients)
    with plane.commanded.stalled("fdatasync", "seg-*") as stall:
        decided = 0
        for wave, is_change in (
            (changes, True),
            (derived, False),
            (endings, True),
            (derived_from_endings, False),
        ):
            for session, prepared in sessions:
                waiting.send(session.client, wave(session, prepared))
            await waiting.wait_until(plane, IN_FLIGHT, len(waiting.tasks))
            decided = decided + len(sessions) * len(wave(*sessions[0])) if is_change else decided
            await waiting.wait_until(plane, PENDING, decided)
        assert stall.waiting == 1
        for _ in range(10):
            await read_everything(plane, clients, sessions[0][0].client_token)
            waiting.check_none_was_answered()
        assert stall.waiting == 1
    await waiting.check_all_are_answered()
    await plane.stop()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
async def test_failed_write_or_sync_ends_the_process_before_any_answer(
    make_plane: MakePlane, open_clients: OpenClients, waiting: Waiting, call: str
) -> None:
    plane = make_plane(modes=MODES)
    shim = plane.commanded
    await plane.start()
    clients = open_clients(plane)
    sessions = await open_sessions(plane, clients)
    with shim.stalled(call, "seg-*"):
        for session, prepared in sessions:
            waiting.send(session.client, changes(session, prepared))
        await waiting.wait_until(plane, PENDING, len(waiting.tasks))
        waiting.check_none_was_answered()
        failing = shim.fail(call, "seg-*")
    assert await plane.wait_ended() == -signal.SIGABRT
    assert failing.hits == 1, "a failed call was repeated"
    assert await waiting.count_answered() == 0
    failing.release()
    await plane.start()
    again = open_clients(plane)
    for (session, prepared), client in zip(sessions, again, strict=True):
        for token, expected in (
            (prepared.connected, {"PLAYER_TOKEN_CONSUMED"}),
            # The service decided about the token before the kill, so both codes are correct.
            (prepared.reserved, {"OK", "PLAYER_TOKEN_CONSUMED"}),
        ):
            answer = await client.call(
                "connected", {"player_token": token}, token=prepared.large.token
            )
            assert answer.code in expected, (session.client.name, answer)
    await plane.stop()
