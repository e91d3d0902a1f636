"""How many entries a repeated field or a map may have, and how the entries beyond are left alone.

Readers and rules ask here before they look at any entry, so that a request costs no more than what
it may hold. Rules about the entries are for ``rules`` and the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.pb.buf.validate import validate_pb2
from pyservice.schema.methods import is_map, map_value, option
from pyservice.schema.problems import Finding, at

Measure = Callable[[Any, bool], list[Finding]]
"""Tells what of a message, or of a field's value, is too large; True: and removes what is beyond
the limits."""

_SIZE_WORD = "too-many"


def limit_of(field: FieldDescriptor) -> int | None:
    """The largest number of entries by the rules of its proto; None: any number."""
    rules = option(field, validate_pb2.field)
    own, rule = (rules.map, "max_pairs") if is_map(field) else (rules.repeated, "max_items")
    return getattr(own, rule) if own.HasField(rule) else None


def too_many(limit: int) -> Finding:
    """What is said of a field with more entries than this."""
    return Finding((), _SIZE_WORD, f"must have at most {limit} entries")


def is_of_size(finding: Finding) -> bool:
    """Whether it judges a number of entries, and so leaves the entries themselves to others."""
    return finding.word == _SIZE_WORD


def compile_measure(descriptor: Descriptor) -> Measure | None:
    """The measure of a message and of the messages in it; None when nothing in it has a limit."""
    measures = {
        field: measure
        for field in descriptor.fields
        if (measure := _measure_of_field(field)) is not None
    }
    if not measures:
        return None

    def measure_fields(message: Message, is_cutting: bool) -> list[Finding]:
        found: list[Finding] = []
        for field, value in message.ListFields():
            measure = measures.get(field)
            below = measure(value, is_cutting) if measure else None
            if below:
                found += at(field.name, below)
        return found

    return measure_fields


def _measure_of_field(field: FieldDescriptor) -> Measure | None:
    kind = map_value(field) if is_map(field) else field
    below = compile_measure(kind.message_type) if kind.message_type else None
    if not field.is_repeated:
        return below
    limit = limit_of(field)
    if limit is None and below is None:
        return None
    cut, named = (_cut_map, _pairs) if is_map(field) else (_cut_list, enumerate)

    def measure(entries: Any, is_cutting: bool) -> list[Finding]:
        found: list[Finding] = []
        if limit is not None and len(entries) > limit:
            found.append(too_many(limit))
            if is_cutting:
                cut(entries, limit)
        if below is not None:
            for name, entry in islice(named(entries), limit):
                found += at(str(name), below(entry, is_cutting))
        return found

    return measure


def _pairs(entries: Any) -> Iterable[tuple[Any, Any]]:
    return entries.items()  # type: ignore[no-any-return]


def _cut_list(entries: Any, limit: int) -> None:
    del entries[limit:]


def _cut_map(entries: Any, limit: int) -> None:
    for key in list(islice(entries, limit, None)):
        del entries[key]
