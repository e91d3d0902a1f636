"""Watch of lobby servers that do not call the service: reports when they are ready, and their players.

Every run is watched by a task of its own, so a server that does not answer delays no other. All that
a watch knows is in the placement and the log of the run. So a new service continues it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from pyservice._native import LogPattern
from pyservice.concurrency.backoff import Backoff
from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.runtime.adapters import Adapter
from pyservice.runtime.run_logs import EMPTY_SPAN, read_forward
from pyservice.runtime.run_requests import (
    Backend,
    LobbyProgress,
    ReportUndelivered,
    RunPlacement,
    RunRequest,
)
from pyservice.runtime.server_queries import QueryAnswer, QueryFailed, query_server

_INTERVAL_S: Final = 0.25
_READY_QUERY_INTERVAL_S: Final = 1.0
_COUNT_INTERVAL_S: Final = 5.0
_RESTART_DELAY_S: Final = 5.0
_RETRY_DELAYS_S: Final = (0.25, 0.5, 1.0, 2.0)
_LOG_LINES_MAX: Final = 1_000
_LOG_BYTES_MAX: Final = 4 << 20
_FOLLOW_MS: Final = 5_000
"""Time for which each read of a log asks for its new lines."""

LEFT_AFTER_S: Final = 30.0
"""Time for which every answer has fewer players, before slots are freed."""

_log = get_logger("runtime")


class WatchedRun(Protocol):
    """A game server of either placement."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def parameters(self) -> RunRequest | RunPlacement: ...
    @property
    def backends(self) -> Mapping[str, Backend]:
        """Addresses and numbers of the ports behind edge-guard, by name. Empty before they are known."""
        ...

    @property
    def port_protocols(self) -> Mapping[str, str]:
        """Protocols of the ports by name. Empty for a run that is not requested."""
        ...


class WatchedRuns(Protocol):
    @property
    def runs(self) -> Mapping[str, WatchedRun]: ...


class PortWaiter(Protocol):
    """Finds out whether a game server listens, as its placement allows it."""

    async def wait_listening(self, run: WatchedRun, port: str) -> None:
        """Waits until the run listens on the port with this name."""
        ...


class AdapterReporter(Protocol):
    """Receives what a watch has found. Its methods raise ReportUndelivered and ServiceError."""

    @property
    def lobby_progress(self) -> Callable[[str], Awaitable[LobbyProgress | None]] | None:
        """Returns what a lobby has reached, or None if that is unknown."""
        ...

    async def report_ready(self, run_id: str) -> None: ...
    async def report_players(self, run_id: str, connected: int, *, may_free: bool) -> None: ...


