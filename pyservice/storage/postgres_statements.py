"""Statements as PostgreSQL's driver takes them: a text with $1, $2… and its arguments in order.

SQLAlchemy compiles each statement once; running one through its engine would cost six times what the driver needs.
Values go to the driver as they are, so columns have types that it knows by itself: texts, integers, booleans, bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import ARRAY, BinaryExpression, BindParameter, Executable
from sqlalchemy.dialects.postgresql.asyncpg import PGCompiler_asyncpg, PGDialect_asyncpg
from sqlalchemy.sql.compiler import SQLCompiler

_KEPT: Final = 500
"""Shapes of statements."""

Arguments = Sequence[Any]


class _Compiler(PGCompiler_asyncpg):
    """Lists are one argument however long they are, so that their statement is always the same and stays prepared."""

    def visit_in_op_binary(self, binary: BinaryExpression[Any], operator: Any, **kw: Any) -> str:
        return self._list(binary, "= ANY", **kw) or self._generate_generic_binary(
            binary, " IN ", **kw
        )

    def visit_not_in_op_binary(
        self, binary: BinaryExpression[Any], operator: Any, **kw: Any
    ) -> str:
        several = self._list(binary, "<> ALL", **kw)
        return several or f"({self._generate_generic_binary(binary, ' NOT IN ', **kw)})"

    def _list(self, binary: BinaryExpression[Any], operator: str, **kw: Any) -> str | None:
        several = binary.right
        if not isinstance(several, BindParameter) or not several.expanding:
            return None
        array = several._clone(maintain_key=True)
        array.expanding = False
        # Without the column's length: a cast would cut texts to it, and find what nobody asked for.
        array.type = ARRAY(type(binary.left.type)())
        return f"{self.process(binary.left, **kw)} {operator} ({self.process(array, **kw)})"


class _Dialect(PGDialect_asyncpg):
    statement_compiler = _Compiler
    supports_statement_cache = True


class _Prepared(NamedTuple):
    """A statement of ours. `places`: for each argument its name among the values, or None and what it is always."""

    text: str
    places: Sequence[tuple[str | None, Any]]


class Statements:
    """What was compiled. Statements of modules are known by themselves, those made for one use by their shape."""

    def __init__(self) -> None:
        self._dialect: Any = _Dialect()  # type: ignore[no-untyped-call]
        self._own: WeakKeyDictionary[Any, dict[tuple[str, ...], _Prepared]] = WeakKeyDictionary()
        self._by_shape: OrderedDict[Any, SQLCompiler] = OrderedDict()

    def one(self, statement: Executable, values: Mapping[str, Any]) -> tuple[str, Arguments]:
        """Text and arguments."""
        text, places = self._prepared(statement, tuple(values))
        return text, [values[name] if name else always for name, always in places]

    def many(
        self, statement: Executable, several: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[Arguments]]:
        """The same for several values, all of the same names."""
        text, places = self._prepared(statement, tuple(several[0]))
        return text, [
            [values[name] if name else always for name, always in places] for values in several
        ]

    def _prepared(self, statement: Executable, given: tuple[str, ...]) -> _Prepared:
        own = self._own.get(statement)
        if own is None:
            own = self._own[statement] = {}
        prepared = own.get(given)
        if prepared is None:
            prepared = own[given] = self._prepare(statement, given)
        return prepared

    def _prepare(self, statement: Any, given: tuple[str, ...]) -> _Prepared:
        key = statement._generate_cache_key()
        compiled = self._compiled(statement, key, given)
        # What the statement has of its own; the one that was compiled may have had something else.
        bound = compiled.construct_params(
            dict.fromkeys(given), None if key is None else key.bindparams
        )
        places: list[tuple[str | None, Any]] = []
        for name in compiled.positiontup or ():
            given_name = compiled.binds[name].key
            is_given = given_name in given
            places.append((given_name, None) if is_given else (None, bound[name]))
        return _Prepared(compiled.string, places)

    def _compiled(self, statement: Any, key: Any, given: tuple[str, ...]) -> SQLCompiler:
        shape = None if key is None else (key.key, given)
        found = self._by_shape.get(shape)
        if found is not None:
            self._by_shape.move_to_end(shape)
            return found
        compiled: SQLCompiler = statement.compile(
            dialect=self._dialect, cache_key=key, column_keys=list(given), for_executemany=True
        )
        unbound = compiled.post_compile_params | compiled.literal_execute_params
        if unbound:
            raise TypeError(f"not arguments but text: {unbound}")
        if shape is not None:
            self._by_shape[shape] = compiled
            if len(self._by_shape) > _KEPT:
                self._by_shape.popitem(last=False)
        return compiled
