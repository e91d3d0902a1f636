"""Audit entries of refused changes, which have no transaction.

Entries wait in memory and are written in batches, so that a refusal costs no disk sync. A kill of
the process loses the waiting ones. Each group has a limit for each hour, so that refused calls
cannot fill the disk.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable
from typing import Any, Final

from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message

from pyservice.calls import Authorize, Call, Caller, Run, TokenKind, WaitForChange
from pyservice.control.audit_log import AuditLog
from pyservice.control.authorization import CallAuthenticator
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.pb.errors import TABLE
from pyservice.schema.methods import METHODS, descriptor_of
from pyservice.storage.audit_log import Entry
from pyservice.storage.database import Database

PER_GROUP_AND_HOUR: Final = 200
_WAITING_MAX: Final = 10_000
_HOUR_MS: Final = 3_600_000
_FLUSH_EVERY_S: Final = 1.0
_RETRIES_S: Final = (1.0, 60.0)
_FAILURE_FROM: Final = 500
"""HTTP status from which an error is a failure of the service, and not a refusal."""


def is_change(name: str) -> bool:
    """Returns whether an operation may write, by its declaration in the proto files."""
    service, _, method = name.rpartition(".")
    file = descriptor_of(METHODS[name].request).file
    descriptor = file.services_by_name[service.rpartition(".")[2]].methods_by_name[method]
    return bool(descriptor.GetOptions().idempotency_level != MethodOptions.NO_SIDE_EFFECTS)


class RefusedChanges:
    def __init__(self, database: Database, audit: AuditLog, gate: CallAuthenticator) -> None:
        self._database = database
        self._audit = audit
        self._gate = gate
        self._waiting: list[Entry] = []
        self._hour = 0
        self._counts: Counter[str] = Counter()
        self.job = RetryingJob(
            "audit", "refused changes not recorded", pauses_s=_RETRIES_S, is_worth_a_warning=True
        )

    def note(self, caller: Caller, request: Message, code: str) -> None:
        if caller.kind is TokenKind.TOKENLESS or TABLE[code].http >= _FAILURE_FROM:
            return
        entry = self._audit.refusal(caller, request, code)
        hour = entry.create_ms // _HOUR_MS
        if hour != self._hour:
            self._hour, self._counts = hour, Counter()
        if self._counts[entry.group_id] < PER_GROUP_AND_HOUR and len(self._waiting) < _WAITING_MAX:
            self._counts[entry.group_id] += 1
            self._waiting.append(entry)

    def run_and_note(self, run: Run) -> Run:
        """Returns an operation that also notes its refusals."""

        async def run_noted(request: Any, caller: Caller) -> Message | WaitForChange:
            try:
                return await run(request, caller)
            except ServiceError as error:
                self.note(caller, request, error.code)
                raise

        return run_noted

    def authorize_and_note(self, name: str, authorize: Authorize) -> Authorize:
        """Returns an authorization that also notes valid tokens with a too narrow scope."""

        async def authorize_noted(call: Call) -> Caller:
            try:
                caller = authorize(call)
                return await caller if isinstance(caller, Awaitable) else caller
            except ServiceError as error:
                if error.code == "FORBIDDEN":
                    with contextlib.suppress(ServiceError):
                        caller = await self._gate.require_service_or_cloud_token(call)
                        self.note(caller, METHODS[name].request(), error.code)
                raise

        return authorize_noted

    async def flush(self) -> None:
        """Writes the waiting entries in one transaction."""
        entries = list(self._waiting)
        if not entries:
            return
        async with self._database.write() as tx:
            await self._audit.add_entries(tx, entries)
        del self._waiting[: len(entries)]

    async def run(self) -> None:
        await self.job.repeat_forever(self.flush, every_s=_FLUSH_EVERY_S)
