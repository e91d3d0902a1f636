"""Native module with engine and journal: type contract, error codes, and release of the
interpreter lock.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyservice import _native
from tests.native.native_engine import NAMESPACE, Requests, attach, open_engine
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def engine() -> Iterator[_native.Engine]:
    engine = open_engine(None)
    yield engine
    engine.close()


@pytest.fixture
def requests(engine: _native.Engine) -> Requests:
    return Requests(engine)


def test_used_mock_players_of_a_group_are_limited(engine: _native.Engine) -> None:
    group, other_group, token_id = b"g" * 16, b"o" * 16, b"t" * 16

    def consume(group: bytes, number: int) -> None:
        nonce = number.to_bytes(16)
        token = engine.mock_player_token(NAMESPACE, token_id, nonce)
        engine.consume_mock(group, NAMESPACE, token_id, token)

    for number in range(10_000):
        consume(group, number)
    with pytest.raises(_native.Refused) as refused:
        consume(group, 10_000)
    error = refused.value.error
    assert (error.code, error.metadata) == ("RATE_LIMITED", {"limit": "mock_players"})
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s <= 3_600
    consume(other_group, 10_000)


def test_stub_matches_the_module() -> None:
    stubtest = Path(sys.executable).parent / "stubtest"
    result = subprocess.run(
        [stubtest, "pyservice._native"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_boundary_values_are_frozen(engine: _native.Engine, requests: Requests) -> None:
    lobby = engine.lobby(attach(engine)[0])
    assert lobby is not None
    decision = requests.decide(requests.of_player("regions"))
    for frozen in (engine, lobby, lobby.ports[0], decision, engine.status()):
        with pytest.raises(AttributeError):
            frozen.wait = 1  # type: ignore[union-attr, misc]


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.lobby(b"short"),
        lambda engine: engine.recall(b"not 32 bytes"),
        lambda engine: engine.public_token(NAMESPACE, b""),
    ],
)
def test_invalid_argument_is_a_value_error(
    engine: _native.Engine, call: Callable[[_native.Engine], object]
) -> None:
    with pytest.raises(ValueError, match="bytes"):
        call(engine)


def test_responses_wait_for_the_journal_and_signal_the_eventfd(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "journal", segment_bytes=262_144)
    try:
        lobby, token = attach(engine)
        requests = Requests(engine)
        requests.join(lobby)
        wait = engine.status().last
        if engine.request_wake(wait):
            assert is_signalled(engine.wake_fd(), PATIENCE_S)
        assert engine.durable() >= wait
        is_unchanged = requests.of_server("closed", token, is_closed=False) == 0
        assert is_unchanged, "nothing changed and all of it is durable"
    finally:
        engine.close()
    again = open_engine(tmp_path / "journal", segment_bytes=262_144)
    view = again.lobby(lobby)
    again.close()
    assert view is not None
    assert view.players == (0, 1, 0, 0)


def is_signalled(descriptor: int, timeout_s: float = 0) -> bool:
    readable, _, _ = select.select([descriptor], [], [], timeout_s)
    if readable:
        os.eventfd_read(descriptor)
    return bool(readable)


def test_only_changes_that_are_followed_signal_the_eventfd(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "journal", segment_bytes=262_144)

    def wait_durable(lsn: int) -> None:
        if engine.request_wake(lsn):
            assert is_signalled(engine.wake_fd(), PATIENCE_S)

    try:
        lobby, lobby_token = attach(engine, slots=16)
        requests = Requests(engine)

        def report(operation: str, token: str) -> None:
            wait_durable(requests.of_server(operation, lobby_token, player_token=token))

        tokens = [token for _ in range(8) for token in requests.join(lobby)]
        report("connected", tokens.pop())
        assert is_signalled(engine.change_fd(), PATIENCE_S)
        for token in tokens:
            report("connected", token)
            assert not is_signalled(engine.change_fd()), "changed counts are signalled once"
        engine.counts(0)
        report("disconnected", token)
        assert is_signalled(engine.change_fd(), PATIENCE_S)
        wait_durable(requests.of_server("closed", lobby_token, is_closed=True))
        assert is_signalled(engine.change_fd(), PATIENCE_S), "the lobby has a new fact"
    finally:
        engine.close()


def samples(engine: _native.Engine, labels: dict[bytes, str]) -> dict[str, float]:
    lines = engine.render_metrics(labels).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_label_a_thousand_namespaces_and_sum_the_rest(
    engine: _native.Engine, requests: Requests
) -> None:
    namespaces = [number.to_bytes(16, "big") for number in range(1_003)]
    for slots, namespace in enumerate(namespaces, 1):
        requests.join(attach(engine, slots, namespace)[0], namespace)
        engine.detach([namespace], attach(engine, 1, namespace)[0])
    labels = {
        namespace: f"game/{number}" for number, namespace in enumerate(namespaces) if number != 7
    }
    page = samples(engine, labels)
    named = {name.split('"')[1] for name in page if name.startswith("hosting_lobbies{")}
    assert named == {f"game/{number}" for number in range(1_001) if number != 7} | {"other"}

    def of_other(family: str, label: str) -> float:
        return page[f'{family}{{namespace="other",{label}}}']

    # Namespace n has n + 1 slots. Namespace 7 has no label, and 1,001 and 1,002 exceed the limit
    # of labels.
    assert of_other("hosting_slots", 'state="free"') == 7 + 1_001 + 1_002
    assert of_other("hosting_slots", 'state="reserved"') == 3
    assert of_other("hosting_lobbies", 'state="ready"') == 3
    assert of_other("hosting_player_tokens_total", 'outcome="issued"') == 3
    assert of_other("hosting_lobby_ends_total", 'cause="removed"') == 3
    for family, total in [
        ("hosting_lobbies", 1_003),
        ("hosting_slots", sum(range(1, 1_004))),
        ("hosting_player_tokens_total", 1_003),
        ("hosting_lobby_ends_total", 1_003),
    ]:
        assert sum(value for name, value in page.items() if name.startswith(f"{family}{{")) == total


def test_state_counts_are_sums_over_all_namespaces(
    engine: _native.Engine, requests: Requests
) -> None:
    for slots, namespace in enumerate((b"a" * 16, b"b" * 16), 4):
        requests.join(attach(engine, slots, namespace)[0], namespace)
        attach(engine, 1, namespace)
    lobbies, slots_by_state, ports = engine.state_counts()
    assert lobbies == {"starting": 0, "ready": 4, "closed": 0, "silent": 0}
    assert slots_by_state == {"free": 9, "held": 0, "reserved": 2, "connected": 0, "kept": 0}
    page = samples(engine, {})
    assert list(ports) == ["tcp", "udp"]
    for protocol, by_state in ports.items():
        assert by_state["free"] > 0
        for state, count in by_state.items():
            assert page[f'hosting_ports{{protocol="{protocol}",state="{state}"}}'] == count


def test_metrics_count_lobby_ends_by_cause(engine: _native.Engine) -> None:
    engine.detach([NAMESPACE], attach(engine)[0])
    page = samples(engine, {NAMESPACE: "g/n"})
    ends = {
        cause: page[f'hosting_lobby_ends_total{{namespace="g/n",cause="{cause}"}}']
        for cause in ("exited", "start_timeout", "silent", "removed")
    }
    assert ends == {"exited": 0, "start_timeout": 0, "silent": 0, "removed": 1}


def test_metrics_report_recovered_records(tmp_path: Path) -> None:
    for events in (0, 2):
        engine = open_engine(tmp_path / "journal", segment_bytes=262_144)
        page = samples(engine, {})
        if not events:
            attach(engine)
        engine.close()
        assert page["hosting_journal_recovered_events"] == events
        assert page["hosting_journal_recovery_torn_bytes"] == 0
        assert page["hosting_journal_recovery_seconds"] > 0


def test_metrics_report_truncated_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    engine = open_engine(folder, segment_bytes=262_144)
    attach(engine)
    engine.close()
    first = min(folder.glob("seg-*.log"))  # The other segments are preallocated and empty.
    with first.open("r+b") as log:
        log.seek(len(first.read_bytes().rstrip(b"\0")) - 1)
        log.write(b"\0")
    engine = open_engine(folder, segment_bytes=262_144)
    page = samples(engine, {})
    engine.close()
    assert page["hosting_journal_recovery_torn_bytes"] > 0


def test_metrics_without_a_journal_have_no_journal_families(engine: _native.Engine) -> None:
    assert not [name for name in samples(engine, {}) if name.startswith("hosting_journal_")]


def test_directory_in_use_is_rejected_by_name(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "journal", segment_bytes=262_144)
    with pytest.raises(_native.OpenFailed, match="journal"):
        open_engine(tmp_path / "journal", segment_bytes=262_144)
    engine.close()


LABELS = {number.to_bytes(16, "big"): f"game/{number}" for number in range(1_000)}

BATCH_CALLS: dict[str, Callable[[_native.Engine, Requests, str, list[str]], object]] = {
    "heartbeat": lambda _, requests, lobby_token, tokens: requests.of_server(
        "heartbeat", lobby_token, player_tokens=tokens
    ),
    "list": lambda _, requests, *__: requests.decide(requests.of_player("list")),
    "render_metrics": lambda engine, *_: engine.render_metrics(LABELS),
}


@pytest.mark.parametrize("name", BATCH_CALLS)
def test_batch_calls_release_the_interpreter_lock(
    engine: _native.Engine, requests: Requests, name: str
) -> None:
    lobby, lobby_token = attach(engine, slots=60_000)
    tokens = [token for _ in range(300) for token in requests.join(lobby, party_size=64)]
    for _ in range(2_000):
        attach(engine, slots=1)  # Makes the list operation take a measurable time.
    for namespace in LABELS:
        attach(engine, slots=1, namespace=namespace)
    ran = threading.Event()
    gate = threading.Lock()

    def other() -> None:
        gate.acquire()
        ran.set()

    # With this long interval, threads switch only when the call releases the interpreter lock.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        gate.acquire()
        thread = threading.Thread(target=other)
        thread.start()
        gate.release()
        assert not ran.is_set(), "the thread ran before the call: the test shows nothing"
        for _ in range(1_000):
            BATCH_CALLS[name](engine, requests, lobby_token, tokens)
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()


@pytest.mark.timing
def test_slot_is_free_within_10_ms_of_its_deadline(
    engine: _native.Engine, requests: Requests
) -> None:
    ttl_ms = 40
    lobby, _ = attach(engine, player_token_ttl_ms=ttl_ms)
    late_ms = []
    for _ in range(21):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        requests.join(lobby)
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        # Reading a lobby expires nothing, so this observes the timer.
        while (view := engine.lobby(lobby)) is not None and view.players[1]:
            pass
        freed = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert (freed - before) * 1000 >= ttl_ms - 1, "freed early"
        late_ms.append((freed - after) * 1000 - ttl_ms)
    # The lower quartile, because other programs delay some rounds.
    assert sorted(late_ms)[len(late_ms) // 4] <= 10
