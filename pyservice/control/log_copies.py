"""Copies of the logs of game servers in Pods, as the nodes send them.

The part of the service on a node asks for the runs of its node, and sends new lines of their logs.
It sends those of a log that a client reads at once, and those of other logs every 10 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyservice.concurrency.change_signal import ChangeSignal, wait_at_most
from pyservice.network.node_silence import SILENT_AFTER_S
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import node_logs_pb2 as pb
from pyservice.runtime.copied_log import CopiedLog, service_line
from pyservice.runtime.disk_reserve import is_disk_short
from pyservice.runtime.run_folder import log_text
from pyservice.runtime.run_logs import newest_line
from pyservice.timestamps import now_ms, rfc3339

LAST_COPY_S: Final = 5.0
"""Time in which a node copies the rest of the log of a game server that has ended."""
WAIT_MAX_MS: Final = 10_000
"""Longest wait of a request."""
FRESH_S: Final = 1.0
"""Age of a copy that is new enough for a client."""

_LINES: Final = re.compile(rb"(?:\d{1,18} [oOeE] [^\n]{0,4096}\n)*+")

_log = get_logger("runtime")


@dataclass(slots=True)
class _Copy:
    log: CopiedLog
    node: str = ""
    """Node of the run. Empty: nothing is copied."""
    pod_uid: str = ""
    read_until_s: float = 0.0
    """Until this time, a client reads the log."""
    has_ended: bool = False
    is_complete: bool = False
    """Whether the log of the ended run is copied to its end."""
    copied_s: float = 0.0
    """Time of the newest copy that reached the end of the log, by the monotonic clock. 0: none."""
    copied_ms: int = 0
    """The same in Unix ms."""
    copied: ChangeSignal = field(default_factory=ChangeSignal)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Node:
    heard_s: float
    """Time of the last answer."""
    runs: dict[str, _Copy] = field(default_factory=dict)
    waiting: int = 0
    """Number of requests that wait for an answer."""
    version: int = field(default_factory=time.time_ns)
    """Version of the list of runs. No two control planes have the same."""
    changed: ChangeSignal = field(default_factory=ChangeSignal)

    def change(self) -> None:
        self.version += 1
        self.changed.send()


class LogCopies:
    def __init__(self, folder: Path, log_bytes_max: int, reserve_bytes: int) -> None:
        """`folder` has the folders of runs."""
        self.on_growth: Callable[[str], None] = lambda run_id: None
        """Receives the id of a run after new lines."""
        self._folder = folder
        self._log_bytes_max = log_bytes_max
        self._reserve_bytes = reserve_bytes
        self._copies: dict[str, _Copy] = {}
        self._nodes: dict[str, _Node] = {}
        self._early_reads: dict[str, float] = {}
        """Until when a client reads the log of a run that has no node yet, by run."""
        self._is_disk_short = False
        self._begin_s = _now_s()

    # Runs.

    def begin(self, run_id: str, node: str, pod_uid: str) -> None:
        """Has the log of a run copied from now on.

        Unless a client reads the log, the node learns of the run with its next request. So a start
        costs no request of its own.
        """
        copy = self._copy(run_id)
        if (copy.node, copy.pod_uid) != (node, pod_uid):
            self._leave_node(run_id, copy)
            copy.node, copy.pod_uid = node, pod_uid
            self._node(node).runs[run_id] = copy
            copy.read_until_s = max(copy.read_until_s, self._early_reads.pop(run_id, 0.0))
            if _now_s() < copy.read_until_s:
                self._node(node).change()

    async def finish(self, run_id: str, node: str, pod_uid: str) -> None:
        """Has the rest of the log copied, because the game server has ended.

        Does not wait for a silent node, and otherwise `LAST_COPY_S` at most.
        """
        self.begin(run_id, node, pod_uid)
        copy = self._copy(run_id)
        copy.has_ended = True
        self._node(node).change()
        until_s = _now_s() + LAST_COPY_S
        while not copy.is_complete and self._is_heard(node) and not self._is_disk_short:
            if (left_s := until_s - _now_s()) <= 0:
                return
            await wait_at_most(copy.copied.next, left_s)

    def close(self, run_id: str) -> None:
        """Copies nothing more."""
        copy = self._copies.pop(run_id, None)
        if copy is not None:
            self._leave_node(run_id, copy)

    def missing_output(self, run_id: str) -> str | None:
        """Returns what may be missing in the log of a run that has ended, or None if nothing is."""
        copy = self._copy(run_id)
        if copy.is_complete:
            return None
        if not copy.copied_s:
            return "the last output"
        return f"the output after {rfc3339(copy.copied_ms)}"

    def _copy(self, run_id: str) -> _Copy:
        copy = self._copies.get(run_id)
        if copy is None:
            log = CopiedLog(self._folder / run_id, self._log_bytes_max)
            copy = self._copies[run_id] = _Copy(log)
        return copy

    def _node(self, name: str) -> _Node:
        return self._nodes.setdefault(name, _Node(self._begin_s))

    def _leave_node(self, run_id: str, copy: _Copy) -> None:
        if copy.node:
            self._node(copy.node).runs.pop(run_id, None)

    def _is_heard(self, name: str) -> bool:
        node = self._node(name)
        return bool(node.waiting) or _now_s() < node.heard_s + SILENT_AFTER_S

    # Readers.

    def follow(self, run_id: str, for_ms: int) -> None:
        """Has new lines of a log copied at once for some time."""
        copy, now_s = self._copies.get(run_id), _now_s()
        until_s = now_s + for_ms / 1_000
        if copy is None or not copy.node:
            self._early_reads = {
                **{one: end_s for one, end_s in self._early_reads.items() if now_s < end_s},
                run_id: until_s,
            }
            return
        was_read = now_s < copy.read_until_s
        copy.read_until_s = max(copy.read_until_s, until_s)
        if not was_read:
            self._node(copy.node).change()

    async def refresh(self, run_id: str) -> None:
        """Waits until the copy of a log is at most a second old, if the node answers in a second."""
        copy = self._copies.get(run_id)
        if copy is None or not copy.node or not self._is_heard(copy.node):
            return
        begin_s = _now_s()
        if copy.copied_s < begin_s - FRESH_S:
            self.follow(run_id, round(FRESH_S * 1_000))
            while copy.copied_s < begin_s and (left_s := begin_s + FRESH_S - _now_s()) > 0:
                await wait_at_most(copy.copied.next, left_s)

    # Lines of the service.

    async def add_lines(self, run_id: str, *sentences: str) -> None:
        """Adds sentences to `service` in a log, unless the last one is the newest line there.

        The lines are only hints. On a full disk they are omitted.
        """
        copy = self._copy(run_id)

        def add() -> bool:
            if newest_line(self._folder / run_id, "service") == log_text(sentences[-1]):
                return False
            for sentence in sentences:
                copy.log.add_line(sentence)
            return True

        async with copy.lock:
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(add):
                    self.on_growth(run_id)

    # Nodes.

    async def copy(self, request: pb.CopyRequest) -> pb.CopyResponse:
        """Answers `NodeLogs.Copy`. The caller has checked the name of the node."""
        node = self._node(request.node)
        node.waiting += 1
        try:
            for part in request.parts:
                await self._take(request.node, part)
            until_s = _now_s() + min(request.wait_ms, WAIT_MAX_MS) / 1_000
            while node.version == request.version and (left_s := until_s - _now_s()) > 0:
                await wait_at_most(node.changed.next, left_s)
        finally:
            node.waiting -= 1
            node.heard_s = _now_s()
        response = pb.CopyResponse(version=node.version)
        for run_id, copy in [*node.runs.items()]:
            if (cursor := await self._cursor(run_id, copy)) is not None:
                response.runs.add(
                    run_id=run_id,
                    pod_uid=copy.pod_uid,
                    cursor=cursor,
                    is_read=_now_s() < copy.read_until_s,
                    has_ended=copy.has_ended,
                )
        response.now_us = time.time_ns() // 1_000
        return response

    async def _cursor(self, run_id: str, copy: _Copy) -> bytes | None:
        """Returns None while the log cannot be read."""
        async with copy.lock:
            if copy.log.known_cursor is not None:
                return copy.log.known_cursor
            try:
                return await asyncio.to_thread(copy.log.cursor)
            except OSError as error:
                _log.warning("log of a run cannot be read", id=run_id, error=str(error))
                return None

    async def _take(self, node: str, part: pb.LogPart) -> None:
        copy = self._copies.get(part.run_id)
        if copy is None or (copy.node, copy.pod_uid) != (node, part.pod_uid):
            return  # the run has ended meanwhile, or is on another node
        if not _LINES.fullmatch(part.lines):
            _log.error(
                "lines of a node are refused: their form is wrong", id=part.run_id, node=node
            )
            return
        # Another request may have brought the part already.
        if part.after != await self._cursor(part.run_id, copy):
            return
        if part.cursor != part.after or part.has_gap or part.is_last:
            async with copy.lock:
                try:
                    is_stored = await asyncio.to_thread(self._store, copy, part)
                except OSError as error:
                    _log.warning("log of a run cannot be written", id=part.run_id, error=str(error))
                    return
            if not is_stored:
                return
        if part.is_all:
            copy.copied_s, copy.copied_ms = _now_s(), now_ms()
            copy.is_complete |= part.is_last
        copy.copied.send()
        if part.lines or part.has_gap:
            self.on_growth(part.run_id)

    def _store(self, copy: _Copy, part: pb.LogPart) -> bool:
        """Returns whether the log has the part now. Blocks. Raises OSError."""
        if part.after != copy.log.cursor():
            return False
        if part.lines:
            self._is_disk_short = is_disk_short(self._folder, self._reserve_bytes)
            if self._is_disk_short:
                return False
        sentence = f"Output is missing here: it could not be copied from the node {copy.node}."
        lines = (service_line(sentence) if part.has_gap else b"") + part.lines
        # The node removes the log with the Pod.
        copy.log.append(lines, part.cursor, is_synced=part.is_last)
        return True


def _now_s() -> float:
    return time.monotonic()
