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

BYTES_MAX: Final = 4 << 20
"""Bytes of a page. A page with one row can be larger."""
_ROW_BYTES: Final = 256
"""Names of fields, numbers and times of a row in a response."""

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


def _row_bytes(row: Record) -> int:
    return _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes))


class _PageReader:
    """Reader of pages. A subclass sets the statements of the first page and of a following one."""

    _first: Select[Any]
    _following: Select[Any]
    _key: Sequence[Column[Any]]

    _rows_at_once: int = ROWS_MAX + 1

    async def read(self, tx: Transaction, values: Mapping[str, Any], bounds: PageBounds) -> Page:
        """Returns a page of at most `bounds.limit` rows and about BYTES_MAX, but at least one row."""
        rows: list[Record] = []
        size, cursor = 0, bounds.cursor
        while True:
            # One more row shows whether another page follows.
            count = min(bounds.limit + 1 - len(rows), self._rows_at_once)
            batch = await self._rows_after(cursor, tx, {**values, "page_limit": count})
            for row in batch:
                size += _row_bytes(row)
                if len(rows) == bounds.limit or (rows and size > BYTES_MAX):
                    return Page(rows, self.cursor_of(rows[-1]))
                rows.append(row)
            if len(batch) < count:
                return Page(rows, None)
            cursor = self.cursor_of(batch[-1])

    async def _rows_after(
        self, cursor: str | None, tx: Transaction, values: dict[str, Any]
    ) -> Sequence[Record]:
        if cursor is None:
            return await tx.all(self._first, values)
        parts = cursor.split(_SEPARATOR)
        for number, (column, part) in enumerate(zip(self._key, parts, strict=True)):
            is_number = isinstance(column.type, Integer)
            values[f"page_after_{number}"] = int(part) if is_number else part
        return await tx.all(self._following, values)

    def cut(self, page: Page, more_bytes: Callable[[Record], int]) -> Page:
        """Returns the page without the rows beyond BYTES_MAX. `more_bytes` returns the bytes of a
        row's content in other tables.
        """
        size = 0
        for count, row in enumerate(page.rows):
            size += _row_bytes(row) + more_bytes(row)
            if count and size > BYTES_MAX:
                rows = page.rows[:count]
                return Page(rows, self.cursor_of(rows[-1]))
        return page

    def cursor_of(self, row: Record) -> str:
        """Returns the cursor for the page after this row."""
        return _SEPARATOR.join(str(getattr(row, column.name)) for column in self._key)


class PagedList(_PageReader):
    """Statement that is read in pages, in the order of a unique key."""

    def __init__(
        self,
        statement: Select[Any],
        *key: Column[Any],
        is_descending: bool = True,
        rows_at_once: int = ROWS_MAX + 1,
    ) -> None:
        """The statement selects the columns of `key`, and has no order of its own.

        The cursor has the values of these columns, so they must be IDs or integers. A list with
        large rows reads few `rows_at_once`, so that it reads little more than a page.
        """
        self._statement = statement
        self._rows_at_once = rows_at_once
        self._key = key
        self._is_descending = is_descending
        order = [column.desc() if is_descending else column for column in key]
        self._first = statement.order_by(*order).limit(PAGE_LIMIT)
        self._following = self._first.where(self._is_after_cursor())

    def where(self, *conditions: ColumnElement[bool]) -> PagedList:
        """Returns the list of only the rows that meet the conditions."""
        statement = self._statement.where(*conditions)
        return PagedList(
            statement,
            *self._key,
            is_descending=self._is_descending,
            rows_at_once=self._rows_at_once,
        )

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
