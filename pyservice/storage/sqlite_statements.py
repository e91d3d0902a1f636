"""Statements as SQLite's driver takes them: arguments are `?`, a list is a JSON text; and the rows that it gives."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson
from sqlalchemy import BinaryExpression, BindParameter, Boolean, LargeBinary
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.types import UserDefinedType

from pyservice.storage.statements import Lists, Prepared, Statements

OF_HEX: Final = "bytes_of_hex"
"""A function that each connection has; JSON knows no bytes."""

MakeRow = Callable[[Sequence[Any]], Any]


class _TextList(UserDefinedType[Any]):
    """Texts or integers. JSON in SQLite ends a text at NUL, which no column has."""

    cache_ok = True

    @staticmethod
    def send(values: Iterable[Any]) -> str:
        return orjson.dumps(
            [one for one in values if not isinstance(one, str) or "\0" not in one]
        ).decode()


class _BytesList(UserDefinedType[Any]):
    cache_ok = True

    @staticmethod
    def send(values: Iterable[bytes]) -> str:
        return orjson.dumps([value.hex() for value in values]).decode()


class _Compiler(Lists, SQLiteCompiler):
    def one_of_list(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], **kw: Any
    ) -> str:
        return self._in_json(binary, several, "IN", **kw)

    def none_of_list(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], **kw: Any
    ) -> str:
        return self._in_json(binary, several, "NOT IN", **kw)

    def _in_json(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], operator: str, **kw: Any
    ) -> str:
        is_bytes = isinstance(binary.left.type, LargeBinary)
        several.type = _BytesList() if is_bytes else _TextList()
        value = f"{OF_HEX}(value)" if is_bytes else "value"
        given = self.process(several, **kw)
        left = self.process(binary.left, **kw)
        return f"{left} {operator} (SELECT {value} FROM json_each({given}))"


class _Dialect(SQLiteDialect_pysqlite):
    statement_compiler = _Compiler
    supports_statement_cache = True


def sqlite_statements() -> Statements:
    """Statements of one database."""
    return Statements(_Dialect(paramstyle="qmark"))


@lru_cache(1000)
def _row_type(names: tuple[str, ...]) -> Any:
    """Rows with these columns. Making a type takes longer than ten statements."""
    made = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    row: Any = made
    row._mapping = property(row._asdict)
    return row


def row_maker(prepared: Prepared, names: Iterable[str]) -> MakeRow:
    """Makes rows of what the driver gives, whose columns have these names. SQLite's booleans are integers."""
    make: MakeRow = _row_type(tuple(names))._make
    booleans = [
        number
        for number, column in enumerate(prepared.compiled._result_columns)
        if isinstance(column.type, Boolean)
    ]
    if not booleans:
        return make

    def with_booleans(values: Sequence[Any]) -> Any:
        changed = list(values)
        for number in booleans:
            if changed[number] is not None:
                changed[number] = bool(changed[number])
        return make(changed)

    return with_booleans
