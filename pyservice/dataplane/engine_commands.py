"""Execution of engine commands, and the waits for their results.

A request waits until its log sequence number (LSN) is durable, or until a starting lobby is ready
(a hold).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from pyservice.dataplane.native import (
    LeasedPort,
    LobbyTemplate,
    NativeEngine,
    NativeServers,
    Refused,
    Resolved,
)
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.observability.rays import note

_PRUNE_AT: Final = 4096

Value = TypeVar("Value")


class WakeSource(Protocol):
    def wake_fd(self) -> int: ...
    def request_wake(self, lsn: int) -> bool: ...
    def change_fd(self) -> int: ...
    def durable(self) -> int: ...
    def take_resolved(self) -> Sequence[Resolved]: ...
    def release_hold(self, hold: int) -> None: ...


class HoldWaiters(NamedTuple):
    lobby: bytes
    """Id of the starting lobby. Empty if it is not known."""
    futures: list[asyncio.Future[Resolved]]


class DurabilityWaiter:
    """Wakes requests when their log sequence number (LSN) is durable or their hold ends.

    Also wakes readers that follow changes of the engine. Belongs to one event loop. The native module
    signals one eventfd for requested LSNs, and another one for changes.
    """

    def __init__(
        self,
        source: WakeSource,
        longest_hold_ms: int,
        on_changed: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._on_changed = on_changed
        self._longest_hold_s = longest_hold_ms / 1000
        self._durable_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._prune_at = _PRUNE_AT
        self._hold_waiters: dict[int, HoldWaiters] = {}
        self._change_waiters: list[asyncio.Future[None]] = []
        self._readers = {source.wake_fd(): self._on_durable, source.change_fd(): self._on_change}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.durable: int = source.durable()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for descriptor, read in self._readers.items():
            if descriptor >= 0:
                self._loop.add_reader(descriptor, read, descriptor)

    def stop(self) -> None:
        if self._loop is None:
            return
        for descriptor in self._readers:
            if descriptor >= 0:
                self._loop.remove_reader(descriptor)

    async def wait_durable(self, lsn: int, deadline: float | None) -> None:
        began = perf_counter()
        # A change can be durable already, and its ray still shows that it waited for 0 ms.
        if lsn <= self.durable or not self._source.request_wake(lsn):
            note("journal wait", began)
            return
        future: asyncio.Future[None] = self._running_loop().create_future()
        if len(self._durable_waiters) >= self._prune_at:
            self._prune()
        self._durable_waiters.append((lsn, future))
        try:
            await self._until(future, deadline)
        finally:
            note("journal wait", began)

    async def wait_for_change(self, timeout_s: float) -> None:
        """Waits until facts, routes, desired lobbies, counts or idle groups have changed."""
        loop = self._running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._change_waiters.append(future)
        timer = loop.call_later(timeout_s, _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._change_waiters.remove(future)

    async def wait_for_hold(
        self, hold: int, deadline: float | None, lobby: bytes = b""
    ) -> Resolved:
        """Waits for the end of a hold, and returns the reserved slots or an error. Raises
        DEADLINE_EXCEEDED.

        After a timeout or cancellation, the request's share of the hold is released.
        """
        loop = self._running_loop()
        limit = loop.time() + self._longest_hold_s
        future: asyncio.Future[Resolved] = loop.create_future()
        waiter = self._hold_waiters.setdefault(hold, HoldWaiters(lobby, []))
        waiter.futures.append(future)
        began = perf_counter()
        try:
            return await self._until(future, limit if deadline is None else min(limit, deadline))
        except BaseException:
            if self._hold_waiters.get(hold) is waiter:
                waiter.futures.remove(future)
                if not waiter.futures:
                    del self._hold_waiters[hold]
                self._source.release_hold(hold)
            raise
        finally:
            note("lobby start", began)

    def cancel_holds(self) -> None:
        """Fails all requests that wait for a hold, with SHUTTING_DOWN."""
        self.fail_holds(lambda _: ServiceError("SHUTTING_DOWN"))

    def fail_holds(self, error_of: Callable[[bytes], ServiceError | None]) -> None:
        """Fails the requests that wait for a lobby for which `error_of` returns an error."""
        for waiter in self._hold_waiters.values():
            for future in waiter.futures:
                error = error_of(waiter.lobby)
                if error is not None and not future.done():
                    future.set_exception(error)

    def _on_durable(self, descriptor: int) -> None:
        _clear(descriptor)
        self.durable = self._source.durable()
        self._release(self.durable)

    def _on_change(self, descriptor: int) -> None:
        _clear(descriptor)
        waiters, self._change_waiters = self._change_waiters, []
        for waiter in waiters:
            _finish(waiter)
        for outcome in self._source.take_resolved():
            held = self._hold_waiters.pop(outcome.hold, None)
            for future in () if held is None else held.futures:
                if not future.done():
                    future.set_result(outcome)
        if self._on_changed is not None:
            self._on_changed()

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
        """Removes the waiters of cancelled requests. Otherwise their list grows without bound while
        the disk stalls.
        """
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
            raise RuntimeError("the engine is not started: call start() on the event loop first")
        return self._loop


def _clear(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(descriptor)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(ServiceError("DEADLINE_EXCEEDED"))


Result = TypeVar("Result")


class CommandRunner:
    def __init__(self, waiter: DurabilityWaiter) -> None:
        self.waiter = waiter

    async def run_durable(self, command: Callable[[], int], deadline: float | None = None) -> None:
        await self.waiter.wait_durable(await self.run(command, deadline), deadline)

    async def run_durable_result(
        self, command: Callable[[], tuple[Result, int]], deadline: float | None = None
    ) -> Result:
        result, lsn = await self.run(command, deadline)
        await self.waiter.wait_durable(lsn, deadline)
        return result

    async def run(self, command: Callable[[], Result], deadline: float | None) -> Result:
        """Runs a command and returns its result, which may not be durable yet.

        If the engine refuses the command, the error is raised after the state that caused it is
        durable.
        """
        began = perf_counter()
        try:
            result = command()
        except Refused as refusal:
            raise await self.durable_error(refusal, deadline, began=began) from None
        note("engine", began)
        return result

    async def durable_error(
        self,
        refusal: Refused,
        deadline: float | None,
        lobby: bytes = b"",
        began: float | None = None,
    ) -> ServiceError:
        if began is not None:
            note("engine", began)
        await self.waiter.wait_durable(refusal.wait, deadline)
        error = refusal.error
        if not lobby:
            return error
        metadata = {**error.metadata, "lobby_id": format_uuid(lobby)}
        return ServiceError(
            error.code,
            error.detail,
            errors=error.errors,
            metadata=metadata,
            retry_after_s=error.retry_after_s,
        )


PortRequest = tuple[str, str, str, int, int, bool, str]

LeasedPorts = tuple[LeasedPort, ...]
FetchLeasedPorts = Callable[[], Awaitable[LeasedPorts]]


class ProcessCommands:
    """Commands for lobby processes, port leases and routes.

    The parameter `lease_owner` is the id of a lobby or of a dynamic server. `deadline` is in
    seconds of the event loop's clock.
    """

    def __init__(self, native: NativeServers, commands: CommandRunner) -> None:
        self._native: Final = native
        self._commands: Final = commands
        self.lobby_token = native.lobby_token
        self.wanted_since = native.wanted_since
        self.take_touched = native.take_touched
        self.set_unreachable = native.set_unreachable
        self.idle_lobby_groups = native.idle_lobby_groups
        self.starts_of_version = native.starts_of_version
        self.lobbies_of_version = native.lobbies_of_version
        self.routes_since = native.routes_since
        self.leased_servers = native.leased_servers
        self.nodes = native.nodes
        self.nodes_changed_since = native.nodes_changed_since

    async def start_idle(self, namespace: bytes, version: bytes, template: LobbyTemplate) -> bytes:
        return await self._commands.run_durable_result(
            lambda: self._native.start_idle(namespace, version, template)
        )

    async def stop(
        self, lobby: bytes, *, only_if_idle: bool, deadline: float | None = None
    ) -> bool:
        return await self._commands.run_durable_result(
            lambda: self._native.stop(lobby, only_if_idle), deadline
        )

    async def ready(self, lobby: bytes) -> None:
        await self._commands.run_durable(lambda: self._native.ready(lobby))

    async def match_presence(
        self,
        lobby: bytes,
        sessions: Sequence[tuple[bytes, int]],
        *,
        may_free: bool,
        count: int | None = None,
    ) -> list[bool]:
        """Connects reserved slots, and frees surplus connected slots if `may_free` is set.

        `sessions` are those of client addresses at edge-guard, and `count` is the number of players
        by a query. Returns for each address whether it has a slot.
        """
        return await self._commands.run_durable_result(
            lambda: self._native.match_presence(lobby, sessions, may_free, count)
        )

    async def record_exit(self, lobby: bytes, exit_code: int | None) -> bool:
        return await self._commands.run_durable_result(
            lambda: self._native.exited(lobby, exit_code)
        )

    async def lease(
        self, lease_owner: bytes, namespace: bytes, region: str, ports: Sequence[PortRequest]
    ) -> LeasedPorts:
        """Leases ports for a dynamic server. A repeated call returns the same ports.

        Raises PORTS_EXHAUSTED, STORAGE_FULL, and SERVER_NOT_FOUND for a server that has ended.
        """
        return await self._commands.run_durable_result(
            lambda: self._native.lease(lease_owner, namespace, region, ports)
        )

    async def bind_ports(self, lease_owner: bytes, node: str, host: str) -> LeasedPorts:
        """Binds the ports of `lease_owner` to the node that runs it. A repeated call returns the
        same ports.

        `host` is the name or address at which players reach the node. Another node gets the ports
        only before the lobby is ready, or the server listens.

        Raises PORTS_EXHAUSTED, STORAGE_FULL, and IN_USE at another node. Raises
        MATCHMAKER_LOBBY_STOPPED or SERVER_NOT_FOUND after the end of `lease_owner`.
        """
        return await self._commands.run_durable_result(
            lambda: self._native.bind_ports(lease_owner, node, host)
        )

    async def set_backends(
        self, lease_owner: bytes, backends: Sequence[tuple[str, str, int]]
    ) -> None:
        await self._commands.run_durable(lambda: self._native.set_backends(lease_owner, backends))

    async def end_lease(self, lease_owner: bytes) -> None:
        """Ends the port lease of `lease_owner`. Repeated calls do nothing."""
        await self._commands.run_durable_result(lambda: self._native.end_lease(lease_owner))

    async def replace_port(self, lease_owner: bytes, name: str, refused_port: int) -> int | None:
        return await self._commands.run_durable_result(
            lambda: self._native.replace_port(lease_owner, name, refused_port)
        )

    async def ports_returned(self, lease_owner: bytes, node: str = "") -> None:
        """Starts the quarantine of the ports that `lease_owner` had at a node. Raises STORAGE_FULL.

        Call it after the edge-guard of the node has closed the sockets of these ports. The name of
        a single machine is empty.
        """
        await self._commands.run_durable_result(
            lambda: self._native.ports_returned(lease_owner, node)
        )

    async def return_ports_of_node(self, node: str) -> None:
        """Starts the quarantine of all ports of a node. Call it if its machine is gone for good.

        Ports of live leases follow at their end. The engine forgets the node at a restart, so call
        this again for each name in `nodes()` that has no machine.
        """
        await self._commands.run_durable(lambda: self._native.return_ports_of_node(node))


_NONCE_BYTES = 16


class ChannelToken(NamedTuple):
    ts_ms: int
    lobby: bytes
    token: str


class PlayerRecords:
    def __init__(self, native: NativeEngine, commands: CommandRunner) -> None:
        self._native = native
        self._commands = commands
        self.channel = native.channel
        self.record_request = native.note_request
        self.last_pass = native.standing
        """Returns the age of the address's last captcha pass (ms, or None) and the number of requests
        since then. Passes are stored for 12 h.
        """

    async def channel_events(self, channel: bytes, deadline: float | None) -> list[ChannelToken]:
        events, wait = self._native.channel_events(channel)
        await self._commands.waiter.wait_durable(wait, deadline)
        return [ChannelToken(*event) for event in events]

    async def record_pass(self, namespace: bytes, address: bytes) -> None:
        await self._commands.run_durable(lambda: self._native.note_human(namespace, address))

    def mock_player_token(
        self, namespace: bytes, token_id: bytes, nonce: bytes | None = None
    ) -> str:
        """Returns a mock player token, valid only for the given `dev_` token.

        Calls with the same 16-byte `nonce` in the same clock hour return the same token.
        """
        return self._native.mock_player_token(
            namespace, token_id, nonce or secrets.token_bytes(_NONCE_BYTES)
        )

    async def consume_mock(
        self,
        group: bytes,
        namespace: bytes,
        token_id: bytes,
        player_token: str,
        deadline: float | None,
    ) -> None:
        """Marks a mock player token as used. `group` is the developer group of the namespace.

        A mock player token expires after one to two hours. Raises PLAYER_TOKEN_INVALID,
        PLAYER_TOKEN_CONSUMED, PLAYER_TOKEN_EXPIRED, RATE_LIMITED, STORAGE_FULL.
        """
        await self._commands.run_durable(
            lambda: self._native.consume_mock(group, namespace, token_id, player_token), deadline
        )
