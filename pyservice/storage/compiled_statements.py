"""Cache of SQL statements that SQLAlchemy compiled for a database driver.

A statement through SQLAlchemy's engine takes six times as long as through the driver itself. Values
reach the driver unchanged, so columns have only types that drivers accept: texts, integers,
booleans, bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import BinaryExpression, BindParameter, Executable
from sqlalchemy.sql.compiler import SQLCompiler

from pyservice.storage.database import Values

_SHAPES_MAX: Final = 500
_NONE: Final[Mapping[str, Any]] = {}

ArgumentValues = Sequence[Any]


class ListParameterCompiler:
    """Compiler mixin that passes a list as one argument of a statement.

    One prepared statement then fits lists of any length.
    """

    def visit_in_op_binary(self, binary: BinaryExpression[Any], operator: Any, **kw: Any) -> str:
        parameter = self._list_of(binary)
        if parameter is None:
            return str(self._plain(binary, " IN ", **kw))
        return self.in_list(binary, parameter, **kw)

    def visit_not_in_op_binary(
        self, binary: BinaryExpression[Any], operator: Any, **kw: Any
    ) -> str:
        parameter = self._list_of(binary)
        if parameter is None:
            return f"({self._plain(binary, ' NOT IN ', **kw)})"
        return self.not_in_list(binary, parameter, **kw)

    @property
    def _plain(self) -> Any:
        own: Any = self
        return own._generate_generic_binary

    def _list_of(self, binary: BinaryExpression[Any]) -> BindParameter[Any] | None:
        parameter = binary.right
        if not isinstance(parameter, BindParameter) or not parameter.expanding:
            return None
        one: BindParameter[Any] = parameter._clone(maintain_key=True)
        one.expanding = False
        return one

    def in_list(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], **kw: Any
    ) -> str:
        raise NotImplementedError

    def not_in_list(
        self, binary: BinaryExpression[Any], parameter: BindParameter[Any], **kw: Any
    ) -> str:
        raise NotImplementedError


class StatementArgument:
    """Argument of a statement: the name of a value, or a constant.

    `send` converts the value to a type that the driver accepts.
    """

    __slots__ = ("constant", "name", "send")

    def __init__(self, name: str | None, constant: Any, send: Callable[[Any], Any] | None) -> None:
        self.name = name
        self.constant = constant if send is None or name is not None else send(constant)
        self.send = send if name is not None else None

    def of(self, values: Mapping[str, Any]) -> Any:
        if self.name is None:
            return self.constant
        value = values[self.name]
        return value if self.send is None else self.send(value)


class CompiledStatement:
    __slots__ = ("arguments", "compiled", "make_row", "text")

    def __init__(self, compiled: SQLCompiler, arguments: Sequence[StatementArgument]) -> None:
        self.text = compiled.string
        self.compiled = compiled
        self.arguments = arguments
        self.make_row: Any = None

    def argument_values(self, values: Values) -> ArgumentValues:
        """Returns the arguments in the driver's order. Raises TypeError if `values` is a list."""
        if values is None:
            values = _NONE
        elif not isinstance(values, Mapping):
            raise TypeError("a statement with several sets of values returns no rows")
        return [argument.of(values) for argument in self.arguments]

    def argument_value_lists(self, value_rows: Sequence[Mapping[str, Any]]) -> list[ArgumentValues]:
        return [[argument.of(values) for argument in self.arguments] for values in value_rows]


class StatementCache:
    """Cache of compiled statements, by statement object.

    Equal statement objects share one compilation through SQLAlchemy's cache key.
    """

    def __init__(self, dialect: Any) -> None:
        self._dialect = dialect
        self._own: WeakKeyDictionary[Any, dict[tuple[str, ...], CompiledStatement]] = (
            WeakKeyDictionary()
        )
        self._by_shape: OrderedDict[Any, SQLCompiler] = OrderedDict()

    def compile(self, statement: Executable, values: Values) -> CompiledStatement:
        if values is None:
            value_names: tuple[str, ...] = ()
        else:
            value_names = tuple(values if isinstance(values, Mapping) else values[0])
        own = self._own.get(statement)
        if own is None:
            own = self._own[statement] = {}
        cached = own.get(value_names)
        if cached is None:
            cached = own[value_names] = self._prepare(statement, value_names)
        return cached

    def _prepare(self, statement: Any, value_names: tuple[str, ...]) -> CompiledStatement:
        key = statement._generate_cache_key()
        compiled = self._compile(statement, key, value_names)
        # A cached statement of the same shape can have other constants.
        bound = compiled.construct_params(
            dict.fromkeys(value_names), None if key is None else key.bindparams
        )
        arguments = []
        for name in compiled.positiontup or ():
            parameter = compiled.binds[name]
            send = getattr(parameter.type, "send", None)
            is_given = parameter.key in value_names
            arguments.append(
                StatementArgument(parameter.key, None, send)
                if is_given
                else StatementArgument(None, bound[name], send)
            )
        return CompiledStatement(compiled, arguments)

    def _compile(self, statement: Any, key: Any, value_names: tuple[str, ...]) -> SQLCompiler:
        shape = None if key is None else (key.key, value_names)
        cached = self._by_shape.get(shape)
        if cached is not None:
            self._by_shape.move_to_end(shape)
            return cached
        compiled: SQLCompiler = statement.compile(
            dialect=self._dialect,
            cache_key=key,
            column_keys=list(value_names),
            for_executemany=True,
        )
        unbound = compiled.post_compile_params | compiled.literal_execute_params
        if unbound:
            raise TypeError(f"values in the statement text instead of arguments: {unbound}")
        if shape is not None:
            self._by_shape[shape] = compiled
            if len(self._by_shape) > _SHAPES_MAX:
                self._by_shape.popitem(last=False)
        return compiled
