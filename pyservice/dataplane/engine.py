"""The engine as the event loop sees it: commands whose answers are awaited until they are durable.

The only importer of `pyservice._native`. Owns waiting: for the journal, for lobbies that start, and
for the deadline of a call. What a call means is the handlers' matter, deciding is the engine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from pyservice import _native
from pyservice._native import Lobby, OpenFailed, Placed, Refused, Resolved, Status
from pyservice.errors import ServiceError, field_problem

__all__ = [
    "Engine",
    "Limits",
    "Lobby",
    "OpenFailed",
    "Placed",
    "Status",
    "build_profile",
    "compact",
    "open_engine",
    "refusal_slugs",
    "version",
]

build_profile: Final = _native.build_profile
version: Final = _native.version
_PRUNE_AT: Final = 4096
T = TypeVar("T")


class Keys(Protocol):
    """What signs and hashes."""

    @property
    def mac_keys(self) -> tuple[tuple[int, bytes], ...]: ...
    @property
    def current_key(self) -> int: ...
    @property
    def hash_key(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Times and sizes that the operator may set."""

    find_wait_ms: int = 45_000
    start_limit_ms: int = 300_000
    segment_bytes: int = 64 << 20
    boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id")


def open_engine(journal_dir: Path | None, keys: Keys, limits: Limits) -> Engine:
    """Recovers the directory. Blocks for as long as that takes. Raises OpenFailed."""
    native = _native.Engine.open(
        None if journal_dir is None else str(journal_dir),
        mac_keys=keys.mac_keys,
        current_key=keys.current_key,
        hash_key=keys.hash_key,
        boot_id_path=str(limits.boot_id_path),
        segment_bytes=limits.segment_bytes,
        start_limit_ms=limits.start_limit_ms,
    )
    return Engine(native, limits.find_wait_ms)


def compact(journal_dir: Path, keys: Keys, limits: Limits, parent_pid: int) -> int:
    """Writes an image of all closed segments and returns its LSN. Raises OpenFailed."""
    return _native.compact(
        str(journal_dir),
        mac_keys=keys.mac_keys,
        current_key=keys.current_key,
        boot_id_path=str(limits.boot_id_path),
        segment_bytes=limits.segment_bytes,
        parent_pid=parent_pid,
    )


