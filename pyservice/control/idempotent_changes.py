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
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

from google.protobuf.message import Message

from pyservice.calls import Caller, TokenKind
from pyservice.control.audit_log import AuditLog
from pyservice.control.quotas import QuotaChecks
from pyservice.control.retrying_job import RetryingJob
from pyservice.control.timestamps import now_ms
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.storage import stored_responses
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.watch import Topics

ResponseT = TypeVar("ResponseT", bound=Message)
Change = Callable[[Transaction], Awaitable[ResponseT | None]]
ChangeWithResource = Callable[[], AbstractAsyncContextManager[Change[ResponseT]]]
ReplayCheck = Callable[[Transaction, ResponseT], Awaitable[None]]

RESPONSE_RETENTION_MS: Final = 24 * 3_600_000
_KEY_BYTES: Final = 32
_CLEANUP_INTERVAL_S: Final = 3_600.0
_RETRIES_S: Final = (60.0, _CLEANUP_INTERVAL_S)


class _Key(NamedTuple):
    key: bytes
    message_hash: bytes


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
        disconnects. `check_replay` checks a stored response, and raises an error if the caller may
        no longer see it. Raises IDEMPOTENCY_KEY_REUSED, and the errors of `change` and
        `check_replay`.
        """
        audited = self._with_audit(caller, request, change)
        return await self._once(
            caller, request, lambda key: self._change(key, response_type, audited, check_replay)
        )

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

        async def work(key: _Key | None) -> ResponseT:
            if key is not None:
                async with self._database.read() as tx:
                    before = await stored_responses.find(tx, key.key)
                    if self._is_replayable(before):
                        return await _stored_response(tx, before, key, response_type, check_replay)
            async with open_change() as change:
                audited = self._with_audit(caller, request, change)
                return await self._change(key, response_type, audited, check_replay)

        return await self._once(caller, request, work)

    async def forget_response(self, caller: Caller) -> None:
        key = _caller_key(caller)
        if key is None:
            return

        async def attempt() -> None:
            async with self._database.write() as tx:
                await stored_responses.remove(tx, key)

        await retry_on_conflict(attempt)

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

    async def _once(
        self, caller: Caller, request: Message, work: Callable[[_Key | None], Awaitable[ResponseT]]
    ) -> ResponseT:
        key = _caller_key(caller)
        if key is None:
            return await _await_shielded(asyncio.ensure_future(work(None)))
        message_hash = _message_hash(self._mac_key, request)
        running = self._in_flight.get(key)
        if running is None:
            task = asyncio.ensure_future(work(_Key(key, message_hash)))
            self._in_flight[key] = (message_hash, task)
            task.add_done_callback(lambda _: self._in_flight.pop(key, None))
        else:
            if running[0] != message_hash:
                raise ServiceError("IDEMPOTENCY_KEY_REUSED")
            task = running[1]
        response: ResponseT = await _await_shielded(task)
        return response

    def _with_audit(
        self, caller: Caller, request: Message, change: Change[ResponseT]
    ) -> Change[ResponseT]:
        async def change_and_log(tx: Transaction) -> ResponseT | None:
            response = await change(tx)
            await self.audit.add(tx, caller, request, response)
            return response

        return change_and_log

    async def _change(
        self,
        key: _Key | None,
        response_type: type[ResponseT],
        change: Change[ResponseT],
        check_replay: ReplayCheck[ResponseT] | None,
    ) -> ResponseT:
        async def attempt() -> ResponseT:
            async with self._database.write() as tx:
                if key is None:
                    return await change(tx) or response_type()
                before = await stored_responses.find(tx, key.key)
                if self._is_replayable(before):
                    return await _stored_response(tx, before, key, response_type, check_replay)
                if before is not None:
                    await stored_responses.remove(tx, key.key)
                response = await change(tx) or response_type()
                content = response.SerializeToString(deterministic=True)
                await stored_responses.add(tx, *key, content, self._now_ms())
                return response

        return await retry_on_conflict(attempt)

    def _is_replayable(self, before: Record | None) -> TypeGuard[Record]:
        return before is not None and bool(
            before.create_ms > self._now_ms() - RESPONSE_RETENTION_MS
        )


@dataclass(frozen=True, slots=True)
class RecordContext:
    database: Database
    changes: IdempotentChanges
    ids: RecordIds
    topics: Topics
    now_ms: Callable[[], int] = now_ms
    quotas: QuotaChecks = field(default_factory=QuotaChecks)


async def _stored_response(
    tx: Transaction,
    before: Record,
    key: _Key,
    response_type: type[ResponseT],
    check_replay: ReplayCheck[ResponseT] | None,
) -> ResponseT:
    if before.message_hash != key.message_hash:
        raise ServiceError("IDEMPOTENCY_KEY_REUSED")
    response = response_type.FromString(before.answer)
    if check_replay is not None:
        await check_replay(tx, response)
    return response


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
