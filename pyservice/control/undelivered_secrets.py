"""Revocation of a new token if its response could not be delivered.

The cause may be a disconnected client, a data plane that does not confirm the token, or an error
after the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pyservice.control.feeder import CONFIRM_TIMEOUT_S, Feeder, unconfirmed_error
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage import namespaces, tokens
from pyservice.storage.database import Database, Transaction

_NOT_CREATED: Final = (
    "No token was created: the data plane did not confirm it in time. "
    "Repeating the request is harmless."
)
_RETRIES_S: Final = (0.05, 1.0)
_REVOKE_TIMEOUT_S: Final = 60.0
"""Time limit of revocation retries in seconds. The retries also stop at shutdown."""

_log = get_logger("control")


class RunToCompletion(Protocol):
    def __call__(self, name: str, work: Coroutine[Any, Any, None]) -> None: ...


class NewToken(NamedTuple):
    """`expires_ms` is None without expiry. `namespace_id` is empty for `cloud_`."""

    token: str
    token_id: str
    expires_ms: int | None = None
    namespace_id: str = ""


class StoredToken(NamedTuple):
    """A token in a transaction that may be committed. `namespace_id` is empty for `cloud_`."""

    token_id: str
    namespace_id: str = ""


NoteStored = Callable[[StoredToken], None]


class UndeliveredSecrets:
    def __init__(self, database: Database, feeder: Feeder, finish: RunToCompletion) -> None:
        self._database = database
        self._feeder = feeder
        self._finish = finish
        self.job = RetryingJob(
            "tokens", "an undelivered token is not revoked yet", pauses_s=_RETRIES_S
        )

    async def deliver(
        self, make: Callable[[NoteStored], Coroutine[Any, Any, NewToken]], *, is_kept: bool = False
    ) -> NewToken:
        """Runs `make` to its end. If it fails or the caller is cancelled, revokes the tokens that
        `make` noted.

        `is_kept`: a repeated request gets the same token, so it is not revoked. Raises errors of
        `make`.
        """
        added: list[StoredToken] = []
        making = asyncio.ensure_future(make((lambda one: None) if is_kept else added.append))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._finish("revocation of undelivered tokens", self._undo(making, added))
            raise
        except Exception:
            if added:
                tried = asyncio.Event()
                work = self._take_back(added, tried)
                self._finish("revocation of undelivered tokens", work)
                await tried.wait()
            raise

    async def deliver_confirmed(
        self, namespace_id: str, sign: Callable[[], Awaitable[str]], *, is_kept: bool = False
    ) -> str:
        """Returns the result of `sign` after the data plane holds the token.

        Raises VALIDATION_FAILED, or CONTROL_PLANE_UNAVAILABLE after a second.
        """
        until = asyncio.get_running_loop().time() + CONFIRM_TIMEOUT_S
        try:
            await self._feeder.enqueue_and_confirm(namespace_id)
            async with asyncio.timeout_at(until):
                return await sign()
        except TimeoutError:
            error = unconfirmed_error()
        except ServiceError as failure:
            if failure.code != "CONTROL_PLANE_UNAVAILABLE":
                raise
            error = unconfirmed_error()
        raise error if is_kept else ServiceError(error.code, _NOT_CREATED)

    async def _undo(self, making: asyncio.Future[NewToken], added: Sequence[StoredToken]) -> None:
        await asyncio.wait({making})
        if not making.cancelled():
            # Retrieve the error, so that asyncio does not log it.
            making.exception()
        if added:
            await self._take_back(added, asyncio.Event())

    async def _take_back(self, added: Sequence[StoredToken], tried: asyncio.Event) -> None:
        async def remove() -> None:
            try:
                async with self._database.write() as tx:
                    for one in added:
                        await self._remove(tx, one)
            finally:
                tried.set()

        token_ids = [one.token_id for one in added]
        try:
            async with asyncio.timeout(_REVOKE_TIMEOUT_S):
                await self.job.retry_until_done(remove, token_ids=token_ids)
        except (TimeoutError, asyncio.CancelledError) as error:
            _log.warning("an undelivered token was not revoked", token_ids=token_ids)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _remove(self, tx: Transaction, one: StoredToken) -> None:
        if one.namespace_id:
            await tokens.remove_of_namespace(tx, one.token_id)
            await raise_revision(tx, one.namespace_id, self._feeder)
        else:
            await tokens.remove_cloud(tx, one.token_id)


async def raise_revision(tx: Transaction, namespace_id: str, feeder: Feeder) -> None:
    """Sends the namespace to the data plane, even if the caller is cancelled."""
    await namespaces.change(tx, namespace_id, {})
    tx.after_commit(lambda: feeder.enqueue(namespace_id))
