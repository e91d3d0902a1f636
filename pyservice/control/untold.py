"""What is told once, such as a token: nobody has it when the caller has gone before the answer, or the data plane does
not say that it knows of it. So it is made to the end, and taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from pyservice.control.wanted import WAIT_S, not_confirmed
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage import namespaces, tokens
from pyservice.storage.database import Database, Transaction

_NOT_MADE: Final = (
    "No token was made: the data plane has not said in time that it knows of it. "
    "Repeating the request is harmless."
)

_log = get_logger("control")

Thing = TypeVar("Thing")


class Finish(Protocol):
    """Keeps a task until its end, which the process waits for."""

    def __call__(self, name: str, work: Coroutine[Any, Any, None]) -> None: ...


class Feeder(Protocol):
    """Gets configuration to the data plane."""

    def changed(self, *namespace_ids: str) -> None: ...
    async def settled(self, namespace_id: str) -> None: ...


class Made(NamedTuple):
    """A new token. `expires_ms` None: it does not end; `namespace_id` is empty for cloud_."""

    token: str
    token_id: str
    expires_ms: int | None = None
    namespace_id: str = ""


async def unless_gone(
    finish: Finish,
    making: Coroutine[Any, Any, Thing],
    take_back: Callable[[Thing], Awaitable[None]],
) -> Thing:
    """What was made; when the caller goes away first, it is taken back. Raises what `making` raises, which leaves
    nothing then.
    """
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        finish("taking back what nobody was told of", _undo(task, take_back))
        raise


async def _undo(task: asyncio.Future[Thing], take_back: Callable[[Thing], Awaitable[None]]) -> None:
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        await take_back(task.result())


class Untold:
    """Tokens of namespaces, from their records to the answer."""

    def __init__(self, database: Database, feeder: Feeder, finish: Finish) -> None:
        self._database = database
        self._feeder = feeder
        self._finish = finish

    async def told(self, making: Coroutine[Any, Any, Made], *, is_kept: bool) -> Made:
        """What is made. `is_kept`: a repetition gets the same one; else it is taken back when the caller goes before
        it is told.
        """

        async def take_back(one: Made) -> None:
            if not is_kept:
                await self._take_back(one.namespace_id, one.token_id)

        return await unless_gone(self._finish, making, take_back)

    async def confirmed(
        self,
        namespace_id: str,
        token_id: str,
        tell: Callable[[], Awaitable[str]],
        *,
        is_kept: bool,
    ) -> str:
        """What `tell` says, when the data plane knows of the token. What nobody is told of must not stay; `is_kept` as
        above. Raises CONTROL_PLANE_UNAVAILABLE after a second, VALIDATION_FAILED.
        """
        until = asyncio.get_running_loop().time() + WAIT_S
        try:
            await self._feeder.settled(namespace_id)
            async with asyncio.timeout_at(until):
                return await tell()
        except TimeoutError:
            error = not_confirmed()
        except ServiceError as failure:
            error = not_confirmed() if failure.code == "CONTROL_PLANE_UNAVAILABLE" else failure
        if not is_kept:
            await self._take_back(namespace_id, token_id)
            if error.code == "CONTROL_PLANE_UNAVAILABLE":
                raise ServiceError(error.code, _NOT_MADE)
        raise error

    async def _take_back(self, namespace_id: str, token_id: str) -> None:
        try:
            async with self._database.write() as tx:
                await tokens.remove_of_namespace(tx, token_id)
                await raise_revision(tx, namespace_id, self._feeder)
        except ServiceError as error:
            _log.warning(
                "a token that nobody was told of stays", token_id=token_id, error=error.code
            )


async def raise_revision(tx: Transaction, namespace_id: str, feeder: Feeder) -> None:
    """The data plane hears of it, also when nobody waits for the answer any more."""
    await namespaces.change(tx, namespace_id, {})
    tx.afterwards(lambda: feeder.changed(namespace_id))
