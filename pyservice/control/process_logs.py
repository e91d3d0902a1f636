"""Operations on logs of servers and lobbies, with long polls for new lines.

While a request waits for new lines, the placement of the process reports each new line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, cast

from pyservice.calls import Call, Caller, WaitForChange
from pyservice.control.lobby_records import LobbyRecordLookup
from pyservice.control.servers import find_server
from pyservice.pb.hosting.v1 import logs_pb2, servers_pb2
from pyservice.runtime.run_folder import LogLine, LogSelection
from pyservice.runtime.run_logs import LogLines, LogReader
from pyservice.storage.database import Database
from pyservice.timestamps import rfc3339
from pyservice.watch import WAIT_MS, Topics, wait_for_change

_FOLLOW_MS: Final = WAIT_MS + 5_000
_OWN: Final = 8
"""Characters of the run id at the start of a log index."""


class LogSource(Protocol):
    def follow_log(self, run_id: str, for_ms: int) -> None:
        """Reports each new line of a log for some time."""
        ...

    async def refresh_log(self, run_id: str) -> None:
        """Waits until a log has the output of now, for a second at most."""
        ...


class ProcessLogOperations:
    def __init__(
        self,
        database: Database,
        topics: Topics,
        record_lookup: LobbyRecordLookup,
        folder_of: Callable[[str], Path],
        source: LogSource,
    ) -> None:
        self._database = database
        self._topics = topics
        self._record_lookup = record_lookup
        self._folder_of = folder_of
        self._source = source
        self._logs = LogReader()

    def close(self) -> None:
        self._logs.close()

    def notify_growth(self, run_id: str) -> None:
        self._topics.bump(_topic(run_id))

    async def of_server(
        self, request: servers_pb2.GetServerLogsRequest, caller: Caller
    ) -> servers_pb2.GetServerLogsResponse | WaitForChange:
        async with self._database.read() as tx:
            row = await find_server(tx, caller, request)
        response = servers_pb2.GetServerLogsResponse()
        wait = await self._read(response, row.server_id, request, caller.call)
        return wait or response

    async def of_lobby(
        self, request: logs_pb2.GetLobbyLogsRequest, caller: Caller
    ) -> logs_pb2.GetLobbyLogsResponse | WaitForChange:
        row = await self._record_lookup.find_in_game(caller, request.game_id, request.lobby_id)
        response = logs_pb2.GetLobbyLogsResponse()
        wait = await self._read(response, row.lobby_id, request, caller.call)
        return wait or response

    async def _read(
        self,
        response: servers_pb2.GetServerLogsResponse | logs_pb2.GetLobbyLogsResponse,
        run_id: str,
        request: servers_pb2.GetServerLogsRequest | logs_pb2.GetLobbyLogsRequest,
        call: Call,
    ) -> WaitForChange | None:
        path = self._folder_of(run_id)
        await self._source.refresh_log(run_id)
        if request.format == "text":
            response.text = await self._text(path, request.stream or "all")
            return None
        stream = cast(LogSelection, request.stream)
        own = f"{run_id[-_OWN:]}-{stream}"
        position = _position(request.watch_index, own)
        lines = None if position is None else await self._logs.after(path, stream, position)
        if lines is not None and _is_to_wait(lines, call):
            # Taken before the read, so that no line is missed.
            sequence = self._topics.sequence
            self._source.follow_log(run_id, _FOLLOW_MS)
            lines = await self._logs.after(path, stream, lines.position)
            if lines is not None and _is_to_wait(lines, call):
                return wait_for_change(_topic(run_id), sequence=sequence, run=self._topics.run)
        if lines is None:
            lines = await self._logs.newest(path, stream)
        response.lines.extend(line.text for line in lines.lines)
        response.timestamps.extend(rfc3339(line.time_us // 1000) for line in lines.lines)
        response.watch.index = f"{own}.{lines.position}"
        return None

    async def _text(self, path: Path, stream: str) -> str:
        lines = await self._logs.newest(path, cast(LogSelection, stream))
        return "".join(map(_text_line, lines.lines))


def _text_line(line: LogLine) -> str:
    return f"{rfc3339(line.time_us // 1000)} {line.stream} {line.text}\n"


def _is_to_wait(lines: LogLines, call: Call) -> bool:
    return not lines.lines and lines.is_all and not call.long_poll_expired


def _topic(run_id: str) -> str:
    return f"logs/{run_id}"


def _position(index: str, own: str) -> int | None:
    name, _, digits = index.partition(".")
    if name != own or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        return None
    return int(digits)
