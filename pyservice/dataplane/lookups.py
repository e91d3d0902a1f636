"""Names of other servers to addresses, in threads of their own: bounded in time and number, and in number
for each tenant, so that one whose names nobody answers for leaves the others theirs. Who comes when all places are
taken waits in turn, as long as it has time.

The event loop's executor has no part in it. Which addresses may be asked is `outbound`'s.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Final

from pyservice.turns import Bounds, Crowded, Turns

AT_ONCE: Final = 64
PER_TENANT: Final = AT_ONCE // 8
TIMEOUT_MS: Final = 5_000
_WAITING_PER_TENANT: Final = 512


class Lookups:
    """Looks names up. One that is being looked up is looked up once for all who ask for it; nobody
    waits for the threads at the end. Belongs to one event loop.
    """

    def __init__(
        self,
        *,
        at_once: int = AT_ONCE,
        per_tenant: int = PER_TENANT,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._turns = Turns(Bounds(at_once, per_tenant, per_tenant, _WAITING_PER_TENANT))
        self._timeout_s = timeout_ms / 1000
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        """By name, until the thread has ended: one that nobody waits for any more still counts."""

    def __len__(self) -> int:
        """Names that are being looked up."""
        return len(self._running)

    async def addresses(self, host: str, tenant: bytes) -> list[str]:
        """All addresses of a name, at least one. Raises OSError: it has none, that is not known in
        time, which counts waiting for its turn, or too much of this tenant waits already.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                found = self._running.get(host) or await self._begun(host, tenant)
                return await asyncio.shield(found)
        except TimeoutError:
            raise OSError(f"the name was not resolved within {self._timeout_s:g} s") from None
        except Crowded:
            raise OSError("too many names of this tenant wait to be looked up") from None

    async def _begun(self, host: str, tenant: bytes) -> asyncio.Future[list[str]]:
        """What will be known of a name, in the tenant's turn."""
        await self._turns.enter(tenant, "")
        if host in self._running:
            # Somebody else's turn came first.
            self._turns.leave(tenant, "")
            return self._running[host]
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def end(addresses: list[str] | None, error: OSError | None) -> None:
            del self._running[host]
            self._turns.leave(tenant, "")
            _settle(found, addresses, error)

        def look_up() -> None:
            addresses, failure = _look_up(host)
            # The loop may have been closed meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end, addresses, failure)

        self._running[host] = found
        try:
            threading.Thread(target=look_up, name="lookup", daemon=True).start()
        except RuntimeError:
            end(None, OSError("no thread can be started to resolve the name"))
        return found


def _look_up(host: str) -> tuple[list[str] | None, OSError | None]:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return None, OSError(f"the name cannot be resolved: {error}")
    return list(dict.fromkeys(str(info[4][0]) for info in infos)), None


def _settle(
    answer: asyncio.Future[list[str]], addresses: list[str] | None, error: OSError | None
) -> None:
    if addresses:
        answer.set_result(addresses)
    else:
        answer.set_exception(error or OSError("the name has no address"))
        # Who asked may have gone away.
        answer.exception()
