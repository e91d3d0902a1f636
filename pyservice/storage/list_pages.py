"""Pages of lists. A page starts after the key of the last row on the previous page.

Rows that are added or removed between two pages therefore shift no other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    bindparam,
    tuple_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from pyservice.storage.database import Record, Transaction

ROWS_MAX: Final = 10_000
"""Rows of a page, unless the request has a `limit`."""

PAGE_LIMIT: Final = bindparam("page_limit", type_=Integer)
RowConditions = Callable[[FromClause], Sequence[ColumnElement[bool]]]
"""Returns conditions on the columns of a table, or of an alias of it."""

_SEPARATOR: Final = "."


class PageBounds(NamedTuple):
    limit: int = ROWS_MAX
    cursor: str | None = None

    @classmethod
    def of(cls, request: Any, default: int = ROWS_MAX) -> PageBounds:
        """Returns the bounds in the fields `limit` and `cursor` of a request."""
        return cls(
            request.limit if request.HasField("limit") else default,
            request.cursor if request.HasField("cursor") else None,
        )


class Page(NamedTuple):
    rows: Sequence[Record]
    cursor: str | None
    """Cursor for the next page, or None on the last page."""


class _PageReader:
    """Reader of pages. A subclass sets the statements of the first page and of a following one."""

    _first: Select[Any]
    _following: Select[Any]
    _key: Sequence[Column[Any]]

    async def read(self, tx: Transaction, values: Mapping[str, Any], bounds: PageBounds) -> Page:
        # One more row shows whether another page follows.
        values = {**values, "page_limit": bounds.limit + 1}
        if bounds.cursor is None:
            rows = await tx.all(self._first, values)
        else:
            parts = bounds.cursor.split(_SEPARATOR)
            for number, (column, part) in enumerate(zip(self._key, parts, strict=True)):
                is_number = isinstance(column.type, Integer)
                values[f"page_after_{number}"] = int(part) if is_number else part
            rows = await tx.all(self._following, values)
        if len(rows) <= bounds.limit:
            return Page(rows, None)
        page = rows[: bounds.limit]
        return Page(page, self.cursor_of(page[-1]))

    def cursor_of(self, row: Record) -> str:
        """Returns the cursor for the page after this row."""
        return _SEPARATOR.join(str(getattr(row, column.name)) for column in self._key)


class PagedList(_PageReader):
    """Statement that is read in pages, in the order of a unique key."""

    def __init__(
        self, statement: Select[Any], *key: Column[Any], is_descending: bool = True
    ) -> None:
        """The statement selects the columns of `key`, and has no order of its own.

        The cursor has the values of these columns, so they must be IDs or integers.
        """
        self._statement = statement
        self._key = key
        self._is_descending = is_descending
        order = [column.desc() if is_descending else column for column in key]
        self._first = statement.order_by(*order).limit(PAGE_LIMIT)
        self._following = self._first.where(self._is_after_cursor())

    def where(self, *conditions: ColumnElement[bool]) -> PagedList:
        """Returns the list of only the rows that meet the conditions."""
        statement = self._statement.where(*conditions)
        return PagedList(statement, *self._key, is_descending=self._is_descending)

    def _is_after_cursor(self) -> ColumnElement[bool]:
        bounds: list[Any] = [
            bindparam(f"page_after_{number}", type_=column.type)
            for number, column in enumerate(self._key)
        ]
        key: Any = tuple_(*self._key) if len(bounds) > 1 else self._key[0]
        bound: Any = tuple_(*bounds) if len(bounds) > 1 else bounds[0]
        after: ColumnElement[bool] = key < bound if self._is_descending else key > bound
        return after


class MergedList(_PageReader):
    """List in the descending order of a unique key, merged from parts that each have their limit."""

    def __init__(self, first: Select[Any], following: Select[Any], key: Column[Any]) -> None:
        """Both statements have PAGE_LIMIT. The cursor of `following` is `page_after_0`."""
        self._first, self._following = first, following
        self._key = (key,)


class ConditionByDatabase(ColumnElement[bool]):
    """Condition with another form for each database, because no form is fast on both."""

    inherit_cache = True
    type = Boolean()
    # Otherwise SQLite gets a comparison with 1, and uses no index.
    _is_implicitly_boolean = True
    _traverse_internals = [  # noqa: RUF012 — SQLAlchemy declares it as an instance variable
        ("sqlite", InternalTraversal.dp_clauseelement),
        ("postgresql", InternalTraversal.dp_clauseelement),
    ]

    def __init__(self, *, sqlite: ColumnElement[bool], postgresql: ColumnElement[bool]) -> None:
        self.sqlite = sqlite
        self.postgresql = postgresql


@compiles(ConditionByDatabase)
def _compile_form(condition: ConditionByDatabase, compiler: SQLCompiler, **options: Any) -> str:
    form = getattr(condition, compiler.dialect.name)
    return f"({compiler.process(form, **options)})"
