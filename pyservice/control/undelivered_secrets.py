"""Revocation of new tokens that did not reach their caller.

A new token is revoked if the client disconnects, the data plane does not confirm the token, or an
error occurs after the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from pyservice.control.feed_lanes import Confirmation
from pyservice.control.feeder import CONFIRM_TIMEOUT_S, Feeder, unconfirmed_error
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage import namespaces, tokens
from pyservice.storage.database import Database, Transaction

_log = get_logger("control")

_NOT_CREATED: Final = (
    "No token was created: the data plane did not confirm it in time. "
    "Repeating the request is harmless."
)
_RETRIES_S: Final = (0.05, 1.0)
_REVOKE_TIMEOUT_S: Final = 60.0
"""The retries also stop at shutdown."""


class RunToCompletion(Protocol):
    def __call__(self, name: str, work: Coroutine[Any, Any, None]) -> None: ...


class NewToken(NamedTuple):
    """A created token. `expires_ms` is None if the token does not expire. `namespace_id` is empty
    for a `cloud_` token.
    """

    token: str
    token_id: str
    expires_ms: int | None = None
    namespace_id: str = ""


class StoredToken(NamedTuple):
    """A token that a transaction has added. The commit may have failed. `namespace_id` and
    `group_id` are empty for a `cloud_` token.
    """

    token_id: str
    namespace_id: str = ""
    group_id: str = ""


NoteStored = Callable[[StoredToken], None]


class UndeliveredSecrets:
    def __init__(
        self,
        database: Database,
        feeder: Feeder,
        finish: RunToCompletion,
        after_revocation: Callable[[Transaction, Sequence[str]], None],
    ) -> None:
        """`after_revocation` registers what follows the removal of `cloud_` tokens."""
        self._database = database
        self._feeder = feeder
        self._finish = finish
        self._after_revocation = after_revocation
        self.job = RetryingJob(
            "tokens", "an undelivered token is not revoked yet", pauses_s=_RETRIES_S
        )

    async def deliver(
        self,
        create: Callable[[NoteStored], Coroutine[Any, Any, NewToken]],
        *,
        is_kept: bool = False,
    ) -> NewToken:
        """Runs `create` to its end and returns its token. Revokes all stored tokens after an error
        or cancellation.

        `create` calls its argument with each token that it stores. For a request with an
        idempotency key, `is_kept` is True: no token is revoked, because a repeated request gets the
        same token.
        """
        stored_tokens: list[StoredToken] = []
        creation = asyncio.ensure_future(
            create((lambda _token: None) if is_kept else stored_tokens.append)
        )
        try:
            return await asyncio.shield(creation)
        except asyncio.CancelledError:
            self._finish(
                "revocation of undelivered tokens", self._revoke_after(creation, stored_tokens)
            )
            raise
        except Exception:
            if stored_tokens:
                first_attempt = asyncio.Event()
                work = self._revoke(stored_tokens, first_attempt)
                self._finish("revocation of undelivered tokens", work)
                await first_attempt.wait()
            raise

    async def deliver_confirmed(
        self,
        namespace_id: str,
        group_id: str,
        confirmation: Confirmation,
        sign: Callable[[], Awaitable[str]],
        *,
        is_kept: bool = False,
    ) -> str:
        """Waits until the data plane has confirmed the new token, and then returns the token from
        `sign`. Sends the namespace, unless the commit has done so with `confirmation`.

        Raises VALIDATION_FAILED if the data plane refuses the namespace. Raises
        CONTROL_PLANE_UNAVAILABLE after a second without confirmation.
        """
        until = asyncio.get_running_loop().time() + CONFIRM_TIMEOUT_S
        try:
            if not confirmation.is_enqueued:
                self._feeder.enqueue(namespace_id, group_id, confirmation)
            await self._feeder.confirm(confirmation)
            async with asyncio.timeout_at(until):
                return await sign()
        except TimeoutError:
            error = unconfirmed_error()
        except ServiceError as failure:
            if failure.code != "CONTROL_PLANE_UNAVAILABLE":
                raise
            error = unconfirmed_error()
        raise error if is_kept else ServiceError(error.code, _NOT_CREATED)

    async def _revoke_after(
        self, creation: asyncio.Future[NewToken], stored_tokens: Sequence[StoredToken]
    ) -> None:
        await asyncio.wait({creation})
        if not creation.cancelled():
            # Retrieve the error, so that asyncio does not log it.
            creation.exception()
        if stored_tokens:
            await self._revoke(stored_tokens, asyncio.Event())

    async def _revoke(
        self, stored_tokens: Sequence[StoredToken], first_attempt: asyncio.Event
    ) -> None:
        async def remove() -> None:
            try:
                async with self._database.write() as tx:
                    for stored_token in stored_tokens:
                        await self._remove(tx, stored_token)
            finally:
                first_attempt.set()

        token_ids = [stored_token.token_id for stored_token in stored_tokens]
        try:
            async with asyncio.timeout(_REVOKE_TIMEOUT_S):
                await self.job.retry_until_done(remove, token_ids=token_ids)
        except (TimeoutError, asyncio.CancelledError) as error:
            _log.warning("undelivered token not revoked", token_ids=token_ids)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _remove(self, tx: Transaction, token: StoredToken) -> None:
        if token.namespace_id:
            await tokens.remove_of_namespace(tx, token.token_id)
            await raise_revision(
                tx, token.namespace_id, token.group_id, self._feeder, is_revocation=True
            )
        else:
            await tokens.remove_cloud(tx, token.token_id)
            self._after_revocation(tx, [token.token_id])


async def raise_revision(
    tx: Transaction,
    namespace_id: str,
    group_id: str,
    feeder: Feeder,
    confirmation: Confirmation | None = None,
    *,
    is_revocation: bool = False,
) -> None:
    """Raises the namespace's revision, and sends the namespace to the data plane after the commit."""
    await namespaces.change(tx, namespace_id, {})
    send = partial(feeder.enqueue, namespace_id, group_id, confirmation)
    tx.after_commit(partial(send, is_revocation=is_revocation))
