"""Commands around processes: lobbies that the service starts and stops, ports, and what runtime, supply and
edge-guard are told of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from pyservice.dataplane.commands import Commands
from pyservice.dataplane.native import LeasedPort, Make, NativeServers

PortWish = tuple[str, str, str, int, int]
"""Name, protocol, `number` | `host` | `range`, first and last of the range."""

Leased = tuple[LeasedPort, ...]
AskLeased = Callable[[], Awaitable[Leased]]
"""The ports of an owner as they are now."""


class Servers:
    """Part of `engine.Engine`; `deadline` is as there. Owners are ids of lobbies and of dynamic servers."""

    def __init__(self, native: NativeServers, commands: Commands) -> None:
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
        lobby, wait = await self._commands.decided(
            lambda: self._native.start_idle(namespace, version, make), deadline
        )
        await self._commands.waiting.settled(wait, deadline)
        return lobby

    async def stop(
        self, lobby: bytes, *, only_if_idle: bool, deadline: float | None = None
    ) -> bool:
        """Whether nobody gets in any more. Raises MATCHMAKER_LOBBY_NOT_FOUND, _LOBBY_STOPPED, STORAGE_FULL."""
        is_stopping, wait = await self._commands.decided(
            lambda: self._native.stop(lobby, only_if_idle), deadline
        )
        await self._commands.waiting.settled(wait, deadline)
        return is_stopping

    async def exited(
        self, lobby: bytes, exit_code: int | None, deadline: float | None = None
    ) -> bool:
        """Its process is over; whether this ended the lobby. Raises MATCHMAKER_LOBBY_NOT_FOUND, STORAGE_FULL."""
        has_ended, wait = await self._commands.decided(
            lambda: self._native.exited(lobby, exit_code), deadline
        )
        await self._commands.waiting.settled(wait, deadline)
        return has_ended

    async def lease(
        self,
        owner: bytes,
        namespace: bytes,
        region: str,
        ports: Sequence[PortWish],
        deadline: float | None = None,
    ) -> Leased:
        """Ports of a dynamic server, the same for the same. Raises PORTS_EXHAUSTED, STORAGE_FULL, and SERVER_NOT_FOUND
        for one that is over.
        """
        leased, wait = await self._commands.decided(
            lambda: self._native.lease(owner, namespace, region, ports), deadline
        )
        await self._commands.waiting.settled(wait, deadline)
        return leased

    async def set_backends(
        self,
        owner: bytes,
        backends: Sequence[tuple[str, str, int]],
        deadline: float | None = None,
    ) -> None:
        """Where its process listens: port name, address, port. Raises SERVER_NOT_FOUND, STORAGE_FULL."""
        await self._commands.done(lambda: self._native.set_backends(owner, backends), deadline)

    async def end_lease(self, owner: bytes, deadline: float | None = None) -> None:
        """A dynamic server is over: its routes go. Repeats do nothing. Raises STORAGE_FULL."""
        await self._commands.done(lambda: self._native.end_lease(owner)[1], deadline)

    async def replace_port(
        self, owner: bytes, name: str, refused: int, deadline: float | None = None
    ) -> int | None:
        """Edge-guard cannot have that number: the one that the port has now. Raises PORTS_EXHAUSTED, STORAGE_FULL,
        SERVER_NOT_FOUND.
        """
        number, wait = await self._commands.decided(
            lambda: self._native.replace_port(owner, name, refused), deadline
        )
        await self._commands.waiting.settled(wait, deadline)
        return number

    async def ports_returned(self, owner: bytes, deadline: float | None = None) -> None:
        """Edge-guard has closed its sockets: its numbers rest. Raises STORAGE_FULL."""
        await self._commands.done(lambda: self._native.ports_returned(owner)[1], deadline)
