"""Calls of a lobby server: ready, closed, state, heartbeat and disconnected."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from enum import Enum

from .hosting import HostingClient, ServiceAway, ServiceRefused, retry_pauses_s

HEARTBEAT_INTERVAL_S = 3.0
STATE_INTERVAL_S = 1.0
# Limit of releases to repeat. The service releases other slots itself, as no heartbeat lists their tokens.
RELEASES_MAX = 1024

log = logging.getLogger("arena.lobby")


class Verdict(Enum):
    STOPPED = "the hosting service stopped this lobby"
    NOT_OURS = "the hosting service does not take our lobby token"


class Releases:
    """Repeats `disconnected` for each player token until its outcome is known.

    Until then, reject new sockets with a token in `pending`: the release would free their slot.
    """

    def __init__(self, hosting: HostingClient) -> None:
        self.pending: dict[str, None] = {}
        self._hosting = hosting
        self._first_tries: set[asyncio.Task[bool]] = set()
        self._failed: dict[str, None] = {}
        self._has_failed = asyncio.Event()

    def add(self, player_token: str) -> None:
        self.pending[player_token] = None
        if len(self.pending) > RELEASES_MAX:
            oldest = next(iter(self.pending))
            del self.pending[oldest]
            self._failed.pop(oldest, None)
        first_try = asyncio.create_task(self._release(player_token))
        self._first_tries.add(first_try)
        first_try.add_done_callback(self._first_tries.discard)

    async def run(self) -> None:
        """Repeats failed releases, one at a time until the service responds again."""
        pauses = retry_pauses_s()
        while True:
            await self._has_failed.wait()
            await asyncio.sleep(pauses.take())
            probe = next(iter(self._failed), None)
            if probe is None:
                self._has_failed.clear()
                pauses = retry_pauses_s()
            elif await self._release(probe):
                await asyncio.gather(*(self._release(token) for token in list(self._failed)))

    async def finish_first_tries(self) -> None:
        await asyncio.gather(*self._first_tries)

    async def _release(self, player_token: str) -> bool:
        body = json.dumps({"player_token": player_token}).encode()
        try:
            await self._hosting.call("POST", "/matchmaker/players/disconnected", body)
        except ServiceAway:
            if player_token in self.pending:
                self._failed[player_token] = None
                self._has_failed.set()
            return False
        except ServiceRefused as refused:
            log.warning("a slot could not be freed: %s", refused)
        self.pending.pop(player_token, None)
        self._failed.pop(player_token, None)
        return True


class Lobby:
    def __init__(self, hosting: HostingClient, player_tokens: Callable[[], list[str]]) -> None:
        self._hosting = hosting
        self._player_tokens = player_tokens
        self._is_closed = False
        self._state: bytes | None = None
        self._declared_at_outage = -1
        self._sent_state: bytes | None = None
        self._heartbeat_due_s = 0.0
        self._state_due_s = 0.0
        self._changed = asyncio.Event()

    def publish(self, state: bytes) -> None:
        if state != self._state:
            self._state = state
            self._changed.set()

    async def close(self) -> None:
        self._is_closed = True
        await self._put_closed()

    async def run(self) -> Verdict:
        pauses = retry_pauses_s()
        was_away = False
        while True:
            try:
                await self._send_due_updates()
                if was_away:
                    log.info("the hosting service answers again")
                was_away, pauses = False, retry_pauses_s()
                await self._wait_for_next_update()
            except ServiceAway as away:
                if not was_away:
                    log.warning("the hosting service does not answer: %s", away)
                was_away = True
                await asyncio.sleep(max(pauses.take(), away.retry_after_s))
            except ServiceRefused as refused:
                if refused.status == 410:
                    return Verdict.STOPPED
                if refused.status in (401, 403, 404):
                    log.error("%s", refused)
                    return Verdict.NOT_OURS
                log.error("the hosting service refused a call of the lobby: %s", refused)
                await asyncio.sleep(pauses.take())

    async def _send_due_updates(self) -> None:
        if self._declared_at_outage != self._hosting.outages:
            await self._declare()
        now_s = time.monotonic()
        if self._state != self._sent_state and now_s >= self._state_due_s:
            await self._put_state()
        if now_s >= self._heartbeat_due_s:
            body = json.dumps({"player_tokens": self._player_tokens()}).encode()
            await self._hosting.call("POST", "/matchmaker/lobbies/heartbeat", body)
            self._heartbeat_due_s = now_s + HEARTBEAT_INTERVAL_S

    async def _declare(self) -> None:
        """Sends ready, closed and state, because calls before an outage may be lost."""
        outage = self._hosting.outages
        self._sent_state = None
        await self._post_ready()
        await self._put_closed()
        if self._state is not None:
            await self._put_state()
        self._declared_at_outage = outage
        log.info("reported to the hosting service that the lobby is ready")

    async def _post_ready(self) -> None:
        await self._hosting.call("POST", "/matchmaker/lobbies/ready", b"{}")

    async def _put_closed(self) -> None:
        body = json.dumps({"is_closed": self._is_closed}).encode()
        await self._hosting.call("PUT", "/matchmaker/lobbies/closed", body)

    async def _put_state(self) -> None:
        state = self._state
        self._state_due_s = time.monotonic() + STATE_INTERVAL_S
        await self._hosting.call("PUT", "/matchmaker/lobbies/state", state or b"")
        self._sent_state = state

    async def _wait_for_next_update(self) -> None:
        self._changed.clear()
        due_s = self._heartbeat_due_s
        if self._state != self._sent_state:
            due_s = min(due_s, self._state_due_s)
        wait_s = max(due_s - time.monotonic(), 0.0)
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return
