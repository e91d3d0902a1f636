"""Statements as PostgreSQL's driver takes them: arguments are $1, $2…, a list is an array."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ARRAY, BinaryExpression, BindParameter
from sqlalchemy.dialects.postgresql.asyncpg import PGCompiler_asyncpg, PGDialect_asyncpg

from pyservice.storage.statements import Lists, Statements


class _Compiler(Lists, PGCompiler_asyncpg):
    def one_of_list(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], **kw: Any
    ) -> str:
        return self._any(binary, several, "= ANY", **kw)

    def none_of_list(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], **kw: Any
    ) -> str:
        return self._any(binary, several, "<> ALL", **kw)

    def _any(
        self, binary: BinaryExpression[Any], several: BindParameter[Any], operator: str, **kw: Any
    ) -> str:
        # Without the column's length: a cast would cut texts to it, and find what nobody asked for.
        several.type = ARRAY(type(binary.left.type)())
        return f"{self.process(binary.left, **kw)} {operator} ({self.process(several, **kw)})"


class _Dialect(PGDialect_asyncpg):
    statement_compiler = _Compiler
    supports_statement_cache = True


def postgres_statements() -> Statements:
    """Statements of one database."""
    return Statements(_Dialect())  # type: ignore[no-untyped-call]
