"""Changes of a namespace: stored first, then confirmed by the data plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.feeder import CONFIRM_TIMEOUT_S
from pyservice.control.games import game_topic
from pyservice.control.idempotent_changes import IdempotentChanges
from pyservice.errors import ServiceError
from pyservice.storage.database import Database, Record, Transaction
from pyservice.watch import Topics

Answer = TypeVar("Answer", bound=Message)


class ConfirmingFeeder(Protocol):
    def enqueue(self, *namespace_ids: str) -> None: ...
    async def enqueue_and_confirm(
        self, namespace_id: str, *, version_id: str | None = None, wait_s: float = CONFIRM_TIMEOUT_S
    ) -> None: ...
    async def check_version(self, namespace_id: str, version_id: str) -> None: ...


def site_topic(namespace_id: str) -> str:
    return f"site:{namespace_id}"


class NamespaceChange:
    def __init__(
        self,
        database: Database,
        changes: IdempotentChanges,
        topics: Topics,
        feeder: ConfirmingFeeder,
    ) -> None:
        self._database = database
        self._changes = changes
        self._topics = topics
        self._feeder = feeder

    async def apply_and_confirm(
        self,
        caller: Caller,
        request: Any,
        answer_type: type[Answer],
        change: Callable[[Transaction, Record], Awaitable[Answer]],
        *,
        version_id: str | None = None,
        wait_s: float = CONFIRM_TIMEOUT_S,
    ) -> Answer:
        """Stores a change, then waits for the data plane. `version_id` is the new version, if the
        change sets one.
        """
        found: list[str] = []

        async def noted(tx: Transaction, row: Record) -> Answer:
            found[:] = [row.namespace_id]
            return await change(tx, row)

        answer = await self.change(caller, request, answer_type, noted)
        if not found:
            # A replayed response: the data plane may not hold the change yet.
            async with self._database.query() as tx:
                row = await authorization.find_namespace(
                    tx, caller, request.game_id, request.namespace_id
                )
            found = [row.namespace_id]
        try:
            await self._feeder.enqueue_and_confirm(found[0], version_id=version_id, wait_s=wait_s)
        except ServiceError as error:
            if error.code == "VALIDATION_FAILED":
                await self._changes.forget_response(caller)
            raise
        return answer

    async def change(
        self,
        caller: Caller,
        request: Any,
        answer_type: type[Answer],
        change: Callable[[Transaction, Record], Awaitable[Answer]],
    ) -> Answer:

        async def found(tx: Transaction) -> Answer:
            row = await authorization.find_namespace(
                tx, caller, request.game_id, request.namespace_id
            )
            tx.after_commit(lambda: self._feeder.enqueue(row.namespace_id))
            tx.after_commit(
                lambda: self._topics.bump(game_topic(row.game_id), site_topic(row.namespace_id))
            )
            return await change(tx, row)

        return await self._changes.apply(caller, request, answer_type, found)
