"""The validation rules of a field as keywords of JSON Schema 2020-12.

Owns what a rule becomes; a rule that has no form here is refused when the document is made, so that
none is ever left out in silence. JSON Schema counts characters: a limit in bytes is a limit of
characters too, and is told in words besides. Rules in CEL are told in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from pyservice.pb.buf.validate import validate_pb2
from pyservice.schema.methods import is_map, option

Schema = dict[str, Any]

_PARTS: Final = frozenset({"items", "keys", "values"})
"""Rules of entries: whoever makes the schema of the entries asks for them."""


class Unsayable(TypeError):
    """A rule that has no form in JSON Schema yet."""


def rules_of(field: FieldDescriptor) -> Any:
    """The rules on a field; of a type of value none are set where none were written."""
    return option(field, validate_pb2.field)


def entry_rules(field: FieldDescriptor, part: str) -> Any:
    """The rules of the entries of a repeated field (``items``) or a map (``keys``, ``values``)."""
    rules = rules_of(field)
    return getattr(rules.map if is_map(field) else rules.repeated, part)


def keywords(rules: Any, where: str) -> Schema:
    """Keywords that say the same as the rules of a value. Raises Unsayable with the rule's name."""
    found: Schema = {}
    kind = rules.WhichOneof("type")
    own = getattr(rules, kind) if kind else None
    for rule, limit in own.ListFields() if own is not None else ():
        if rule.name in _PARTS:
            continue
        say = _KEYWORDS.get(rule.name)
        if say is None:
            raise Unsayable(f"{where}: {rule.full_name} has no form in the document yet")
        _add(found, say(limit))
    return found


def sentences(rules: Any) -> list[str]:
    """What the rules say that keywords cannot."""
    kind = rules.WhichOneof("type")
    own = getattr(rules, kind) if kind else None
    # A pattern of ours takes ASCII alone, whose bytes are its characters.
    is_ascii = kind == "string" and bool(own and own.pattern)
    told = [
        _BYTES[kind, rule.name].format(limit)
        for rule, limit in (own.ListFields() if own is not None else ())
        if (kind, rule.name) in _BYTES and not is_ascii
    ]
    return told + [f"It {rule.message}." for rule in rules.cel if rule.message]


def needs_value(rules: Any, field: FieldDescriptor) -> Schema:
    """Keywords for a required field without presence: there, and not its zero."""
    if not rules.required or field.has_presence:
        return {}
    if is_map(field):
        return {"minProperties": 1}
    if field.is_repeated:
        return {"minItems": 1}
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return {"minLength": 1}
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"const": True}
    return {} if field.enum_type is not None else {"not": {"const": 0}}


_BYTES: Final[Mapping[tuple[str, str], str]] = {
    ("string", "min_bytes"): "At least {} bytes of UTF-8.",
    ("string", "max_bytes"): "At most {} bytes of UTF-8.",
    ("string", "len_bytes"): "{} bytes of UTF-8.",
    ("bytes", "min_len"): "At least {} bytes.",
    ("bytes", "max_len"): "At most {} bytes.",
    ("bytes", "len"): "{} bytes.",
}


def _add(found: Schema, more: Schema) -> None:
    """Both have to hold: limits of one kind are narrowed, what cannot be merged stands in allOf."""
    for name, value in more.items():
        if name not in found:
            found[name] = value
        elif name.startswith("min"):
            found[name] = max(found[name], value)
        elif name.startswith("max"):
            found[name] = min(found[name], value)
        else:
            found.setdefault("allOf", []).append({name: value})


def _pattern(pattern: str) -> Schema:
    """RE2 and ECMA 262 agree on what our patterns use; what only RE2 knows is refused."""
    if any(mark in pattern for mark in ("(?i", "(?s", "(?m", "(?P", r"\A", r"\z", r"\Q", "[[:")):
        raise Unsayable(f"pattern {pattern} is not one of ECMA 262")
    return {"pattern": pattern}


def _escaped(text: str) -> str:
    return "".join(f"\\{mark}" if mark in r"\^$.|?*+()[]{}/" else mark for mark in text)


def _any_format(*names: str) -> Callable[[bool], Schema]:
    if len(names) == 1:
        return lambda _: {"format": names[0]}
    return lambda _: {"anyOf": [{"format": name} for name in names]}


def _values(values: Any) -> Schema:
    return {"enum": list(values)}


def _not_values(values: Any) -> Schema:
    return {"not": {"enum": list(values)}}


def _nothing(_: Any) -> Schema:
    return {}


_KEYWORDS: Final[Mapping[str, Callable[[Any], Schema]]] = {
    # Text
    "len": lambda limit: {"minLength": limit, "maxLength": limit},
    "min_len": lambda limit: {"minLength": limit},
    "max_len": lambda limit: {"maxLength": limit},
    # A character has at most four bytes.
    "min_bytes": lambda limit: {"minLength": math.ceil(limit / 4)},
    "max_bytes": lambda limit: {"maxLength": limit},
    "len_bytes": lambda limit: {"minLength": math.ceil(limit / 4), "maxLength": limit},
    "pattern": _pattern,
    "prefix": lambda text: {"pattern": f"^{_escaped(text)}"},
    "suffix": lambda text: {"pattern": f"{_escaped(text)}$"},
    "contains": lambda text: {"pattern": _escaped(text)},
    "not_contains": lambda text: {"not": {"pattern": _escaped(text)}},
    "email": _any_format("email"),
    "hostname": _any_format("hostname"),
    "ip": _any_format("ipv4", "ipv6"),
    "ipv4": _any_format("ipv4"),
    "ipv6": _any_format("ipv6"),
    "address": _any_format("hostname", "ipv4", "ipv6"),
    "uri": _any_format("uri"),
    "uri_ref": _any_format("uri-reference"),
    "uuid": _any_format("uuid"),
    # Numbers
    "gt": lambda limit: {"exclusiveMinimum": limit},
    "gte": lambda limit: {"minimum": limit},
    "lt": lambda limit: {"exclusiveMaximum": limit},
    "lte": lambda limit: {"maximum": limit},
    # JSON has no others.
    "finite": _nothing,
    # Entries
    "min_items": lambda limit: {"minItems": limit},
    "max_items": lambda limit: {"maxItems": limit},
    "unique": lambda is_unique: {"uniqueItems": True} if is_unique else {},
    "min_pairs": lambda limit: {"minProperties": limit},
    "max_pairs": lambda limit: {"maxProperties": limit},
    # Any value
    "const": lambda value: {"const": value},
    "in": _values,
    "not_in": _not_values,
    "example": lambda values: {"examples": list(values)},
    # Only known values of an enum have a spelling in JSON.
    "defined_only": _nothing,
}