class AnsweredCounts:
    """Player counts of the last answers of one server."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, int]] = deque()
        self._since_s: float | None = None

    def add(self, now_s: float, players: int) -> tuple[int, bool]:
        """Returns the number of players that count as connected, and whether it may free slots.

        It is the greatest of the last 30 s. It frees slots after 30 s of answers.
        """
        self._since_s = now_s if self._since_s is None else self._since_s
        self._answers.append((now_s, players))
        while self._answers[0][0] < now_s - LEFT_AFTER_S:
            self._answers.popleft()
        return max(count for _, count in self._answers), now_s - self._since_s >= LEFT_AFTER_S

    def clear(self) -> None:
        """Forgets the answers, because the server did not answer a query."""
        self._answers.clear()
        self._since_s = None


class AdapterWatch:
    def __init__(
        self,
        reporter: AdapterReporter,
        ports: PortWaiter,
        folder: Path,
        follow_log: Callable[[str, int], None] = lambda run_id, for_ms: None,
    ) -> None:
        """`folder` has the folders of runs. `follow_log` has new lines of a run's log written at once
        for some ms.
        """
        self._reporter = reporter
        self._ports = ports
        self._folder = folder
        self._follow_log = follow_log
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self, watched: WatchedRuns) -> None:
        try:
            while True:
                self._follow(watched.runs)
                await asyncio.sleep(_INTERVAL_S)
        finally:
            await cancel_and_wait(*self._tasks.values())

    def _follow(self, runs: Mapping[str, WatchedRun]) -> None:
        for run_id, run in runs.items():
            if run.state == "running" and run_id not in self._tasks:
                adapter = run.parameters.adapter
                if adapter is not None:
                    self._tasks[run_id] = asyncio.create_task(self._watch(run, adapter))
        for run_id in [*self._tasks]:
            watched = runs.get(run_id)
            if watched is None or watched.state != "running":
                self._tasks.pop(run_id).cancel()

    async def _watch(self, run: WatchedRun, adapter: Adapter) -> None:
        """Watches a run until it is cancelled. Begins again after an error."""
        while True:
            try:
                if adapter.ready != "calls" and not await self._was_ready(run):
                    await self._wait_ready(run, adapter)
                    await self._report_ready(run)
                if adapter.players == "query":
                    await self._count_players(run, adapter)
                return
            except Exception as error:  # noqa: BLE001 — must not stop the watch of other runs
                _log.error("the watch of a game server failed", id=run.id, exc_info=error)
            await asyncio.sleep(_RESTART_DELAY_S)

    async def _was_ready(self, run: WatchedRun) -> bool:
        """Returns whether an earlier service has reported it. Its sign may be gone, such as a line."""
        read = self._reporter.lobby_progress
        progress = None if read is None else await read(run.id)
        return progress is not None and progress.is_ready

    async def _wait_ready(self, run: WatchedRun, adapter: Adapter) -> None:
        match adapter.ready:
            case "port":
                await self._ports.wait_listening(run, adapter.port)
            case "log":
                follow = functools.partial(self._follow_log, run.id, _FOLLOW_MS)
                pattern = LogPattern(adapter.log_match)
                await wait_for_line(self._folder / run.id, pattern, follow)
            case "query":
                await _wait_for_answer(run, adapter)

    async def _report_ready(self, run: WatchedRun) -> None:
        backoff = Backoff(_RETRY_DELAYS_S)
        while True:
            try:
                return await self._reporter.report_ready(run.id)
            except (ReportUndelivered, ServiceError) as error:
                if not backoff.failures:
                    _log.warning("a ready lobby is reported again", id=run.id, error=str(error))
            await asyncio.sleep(backoff.next_s())

    async def _count_players(self, run: WatchedRun, adapter: Adapter) -> None:
        counts = AnsweredCounts()
        loop = asyncio.get_running_loop()
        while True:
            answer = await _query(run, adapter)
            if answer is None or answer.players is None:
                counts.clear()
            else:
                connected, may_free = counts.add(loop.time(), answer.players)
                try:
                    await self._reporter.report_players(run.id, connected, may_free=may_free)
                except (ReportUndelivered, ServiceError) as error:
                    _log.debug("players were not counted", id=run.id, error=str(error))
            await asyncio.sleep(_COUNT_INTERVAL_S)


async def _wait_for_answer(run: WatchedRun, adapter: Adapter) -> None:
    while True:
        if await _query(run, adapter) is not None:
            return
        await asyncio.sleep(_READY_QUERY_INTERVAL_S)


async def _query(run: WatchedRun, adapter: Adapter) -> QueryAnswer | None:
    """Returns None if the game server does not answer, or has no address yet."""
    backend = run.backends.get(adapter.query_port)
    if backend is None:
        return None
    try:
        return await query_server(adapter.query, *backend, adapter.query_path)
    except QueryFailed as error:
        _log.debug("a game server did not answer a query", id=run.id, error=str(error))
        return None


async def wait_for_line(
    path: Path, pattern: LogPattern, follow: Callable[[], None] = lambda: None
) -> None:
    """Waits until a line of the program matches. Lines of the service do not count.

    `path` is the folder of the run, which may not exist yet. `follow` is called before each read.
    """
    position = 0
    while True:
        follow()
        read = functools.partial(
            read_forward, path, "all", position, _LOG_LINES_MAX, EMPTY_SPAN, _LOG_BYTES_MAX
        )
        scan = await asyncio.to_thread(read)
        if scan is None:
            # The unfinished write of a copy was removed, and its lines are written again.
            position = 0
        else:
            lines = (line for line in scan.lines if line.stream != "service")
            if any(pattern.matches(line.text) for line in lines):
                return
            position = scan.stop
        if scan is None or scan.is_last:
            await asyncio.sleep(_INTERVAL_S)
