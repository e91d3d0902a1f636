"""The Python module over engine and journal: its contract, its slugs, and who may run while it works."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyservice import _native
from pyservice.errors import codes

NAMESPACE, VERSION = b"n" * 16, b"v" * 16

# Codes about lobbies and players that are decided above the engine: configuration, captcha and verification.
DECIDED_ABOVE = {
    "MATCHMAKER_GAME_MODE_NOT_FOUND",
    "MATCHMAKER_REGION_NOT_FOUND",
    "MATCHMAKER_FIND_DISABLED",
    "MATCHMAKER_CREATE_DISABLED",
    "MATCHMAKER_TAGS_DISABLED",
    "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED",
    "MATCHMAKER_PUBLICITY_DISABLED",
    "MATCHMAKER_REGION_NOT_ENABLED",
    "MATCHMAKER_VERIFICATION_FAILED",
    "MATCHMAKER_VERIFICATION_UNAVAILABLE",
}


def open_engine(journal_dir: Path | None, **options: Any) -> _native.Engine:
    return _native.Engine.open(
        None if journal_dir is None else str(journal_dir),
        mac_keys=[(1, b"k" * 32)],
        current_key=1,
        hash_key=b"h" * 32,
        **options,
    )


@pytest.fixture
def engine() -> Iterator[_native.Engine]:
    made = open_engine(None)
    yield made
    made.close()


def attach(engine: _native.Engine, places: int = 4) -> bytes:
    lobby, _, _ = engine.attach(
        NAMESPACE,
        VERSION,
        "duel",
        "local",
        [("game", "127.0.0.1", 7777, False)],
        max_players=(places, places, places),
        player_token_ttl_ms=120_000,
        heartbeat_timeout_ms=0,
        heartbeat_grace_ms=10_000,
        is_join_enabled=True,
        create_ts_ms=0,
        lobby_count_max=1_000_000,
    )
    engine.ready(lobby)
    return lobby


def test_every_slug_of_the_engine_is_a_code_of_the_error_table() -> None:
    unknown = sorted(set(_native.SLUGS) - set(codes()))
    assert not unknown, f"add these to proto/errors.toml and run `make generate`: {unknown}"


def test_every_code_about_lobbies_and_players_is_the_engines_or_decided_above_it() -> None:
    mine = {code for code in codes() if code.startswith(("MATCHMAKER_", "PLAYER_"))}
    missing = sorted(mine - DECIDED_ABOVE - set(_native.SLUGS))
    assert not missing, (
        f"add these to native/core/src/error.rs, or to DECIDED_ABOVE here: {missing}"
    )
    both = sorted(DECIDED_ABOVE & set(_native.SLUGS))
    assert not both, f"take these out of DECIDED_ABOVE here: {both}"


def test_the_stub_is_what_the_module_has() -> None:
    stubtest = Path(sys.executable).parent / "stubtest"
    result = subprocess.run(
        [stubtest, "pyservice._native"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_what_crosses_the_boundary_is_frozen(engine: _native.Engine) -> None:
    lobby = engine.lobby(attach(engine))
    assert lobby is not None
    placed = engine.join(NAMESPACE, lobby.id)
    for frozen in (engine, lobby, lobby.ports[0], placed, engine.status()):
        with pytest.raises(AttributeError):
            frozen.wait = 1  # type: ignore[union-attr, misc]


def test_a_refusal_carries_its_slug_and_context(engine: _native.Engine) -> None:
    lobby = attach(engine, places=1)
    with pytest.raises(_native.Refused) as refused:
        engine.join(NAMESPACE, lobby, party_size=2)
    assert refused.value.slug == "BODY_INVALID"
    assert refused.value.context == {"limit": 1}
    with pytest.raises(_native.Refused) as refused:
        engine.heartbeat(lobby, ["player_x"])
    assert refused.value.context == {"index": 0}


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.join(b"short", b"x" * 16),
        lambda engine: engine.connected(b"x" * 16, "player_x", b"not 32 bytes"),
        lambda engine: engine.public_token(NAMESPACE, b""),
    ],
)
def test_a_callers_mistake_is_a_value_error(
    engine: _native.Engine, call: Callable[[_native.Engine], object]
) -> None:
    with pytest.raises(ValueError, match="bytes"):
        call(engine)


def test_answers_wait_for_the_journal_and_the_eventfd_tells(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "journal", segment_bytes=262_144)
    try:
        lobby = attach(engine)
        wait = engine.join(NAMESPACE, lobby).wait
        end = time.monotonic() + 10
        while engine.durable() < wait:
            assert time.monotonic() < end
        assert engine.wake_fd() >= 0
        assert engine.set_closed(lobby, False) == 0, "nothing changed and all of it is durable"
    finally:
        engine.close()
    again = open_engine(tmp_path / "journal", segment_bytes=262_144)
    view = again.lobby(lobby)
    again.close()
    assert view is not None
    assert view.players == (0, 1, 0, 0)


def test_a_directory_that_is_in_use_is_refused_by_name(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "journal", segment_bytes=262_144)
    with pytest.raises(_native.OpenFailed, match="journal"):
        open_engine(tmp_path / "journal", segment_bytes=262_144)
    engine.close()


BATCH_CALLS: dict[str, Callable[[_native.Engine, bytes, list[str]], object]] = {
    "heartbeat": lambda engine, lobby, tokens: engine.heartbeat(lobby, tokens),
    "list_lobbies": lambda engine, lobby, tokens: engine.list_lobbies(NAMESPACE, VERSION),
    "render_metrics": lambda engine, lobby, tokens: engine.render_metrics({NAMESPACE: "g/n"}),
}


@pytest.mark.parametrize("name", BATCH_CALLS)
def test_batch_calls_let_other_threads_run(engine: _native.Engine, name: str) -> None:
    lobby = attach(engine, places=60_000)
    tokens = [
        token for _ in range(300) for token in engine.join(NAMESPACE, lobby, party_size=64).tokens
    ]
    for _ in range(2_000):
        attach(engine, places=1)  # so that listing and rendering take long enough to be noticed
    ran = threading.Event()
    gate = threading.Lock()

    def other() -> None:
        gate.acquire()
        ran.set()

    # With so long an interval no thread is made to give way: the other one runs only when the call lets go.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        gate.acquire()
        thread = threading.Thread(target=other)
        thread.start()
        gate.release()
        assert not ran.is_set(), "the thread ran before the call: the test shows nothing"
        for _ in range(1_000):
            BATCH_CALLS[name](engine, lobby, tokens)
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()
