"""Engine commands on the event loop, with a real journal."""

from __future__ import annotations

import asyncio

import pytest

from pyservice.dataplane.engine import REFUSAL_SLUGS, Engine
from pyservice.errors import ServiceError, codes
from pyservice.ids import format_uuid
from tests.dataplane.engine_calls import NAMESPACE, VERSION, attach, error_code, find, join

pytestmark = pytest.mark.anyio


def _held(engine: Engine, lobby: bytes) -> int:
    lobby_state = engine.lobby(lobby)
    assert lobby_state is not None
    return lobby_state.players[0]


async def _until_held(engine: Engine, lobby: bytes, count: int) -> None:
    while _held(engine, lobby) != count:
        await asyncio.sleep(0)


async def test_every_engine_refusal_has_an_error_code(engine: Engine) -> None:
    assert set(REFUSAL_SLUGS) <= codes()


async def test_player_connects_and_disconnects(engine: Engine) -> None:
    lobby, _ = await attach(engine)
    placement = await find(engine)
    assert placement.lobby == lobby
    [token] = placement.tokens
    await engine.connected(lobby, token, None, None)
    assert await error_code(engine.connected(lobby, token, None, None)) == "PLAYER_TOKEN_CONSUMED"
    await engine.disconnected(lobby, token, None, None, None)
    lobby_state = engine.lobby(lobby)
    assert lobby_state is not None
    assert lobby_state.players == (0, 0, 0, 0)


async def test_result_is_durable_when_returned(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    status = engine.status()
    assert status.durable == status.last
    await engine.ready(lobby, None)
    await find(engine)
    status = engine.status()
    assert status.durable == status.last


async def test_concurrent_commands_share_batches(engine: Engine) -> None:
    lobby, _ = await attach(engine, max_players=500)
    placements = await asyncio.gather(*(find(engine) for _ in range(500)))
    tokens = {token for one in placements for token in one.tokens}
    assert len(tokens) == 500
    await asyncio.gather(*(engine.connected(lobby, token, None, None) for token in tokens))
    assert await error_code(find(engine)) == "MATCHMAKER_NO_AVAILABLE_LOBBIES"


async def test_finds_wait_for_a_starting_lobby(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    finds = [asyncio.create_task(find(engine)) for _ in range(2)]
    await _until_held(engine, lobby, 2)
    assert await error_code(find(engine)) == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    await engine.ready(lobby, None)
    placements = await asyncio.gather(*finds)
    assert {one.lobby for one in placements} == {lobby}
    assert len({one.tokens for one in placements}) == 2


async def test_cancelled_find_releases_its_hold_once(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    finds = [asyncio.create_task(find(engine)) for _ in range(2)]
    await _until_held(engine, lobby, 2)
    finds[0].cancel()
    await asyncio.gather(finds[0], return_exceptions=True)
    assert _held(engine, lobby) == 1
    third = asyncio.create_task(find(engine))
    await _until_held(engine, lobby, 2)
    await engine.ready(lobby, None)
    placements = await asyncio.gather(finds[1], third)
    assert {one.lobby for one in placements} == {lobby}


async def test_shared_hold_is_released_with_its_last_request(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    key = engine.idempotency(b"caller", "key", "find", b"message")
    finds = [asyncio.create_task(find(engine, idempotency=key)) for _ in range(3)]
    await _until_held(engine, lobby, 1)
    for one in finds[:2]:
        one.cancel()
    await asyncio.gather(*finds[:2], return_exceptions=True)
    assert _held(engine, lobby) == 1
    again = asyncio.create_task(find(engine, idempotency=key))
    await asyncio.sleep(0)
    await engine.ready(lobby, None)
    first, second = await asyncio.gather(finds[2], again)
    assert first.tokens == second.tokens
    lobby_state = engine.lobby(lobby)
    assert lobby_state is not None
    assert lobby_state.players == (0, 1, 0, 0)


@pytest.mark.parametrize("wait_s", [0.05, 60])
async def test_hold_expires_with_its_limit_or_the_caller_deadline(
    engine: Engine, wait_s: float
) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    engine._waiter._longest_hold_s = wait_s
    deadline = asyncio.get_running_loop().time() + 60.05 - wait_s
    assert await error_code(find(engine, deadline=deadline)) == "DEADLINE_EXCEEDED"
    assert _held(engine, lobby) == 0


async def test_lobby_that_fails_to_start_fails_its_finds(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    tasks = [asyncio.create_task(find(engine)), asyncio.create_task(join(engine, lobby))]
    await _until_held(engine, lobby, 2)
    assert await engine.detach([NAMESPACE], lobby, None)
    for task in tasks:
        with pytest.raises(ServiceError) as caught:
            await task
        assert caught.value.code == "MATCHMAKER_LOBBY_START_FAILED"
        assert caught.value.metadata["reason"] == "removed"
    assert caught.value.metadata["lobby_id"] == format_uuid(lobby)


async def test_shutdown_cancels_waiting_finds(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    finding = asyncio.create_task(find(engine))
    await _until_held(engine, lobby, 1)
    engine.cancel_holds()
    assert await error_code(finding) == "SHUTTING_DOWN"
    assert _held(engine, lobby) == 0


async def test_oversized_party_is_reported(engine: Engine) -> None:
    lobby, _ = await attach(engine)
    with pytest.raises(ServiceError) as caught:
        await join(engine, lobby, party_size=3)
    assert caught.value.code == "BODY_INVALID"
    assert [problem.path for problem in caught.value.errors] == [("party_size", "too-high")]


async def test_heartbeat_reports_each_invalid_token(engine: Engine) -> None:
    lobby, _ = await attach(engine)
    placement = await find(engine)
    with pytest.raises(ServiceError) as caught:
        await engine.heartbeat(lobby, ["", placement.tokens[0], "player_nonsense"], None)
    assert caught.value.code == "BODY_INVALID"
    assert [problem.path for problem in caught.value.errors] == [
        ("player_tokens", "0", "invalid"),
        ("player_tokens", "2", "invalid"),
    ]


async def test_lobby_state_is_readable_in_its_namespace(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    assert await engine.state([NAMESPACE], lobby, None) == b""
    await engine.set_state(lobby, b'{"a":1}', None)
    assert await engine.state([NAMESPACE], lobby, None) == b'{"a":1}'
    assert await error_code(engine.state([VERSION], lobby, None)) == "MATCHMAKER_LOBBY_NOT_FOUND"


async def test_ended_lobby_cannot_read_state(engine: Engine) -> None:
    lobby, _ = await attach(engine, is_ready=False)
    other, _ = await attach(engine, is_ready=False)
    assert await engine.state([NAMESPACE], other, None, speaker=lobby) == b""
    await engine.detach([NAMESPACE], lobby, None)
    for namespaces in ([NAMESPACE], []):
        ended = engine.state(namespaces, other, None, speaker=lobby)
        assert await error_code(ended) == "MATCHMAKER_LOBBY_STOPPED"
        unknown = engine.state(namespaces, other, None, speaker=bytes(16))
        assert await error_code(unknown) == "TOKEN_EXPIRED"


async def test_no_idempotency_without_a_key(engine: Engine) -> None:
    assert engine.idempotency(b"caller", None, "find", b"message") is None
    one = engine.idempotency(b"caller", "key", "find", b"message")
    assert one is not None
    assert len(one) == 32
    assert one == engine.idempotency(b"caller", "key", "find", b"message")
    assert one != engine.idempotency(b"caller", "key", "join", b"message")