class Engine:
    """Commands answer when what they tell is durable; what the engine refuses is a ServiceError.

    `deadline` is in seconds of the loop's clock. When it passes the answer is DEADLINE_EXCEEDED and
    the change stands.
    """

    def __init__(self, native: _native.Engine, find_wait_ms: int) -> None:
        self._native = native
        self._find_wait_s = find_wait_ms / 1000
        self._durable = native.durable()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._prune_at = _PRUNE_AT
        self._holds: dict[int, list[asyncio.Future[Resolved]]] = {}
        self._wake_fd = native.wake_fd()
        self._loop: asyncio.AbstractEventLoop | None = None
        # Asked as they are; they wait for nothing.
        self.lobby = native.lobby
        self.lobby_of_token = native.lobby_of_token
        self.public_token = native.public_token
        self.namespace_of_public_token = native.namespace_of_public_token
        self.list_lobbies = native.list_lobbies
        self.player_counts = native.player_counts
        self.status = native.status
        self.source = native.source
        self.is_compaction_due = native.is_compaction_due
        self.image_written = native.image_written
        self.render_metrics = native.render_metrics

    def start(self) -> None:
        """Begins to hear of the journal; called on the loop that awaits the answers."""
        self._loop = asyncio.get_running_loop()
        if self._wake_fd >= 0:
            self._loop.add_reader(self._wake_fd, self._woke)

    def give_up_holds(self) -> None:
        """Who waits for a lobby that starts is sent away: the service stops."""
        for futures in self._holds.values():
            for future in futures:
                if not future.done():
                    future.set_exception(ServiceError("SHUTTING_DOWN"))

    async def close(self) -> None:
        """Syncs what is pending and stops. Repeats do nothing."""
        if self._loop is not None and self._wake_fd >= 0:
            self._loop.remove_reader(self._wake_fd)
        await asyncio.to_thread(self._native.close)

    def namespace_of_lobby(self, lobby_id: bytes) -> bytes | None:
        """Whose the lobby is, None when there is none (any more)."""
        lobby = self.lobby(lobby_id)
        return lobby.namespace if lobby else None

    def idempotency(
        self, identity: bytes, key: str | None, operation: str, message: bytes
    ) -> bytes | None:
        """What a command takes for a call with an idempotency key (decisions 1.8)."""
        if key is None:
            return None
        return self._native.idempotency(identity, key.encode(), operation, message)

    # Matchmaker clients

    async def find(
        self,
        namespace: bytes,
        version: bytes,
        modes: Sequence[str],
        regions: Sequence[str],
        tags: Sequence[tuple[str, str]],
        *,
        party_size: int,
        source: int,
        source_limit: int,
        idempotency: bytes | None,
        deadline: float | None,
    ) -> Placed:
        """Places in the fullest lobby that fits; waits for one that starts."""
        try:
            placed = self._native.find(
                namespace,
                version,
                modes,
                regions,
                tags,
                party_size=party_size,
                source=source,
                source_limit=source_limit,
                idempotency=idempotency,
            )
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        return await self._placed(placed, deadline)

    async def join(
        self,
        namespace: bytes,
        lobby: bytes,
        *,
        party_size: int,
        rejoin_token: str | None,
        source: int,
        source_limit: int,
        idempotency: bytes | None,
        deadline: float | None,
    ) -> Placed:
        """Places in this lobby; waits when it starts."""
        try:
            placed = self._native.join(
                namespace,
                lobby,
                party_size=party_size,
                rejoin_token=rejoin_token,
                source=source,
                source_limit=source_limit,
                idempotency=idempotency,
            )
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        return await self._placed(placed, deadline)

    # Lobby servers

    async def connected(
        self, lobby: bytes, player_token: str, idempotency: bytes | None, deadline: float | None
    ) -> None:
        """The player of the token is there."""
        try:
            wait = self._native.connected(lobby, player_token, idempotency)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        if wait > self._durable:
            await self._settled(wait, deadline)

    async def disconnected(
        self,
        lobby: bytes,
        player_token: str,
        hold_ms: int | None,
        idempotency: bytes | None,
        deadline: float | None,
    ) -> None:
        """The player of the token is gone."""
        try:
            wait = self._native.disconnected(lobby, player_token, hold_ms, idempotency)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        if wait > self._durable:
            await self._settled(wait, deadline)

    async def ready(self, lobby: bytes, deadline: float | None) -> None:
        """The lobby takes players."""
        try:
            wait = self._native.ready(lobby)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        await self._settled(wait, deadline)

    async def set_closed(self, lobby: bytes, is_closed: bool, deadline: float | None) -> None:
        """Whether the lobby takes more players."""
        try:
            wait = self._native.set_closed(lobby, is_closed)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        await self._settled(wait, deadline)

    async def set_state(self, lobby: bytes, state: bytes, deadline: float | None) -> None:
        """What the lobby keeps; empty clears."""
        try:
            wait = self._native.set_state(lobby, state)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        await self._settled(wait, deadline)

    async def heartbeat(
        self, lobby: bytes, player_tokens: Sequence[str] | None, deadline: float | None
    ) -> None:
        """The lobby lives; with the list of its players."""
        try:
            wait = self._native.heartbeat(lobby, player_tokens)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        await self._settled(wait, deadline)

    async def state(
        self, namespaces: Sequence[bytes], lobby: bytes, deadline: float | None
    ) -> bytes:
        """What the lobby keeps, empty when nothing."""
        try:
            state, wait = self._native.state(namespaces, lobby)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        await self._settled(wait, deadline)
        return state or b""

    def listed_state(self, namespace: bytes, lobby: bytes) -> bytes | None:
        """The same for lists, which never wait; None also when the lobby is gone."""
        try:
            return self._native.state([namespace], lobby)[0]
        except Refused:
            return None

    # Operators

    async def attach(
        self,
        namespace: bytes,
        version: bytes,
        mode: str,
        region: str,
        ports: Sequence[tuple[str, str, int, bool]],
        *,
        tags: Sequence[tuple[str, str]],
        max_players: tuple[int, int, int],
        player_token_ttl_ms: int,
        heartbeat_timeout_ms: int,
        heartbeat_grace_ms: int,
        is_join_enabled: bool,
        create_ts_ms: int,
        lobby_count_max: int,
        idempotency: bytes | None,
        deadline: float | None,
    ) -> tuple[bytes, str]:
        """(lobby id, lobby token) of a server that somebody else started."""
        try:
            lobby, token, wait = self._native.attach(
                namespace,
                version,
                mode,
                region,
                ports,
                tags=tags,
                max_players=max_players,
                player_token_ttl_ms=player_token_ttl_ms,
                heartbeat_timeout_ms=heartbeat_timeout_ms,
                heartbeat_grace_ms=heartbeat_grace_ms,
                is_join_enabled=is_join_enabled,
                create_ts_ms=create_ts_ms,
                lobby_count_max=lobby_count_max,
                idempotency=idempotency,
            )
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        await self._settled(wait, deadline)
        return lobby, token

    async def detach(
        self, namespaces: Sequence[bytes], lobby: bytes, deadline: float | None
    ) -> bool:
        """Whether this call ended the lobby."""
        try:
            did_remove, wait = self._native.detach(namespaces, lobby)
        except Refused as refused:
            raise await self._told(refused, deadline) from None
        await self._settled(wait, deadline)
        return did_remove

    # Waiting

    def _woke(self) -> None:
        """A batch is durable: everybody whose LSN it has goes on, and holds that ended are told."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        durable = self._native.durable()
        if durable > self._durable:
            self._durable = durable
            self._release(durable)
        for resolved in self._native.take_resolved():
            for future in self._holds.pop(resolved.hold, ()):
                if not future.done():
                    future.set_result(resolved)

    def _release(self, durable: int) -> None:
        remaining = []
        for waiter in self._waiters:
            lsn, future = waiter
            if lsn > durable:
                remaining.append(waiter)
            elif not future.done():
                future.set_result(None)
        self._waiters = remaining

    async def _settled(self, wait: int, deadline: float | None) -> None:
        """Returns when the LSN is durable. Raises DEADLINE_EXCEEDED."""
        if wait <= self._durable:
            return
        future: asyncio.Future[None] = self._running_loop().create_future()
        if len(self._waiters) >= self._prune_at:
            self._prune()
        self._waiters.append((wait, future))
        await self._until(future, deadline)

    def _prune(self) -> None:
        """Forgets who went away, so that a stalled disk does not let the list grow without end."""
        self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]
        self._prune_at = max(_PRUNE_AT, 2 * len(self._waiters))

    async def _until(self, future: asyncio.Future[T], deadline: float | None) -> T:
        if deadline is None:
            return await future
        timer = self._running_loop().call_at(deadline, _expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    async def _placed(self, placed: Placed, deadline: float | None) -> Placed:
        if placed.hold:
            resolved = await self._resolved(placed.hold, deadline)
            if resolved.refusal is not None:
                raise await self._told(resolved.refusal, deadline)
            if resolved.placed is None:
                raise RuntimeError("a hold ended without places and without a refusal")
            placed = resolved.placed
        await self._settled(placed.wait, deadline)
        return placed

    async def _resolved(self, hold: int, deadline: float | None) -> Resolved:
        """How the hold ended. It is released once by each request that goes away before that."""
        loop = self._running_loop()
        limit = loop.time() + self._find_wait_s
        future: asyncio.Future[Resolved] = loop.create_future()
        waiting = self._holds.setdefault(hold, [])
        waiting.append(future)
        try:
            return await self._until(future, limit if deadline is None else min(limit, deadline))
        except BaseException:
            # Once the hold has ended there are places or none, and nothing is undone.
            if self._holds.get(hold) is waiting:
                waiting.remove(future)
                if not waiting:
                    del self._holds[hold]
                self._native.release_hold(hold)
            raise

    async def _told(self, refused: Refused, deadline: float | None) -> ServiceError:
        """The refusal as an error, when what it tells is durable."""
        if refused.wait > self._durable:
            await self._settled(refused.wait, deadline)
        return _service_error(refused.slug, refused.context)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the engine was not started")
        return self._loop


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(ServiceError("DEADLINE_EXCEEDED"))


def _service_error(slug: str, context: Mapping[str, str | int]) -> ServiceError:
    if "limit" in context:
        reason = f"must be at most {context['limit']}"
        return ServiceError(slug, errors=[field_problem(["party_size"], "too-high", reason)])
    if "index" in context:
        path = ["player_tokens", str(context["index"])]
        return ServiceError(slug, errors=[field_problem(path, "invalid")])
    return ServiceError(slug, metadata={name: str(value) for name, value in context.items()})


def refusal_slugs() -> tuple[str, ...]:
    """Every code that the engine can refuse with."""
    return _native.SLUGS
