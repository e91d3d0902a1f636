"""Commands that give places in lobbies: find, create, join. They wait for lobbies that start."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from pyservice.dataplane.commands import Commands
from pyservice.dataplane.native import Make, NativeEngine, Placed, Refused
from pyservice.observability.rays import note


class Placing:
    """Part of `engine.Engine`; `deadline` is as there."""

    def __init__(self, native: NativeEngine, commands: Commands) -> None:
        self._native = native
        self._commands = commands

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
        channels: Sequence[bytes] = (),
        creation: Make | int | None = None,
    ) -> Placed:
        """Places in the fullest lobby that fits, or in one that is made; waits for one that starts. `creation`: what is
        made when none fits; `lobby_count_max` where nothing can be, None where nothing is to be.
        """
        began = perf_counter()
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
                channels=channels,
                creation=creation,
            )
        except Refused as refused:
            raise await self._commands.told(refused, deadline, began=began) from None
        return await self._placed(placed, deadline, began=began)

    async def create(
        self,
        namespace: bytes,
        version: bytes,
        creation: Make | int,
        *,
        party_size: int,
        source: int,
        source_limit: int,
        idempotency: bytes | None,
        deadline: float | None,
        channels: Sequence[bytes] = (),
    ) -> Placed:
        """Places in a lobby that is made for them; waits until it is ready. `creation` as in find."""
        began = perf_counter()
        try:
            placed = self._native.create(
                namespace,
                version,
                creation,
                party_size=party_size,
                source=source,
                source_limit=source_limit,
                idempotency=idempotency,
                channels=channels,
            )
        except Refused as refused:
            raise await self._commands.told(refused, deadline, began=began) from None
        return await self._placed(placed, deadline, began=began)

    async def recalled(self, idempotency: bytes | None, deadline: float | None) -> Placed | None:
        """What a find or join under this key got before, None when the engine does not know the
        key. Waits like the call itself.
        """
        if idempotency is None:
            return None
        placed = await self._commands.decided(lambda: self._native.recall(idempotency), deadline)
        return None if placed is None else await self._placed(placed, deadline)

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
        channels: Sequence[bytes] = (),
    ) -> Placed:
        """Places in this lobby; waits when it starts."""
        began = perf_counter()
        try:
            placed = self._native.join(
                namespace,
                lobby,
                party_size=party_size,
                rejoin_token=rejoin_token,
                source=source,
                source_limit=source_limit,
                idempotency=idempotency,
                channels=channels,
            )
        except Refused as refused:
            raise await self._commands.told(refused, deadline, began=began) from None
        return await self._placed(placed, deadline, lobby, began)

    async def _placed(
        self, placed: Placed, deadline: float | None, lobby: bytes = b"", began: float | None = None
    ) -> Placed:
        """The places, when they are there and durable. `lobby`: the one that was asked for; `began`: when."""
        if began is not None:
            note("engine", began)
        if placed.hold:
            lobby = placed.lobby or lobby
            resolved = await self._commands.waiting.resolved(placed.hold, deadline)
            if resolved.refusal is not None:
                raise await self._commands.told(resolved.refusal, deadline, lobby)
            if resolved.placed is None:
                raise RuntimeError("a hold ended without places and without a refusal")
            placed = resolved.placed
        await self._commands.waiting.settled(placed.wait, deadline)
        return placed
