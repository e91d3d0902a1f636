"""Sessions of players at counted ports, as the processes of edge-guard report them.

Each process reports the whole set of a lobby. The sets of all processes of a node together connect
and free the slots of its lobbies. If a query counts its players, they keep the slots of players with
a session.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyservice.dataplane.engine_commands import ProcessCommands
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import routes_pb2 as pb
from pyservice.schema.validation import require_valid

REPORT_TIMEOUT_S: Final = 15.0
"""Silence after which the sessions of a process count as ended. It reports each lobby every 5 s."""


class _Report(NamedTuple):
    """Numbers of sessions in one lobby, by client."""

    sessions: Mapping[bytes, int]
    at_s: float


@dataclass(slots=True)
class _Process:
    question: int = 0
    is_settled: bool = False
    last_report_s: float = 0.0
    lobbies: dict[str, _Report] = field(default_factory=dict)


class PlayerSessions:
    def __init__(
        self, processes: ProcessCommands, node_of: Callable[[bytes], str] = lambda lobby: ""
    ) -> None:
        """`node_of` returns the node of a lobby. It is empty for all lobbies of a single machine."""
        self._commands = processes
        self._node_of = node_of
        self._processes: defaultdict[str, dict[str, _Process]] = defaultdict(dict)
        """Processes by node and instance."""
        self._since_s: float | None = None
        self._next_cleanup_s = 0.0

    async def count(self, request: pb.CountSessionsRequest) -> pb.CountSessionsResponse:
        """Connects and frees slots. Returns for each address whether it has a slot.

        Frees slots only if all processes that can have sessions have reported them. Raises
        STORAGE_FULL. Edge-guard then repeats the request.
        """
        require_valid(request)
        now_s = asyncio.get_running_loop().time()
        self._since_s = now_s if self._since_s is None else self._since_s
        process = self._processes[request.node].setdefault(request.instance, _Process())
        if request.question <= process.question:
            return pb.CountSessionsResponse()
        process.question, process.is_settled = request.question, request.is_settled
        process.last_report_s = now_s
        self._forget_silent(now_s)
        own = [self._node_of(raw_id(lobby.owner_id)) == request.node for lobby in request.lobbies]
        for lobby, is_own in zip(request.lobbies, own, strict=True):
            if is_own:
                process.lobbies[lobby.owner_id] = _Report(
                    {address.client: address.sessions for address in lobby.addresses}, now_s
                )
        admissions = await asyncio.gather(
            *(
                self._match(lobby, now_s) if is_own else _refuse_all(lobby)
                for lobby, is_own in zip(request.lobbies, own, strict=True)
            )
        )
        return pb.CountSessionsResponse(lobbies=admissions)

    def _forget_silent(self, now_s: float) -> None:
        for node, processes in [*self._processes.items()]:
            silent = [
                instance
                for instance, process in processes.items()
                if now_s - process.last_report_s > REPORT_TIMEOUT_S
            ]
            for instance in silent:
                del processes[instance]
            if not processes:
                del self._processes[node]
        if now_s < self._next_cleanup_s:
            return
        self._next_cleanup_s = now_s + REPORT_TIMEOUT_S
        for processes in self._processes.values():
            for process in processes.values():
                process.lobbies = {
                    lobby: report
                    for lobby, report in process.lobbies.items()
                    if now_s - report.at_s <= REPORT_TIMEOUT_S
                }

    async def match_count(self, lobby: bytes, count: int, *, may_free: bool) -> None:
        """Connects slots up to a count of players, and frees those without a session if `may_free`.

        Raises STORAGE_FULL, or LOBBY_STOPPED.
        """
        now_s = asyncio.get_running_loop().time()
        self._since_s = now_s if self._since_s is None else self._since_s
        self._forget_silent(now_s)
        node = self._node_of(lobby)
        sessions = [*self._sessions_of(node, format_uuid(lobby), now_s).items()]
        may_free = may_free and self._is_complete(node, now_s)
        await self._commands.match_presence(lobby, sessions, may_free=may_free, count=count)

    async def _match(self, lobby: pb.PlayerSessions, now_s: float) -> pb.LobbyAdmissions:
        own = [address.client for address in lobby.addresses]
        node = self._node_of(raw_id(lobby.owner_id))
        sessions = self._sessions_of(node, lobby.owner_id, now_s)
        # The addresses of this request come first, because the response is about them.
        clients = [*dict.fromkeys((*own, *sessions))]
        try:
            has_slot = await self._commands.match_presence(
                raw_id(lobby.owner_id),
                [(client, sessions[client]) for client in clients],
                may_free=self._is_complete(node, now_s),
            )
        except ServiceError as error:
            if error.code == "STORAGE_FULL":
                raise
            # The lobby has ended.
            has_slot = [False] * len(own)
        return pb.LobbyAdmissions(has_slot=has_slot[: len(own)])

    def _processes_of(self, node: str) -> Iterable[_Process]:
        return self._processes.get(node, {}).values()

    def _sessions_of(self, node: str, lobby_id: str, now_s: float) -> Counter[bytes]:
        sessions: Counter[bytes] = Counter()
        for process in self._processes_of(node):
            report = process.lobbies.get(lobby_id)
            if report is not None and now_s - report.at_s <= REPORT_TIMEOUT_S:
                sessions.update(report.sessions)
        return sessions

    def _is_complete(self, node: str, now_s: float) -> bool:
        """Returns whether all processes that can have sessions have reported them."""
        assert self._since_s is not None
        # Before, another process may not have reported to this data plane yet.
        return now_s - self._since_s > REPORT_TIMEOUT_S and all(
            process.is_settled for process in self._processes_of(node)
        )


async def _refuse_all(lobby: pb.PlayerSessions) -> pb.LobbyAdmissions:
    """Answers about a lobby that has ended, or is on another node."""
    return pb.LobbyAdmissions(has_slot=[False] * len(lobby.addresses))
