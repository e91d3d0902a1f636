"""A new MAC key while the service runs (decisions 3, Keys): on disk first, then it signs; then, when that is
asked for, older keys that nothing needs any more go.

The engine knows which keys lobbies, player tokens, remembered requests and channels need. Which of them
`pub_` and `dev_` tokens were made with nobody keeps, so no key is dropped unless an administrator says that
those tokens were replaced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyservice import keyring
from pyservice.durable import is_out_of_room
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

log = get_logger("pyservice.keys")


class Signer(Protocol):
    """What signs and verifies with the ring."""

    def add_key(self, key_id: int, secret: bytes) -> None: ...
    def drop_key(self, key_id: int) -> bool: ...
    def key_ids(self) -> list[int]: ...
    def keys_in_use(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Rotated:
    """Numbers of keys: the one that signs, those that verify beside it, those that are gone."""

    current: int
    kept: list[int]
    dropped: list[int]


class KeyRotation:
    """Rotates the ring of a data directory whose engine runs here; one rotation at a time."""

    def __init__(self, data_dir: Path, signer: Signer) -> None:
        self._data_dir = data_dir
        self._signer = signer
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[Rotated] | None = None

    async def rotate(self, *, drop_unused: bool) -> Rotated:
        """Raises STORAGE_FULL; then the ring is as before, or has the new key and dropped none."""
        # A client that goes away must not leave the file with a key that does not sign.
        self._running = asyncio.create_task(self._rotate(drop_unused))
        return await asyncio.shield(self._running)

    async def _rotate(self, drop_unused: bool) -> Rotated:
        async with self._turn:
            return await self._rotate_alone(drop_unused)

    async def _rotate_alone(self, drop_unused: bool) -> Rotated:
        try:
            ring = await asyncio.to_thread(keyring.rotate, self._data_dir)
            self._signer.add_key(ring.current_key, dict(ring.mac_keys)[ring.current_key])
            dropped = await self._drop(ring.current_key) if drop_unused else []
        except OSError as error:
            if is_out_of_room(error):
                raise ServiceError("STORAGE_FULL") from error
            raise
        kept = sorted(set(self._signer.key_ids()) - {ring.current_key})
        log.info("keys rotated", current_key=ring.current_key, kept=kept, dropped=dropped)
        return Rotated(ring.current_key, kept, dropped)

    async def _drop(self, current: int) -> list[int]:
        # An older key signs nothing new: what is in use of them only becomes less.
        needed = {current, *self._signer.keys_in_use()}
        unused = sorted(set(self._signer.key_ids()) - needed)
        if unused:
            await asyncio.to_thread(keyring.drop, self._data_dir, unused)
        return [key_id for key_id in unused if self._signer.drop_key(key_id)]
