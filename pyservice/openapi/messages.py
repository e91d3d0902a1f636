"""Messages as schemas of JSON Schema 2020-12: what `reading` takes and what `writing` gives.

Owns the schemas under ``components``. A message looks different in a request (what may be left out,
null for what is unset, unknown names) and in an answer (what is always there): it has two schemas
where that makes a difference, and then the one for requests is called ``…Input``.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import combinations
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pyservice.openapi.constraints import (
    Schema,
    entry_rules,
    keywords,
    needs_value,
    rules_of,
    sentences,
)
from pyservice.pb.buf.validate import validate_pb2
from pyservice.pb.comments import COMMENTS
from pyservice.pb.hosting.v1 import options_pb2
from pyservice.schema.methods import form_of, is_map, map_key, map_value, option
from pyservice.schema.reading import enum_spellings

_PACKAGE: Final = "hosting.v1."
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_REFERENCE: Final = "#/components/schemas/"


class Form(Enum):
    """Where a message stands; the value is what is added to its name."""

    ANSWER = ""
    REQUEST = "Input"
    LENIENT = "LenientInput"
    """A request whose unknown members are ignored."""


_Key = tuple[str, Form]

_IGNORE: Final[dict[str, int]] = {
    value.name: value.number
    for value in validate_pb2.DESCRIPTOR.enum_types_by_name["Ignore"].values
}
_SCALARS: Final[dict[int, Schema]] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_INT32: {
        "type": "integer",
        "format": "int32",
        "minimum": -(2**31),
        "maximum": 2**31 - 1,
    },
    FieldDescriptor.TYPE_INT64: {
        "type": "integer",
        "format": "int64",
        "minimum": -(2**63),
        "maximum": 2**63 - 1,
    },
    FieldDescriptor.TYPE_UINT32: {
        "type": "integer",
        "format": "uint32",
        "minimum": 0,
        "maximum": 2**32 - 1,
    },
    FieldDescriptor.TYPE_UINT64: {
        "type": "integer",
        "format": "uint64",
        "minimum": 0,
        "maximum": 2**64 - 1,
    },
}


class Components:
    """Collects the schemas of all messages that are asked for, and gives them their names."""

    def __init__(self) -> None:
        self._schemas: dict[_Key, Schema] = {}

    def reference(
        self, descriptor: Descriptor, form: Form, without: tuple[str, ...] = ()
    ) -> Schema:
        """A reference to the schema of a message, without the fields that come from elsewhere."""
        if descriptor.full_name == _TIMESTAMP:
            return {"type": "string", "format": "date-time"}
        key = (descriptor.full_name, form)
        if key not in self._schemas:
            self._schemas[key] = {}  # a message may contain itself
            self._schemas[key] = self._object(descriptor, form, without)
        return {"$ref": key}

    def value(self, field: FieldDescriptor, form: Form) -> Schema:
        """The schema of a field's value, with its description."""
        rules = rules_of(field)
        schema = self._bare(field, form)
        _narrow(schema, _keywords(field, rules))
        if form is not Form.ANSWER:
            _narrow(schema, needs_value(rules, field))
        if rules.ignore == _IGNORE["IGNORE_IF_ZERO_VALUE"] and not field.has_presence:
            schema = _or_zero(field, schema)
        told = [COMMENTS.get(field.full_name, ""), *sentences(rules)]
        description = " ".join(text for text in told if text)
        return {**schema, "description": description} if description else schema

    def has_required(self, reference: Schema) -> bool:
        """Whether a message that was asked for has members that have to be there."""
        return "required" in self._schemas[reference["$ref"]]

    def finish(self, document: Any) -> tuple[Any, dict[str, Schema]]:
        """The document with references by name, and the schemas by name."""
        names = self._names()
        schemas = {names[key]: _named(schema, names) for key, schema in self._schemas.items()}
        return _named(document, names), dict(sorted(schemas.items()))

    # Messages

    def _object(self, descriptor: Descriptor, form: Form, without: tuple[str, ...]) -> Schema:
        fields = [field for field in descriptor.fields if field.name not in without]
        groups = _groups(descriptor)
        alternatives = {name for group, _ in groups for name in group}
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for field in fields:
            is_required, is_nullable = _presence(field, form)
            if field.name in alternatives:
                is_required = is_nullable = False
            schema = self.value(field, form)
            properties[field.name] = _nullable(schema) if is_nullable else schema
            if is_required:
                required.append(field.name)
        schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        choices = [_choice(group, is_required=must) for group, must in groups]
        if choices:
            schema["allOf"] = choices
        if form is not Form.LENIENT:
            schema["additionalProperties"] = False
        cel = option(descriptor, validate_pb2.message).cel
        told = [COMMENTS.get(descriptor.full_name, "")]
        told += [f"{'.'.join(rule.id.split('.')[:-1])} {rule.message}." for rule in cel]
        return {"description": " ".join(text for text in told if text), **schema}

    # Fields

    def _bare(self, field: FieldDescriptor, form: Form) -> Schema:
        if is_map(field):
            return self._map(field, form)
        if field.is_repeated:
            items = self._element(field, entry_rules(field, "items"), form)
            return {"type": "array", "items": items}
        if field.message_type is not None and form_of(field).unwrap:
            (inner,) = field.message_type.fields
            schema = self._bare(inner, form)
            _narrow(schema, keywords(rules_of(inner), inner.full_name))
            return schema
        return self._single(field, form)

    def _map(self, field: FieldDescriptor, form: Form) -> Schema:
        values = self._element(map_value(field), entry_rules(field, "values"), form)
        keys = keywords(entry_rules(field, "keys"), f"{field.full_name} (keys)")
        told = sentences(entry_rules(field, "keys"))
        schema: Schema = {"type": "object", "additionalProperties": values}
        if keys and map_key(field).type == FieldDescriptor.TYPE_STRING:
            schema["propertyNames"] = {**keys, "description": " ".join(told)} if told else keys
        return schema

    def _element(self, field: FieldDescriptor, rules: Any, form: Form) -> Schema:
        schema = self._single(field, form)
        _narrow(schema, _keywords(field, rules))
        told = sentences(rules)
        return {**schema, "description": " ".join(told)} if told else schema

    def _single(self, field: FieldDescriptor, form: Form) -> Schema:
        if field.message_type is not None:
            return self.reference(field.message_type, form)
        if field.enum_type is not None:
            return {"type": "string", "enum": sorted(enum_spellings(field.enum_type).values())}
        if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes(field)
        scalar = _SCALARS.get(field.type)
        if scalar is None:
            raise TypeError(f"{field.full_name} has no JSON form")
        return dict(scalar)

    # Names

    def _names(self) -> dict[_Key, str]:
        """Plain names; forms of one message that differ, or whose parts do, have their own."""
        differing: set[str] = set()
        plain = {key: key[0].removeprefix(_PACKAGE) for key in self._schemas}
        while True:
            names = {
                key: plain[key] + (key[1].value if key[0] in differing else "") for key in plain
            }
            by_name: dict[str, Schema] = {}
            found = set(differing)
            for key, schema in self._schemas.items():
                named = _named(schema, names)
                if by_name.setdefault(names[key], named) != named:
                    found.add(key[0])
            if found == differing:
                return names
            differing = found


