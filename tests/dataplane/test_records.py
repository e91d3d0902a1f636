"""What the engine keeps beside lobbies, as the loop sees it: told when it is durable, there after a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pyservice.auth import keyring
from pyservice.dataplane.engine import Engine, EngineLimits, Placed, open_engine
from pyservice.errors import ServiceError

pytestmark = pytest.mark.anyio

NAMESPACE = bytes(range(16))
OTHER_NAMESPACE = bytes(range(1, 17))
VERSION = bytes(range(16, 32))
TOKEN_ID = bytes(range(32, 48))
ADDRESS = bytes([10, 0, 0, 1])
MINA = b"a-secret-that-mina-chose"

Restart = Callable[[], Awaitable[Engine]]


@pytest.fixture
async def restart(tmp_path: Path) -> AsyncIterator[Restart]:
    """Opens the engine of one folder, each time anew."""
    ring = keyring.load_or_create(tmp_path)
    opened: list[Engine] = []

    async def reopen() -> Engine:
        if opened:
            await opened[-1].close()
        opened.append(open_engine(tmp_path / "journal", ring, EngineLimits(segment_bytes=1 << 20)))
        opened[-1].start()
        return opened[-1]

    yield reopen
    await opened[-1].close()


async def _lobby(engine: Engine, *, is_ready: bool = True) -> bytes:
    lobby, _ = await engine.attach(
        NAMESPACE,
        VERSION,
        "duel",
        "local",
        [],
        tags=[],
        max_players=(4, 4, 4),
        player_token_ttl_ms=60_000,
        heartbeat_timeout_ms=0,
        heartbeat_grace_ms=10_000,
        is_join_enabled=True,
        create_ts_ms=0,
        lobby_count_max=10,
        idempotency=None,
        deadline=None,
    )
    if is_ready:
        await engine.ready(lobby, None)
    return lobby


async def _join(engine: Engine, lobby: bytes, *channels: bytes, **changes: Any) -> Placed:
    fields: dict[str, Any] = {
        "party_size": 1 + len(channels),
        "rejoin_token": None,
        "source": 0,
        "source_limit": 100,
        "idempotency": None,
        "deadline": None,
        **changes,
    }
    return await engine.join(NAMESPACE, lobby, channels=channels, **fields)


async def _code(work: Awaitable[Any]) -> str:
    with pytest.raises(ServiceError) as caught:
        await work
    return caught.value.code


async def test_a_channel_is_told_with_the_time_of_its_sending_also_after_a_restart(
    restart: Restart,
) -> None:
    engine = await restart()
    heard: list[bytes] = []
    engine.on_delivered = heard.append
    mina = engine.player_records.channel(MINA)
    lobby = await _lobby(engine)
    before_ms = time.time_ns() // 1_000_000
    placed = await _join(engine, lobby, mina)
    after_ms = time.time_ns() // 1_000_000
    [sent] = await engine.player_records.channel_events(mina, None)
    assert (sent.lobby, sent.token) == (lobby, placed.tokens[1])
    assert before_ms <= sent.ts_ms <= after_ms
    assert heard == [mina]
    again = await restart()
    assert again.player_records.channel(MINA) == mina
    assert await again.player_records.channel_events(mina, None) == [sent]


async def test_a_hold_is_told_to_its_channels_when_the_lobby_is_ready(restart: Restart) -> None:
    engine = await restart()
    heard: list[bytes] = []
    engine.on_delivered = heard.append
    mina = engine.player_records.channel(MINA)
    lobby = await _lobby(engine, is_ready=False)
    joining = asyncio.create_task(_join(engine, lobby, mina))
    while not (found := engine.lobby(lobby)) or not found.players[0]:
        await asyncio.sleep(0)
    assert await engine.player_records.channel_events(mina, None) == []
    await engine.ready(lobby, None)
    placed = await joining
    [sent] = await engine.player_records.channel_events(mina, None)
    assert sent.token == placed.tokens[1]
    assert heard == [mina]


async def test_whoever_does_not_know_the_secret_reads_nothing(restart: Restart) -> None:
    engine = await restart()
    lobby = await _lobby(engine)
    await _join(engine, lobby, engine.player_records.channel(MINA))
    other = engine.player_records.channel(MINA + b"x")
    assert await engine.player_records.channel_events(other, None) == []


async def test_an_address_that_passed_is_known_after_a_restart_and_in_its_namespace_alone(
    restart: Restart,
) -> None:
    player_records = (await restart()).player_records
    assert player_records.last_pass(NAMESPACE, ADDRESS) == (None, 0)
    before_ms = time.time_ns() // 1_000_000
    await player_records.record_pass(NAMESPACE, ADDRESS, None)
    player_records.record_request(NAMESPACE, ADDRESS)
    for again in (player_records, (await restart()).player_records):
        passed_ms, requests = again.last_pass(NAMESPACE, ADDRESS)
        assert passed_ms is not None
        # Two clocks are read one after the other, each in whole milliseconds.
        assert before_ms - 2 <= passed_ms <= time.time_ns() // 1_000_000
        assert requests == 1
        assert again.last_pass(OTHER_NAMESPACE, ADDRESS) == (None, 0)
        assert again.last_pass(NAMESPACE, bytes([10, 0, 0, 2])) == (None, 0)


async def test_a_mock_player_connects_once_also_over_a_restart(restart: Restart) -> None:
    player_records = (await restart()).player_records
    token, other = (player_records.mock_player_token(NAMESPACE, TOKEN_ID) for _ in range(2))
    assert token != other
    assert len(token) <= 160
    foreign = player_records.consume_mock(OTHER_NAMESPACE, TOKEN_ID, token, None)
    assert await _code(foreign) == "PLAYER_TOKEN_INVALID"
    await player_records.consume_mock(NAMESPACE, TOKEN_ID, token, None)
    for again in (player_records, (await restart()).player_records):
        repeated = again.consume_mock(NAMESPACE, TOKEN_ID, token, None)
        assert await _code(repeated) == "PLAYER_TOKEN_CONSUMED"
    await again.consume_mock(NAMESPACE, TOKEN_ID, other, None)


async def test_a_development_token_is_made_again_byte_for_byte_and_tells_its_end(
    restart: Restart,
) -> None:
    engine = await restart()
    token = engine.development_token(NAMESPACE, TOKEN_ID, 1_700_000_000_000)
    assert token.startswith("dev_")
    assert len(token) <= 160
    again = await restart()
    assert again.development_token(NAMESPACE, TOKEN_ID, 1_700_000_000_000) == token
    signed = (NAMESPACE, TOKEN_ID, 1_700_000_000_000)
    assert again.namespace_of_development_token(token) == signed
    assert again.namespace_of_public_token(token.replace("dev_", "pub_")) is None
    public = again.public_token(NAMESPACE, TOKEN_ID)
    assert again.namespace_of_development_token(public.replace("pub_", "dev_")) is None


async def test_a_key_that_is_not_known_is_recalled_as_nothing(engine: Engine) -> None:
    key = engine.idempotency(b"caller", "key", "join", b"message")
    assert await engine.replayed_placement(None, None) is None
    assert await engine.replayed_placement(key, None) is None
    assert await engine.replayed_attach(key, None) is None


async def test_what_a_key_was_used_for_is_recalled_and_another_message_refused(
    engine: Engine,
) -> None:
    lobby = await _lobby(engine)
    key = engine.idempotency(b"caller", "key", "join", b"message")
    placed = await _join(engine, lobby, idempotency=key)
    replayed_placement = await engine.replayed_placement(key, None)
    assert replayed_placement is not None
    assert (replayed_placement.lobby, replayed_placement.tokens) == (lobby, placed.tokens)
    reused = engine.idempotency(b"caller", "key", "join", b"another message")
    assert await _code(engine.replayed_placement(reused, None)) == "IDEMPOTENCY_KEY_REUSED"
    await engine.detach([NAMESPACE], lobby, None)
    assert await _code(engine.replayed_placement(key, None)) == "MATCHMAKER_LOBBY_STOPPED"
