"""Counts of answered queries, servers that misbehave, and the log pattern of an adapter."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyservice._native import LogPattern
from pyservice.runtime import adapter_watch, server_queries
from pyservice.runtime.adapter_watch import (
    LEFT_AFTER_S,
    AdapterWatch,
    AnsweredCounts,
    wait_for_line,
)
from pyservice.runtime.adapters import Adapter
from pyservice.runtime.copied_log import SEGMENT_BYTES, CopiedLog
from pyservice.runtime.listening_ports import ListeningPorts
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_requests import LobbyProgress
from pyservice.runtime.server_queries import QueryAnswer
from tests.runtime.recorded_answers import PREFIX
from tests.support.quake_server import QuakeServer, status
from tests.support.waiting import PATIENCE_S, until_met


def test_fewer_players_free_slots_after_30_s_of_answers() -> None:
    counts = AnsweredCounts()
    assert counts.add(0, 3) == (3, False)
    assert counts.add(5, 0) == (3, False), "one answer may be wrong"
    assert counts.add(LEFT_AFTER_S, 0) == (3, True)
    assert counts.add(LEFT_AFTER_S + 1, 0) == (0, True)
    assert counts.add(LEFT_AFTER_S + 2, 5) == (5, True)


def test_unanswered_query_frees_nothing() -> None:
    counts = AnsweredCounts()
    counts.add(0, 3)
    counts.add(100, 3)
    counts.clear()
    assert counts.add(101, 0) == (0, False), "the server may have restarted"
    assert counts.add(101 + LEFT_AFTER_S, 0) == (0, True)


def test_log_pattern_takes_linear_time() -> None:
    pattern = LogPattern("(a*)*b")
    began = time.process_time()
    assert not pattern.matches("a" * 100_000)
    assert pattern.matches("x" * 100_000 + "b")
    assert time.process_time() - began < 10


@pytest.mark.parametrize("expression", ["(", r"\1", "(?=a)", "a{1000}{1000}"])
def test_log_pattern_refuses_other_syntax_and_large_expressions(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        LogPattern(expression)


@pytest.mark.anyio
async def test_line_of_the_service_does_not_match(tmp_path: Path) -> None:
    segment = tmp_path / "log" / "0"
    segment.parent.mkdir()
    segment.write_bytes(
        b"1 s Nothing listens at PORT_GAME=1, but the map is loaded.\n1 o loading\n"
    )
    waiting = asyncio.create_task(wait_for_line(tmp_path, LogPattern("map is loaded")))
    finished, _ = await asyncio.wait([waiting], timeout=1)
    assert not finished
    with segment.open("ab") as log:
        log.write(b"2 e the map is loaded\n")
    await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.mark.anyio
async def test_line_of_a_copied_log_matches_after_old_segments_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    waiting = asyncio.create_task(wait_for_line(path, LogPattern("map is loaded")))
    log = CopiedLog(path, 0)
    filler = b"1 o loading\n" * (SEGMENT_BYTES // 12)
    for number in range(5):
        log.append(filler, b"%d" % number)
    assert RunFolder(path).segments()[0][0] > 0, "the beginning is removed"
    finished, _ = await asyncio.wait([waiting], timeout=1)
    assert not finished
    log.append(b"2 e the map is loaded\n", b"last")
    await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.mark.anyio
async def test_lines_that_a_copy_writes_again_are_read_again(tmp_path: Path) -> None:
    log = CopiedLog(tmp_path, 0)
    log.append(b"1 o one\n", b"1")
    [(_, segment)] = RunFolder(tmp_path).segments()
    whole = segment.read_bytes()
    segment.write_bytes(whole + b"1 o unfinished\n" * 100)
    reads = asyncio.Semaphore(0)
    pattern = LogPattern("map is loaded")
    waiting = asyncio.create_task(wait_for_line(tmp_path, pattern, reads.release))
    for _ in range(2):
        await asyncio.wait_for(reads.acquire(), PATIENCE_S)
    segment.write_bytes(whole + b"1 o the map is loaded\n")
    await asyncio.wait_for(waiting, PATIENCE_S)


class PlayerReports:
    """Receiver of counts. Reports which of them may free slots."""

    def __init__(self) -> None:
        self.counts: dict[str, list[tuple[int, bool]]] = {}

    async def lobby_progress(self, run_id: str) -> LobbyProgress | None:
        return LobbyProgress(is_ready=True)

    async def report_ready(self, run_id: str) -> None:
        raise AssertionError("the server calls ready itself")

    async def report_players(self, run_id: str, connected: int, *, may_free: bool) -> None:
        self.counts.setdefault(run_id, []).append((connected, may_free))

    def least_of(self, run_id: str) -> int | None:
        """Returns the smallest count that may free slots."""
        return min((count for count, may_free in self.counts[run_id] if may_free), default=None)


def run_at(run_id: str, port: int, **fields: str) -> Any:
    adapter = Adapter(port="game", query_port="game", query="quake3", players="query", **fields)
    return SimpleNamespace(
        id=run_id,
        state="running",
        parameters=SimpleNamespace(adapter=adapter),
        backends={"game": ("127.0.0.1", port)},
        port_protocols={},
    )


@contextlib.asynccontextmanager
async def watched_servers(
    reports: PlayerReports, *names: str, **fields: str
) -> AsyncIterator[Mapping[str, QuakeServer]]:
    loop = asyncio.get_running_loop()
    servers, runs = {}, {}
    for name in names:
        transport, servers[name] = await loop.create_datagram_endpoint(
            QuakeServer, local_addr=("127.0.0.1", 0)
        )
        runs[name] = run_at(name, transport.get_extra_info("sockname")[1], **fields)
    supervisor: Any = SimpleNamespace(runs=runs)
    watch = AdapterWatch(reports, ListeningPorts(), Path("servers"))
    watching = asyncio.create_task(watch.run(supervisor))
    try:
        yield servers
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        for server in servers.values():
            server.transport.close()
        # The transports close in the next turn of the loop.
        await asyncio.sleep(0)


@pytest.fixture
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_watch, "_COUNT_INTERVAL_S", 0.02)
    monkeypatch.setattr(adapter_watch, "LEFT_AFTER_S", 1.0)
    monkeypatch.setattr(server_queries, "TIMEOUT_S", 0.2)


@pytest.mark.anyio
async def test_lobby_that_was_ready_needs_its_line_no_more() -> None:
    reports = PlayerReports()
    async with watched_servers(reports, "a", ready="log", log_match="the line is removed"):
        await until_met(lambda: reports.counts.get("a"))


@pytest.mark.full
@pytest.mark.anyio
@pytest.mark.usefixtures("_short_times")
async def test_servers_that_misbehave_free_no_slots_and_delay_no_other() -> None:
    reports = PlayerReports()
    names = ("healthy", "mute", "flood", "other", "sometimes")
    async with watched_servers(reports, *names) as servers:
        await until_met(
            lambda: all(name in reports.counts and reports.least_of(name) == 3 for name in names)
        )
        servers["mute"].answers = list
        servers["flood"].answers = lambda: [b"x" * 1_000] * 200
        servers["other"].answers = lambda: [PREFIX + b"disconnect"] * 8
        # Every second answer has no players.
        sometimes = servers["sometimes"]
        sometimes.answers = lambda: [status(3 if sometimes.queries % 2 == 0 else 0)]
        asked = {name: servers[name].queries for name in names}
        servers["healthy"].answers = lambda: [status(0)]
        await until_met(lambda: reports.least_of("healthy") == 0)
        await until_met(lambda: all(servers[name].queries > asked[name] + 5 for name in names))
        assert [reports.least_of(name) for name in names[1:]] == [3, 3, 3, 3]
        servers["healthy"].answers = lambda: [status(2)]
        servers["mute"].answers = lambda: [status(5)]
        await until_met(lambda: reports.counts["healthy"][-1][0] == 2)
        await until_met(lambda: reports.counts["mute"][-1] == (5, True))


@pytest.mark.anyio
@pytest.mark.usefixtures("_short_times")
async def test_failed_watch_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_watch, "_RESTART_DELAY_S", 0.02)
    queries = itertools.count()

    async def answer(*_: object) -> QueryAnswer:
        if next(queries) == 1:
            raise RuntimeError("a bug")
        return QueryAnswer(1)

    monkeypatch.setattr(adapter_watch, "query_server", answer)
    reports = PlayerReports()
    async with watched_servers(reports, "server"):
        await until_met(lambda: len(reports.counts.get("server", [])) > 1)
