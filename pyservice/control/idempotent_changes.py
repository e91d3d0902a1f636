"""Changes of records that a client can safely repeat with the same idempotency key.

A change and its response are stored in one transaction. A repeated request gets the stored
response. Concurrent requests with the same key share the result. A failed request runs again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from pyservice.calls import Caller, TokenKind
from pyservice.control.audit_log import AuditLog
from pyservice.control.quotas import QuotaChecks
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.storage import stored_responses
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.timestamps import now_ms
from pyservice.watch import Topics

ResponseT = TypeVar("ResponseT", bound=Message)
Change = Callable[[Transaction], Awaitable[ResponseT | None]]
ChangeWithResource = Callable[[], AbstractAsyncContextManager[Change[ResponseT]]]
ReplayCheck = Callable[[Transaction, ResponseT], Awaitable[bool]]
"""Returns whether a stored response still holds. If not, the change runs again. Raises an error if
the caller may no longer see the response.
"""

RESPONSE_RETENTION_MS: Final = 24 * 3_600_000
_KEY_BYTES: Final = 32
_CLEANUP_INTERVAL_S: Final = 3_600.0
_RETRIES_S: Final = (60.0, _CLEANUP_INTERVAL_S)


class _Key(NamedTuple):
    key: bytes
    message_hash: bytes


class _Request(NamedTuple, Generic[ResponseT]):
    caller: Caller
    message: Message
    key: _Key | None
    response_type: type[ResponseT]
    check_replay: ReplayCheck[ResponseT] | None


class IdempotentChanges:
    def __init__(
        self,
        database: Database,
        clock_ms: Callable[[], int] = now_ms,
        *,
        mac_key: bytes | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`mac_key` is the key of the request hashes that detect reuse of an idempotency key.

        If `mac_key` changes, repeated requests get IDEMPOTENCY_KEY_REUSED.
        """
        self._database = database
        self._now_ms = clock_ms
        self._mac_key = secrets.token_bytes(_KEY_BYTES) if mac_key is None else mac_key
        self.audit = audit or AuditLog(now_ms=clock_ms)
        self._in_flight: dict[bytes, tuple[bytes, asyncio.Task[Any]]] = {}
        self.job = RetryingJob(
            "answers", "expired responses not deleted", pauses_s=_RETRIES_S, is_worth_a_warning=True
        )

    async def apply(
        self,
        caller: Caller,
        request: Message,
        response_type: type[ResponseT],
        change: Change[ResponseT],
        check_replay: ReplayCheck[ResponseT] | None = None,
    ) -> ResponseT:
        """Runs `change` in a transaction and returns its response after the commit.

        If `change` returns None, the response is empty. The change continues if the client
        disconnects. A request with the key of a stored response gets this response. Raises
        IDEMPOTENCY_KEY_REUSED, and the errors of `change` and `check_replay`.
        """
        keyed = self._keyed(caller, request, response_type, check_replay)
        return await self._once(keyed, partial(self._change, keyed, change))

    async def apply_with_resource(
        self,
        caller: Caller,
        request: Message,
        response_type: type[ResponseT],
        open_change: ChangeWithResource[ResponseT],
        check_replay: ReplayCheck[ResponseT] | None = None,
    ) -> ResponseT:
        """Applies a change that needs a resource, such as a port lease.

        `open_change` is a context manager that acquires the resource and provides the change. A
        repeated request gets its stored response without a resource. Raises the errors of `apply`
        and `open_change`.
        """
        keyed = self._keyed(caller, request, response_type, check_replay)
        return await self._once(keyed, partial(self._change_with_resource, keyed, open_change))

    async def run_cleanup(self) -> None:
        await self.job.repeat_forever(self.clean_up, every_s=_CLEANUP_INTERVAL_S)

    async def clean_up(self) -> None:
        """Removes expired responses and old entries of the audit log."""
        await self.delete_expired_responses()
        await self.audit.remove_old(self._database)

    async def delete_expired_responses(self) -> int:
        return await stored_responses.remove_before(
            self._database, self._now_ms() - RESPONSE_RETENTION_MS
        )

    def _keyed(
        self,
        caller: Caller,
        request: Message,
        response_type: type[ResponseT],
        check_replay: ReplayCheck[ResponseT] | None,
    ) -> _Request[ResponseT]:
        key = _caller_key(caller)
        return _Request(
            caller,
            request,
            None if key is None else _Key(key, _message_hash(self._mac_key, request)),
            response_type,
            check_replay,
        )

    async def _once(
        self, request: _Request[ResponseT], work: Callable[[], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Runs `work`, unless a request with the same key runs. Then shares its response."""
        if request.key is None:
            return await _await_shielded(asyncio.ensure_future(work()))
        key, message_hash = request.key
        running = self._in_flight.get(key)
        if running is None:
            task = asyncio.ensure_future(work())
            self._in_flight[key] = (message_hash, task)
            task.add_done_callback(lambda _: self._in_flight.pop(key, None))
        else:
            if running[0] != message_hash:
                raise ServiceError("IDEMPOTENCY_KEY_REUSED")
            task = running[1]
        response: ResponseT = await _await_shielded(task)
        return response

    async def _change_with_resource(
        self, request: _Request[ResponseT], open_change: ChangeWithResource[ResponseT]
    ) -> ResponseT:
        if request.key is not None:
            async with self._database.read() as tx:
                row = await stored_responses.find(tx, request.key.key)
                stored = await self._replay(tx, request, row)
            if stored is not None:
                return stored
        async with open_change() as change:
            return await self._change(request, change)

    async def _change(self, request: _Request[ResponseT], change: Change[ResponseT]) -> ResponseT:
        return await retry_on_conflict(partial(self._attempt, request, change))

    async def _attempt(self, request: _Request[ResponseT], change: Change[ResponseT]) -> ResponseT:
        key = request.key
        async with self._database.write() as tx:
            if key is not None:
                row = await stored_responses.find(tx, key.key)
                stored = await self._replay(tx, request, row)
                if stored is not None:
                    return stored
                if row is not None:
                    await stored_responses.remove(tx, key.key)
            answer = await change(tx)
            await self.audit.add(tx, request.caller, request.message, answer)
            response = answer or request.response_type()
            if key is not None:
                content = response.SerializeToString(deterministic=True)
                await stored_responses.add(tx, *key, content, self._now_ms())
            return response

    async def _replay(
        self, tx: Transaction, request: _Request[ResponseT], row: Record | None
    ) -> ResponseT | None:
        """Returns the response of a row, or None if the change has to run."""
        if row is None or row.create_ms <= self._now_ms() - RESPONSE_RETENTION_MS:
            return None
        if request.key is None or row.message_hash != request.key.message_hash:
            raise ServiceError("IDEMPOTENCY_KEY_REUSED")
        response = request.response_type.FromString(row.answer)
        if request.check_replay is not None and not await request.check_replay(tx, response):
            return None
        return response


@dataclass(frozen=True, slots=True)
class RecordContext:
    database: Database
    changes: IdempotentChanges
    ids: RecordIds
    topics: Topics
    now_ms: Callable[[], int] = now_ms
    quotas: QuotaChecks = field(default_factory=QuotaChecks)


async def _await_shielded(task: asyncio.Future[ResponseT]) -> ResponseT:
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            # Mark the error as retrieved.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _caller_key(caller: Caller) -> bytes | None:
    key = caller.call.idempotency_key
    if key is None:
        return None
    kind = caller.kind.value.encode()
    content = b"\0".join((kind, caller.identity.hex().encode(), key.encode()))
    digest = hashlib.sha256(content).digest()
    return (
        stored_responses.ANONYMOUS_PREFIX + digest if caller.kind is TokenKind.TOKENLESS else digest
    )


def _message_hash(mac_key: bytes, request: Message) -> bytes:
    """Returns the HMAC of the request."""
    name = str(type(request).DESCRIPTOR.full_name)
    content = name.encode() + b"\0" + request.SerializeToString(deterministic=True)
    # A plain hash could reveal a guessable password in the request.
    return hmac.digest(mac_key, content, "sha256")
