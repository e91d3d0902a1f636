"""The public interface as a list of lines, and the stored list of an earlier release.

A line names one thing that clients or operators depend on. It is one of: an error code with its
statuses, an rpc, a route, a proto file, a message field, an enum value. Or it is a metric with its
labels, a setting with its default, a command, or an option of a command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from typer.main import get_command

from pyservice import openapi
from pyservice.cli.commands import app
from pyservice.pb.errors import TABLE
from pyservice.schema.methods import METHODS
from pyservice.settings.model import Settings
from tests.support.doc_pages import commands, families_shown, settings_rows
from tests.support.stored_openapi import RELEASE

FOLDER: Final = Path(__file__).parent
_PROSE: Final = frozenset({"description", "summary", "title", "version", "tags", "servers"})
_EXAMPLES: Final = frozenset({"example", "examples"})
MAPS: Final = frozenset({"properties", "schemas", "paths", "responses"})
"""Members of an OpenAPI document that map free names to objects."""


def interface() -> set[str]:
    return {*_errors(), *_rpcs(), *_metrics(), *_settings(), *_commands()}


def stored_interface() -> set[str]:
    return set((FOLDER / f"interface-{RELEASE}.txt").read_text().splitlines())


def subject(line: str) -> str:
    """Returns the name in a line, as the changelog writes it."""
    kind, _, rest = line.partition(" ")
    words = {"command": None, "option": None, "route": 2}.get(kind, 1)
    return " ".join(rest.split(" ")[:words])


def current_openapi() -> Any:
    return without_prose(json.loads(openapi.document(METHODS.values())))


def without_prose(node: Any, *, is_map: bool = False) -> Any:
    """Drops the members that only people read."""
    if isinstance(node, list):
        return [without_prose(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        name: without_prose(value, is_map=not is_map and name in MAPS)
        for name, value in node.items()
        if is_map or name not in _PROSE | _EXAMPLES
    }


def _errors() -> Iterator[str]:
    for code, row in TABLE.items():
        yield f"error {code} {row.http} {row.grpc}"


def _rpcs() -> Iterator[str]:
    visited: set[str] = set()
    for method in METHODS.values():
        request, response = method.request.DESCRIPTOR, method.response.DESCRIPTOR
        yield f"rpc {method.name} {request.full_name} {response.full_name}"
        yield f"route {method.http_method} {method.template} {method.name}"
        yield from _message(request, visited)
        yield from _message(response, visited)


def _message(message: Any, visited: set[str]) -> Iterator[str]:
    if message.full_name in visited:
        return
    visited.add(message.full_name)
    yield f"file {message.file.name}"
    for field in message.fields:
        label = "repeated" if field.is_repeated else "single"
        kind = field.message_type or field.enum_type
        name = kind.full_name if kind is not None else _SCALARS[field.type]
        yield f"field {field.full_name} {field.number} {label} {name}"
        if field.message_type is not None:
            yield from _message(field.message_type, visited)
        if field.enum_type is not None:
            yield from _enum(field.enum_type)


def _enum(enum: Any) -> Iterator[str]:
    for value in enum.values:
        yield f"enum {enum.full_name} {value.name} {value.number}"


_SCALARS: Final = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def _settings() -> Iterator[str]:
    for row in settings_rows(Settings):
        yield f"setting {' '.join(row)}"


def _commands() -> Iterator[str]:
    for command, options in commands(get_command(app)):
        yield f"command {command}"
        for option in options:
            yield f"option {command} {option}"


def _metrics() -> Iterator[str]:
    """Yields the metrics of the reference page. `tests/test_docs.py` compares the page with a service."""
    for table in ("metrics", "edge metrics"):
        for name, (kind, labels) in families_shown(table).items():
            yield " ".join(["metric", name, kind, *sorted(labels)])
