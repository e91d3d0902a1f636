"""What answers wait for: that an LSN is durable, that a lobby that starts is ready, and no longer
than a deadline. Lives on one event loop, which the native part wakes once per batch.

Owns the waiting requests. Deciding what to wait for is the engine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from pyservice.dataplane.native import LeasedPort, Make, NativeServers, Refused
from pyservice.errors import ServiceError, field_problem
from pyservice.ids import format_uuid
from pyservice.observability.rays import note


class Refusal(Protocol):
    """A slug, and what belongs to it."""

    @property
    def slug(self) -> str: ...
    @property
    def context(self) -> dict[str, str | int | tuple[int, ...]]: ...


def service_error(refused: Refusal, lobby: bytes) -> ServiceError:
    """`lobby`: the one that it is about, empty when there is none."""
    slug, context = refused.slug, refused.context
    if "limit" in context:
        reason = f"must be at most {context['limit']}"
        return ServiceError(slug, errors=[field_problem(["party_size"], "too-high", reason)])
    if isinstance(indexes := context.get("indexes"), tuple):
        paths = (["player_tokens", str(index)] for index in indexes)
        return ServiceError(slug, errors=[field_problem(path, "invalid") for path in paths])
    metadata = {name: str(value) for name, value in context.items()}
    if lobby:
        metadata["lobby_id"] = format_uuid(lobby)
    return ServiceError(slug, metadata=metadata)


_PRUNE_AT: Final = 4096

Value = TypeVar("Value")


class EndedHold(Protocol):
    """A hold that ended; how is for whoever waited."""

    @property
    def hold(self) -> int: ...


Outcome = TypeVar("Outcome", bound=EndedHold)
OutcomeRead = TypeVar("OutcomeRead", bound=EndedHold, covariant=True)


class WakeSource(Protocol[OutcomeRead]):
    """What wakes, and what became true meanwhile."""

    def wake_fd(self) -> int: ...
    def durable(self) -> int: ...
    def take_resolved(self) -> Sequence[OutcomeRead]: ...
    def release_hold(self, hold: int) -> None: ...


class DurabilityWaiter(Generic[Outcome]):
    """Requests that wait. `deadline` is in seconds of the loop's clock; when it passes the answer
    is DEADLINE_EXCEEDED and the change stands.
    """

    def __init__(
        self,
        source: WakeSource[Outcome],
        longest_hold_ms: int,
        on_woken: Callable[[], None] | None = None,
    ) -> None:
        """`on_woken` is called when more is durable, after those who wait for it."""
        self._source = source
        self._on_woken = on_woken
        self._longest_hold_s = longest_hold_ms / 1000
        self._durable_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._prune_at = _PRUNE_AT
        self._hold_waiters: dict[int, list[asyncio.Future[Outcome]]] = {}
        self._batch_waiters: list[asyncio.Future[None]] = []
        self._wake_fd = source.wake_fd()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.durable: int = source.durable()
        """What was durable when the loop was woken last."""

    def start(self) -> None:
        """Begins to be woken; called on the loop that awaits the answers."""
        self._loop = asyncio.get_running_loop()
        if self._wake_fd >= 0:
            self._loop.add_reader(self._wake_fd, self._on_wake)

    def stop(self) -> None:
        """Is woken no more. Repeats do nothing."""
        if self._loop is not None and self._wake_fd >= 0:
            self._loop.remove_reader(self._wake_fd)

    async def wait_durable(self, lsn: int, deadline: float | None) -> None:
        """Returns when the LSN is durable. Raises DEADLINE_EXCEEDED."""
        if lsn <= self.durable:
            return
        future: asyncio.Future[None] = self._running_loop().create_future()
        if len(self._durable_waiters) >= self._prune_at:
            self._prune()
        self._durable_waiters.append((lsn, future))
        began = perf_counter()
        try:
            await self._until(future, deadline)
        finally:
            note("journal wait", began)

    async def wait_for_batch(self, timeout_s: float) -> None:
        """Returns when the next batch is durable, or after so long."""
        loop = self._running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._batch_waiters.append(future)
        timer = loop.call_later(timeout_s, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._batch_waiters.remove(future)

    async def wait_for_hold(self, hold: int, deadline: float | None) -> Outcome:
        """How the hold ended. It is released once by each request that goes away before that.

        Raises DEADLINE_EXCEEDED when neither lobby nor caller say anything for too long.
        """
        loop = self._running_loop()
        limit = loop.time() + self._longest_hold_s
        future: asyncio.Future[Outcome] = loop.create_future()
        waiter = self._hold_waiters.setdefault(hold, [])
        waiter.append(future)
        began = perf_counter()
        try:
            return await self._until(future, limit if deadline is None else min(limit, deadline))
        except BaseException:
            # Once the hold has ended there are places or none, and nothing is undone.
            if self._hold_waiters.get(hold) is waiter:
                waiter.remove(future)
                if not waiter:
                    del self._hold_waiters[hold]
                self._source.release_hold(hold)
            raise
        finally:
            note("lobby start", began)

    def cancel_holds(self) -> None:
        """Who waits for a lobby that starts is sent away: the service stops."""
        for futures in self._hold_waiters.values():
            for future in futures:
                if not future.done():
                    future.set_exception(ServiceError("SHUTTING_DOWN"))

    def _on_wake(self) -> None:
        """A batch is durable: everybody whose LSN it has goes on, and holds that ended are told."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        durable = self._source.durable()
        if durable > self.durable:
            self.durable = durable
            self._release(durable)
        watching, self._batch_waiters = self._batch_waiters, []
        for watcher in watching:
            _finish(watcher)
        for outcome in self._source.take_resolved():
            for future in self._hold_waiters.pop(outcome.hold, ()):
                if not future.done():
                    future.set_result(outcome)
        if self._on_woken is not None:
            self._on_woken()

    def _release(self, durable: int) -> None:
        remaining = []
        for waiter in self._durable_waiters:
            lsn, future = waiter
            if lsn > durable:
                remaining.append(waiter)
            elif not future.done():
                future.set_result(None)
        self._durable_waiters = remaining

    def _prune(self) -> None:
        """Forgets who went away, so that a stalled disk does not let the list grow without end."""
        self._durable_waiters = [waiter for waiter in self._durable_waiters if not waiter[1].done()]
        self._prune_at = max(_PRUNE_AT, 2 * len(self._durable_waiters))

    async def _until(self, future: asyncio.Future[Value], deadline: float | None) -> Value:
        if deadline is None:
            return await future
        timer = self._running_loop().call_at(deadline, _expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("nobody said on which loop to wait")
        return self._loop


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(ServiceError("DEADLINE_EXCEEDED"))


Result = TypeVar("Result")


class CommandRunner:
    """Runs commands; `deadline` is in seconds of the loop's clock, and when it passes the change stands."""

    def __init__(self, waiter: DurabilityWaiter[Any]) -> None:
        self.waiter = waiter

    async def run_durable(self, command: Callable[[], int], deadline: float | None) -> None:
        """Runs a command that tells nothing but that it was done."""
        await self.waiter.wait_durable(await self.run(command, deadline), deadline)

    async def run(self, command: Callable[[], Result], deadline: float | None) -> Result:
        """What a command tells, which is not durable yet; what it refuses is raised when that is."""
        began = perf_counter()
        try:
            result = command()
        except Refused as refused:
            raise await self.durable_error(refused, deadline, began=began) from None
        note("engine", began)
        return result

    async def durable_error(
        self,
        refused: Refused,
        deadline: float | None,
        lobby: bytes = b"",
        began: float | None = None,
    ) -> ServiceError:
        """The refusal as an error, when what it tells is durable. `lobby`: the one it is about."""
        if began is not None:
            note("engine", began)
        await self.waiter.wait_durable(refused.wait, deadline)
        return service_error(refused, lobby)


PortRequest = tuple[str, str, str, int, int]
"""Name, protocol, `number` | `host` | `range`, first and last of the range."""

LeasedPorts = tuple[LeasedPort, ...]
FetchLeasedPorts = Callable[[], Awaitable[LeasedPorts]]
"""The ports of an owner as they are now."""


class ProcessCommands:
    """Part of `engine.Engine`; `deadline` is as there. Owners are ids of lobbies and of dynamic servers."""

    def __init__(self, native: NativeServers, commands: CommandRunner) -> None:
        self._native: Final = native
        self._commands: Final = commands
        # Asked as they are; they wait for nothing.
        self.lobby_token = native.lobby_token
        self.wanted_since = native.wanted_since
        self.take_touched = native.take_touched
        self.supply_groups = native.supply_groups
        self.starts_of_version = native.starts_of_version
        self.lobbies_of_version = native.lobbies_of_version
        self.routes_since = native.routes_since
        self.leased_servers = native.leased_servers

    async def start_idle(
        self, namespace: bytes, version: bytes, make: Make, deadline: float | None = None
    ) -> bytes:
        """A lobby for nobody; its id. Raises MATCHMAKER_TOO_MANY_LOBBIES, PORTS_EXHAUSTED, STORAGE_FULL."""
        lobby, wait = await self._commands.run(
            lambda: self._native.start_idle(namespace, version, make), deadline
        )
        await self._commands.waiter.wait_durable(wait, deadline)
        return lobby

    async def stop(
        self, lobby: bytes, *, only_if_idle: bool, deadline: float | None = None
    ) -> bool:
        """Whether nobody gets in any more. Raises MATCHMAKER_LOBBY_NOT_FOUND, _LOBBY_STOPPED, STORAGE_FULL."""
        is_stopping, wait = await self._commands.run(
            lambda: self._native.stop(lobby, only_if_idle), deadline
        )
        await self._commands.waiter.wait_durable(wait, deadline)
        return is_stopping

    async def exited(
        self, lobby: bytes, exit_code: int | None, deadline: float | None = None
    ) -> bool:
        """Its process is over; whether this ended the lobby. Raises MATCHMAKER_LOBBY_NOT_FOUND, STORAGE_FULL."""
        has_ended, wait = await self._commands.run(
            lambda: self._native.exited(lobby, exit_code), deadline
        )
        await self._commands.waiter.wait_durable(wait, deadline)
        return has_ended

    async def lease(
        self,
        owner: bytes,
        namespace: bytes,
        region: str,
        ports: Sequence[PortRequest],
        deadline: float | None = None,
    ) -> LeasedPorts:
        """Ports of a dynamic server, the same for the same. Raises PORTS_EXHAUSTED, STORAGE_FULL, and SERVER_NOT_FOUND
        for one that is over.
        """
        leased, wait = await self._commands.run(
            lambda: self._native.lease(owner, namespace, region, ports), deadline
        )
        await self._commands.waiter.wait_durable(wait, deadline)
        return leased

    async def set_backends(
        self,
        owner: bytes,
        backends: Sequence[tuple[str, str, int]],
        deadline: float | None = None,
    ) -> None:
        """Where its process listens: port name, address, port. Raises SERVER_NOT_FOUND, STORAGE_FULL."""
        await self._commands.run_durable(
            lambda: self._native.set_backends(owner, backends), deadline
        )

    async def end_lease(self, owner: bytes, deadline: float | None = None) -> None:
        """A dynamic server is over: its routes go. Repeats do nothing. Raises STORAGE_FULL."""
        await self._commands.run_durable(lambda: self._native.end_lease(owner)[1], deadline)

    async def replace_port(
        self, owner: bytes, name: str, refused: int, deadline: float | None = None
    ) -> int | None:
        """Edge-guard cannot have that number: the one that the port has now. Raises PORTS_EXHAUSTED, STORAGE_FULL,
        SERVER_NOT_FOUND.
        """
        number, wait = await self._commands.run(
            lambda: self._native.replace_port(owner, name, refused), deadline
        )
        await self._commands.waiter.wait_durable(wait, deadline)
        return number

    async def ports_returned(self, owner: bytes, deadline: float | None = None) -> None:
        """Edge-guard has closed its sockets: its numbers rest. Raises STORAGE_FULL."""
        await self._commands.run_durable(lambda: self._native.ports_returned(owner)[1], deadline)


_NONCE_BYTES = 16


class PlayerRecordCommands(Protocol):
    """The commands of the engine for these."""

    def channel(self, secret: bytes) -> bytes: ...
    def channel_events(self, channel: bytes) -> tuple[list[tuple[int, bytes, str]], int]: ...
    def standing(self, namespace: bytes, address: bytes) -> tuple[int | None, int]: ...
    def note_human(self, namespace: bytes, address: bytes) -> int: ...
    def note_request(self, namespace: bytes, address: bytes) -> None: ...
    def mock_player_token(self, namespace: bytes, token_id: bytes, nonce: bytes) -> str: ...
    def consume_mock(self, namespace: bytes, token_id: bytes, player_token: str) -> int: ...


RunDurable = Callable[[Callable[[], int], float | None], Awaitable[None]]
"""Runs a command and returns when what it did is durable; its refusal is a ServiceError."""
WaitDurable = Callable[[int, float | None], Awaitable[None]]
"""Returns when an LSN is durable."""


class ChannelToken(NamedTuple):
    """A player token that was sent to a channel. `ts_ms` is Unix time."""

    ts_ms: int
    lobby: bytes
    token: str


class PlayerRecords:
    """Part of `engine.Engine`; `deadline` is as there."""

    def __init__(
        self, native: PlayerRecordCommands, run_durable: RunDurable, wait_durable: WaitDurable
    ) -> None:
        self._native = native
        self._run_durable = run_durable
        self._wait_durable = wait_durable
        self.channel = native.channel
        self.record_request = native.note_request

    async def channel_events(self, channel: bytes, deadline: float | None) -> list[ChannelToken]:
        """What was sent to a channel and has not expired, oldest first (decisions 5.12)."""
        events, wait = self._native.channel_events(channel)
        await self._wait_durable(wait, deadline)
        return [ChannelToken(*event) for event in events]

    # Captcha standings (decisions 7). An address is packed as in `calls.Call`.

    def last_pass(self, namespace: bytes, address: bytes) -> tuple[int | None, int]:
        """(when the address passed a captcha, requests since); None: not within 12 h.

        The time is Unix ms by the wall clock as it goes now: nobody gains or loses by a step of it.
        """
        ago_ms, requests = self._native.standing(namespace, address)
        return (None if ago_ms is None else time.time_ns() // 1_000_000 - ago_ms), requests

    async def record_pass(self, namespace: bytes, address: bytes, deadline: float | None) -> None:
        """The address passed a captcha now. Raises STORAGE_FULL."""
        await self._run_durable(lambda: self._native.note_human(namespace, address), deadline)

    # Mock players (decisions 3). A dev_ token is named by its namespace and its id.

    def mock_player_token(
        self, namespace: bytes, token_id: bytes, nonce: bytes | None = None
    ) -> str:
        """A new player token that names no lobby, for this dev_ token alone; for the same 16 bytes
        the same, for an hour.
        """
        return self._native.mock_player_token(
            namespace, token_id, nonce or secrets.token_bytes(_NONCE_BYTES)
        )

    async def consume_mock(
        self, namespace: bytes, token_id: bytes, player_token: str, deadline: float | None
    ) -> None:
        """The mock player is there. Raises PLAYER_TOKEN_INVALID, _CONSUMED, _EXPIRED (after one to
        two hours), STORAGE_FULL.
        """
        await self._run_durable(
            lambda: self._native.consume_mock(namespace, token_id, player_token), deadline
        )
