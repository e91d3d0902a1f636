"""Copies the logs of the game servers on a node to the service.

The service names the runs and stores how far each log is copied. So a new process of the node goes
on where an earlier one has stopped, and two processes at once copy nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from google.protobuf.message import DecodeError

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.errors import ServiceError, Unreachable
from pyservice.ids import is_uuid
from pyservice.kubernetes.pod_manifest import GAME_SERVER
from pyservice.node.container_log import LINE_BYTES_MAX, ContainerLog
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import node_logs_pb2 as pb

POD_LOGS: Final = Path("/var/log/pods")
"""Folder of the logs of all Pods of a node: one folder `<namespace>_<Pod>_<UID>` for each."""
COPY_S: Final = 10.0
"""Time between two copies of a log. If the node is lost, at most so much of the log is lost."""
READ_S: Final = 0.5
"""Time between two copies of a log that a client reads."""

_RETRY_S: Final = 1.0
# Shorter than the time in which the service waits for the rest of a log.
_RETRIES_S: Final = doubling(0.5, 2.0)
_PART_BYTES: Final = 512 << 10
_REQUEST_BYTES: Final = 2 << 20
_MARGIN_S: Final = 10.0
"""Time for a response beyond the requested wait."""
_CLOCK_ERROR_US: Final = 2_000_000
"""Difference between two clocks that the way of a message may cause."""
_COPY: Final = "hosting.internal.v1.NodeLogs.Copy"

CallService = Callable[[str, Any, float], Awaitable[Any]]
"""Calls a method with a request and a timeout in seconds. Raises ServiceError and Unreachable."""

_log = get_logger("node")


@dataclass(slots=True)
class _Source:
    log: ContainerLog
    pod_uid: str
    cursor: bytes
    due_s: float
    is_read: bool = False
    has_ended: bool = False

    @property
    def urgency(self) -> tuple[bool, float]:
        """Orders logs that are due: first those of Pods that wait for their deletion."""
        return not self.has_ended, self.due_s


class LogCopier:
    def __init__(
        self,
        call: CallService,
        node: str,
        namespace: str,
        bytes_per_s: int,
        folder: Path = POD_LOGS,
    ) -> None:
        """Reads only logs of `namespace`."""
        self._call = call
        self._node = node
        self._namespace = namespace
        self._bytes_per_s = bytes_per_s
        self._folder = folder
        self._sources: dict[str, _Source] = {}
        self._version = 0
        self._correction_us = 0
        self._begin_s = _now_s()
        self._free_s = 0.0
        """Time at which the next lines may be sent."""

    async def run(self) -> NoReturn:
        backoff = Backoff(_RETRIES_S)
        try:
            while True:
                try:
                    await self._copy()
                    backoff.reset()
                    continue
                except (ServiceError, Unreachable) as error:
                    if not backoff.failures:
                        _log.warning("logs are not copied", node=self._node, problem=str(error))
                except Exception as error:  # noqa: BLE001 — one damaged log must not stop the others
                    _log.error("logs are not copied", node=self._node, exc_info=error)
                await asyncio.sleep(backoff.next_s())
        finally:
            for source in self._sources.values():
                source.log.close()

    async def _copy(self) -> None:
        """Sends what is due, and takes the list of runs."""
        # The files are closed only when no thread reads them.
        parts = await await_despite_cancel(asyncio.to_thread(self._read, self._due()))
        pause_s = self._pause_s() if all(part.is_all for part in parts) else 0.0
        request = pb.CopyRequest(
            node=self._node, parts=parts, version=self._version, wait_ms=round(pause_s * 1_000)
        )
        response = await self._call(_COPY, request, pause_s + _MARGIN_S)
        self._take(response, {part.run_id: part for part in parts})

    def _due(self) -> list[tuple[str, _Source]]:
        """Returns the logs to read now, the most urgent first."""
        now_s = _now_s()
        if now_s < self._free_s:
            return []
        due = [item for item in self._sources.items() if item[1].due_s <= now_s]
        return sorted(due, key=lambda item: item[1].urgency)

    def _pause_s(self) -> float:
        """Returns the time until a log is due."""
        now_s = _now_s()
        due_s = min((source.due_s for source in self._sources.values()), default=now_s + COPY_S)
        return min(max(due_s, self._free_s, now_s) - now_s, COPY_S)

    def _read(self, due: list[tuple[str, _Source]]) -> list[pb.LogPart]:
        """Reads the new lines of some logs, and sets the time of their next copy. Blocks."""
        parts: list[pb.LogPart] = []
        left = limit = max(min(_REQUEST_BYTES, self._bytes_per_s), LINE_BYTES_MAX)
        for run_id, source in due:
            if left < LINE_BYTES_MAX:
                break
            now_s = _now_s()
            # All logs that no client reads are in one request. Other nodes have other times.
            next_s = now_s + COPY_S - (now_s - self._begin_s) % COPY_S
            source.due_s = now_s + READ_S if source.is_read else next_s
            try:
                parts.append(self._part(run_id, source, min(left, _PART_BYTES)))
            except (OSError, DecodeError) as error:
                _log.error("log is not readable", id=run_id, error=str(error))
                continue
            left -= len(parts[-1].lines)
        self._free_s = _now_s() + (limit - left) / self._bytes_per_s
        return parts

    def _part(self, run_id: str, source: _Source, bytes_max: int) -> pb.LogPart:
        """Raises OSError and DecodeError."""
        piece = source.log.read(
            pb.LogCursor.FromString(source.cursor),
            bytes_max,
            correction_us=self._correction_us,
            has_ended=source.has_ended,
        )
        return pb.LogPart(
            run_id=run_id,
            pod_uid=source.pod_uid,
            after=source.cursor,
            cursor=piece.cursor.SerializeToString(),
            lines=piece.lines,
            has_gap=piece.has_gap,
            is_all=piece.is_all,
            is_last=piece.is_all and source.has_ended,
        )

    def _take(self, response: pb.CopyResponse, parts: dict[str, pb.LogPart]) -> None:
        self._version = response.version
        difference_us = response.now_us - time.time_ns() // 1_000
        self._correction_us = difference_us if abs(difference_us) > _CLOCK_ERROR_US else 0
        runs = {run.run_id: run for run in response.runs}
        for run_id, source in [*self._sources.items()]:
            if run_id not in runs or source.pod_uid != runs[run_id].pod_uid:
                source.log.close()
                del self._sources[run_id]
        for run in runs.values():
            # Both are parts of a path.
            if is_uuid(run.run_id) and is_uuid(run.pod_uid):
                self._follow(run, parts.get(run.run_id))

    def _follow(self, run: pb.CopiedRun, part: pb.LogPart | None) -> None:
        """Takes how far a log is stored. `part` was in the request of this response."""
        now_s = _now_s()
        source = self._sources.get(run.run_id)
        if source is None:
            folder = self._folder / f"{self._namespace}_{run.run_id}_{run.pod_uid}" / GAME_SERVER
            log = ContainerLog(folder, run.pod_uid)
            source = self._sources[run.run_id] = _Source(log, run.pod_uid, run.cursor, now_s)
        elif part is not None and part.cursor != run.cursor:
            source.due_s = now_s + _RETRY_S
        elif part is not None and not part.is_all:
            source.due_s = now_s
        if (run.is_read and not source.is_read) or (run.has_ended and not source.has_ended):
            source.due_s = now_s
        source.cursor, source.is_read, source.has_ended = run.cursor, run.is_read, run.has_ended


def _now_s() -> float:
    return time.monotonic()
