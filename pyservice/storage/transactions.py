"""What a transaction on the records is, whichever database keeps them. Made by `sqlite` and `postgres`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Executable, Row

from pyservice.observability.logging import get_logger

Record = Row[Any]
"""A row; its columns are attributes. What PostgreSQL gives looks the same (`postgres_connections`)."""

Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Result = TypeVar("Result")

_log = get_logger("storage")


class Transaction(Protocol):
    """Statements that take effect together. Raises Conflict, and ServiceError when the database is away."""

    async def all(self, statement: Executable, values: Values = None) -> Sequence[Record]:
        """All rows."""
        ...

    async def first(self, statement: Executable, values: Values = None) -> Record | None:
        """The first row, None when there is none."""
        ...

    async def run(self, statement: Executable, values: Values = None) -> int:
        """How many rows it concerned; of several values, how many those were."""
        ...

    def afterwards(self, call: Callable[[], None]) -> None:
        """Calls it when the change was committed, or may have been: also when nobody waits for it any more."""
        ...


class Afterwards:
    """Calls that wait for the commit."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def afterwards(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def call_afterwards(self, _: object = None) -> None:
        for call in self._calls:
            try:
                call()
            except Exception:  # noqa: BLE001 — the others are told of the change all the same
                _log.exception("what follows a change failed")
