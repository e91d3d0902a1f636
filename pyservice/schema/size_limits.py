"""Limits on the number of entries in repeated fields and maps.

Decoding and validation check these limits before they read the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pyservice.pb.buf.validate import validate_pb2
from pyservice.schema.findings import Finding, nested_under
from pyservice.schema.methods import form_of, is_map, map_value, option

Measure = Callable[[Any], list[Finding]]
Excerpt = Callable[[Any, Any], None]


class SizeLimits(NamedTuple):
    measure: Measure
    excerpt: Excerpt


_SIZE_WORD = "too-many"


def entry_limit(field: FieldDescriptor) -> int | None:
    rules = option(field, validate_pb2.field)
    own, rule = (rules.map, "max_pairs") if is_map(field) else (rules.repeated, "max_items")
    return getattr(own, rule) if own.HasField(rule) else None


def too_many_entries(limit: int) -> Finding:
    return Finding((), _SIZE_WORD, f"must have at most {limit} entries")


def is_size_finding(finding: Finding) -> bool:
    return finding.word == _SIZE_WORD


def compile_size_limits(descriptor: Descriptor) -> SizeLimits | None:
    """Returns the size limits of a message type and its nested messages, or None without limits."""
    parts = {field: part for field in descriptor.fields if (part := _sizes_of_field(field))}
    if not parts:
        return None

    def measure(message: Any) -> list[Finding]:
        findings: list[Finding] = []
        for field, value in message.ListFields():
            part = parts.get(field)
            below = part.measure(value) if part else None
            if below:
                findings += nested_under(field.name, below)
        return findings

    def excerpt(message: Any, into: Any) -> None:
        for field, value in message.ListFields():
            if not field.is_repeated and field.message_type is None:
                setattr(into, field.name, value)
                continue
            target = getattr(into, field.name)
            if not field.is_repeated:
                target.SetInParent()
            part = parts.get(field)
            if part:
                part.excerpt(value, target)
            else:
                target.MergeFrom(value)

    return SizeLimits(measure, excerpt)


def _sizes_of_field(field: FieldDescriptor) -> SizeLimits | None:
    kind = map_value(field) if is_map(field) else field
    below = compile_size_limits(kind.message_type) if kind.message_type else None
    if below is not None and form_of(field).unwrap:
        below = below._replace(measure=_unwrap(below.measure))
    if not field.is_repeated:
        return below
    limit = entry_limit(field)
    if limit is None and below is None:
        return None
    if is_map(field):
        merge = below.excerpt if below else _merge if kind.message_type else None
        return SizeLimits(
            _measure_entries(limit, below, lambda pairs: pairs.items()), _excerpt_map(limit, merge)
        )
    return SizeLimits(_measure_entries(limit, below, enumerate), _excerpt_list(limit, below))


def _measure_entries(
    limit: int | None,
    below: SizeLimits | None,
    pairs_of: Callable[[Any], Iterable[tuple[Any, Any]]],
) -> Measure:
    def measure(entries: Any) -> list[Finding]:
        findings: list[Finding] = []
        if limit is not None and len(entries) > limit:
            findings.append(too_many_entries(limit))
        if below is not None:
            for name, entry in islice(pairs_of(entries), limit):
                findings += nested_under(str(name), below.measure(entry))
        return findings

    return measure


def _unwrap(measure_inner: Measure) -> Measure:
    return lambda message: [
        Finding(location[1:], word, reason) for location, word, reason in measure_inner(message)
    ]


def _excerpt_list(limit: int | None, below: SizeLimits | None) -> Excerpt:
    def excerpt(entries: Any, into: Any) -> None:
        if below is None:
            into.extend(entries[:limit])
            return
        for entry in islice(entries, limit):
            below.excerpt(entry, into.add())

    return excerpt


def _excerpt_map(limit: int | None, merge: Excerpt | None) -> Excerpt:
    def excerpt(pairs: Any, into: Any) -> None:
        for key in islice(pairs, limit):
            if merge is None:
                into[key] = pairs[key]
            else:
                merge(pairs[key], into[key])

    return excerpt


def _merge(message: Any, into: Any) -> None:
    into.MergeFrom(message)
