"""What the engine keeps beside lobbies: what was sent to event channels, who passed a captcha, which mock
players were used up. Durable like everything of the engine's; what follows from it is the handlers' matter.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

_NONCE_BYTES = 16


class Native(Protocol):
    """The commands of the engine for these."""

    def channel(self, secret: bytes) -> bytes: ...
    def channel_events(self, channel: bytes) -> tuple[list[tuple[int, bytes, str]], int]: ...
    def standing(self, namespace: bytes, address: bytes) -> tuple[int | None, int]: ...
    def note_human(self, namespace: bytes, address: bytes) -> int: ...
    def note_request(self, namespace: bytes, address: bytes) -> None: ...
    def mock_player_token(self, namespace: bytes, token_id: bytes, nonce: bytes) -> str: ...
    def consume_mock(self, namespace: bytes, token_id: bytes, player_token: str) -> int: ...


Done = Callable[[Callable[[], int], float | None], Awaitable[None]]
"""Runs a command and returns when what it did is durable; its refusal is a ServiceError."""
Settled = Callable[[int, float | None], Awaitable[None]]
"""Returns when an LSN is durable."""


class SentToken(NamedTuple):
    """A player token that was sent to a channel. `ts_ms` is Unix time."""

    ts_ms: int
    lobby: bytes
    token: str


class Records:
    """Part of `engine.Engine`; `deadline` is as there."""

    def __init__(self, native: Native, done: Done, settled: Settled) -> None:
        self._native = native
        self._done = done
        self._settled = settled
        self.channel = native.channel
        self.note_request = native.note_request

    async def channel_events(self, channel: bytes, deadline: float | None) -> list[SentToken]:
        """What was sent to a channel and has not expired, oldest first (decisions 5.12)."""
        events, wait = self._native.channel_events(channel)
        await self._settled(wait, deadline)
        return [SentToken(*event) for event in events]

    # Captcha standings (decisions 7). An address is packed as in `calls.Call`.

    def standing(self, namespace: bytes, address: bytes) -> tuple[int | None, int]:
        """(when the address passed a captcha, requests since); None: not within 12 h.

        The time is Unix ms by the wall clock as it goes now: nobody gains or loses by a step of it.
        """
        ago_ms, requests = self._native.standing(namespace, address)
        return (None if ago_ms is None else time.time_ns() // 1_000_000 - ago_ms), requests

    async def note_human(self, namespace: bytes, address: bytes, deadline: float | None) -> None:
        """The address passed a captcha now. Raises STORAGE_FULL."""
        await self._done(lambda: self._native.note_human(namespace, address), deadline)

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
        await self._done(
            lambda: self._native.consume_mock(namespace, token_id, player_token), deadline
        )
