"""Names of other servers to addresses, in threads of their own: bounded in time and number, and in number
for each tenant, so that one whose names nobody answers for leaves the others theirs.

The event loop's executor has no part in it. Which addresses may be asked is `outbound`'s.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

AT_ONCE: Final = 64
PER_TENANT: Final = AT_ONCE // 8
TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class _Lookup:
    tenant: bytes
    answer: asyncio.Future[list[str]]


class Lookups:
    """Looks names up. A name is looked up once for all who wait for it; nobody waits for the threads
    at the end. Belongs to one event loop.
    """

    def __init__(
        self,
        *,
        at_once: int = AT_ONCE,
        per_tenant: int = PER_TENANT,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._at_once = at_once
        self._per_tenant = per_tenant
        self._timeout_s = timeout_ms / 1000
        self._running: dict[str, _Lookup] = {}
        """By name, until the thread has ended: one that nobody waits for any more still counts."""

    def __len__(self) -> int:
        """Names that are being looked up."""
        return len(self._running)

    async def addresses(self, host: str, tenant: bytes) -> list[str]:
        """All addresses of a name, at least one. Raises OSError: it has none, that is not known in
        time, or too many names are looked up, in all or for this tenant.
        """
        found = self._running.get(host) or self._start(host, tenant)
        return await asyncio.shield(found.answer)

    def _start(self, host: str, tenant: bytes) -> _Lookup:
        if len(self._running) >= self._at_once:
            raise OSError("too many names are looked up already")
        if sum(one.tenant == tenant for one in self._running.values()) >= self._per_tenant:
            raise OSError("too many names of this game are looked up already")
        loop = asyncio.get_running_loop()
        made = _Lookup(tenant, loop.create_future())
        late = OSError(f"the name was not resolved within {self._timeout_s:g} s")
        timer = loop.call_later(self._timeout_s, _settle, made.answer, None, late)

        def end(addresses: list[str] | None, error: OSError | None) -> None:
            timer.cancel()
            del self._running[host]
            _settle(made.answer, addresses, error)

        def look_up() -> None:
            addresses, failure = _look_up(host)
            # The loop may have been closed meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end, addresses, failure)

        self._running[host] = made
        try:
            threading.Thread(target=look_up, name="lookup", daemon=True).start()
        except RuntimeError:
            end(None, OSError("no thread can be started to resolve the name"))
        return made


def _look_up(host: str) -> tuple[list[str] | None, OSError | None]:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return None, OSError(f"the name cannot be resolved: {error}")
    return list(dict.fromkeys(str(info[4][0]) for info in infos)), None


def _settle(
    answer: asyncio.Future[list[str]], addresses: list[str] | None, error: OSError | None
) -> None:
    if answer.done():
        return
    if addresses:
        answer.set_result(addresses)
    else:
        answer.set_exception(error or OSError("the name has no address"))
        # Who asked may have gone away.
        answer.exception()
