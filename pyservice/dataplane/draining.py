"""Drain of the machine: no new lobby or server starts, and the service exits when matches have ended.

Cordoned nodes of a cluster drain too: their lobbies end when they are empty.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.native import Lobby
from pyservice.durable_files import is_disk_full
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import admin_pb2 as pb
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.process.drain_file import Drain, DrainFile, drain_refusal
from pyservice.schema.validation import require_valid
from pyservice.timestamps import now_ms, rfc3339

_CHECK_INTERVAL_S: Final = 0.5
_COUNT_AGE_S: Final = 3.0
"""Longest age of the number of servers, which the control plane reports each second."""

_LOBBIES_SHOWN_MAX: Final = 20

_log = get_logger("drain")


class Remaining(NamedTuple):
    """Numbers of lobbies, servers and players that a drain waits for."""

    lobbies: int
    """Lobbies with a game server on this machine."""
    servers: int | None
    """Dynamic servers. None: the control plane does not respond."""
    players: int
    """Players in all lobbies. Attached lobbies run elsewhere, and their players need the service."""

    @property
    def is_nothing(self) -> bool:
        return not self.lobbies and self.servers == 0 and not self.players


class Draining:
    def __init__(
        self,
        file: DrainFile,
        engine: Engine,
        labels: Callable[[], Mapping[bytes, str]],
        count_servers: Callable[[], int | None],
        on_changed: Callable[[], None],
        is_on_cordoned_node: Callable[[bytes], bool] = lambda lobby: False,
    ) -> None:
        """`labels` returns `game/namespace` by the id of the namespace.

        `count_servers` returns the number of dynamic servers, or None if it is not known.

        `on_changed` is called at the beginning and at the end of a drain.

        `is_on_cordoned_node` returns whether the node of a lobby drains.
        """
        self._file = file
        self._engine = engine
        self._labels = labels
        self._count_servers = count_servers
        self._on_changed = on_changed
        self._is_on_cordoned_node = is_on_cordoned_node
        self._has_changed = asyncio.Event()
        self._change_lock = asyncio.Lock()
        self.drain = file.read()

    @property
    def is_draining(self) -> bool:
        return self.drain is not None

    def is_lobby_draining(self, lobby: bytes) -> bool:
        """Returns whether a lobby ends when it is empty, because its machine or node drains."""
        return self.is_draining or self._is_on_cordoned_node(lobby)

    async def empty_lobbies(
        self, request: runtime_pb2.EmptyLobbiesRequest
    ) -> runtime_pb2.EmptyLobbiesResponse:
        """Returns the ready lobbies of the service that had no player for some time."""
        require_valid(request)
        _, _, namespaces = self._engine.counts(0)
        empty = (
            lobby
            for namespace, _, lobbies in namespaces
            if lobbies
            for group in self._engine.processes.idle_lobby_groups(namespace)
            for lobby in group.empty
        )
        return runtime_pb2.EmptyLobbiesResponse(
            lobby_ids=[
                format_uuid(lobby.lobby)
                for lobby in empty
                if lobby.is_ours and lobby.empty_ms >= request.empty_ms
            ]
        )

    def refusal(self) -> ServiceError | None:
        """Returns the error of a request for a new lobby, or None if the machine does not drain."""
        return None if self.drain is None else drain_refusal()

    def remaining(self) -> Remaining:
        _, _, counts = self._engine.counts(0)
        _, _, lobbies, _ = self._engine.processes.wanted_since(0)
        players = sum(players for _, players, _ in counts)
        return Remaining(len(lobbies), self._count_servers(), players)

    async def start(self, request: pb.StartDrainRequest) -> pb.StartDrainResponse:
        """Starts a drain, or changes the deadline of the running one.

        Raises STORAGE_FULL, and IN_USE if the service is ending.
        """
        require_valid(request)
        async with self._change_lock:
            self._require_running()
            drain = Drain(_boot_ms() + request.within_ms)
            await self._store(drain)
            deadline_ms = _deadline_ms(drain)
            _log.warning("machine drains", deadline_ms=deadline_ms)
            self._change(drain)
        return pb.StartDrainResponse(deadline_ms=deadline_ms)

    async def cancel(self, request: pb.CancelDrainRequest) -> pb.CancelDrainResponse:
        """Ends a drain. Raises IN_USE if the service is ending."""
        async with self._change_lock:
            self._require_running()
            was_draining = self.is_draining
            await asyncio.to_thread(self._file.remove)
            if was_draining:
                _log.warning("drain cancelled")
            self._change(None)
        return pb.CancelDrainResponse(was_draining=was_draining)

    def _require_running(self) -> None:
        if self.drain is not None and self.drain.is_over:
            raise ServiceError("IN_USE", "The drain is over, and the service is ending.")

    async def _store(self, drain: Drain) -> None:
        try:
            await asyncio.to_thread(self._file.write, drain)
        except OSError as error:
            if is_disk_full(error):
                raise ServiceError("STORAGE_FULL") from None
            raise

    def _change(self, drain: Drain | None) -> None:
        self.drain = drain
        self._has_changed.set()
        self._on_changed()

    async def run(self) -> None:
        """Marks the drain as over when nothing is left or at the deadline, until cancelled."""
        began_s = asyncio.get_running_loop().time()
        while True:
            self._has_changed.clear()
            drain = self.drain
            if drain is None or drain.is_over:
                await self._has_changed.wait()
                began_s = asyncio.get_running_loop().time()
                continue
            remaining = self.remaining()
            is_counted = asyncio.get_running_loop().time() - began_s > _COUNT_AGE_S
            is_done = remaining.is_nothing and is_counted
            if is_done or _boot_ms() >= drain.deadline_boot_ms:
                await self._end(drain, remaining)
            await asyncio.sleep(_CHECK_INTERVAL_S)

    async def _end(self, drain: Drain, remaining: Remaining) -> None:
        ended = drain._replace(is_over=True)
        async with self._change_lock:
            if self.drain != drain:
                return
            try:
                await asyncio.to_thread(self._file.write, ended)
            except OSError as error:
                _log.error("end of the drain is retried", error=str(error))
                return
            self.drain = ended
        is_early = not remaining.is_nothing
        log_event = _log.warning if is_early else _log.info
        log_event("drain is over", at_deadline=is_early, **remaining._asdict())

    def describe(self) -> str | None:
        """Returns the deadline and what is left, or None if the machine does not drain."""
        if self.drain is None:
            return None
        lobbies, servers, players = self.remaining()
        if self.drain.is_over:
            return "the service is ending"
        known_servers = "unknown" if servers is None else servers
        left = f"lobbies: {lobbies}, servers: {known_servers}, players: {players}"
        return f"until {rfc3339(_deadline_ms(self.drain))}, waits for {left}"

    def status(self) -> pb.DrainStatus | None:
        if self.drain is None:
            return None
        oldest, count = self._engine.lobbies_to_drain(_LOBBIES_SHOWN_MAX)
        return pb.DrainStatus(
            deadline_ms=_deadline_ms(self.drain),
            is_over=self.drain.is_over,
            **self.remaining()._asdict(),
            oldest_lobbies=self._drained(oldest),
            further_lobbies=count - len(oldest),
        )

    def _drained(self, lobbies: Sequence[Lobby]) -> Iterator[pb.DrainedLobby]:
        labels = self._labels()
        for lobby in lobbies:
            _, _, connected, _ = lobby.players
            yield pb.DrainedLobby(
                lobby_id=format_uuid(lobby.id),
                namespace=labels.get(lobby.namespace) or format_uuid(lobby.namespace),
                players=connected,
                create_ms=lobby.create_ts_ms,
            )


def _boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _deadline_ms(drain: Drain) -> int:
    """Returns the deadline in Unix ms of the wall clock as it is now."""
    return now_ms() + drain.deadline_boot_ms - _boot_ms()
