"""Connections to a PostgreSQL server: as many as are of use, each used by one transaction at a time.

Owns how they are made, how they begin, and that a broken one is never used again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.errors import ServiceError
from pyservice.storage.failures import told

ANSWER_TIMEOUT_S: Final = 10.0
_CONNECTIONS: Final = 16
_STATEMENTS_PREPARED: Final = 400
_ROLL_BACK_S: Final = 2.0
_CLOSE_S: Final = 2.0
_SETTINGS: Final = {
    "application_name": "pyservice",
    "synchronous_commit": "on",
    "timezone": "UTC",
}


class Row(asyncpg.Record):  # type: ignore[misc]
    """A row as SQLAlchemy gives it: its columns are attributes."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def _mapping(self) -> dict[str, Any]:
        return dict(self.items())


async def connect(url: str, answer_timeout_s: float | None, **options: Any) -> Any:
    """A connection of the driver. What the server's settings say of durability is not asked: changes are synced."""
    _, _, rest = url.partition("://")
    return await asyncpg.connect(
        f"postgresql://{rest}",
        timeout=ANSWER_TIMEOUT_S,
        command_timeout=answer_timeout_s,
        server_settings=_SETTINGS,
        **options,
    )


class Connections:
    """Those that are idle, and a turn for everybody who waits for one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._turns = asyncio.Semaphore(_CONNECTIONS)
        self._idle: list[Any] = []
        self._is_closed = False
        self.in_use = 0
        self.turns = 0
        """Transactions that are over, of which the server answered the last statement."""

    async def begun(self, begin: str | None) -> Any:
        """A connection on which this statement was run, if any. Raises OVERLOADED when none gets free in time, and what
        `told` makes of the driver's errors.
        """
        await self._turn()
        self.in_use += 1
        try:
            with told:
                return await self._begun(begin)
        except BaseException:
            self._leave()
            raise

    async def _turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise ServiceError("OVERLOADED") from None

    async def _begun(self, begin: str | None) -> Any:
        while self._idle:
            # The last one that was used: whatever is not needed stays unused.
            connection = self._idle.pop()
            if connection.is_closed():
                continue
            if begin is None:
                return connection
            try:
                await connection.execute(begin)
            except BaseException as error:
                self._terminate(connection, error)
                if not _is_lost(error):
                    raise
                # It was lost while it was idle, and nothing was done on it: another one will do.
            else:
                return connection
        connection = await self._new()
        try:
            if begin is not None:
                await connection.execute(begin)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def another(self, lost: Any) -> Any:
        """A new connection in the turn of one that was lost: what else is idle may be lost with it. Raises what the
        driver does.
        """
        lost.terminate()
        return await self._new()

    async def _new(self) -> Any:
        return await connect(
            self._url,
            ANSWER_TIMEOUT_S,
            record_class=Row,
            statement_cache_size=_STATEMENTS_PREPARED,
            max_cached_statement_lifetime=0,
        )

    def _leave(self) -> None:
        self.in_use -= 1
        self._turns.release()

    def give_back(self, connection: Any) -> None:
        """Its transaction is over."""
        if self._is_closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self.turns += 1
            self._idle.append(connection)
        self._leave()

    async def give_up(self, connection: Any, error: BaseException) -> None:
        """Takes its transaction back, if it is open. Nobody waits for a server that does not answer."""
        await await_despite_cancel(self._give_up(connection, error))

    async def _give_up(self, connection: Any, error: BaseException) -> None:
        try:
            if _is_hung(error) or connection.is_closed():
                self._terminate(connection, error)
            elif connection.is_in_transaction():
                await connection.execute("ROLLBACK", timeout=_ROLL_BACK_S)
        except Exception:  # noqa: BLE001 — whatever it is, the server takes back what is not committed
            connection.terminate()
        finally:
            self.give_back(connection)

    def _terminate(self, connection: Any, error: BaseException) -> None:
        """Where one gets no answer, those that are idle would not either: each would cost somebody the same wait."""
        connection.terminate()
        while _is_hung(error) and self._idle:
            self._idle.pop().terminate()

    async def close(self) -> None:
        """Those that are in use are closed when they are given back."""
        self._is_closed = True
        while self._idle:
            with contextlib.suppress(Exception):
                await self._idle.pop().close(timeout=_CLOSE_S)


def _is_lost(error: BaseException) -> bool:
    return isinstance(
        error, OSError | asyncpg.PostgresError | asyncpg.InterfaceError
    ) and not isinstance(error, TimeoutError)


def _is_hung(error: BaseException) -> bool:
    """`told` made something else of it."""
    return isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