def _named(value: Any, names: dict[_Key, str]) -> Any:
    """The same with names in place of keys."""
    if isinstance(value, dict):
        return {
            name: f"{_REFERENCE}{names[item]}"
            if name == "$ref" and isinstance(item, tuple)
            else _named(item, names)
            for name, item in value.items()
        }
    return [_named(item, names) for item in value] if isinstance(value, list) else value


def _narrow(schema: Schema, more: Schema) -> None:
    """Adds keywords to those of a type; a limit of the type gives way to a narrower one."""
    for name, value in more.items():
        if name in schema and name.startswith("min"):
            schema[name] = max(schema[name], value)
        elif name in schema and name.startswith("max"):
            schema[name] = min(schema[name], value)
        else:
            schema[name] = value


def _bytes(field: FieldDescriptor) -> Schema:
    match form_of(field).raw_json:
        case options_pb2.RAW_JSON_VALUE:
            return {}
        case options_pb2.RAW_JSON_OBJECT:
            return {"type": "object"}
    return {"type": "string", "contentEncoding": "base64"}


def _keywords(field: FieldDescriptor, rules: Any) -> Schema:
    """The rules of a value as keywords about its form in JSON."""
    if rules.ignore == _IGNORE["IGNORE_ALWAYS"]:
        return {}
    said = keywords(rules, field.full_name)
    if field.is_repeated:
        return said
    if field.enum_type is not None:
        return _spelled(field, said)
    if field.type == FieldDescriptor.TYPE_BYTES:
        # Lengths are those of the bytes: base64 is longer, and JSON text has no length as a value.
        is_raw = bool(form_of(field).raw_json)
        return (
            {
                name: 4 * ((limit + 2) // 3)
                for name, limit in said.items()
                if name.endswith("Length")
            }
            if not is_raw
            else {}
        )
    return said


def _spelled(field: FieldDescriptor, said: Schema) -> Schema:
    """Numbers of an enum's values by their spellings."""
    assert field.enum_type is not None
    spellings = enum_spellings(field.enum_type)
    kept = set(said.get("enum", spellings)) - set(said.get("not", {}).get("enum", ()))
    if "const" in said:
        kept &= {said["const"]}
    return {"enum": sorted(spellings[number] for number in kept if number in spellings)}


def _or_zero(field: FieldDescriptor, schema: Schema) -> Schema:
    """The zero of the type keeps no rule, where they are for values that were given."""
    return {"anyOf": [schema, {"const": field.default_value}]} if not field.is_repeated else schema


def is_required(field: FieldDescriptor) -> bool:
    """Whether a request has to have a field."""
    return _presence(field, Form.REQUEST)[0]


def _presence(field: FieldDescriptor, form: Form) -> tuple[bool, bool]:
    """Whether a member has to be there, and whether null may stand for an unset one."""
    rules = rules_of(field)
    if form is not Form.ANSWER:
        is_required = rules.required or _refuses_zero(field, rules)
        return is_required, not is_required
    if field.is_repeated:
        return not form_of(field).omit_empty, False
    if not field.has_presence:
        return True, False
    is_null = bool(form_of(field).always_null)
    return rules.required or is_null, is_null and not rules.required


def _refuses_zero(field: FieldDescriptor, rules: Any) -> bool:
    """Whether leaving a field out breaks its rules, as it then is the zero of its type."""
    if field.has_presence or rules.ignore != _IGNORE["IGNORE_UNSPECIFIED"]:
        return False
    said = _keywords(field, rules)
    least = max(said.get(name, 0) for name in ("minLength", "minItems", "minProperties"))
    is_number = field.type in _SCALARS and _SCALARS[field.type]["type"] in ("integer", "number")
    if is_number and ("minimum" in said or "exclusiveMinimum" in said):
        return bool(said.get("minimum", 0) > 0 or said.get("exclusiveMinimum", -1) >= 0)
    pattern = said.get("pattern")
    return least > 0 or (pattern is not None and re.search(pattern, "") is None)


def _nullable(schema: Schema) -> Schema:
    """The same, or null."""
    if not schema.keys() - {"description"}:
        return schema
    if "type" not in schema or "const" in schema:
        description = {"description": schema["description"]} if "description" in schema else {}
        inner = {name: value for name, value in schema.items() if name != "description"}
        return {"anyOf": [inner, {"type": "null"}], **description}
    nullable = {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        nullable["enum"] = [*schema["enum"], None]
    return nullable


def _groups(descriptor: Descriptor) -> list[tuple[list[str], bool]]:
    """Members of which at most one may be there, and whether one has to be."""
    groups = [
        ([field.name for field in oneof.fields], _must(oneof))
        for oneof in descriptor.oneofs
        if len(oneof.fields) > 1
    ]
    rules = option(descriptor, validate_pb2.message)
    return groups + [(list(rule.fields), bool(rule.required)) for rule in rules.oneof]


def _must(oneof: Any) -> bool:
    return bool(oneof.GetOptions().Extensions[validate_pb2.oneof].required)


def _choice(group: list[str], *, is_required: bool) -> Schema:
    pairs = [{"required": list(pair)} for pair in combinations(group, 2)]
    refusal: Schema = {"not": pairs[0] if len(pairs) == 1 else {"anyOf": pairs}}
    if is_required:
        refusal["anyOf"] = [{"required": [name]} for name in group]
    return refusal
