"""JSON Schema 2020-12 of protobuf messages and their validation rules.

A rule without a JSON Schema keyword becomes a sentence. An unsupported rule is an error, so that no
rule is omitted silently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import combinations
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pyservice.pb.buf.validate import validate_pb2
from pyservice.pb.comments import COMMENTS
from pyservice.pb.hosting.v1 import options_pb2
from pyservice.schema.json_decoding import enum_spellings
from pyservice.schema.methods import form_of, is_map, map_key, map_value, option

Schema = dict[str, Any]

_PARTS: Final = frozenset({"items", "keys", "values"})
"""Rules about entries of lists and maps. `entry_rules` returns them."""


class UnsupportedConstraint(TypeError): ...


def rules_of(field: FieldDescriptor) -> Any:
    return option(field, validate_pb2.field)


def entry_rules(field: FieldDescriptor, part: str) -> Any:
    rules = rules_of(field)
    return getattr(rules.map if is_map(field) else rules.repeated, part)


def keywords(rules: Any, where: str) -> Schema:
    """Returns the JSON Schema keywords for the validation rules of a value.

    Raises UnsupportedConstraint for a rule without a keyword.
    """
    schema: Schema = {}
    kind = rules.WhichOneof("type")
    own = getattr(rules, kind) if kind else None
    for rule, limit in own.ListFields() if own is not None else ():
        if rule.name in _PARTS:
            continue
        keyword_of = _KEYWORDS.get(rule.name)
        if keyword_of is None:
            raise UnsupportedConstraint(
                f"{where}: {rule.full_name} has no form in the document yet"
            )
        _add(schema, keyword_of(limit))
    return schema


def rule_sentences(rules: Any) -> list[str]:
    """Returns a sentence for each validation rule that JSON Schema keywords cannot express."""
    kind = rules.WhichOneof("type")
    own = getattr(rules, kind) if kind else None
    # The service's patterns accept only ASCII, where bytes equal characters.
    is_ascii = kind == "string" and bool(own and own.pattern)
    sentences = [
        _BYTES[kind, rule.name].format(limit)
        for rule, limit in (own.ListFields() if own is not None else ())
        if (kind, rule.name) in _BYTES and not is_ascii
    ]
    return sentences + [f"It {rule.message}." for rule in rules.cel if rule.message]


def required_keywords(rules: Any, field: FieldDescriptor) -> Schema:
    """Returns the keywords that exclude the zero value of a required field, such as `minLength`.

    A field with presence needs no such keywords.
    """
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


def _add(schema: Schema, more: Schema) -> None:
    for name, value in more.items():
        if name not in schema:
            schema[name] = value
        elif name.startswith("min"):
            schema[name] = max(schema[name], value)
        elif name.startswith("max"):
            schema[name] = min(schema[name], value)
        else:
            schema.setdefault("allOf", []).append({name: value})


def _pattern(pattern: str) -> Schema:
    if any(mark in pattern for mark in ("(?i", "(?s", "(?m", "(?P", r"\A", r"\z", r"\Q", "[[:")):
        raise UnsupportedConstraint(f"pattern {pattern} is not one of ECMA 262")
    return {"pattern": pattern}


def _escape(text: str) -> str:
    return "".join(f"\\{mark}" if mark in r"\^$.|?*+()[]{}/" else mark for mark in text)


def _any_format(*names: str) -> Callable[[bool], Schema]:
    if len(names) == 1:
        return lambda _: {"format": names[0]}
    return lambda _: {"anyOf": [{"format": name} for name in names]}


def _values(values: Any) -> Schema:
    return {"enum": list(values)}


def _not_values(values: Any) -> Schema:
    return {"not": {"enum": list(values)}}


def _no_keywords(_: Any) -> Schema:
    return {}


_KEYWORDS: Final[Mapping[str, Callable[[Any], Schema]]] = {
    "len": lambda limit: {"minLength": limit, "maxLength": limit},
    "min_len": lambda limit: {"minLength": limit},
    "max_len": lambda limit: {"maxLength": limit},
    # A character has at most four bytes.
    "min_bytes": lambda limit: {"minLength": math.ceil(limit / 4)},
    "max_bytes": lambda limit: {"maxLength": limit},
    "len_bytes": lambda limit: {"minLength": math.ceil(limit / 4), "maxLength": limit},
    "pattern": _pattern,
    "prefix": lambda text: {"pattern": f"^{_escape(text)}"},
    "suffix": lambda text: {"pattern": f"{_escape(text)}$"},
    "contains": lambda text: {"pattern": _escape(text)},
    "not_contains": lambda text: {"not": {"pattern": _escape(text)}},
    "email": _any_format("email"),
    "hostname": _any_format("hostname"),
    "ip": _any_format("ipv4", "ipv6"),
    "ipv4": _any_format("ipv4"),
    "ipv6": _any_format("ipv6"),
    "address": _any_format("hostname", "ipv4", "ipv6"),
    "uri": _any_format("uri"),
    "uri_ref": _any_format("uri-reference"),
    "uuid": _any_format("uuid"),
    "gt": lambda limit: {"exclusiveMinimum": limit},
    "gte": lambda limit: {"minimum": limit},
    "lt": lambda limit: {"exclusiveMaximum": limit},
    "lte": lambda limit: {"maximum": limit},
    "finite": _no_keywords,
    "min_items": lambda limit: {"minItems": limit},
    "max_items": lambda limit: {"maxItems": limit},
    "unique": lambda is_unique: {"uniqueItems": True} if is_unique else {},
    "min_pairs": lambda limit: {"minProperties": limit},
    "max_pairs": lambda limit: {"maxProperties": limit},
    "const": lambda value: {"const": value},
    "in": _values,
    "not_in": _not_values,
    "example": lambda values: {"examples": list(values)},
    "defined_only": _no_keywords,
}


_PACKAGE: Final = "hosting.v1."
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_REFERENCE: Final = "#/components/schemas/"


class SchemaForm(Enum):
    """Form of a message's schema: for a response, for a request, or for a request that may have
    unknown members.

    The value is the suffix of the schema name.
    """

    ANSWER = ""
    REQUEST = "Input"
    LENIENT = "LenientInput"


_Key = tuple[str, SchemaForm]

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


class SchemaComponents:
    def __init__(self) -> None:
        self._schemas: dict[_Key, Schema] = {}

    def reference(
        self, descriptor: Descriptor, form: SchemaForm, without: tuple[str, ...] = ()
    ) -> Schema:
        if descriptor.full_name == _TIMESTAMP:
            return {"type": "string", "format": "date-time"}
        key = (descriptor.full_name, form)
        if key not in self._schemas:
            self._schemas[key] = {}
            self._schemas[key] = self._object(descriptor, form, without)
        return {"$ref": key}

    def value(self, field: FieldDescriptor, form: SchemaForm) -> Schema:
        rules = rules_of(field)
        schema = self._bare(field, form)
        _narrow(schema, _keywords(field, rules))
        if form is not SchemaForm.ANSWER:
            _narrow(schema, required_keywords(rules, field))
        if rules.ignore == _IGNORE["IGNORE_IF_ZERO_VALUE"] and not field.has_presence:
            schema = _or_zero(field, schema)
        sentences = [COMMENTS.get(field.full_name, ""), *rule_sentences(rules)]
        description = " ".join(text for text in sentences if text)
        return {**schema, "description": description} if description else schema

    def has_required(self, reference: Schema) -> bool:
        return "required" in self._schemas[reference["$ref"]]

    def finish(self, document: Any) -> tuple[Any, dict[str, Schema]]:
        """Replaces the references to messages in `document` by schema names.

        Returns the new document and the schemas by name.
        """
        names = self._names()
        schemas = {names[key]: _with_names(schema, names) for key, schema in self._schemas.items()}
        return _with_names(document, names), dict(sorted(schemas.items()))

    def _object(self, descriptor: Descriptor, form: SchemaForm, without: tuple[str, ...]) -> Schema:
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
        if form is not SchemaForm.LENIENT:
            schema["additionalProperties"] = False
        cel = option(descriptor, validate_pb2.message).cel
        sentences = [COMMENTS.get(descriptor.full_name, "")]
        sentences += [f"{'.'.join(rule.id.split('.')[:-1])} {rule.message}." for rule in cel]
        return {"description": " ".join(text for text in sentences if text), **schema}

    def _bare(self, field: FieldDescriptor, form: SchemaForm) -> Schema:
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

    def _map(self, field: FieldDescriptor, form: SchemaForm) -> Schema:
        values = self._element(map_value(field), entry_rules(field, "values"), form)
        keys = keywords(entry_rules(field, "keys"), f"{field.full_name} (keys)")
        sentences = rule_sentences(entry_rules(field, "keys"))
        schema: Schema = {"type": "object", "additionalProperties": values}
        if keys and map_key(field).type == FieldDescriptor.TYPE_STRING:
            schema["propertyNames"] = (
                {**keys, "description": " ".join(sentences)} if sentences else keys
            )
        return schema

    def _element(self, field: FieldDescriptor, rules: Any, form: SchemaForm) -> Schema:
        schema = self._single(field, form)
        _narrow(schema, _keywords(field, rules))
        sentences = rule_sentences(rules)
        return {**schema, "description": " ".join(sentences)} if sentences else schema

    def _single(self, field: FieldDescriptor, form: SchemaForm) -> Schema:
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

    def _names(self) -> dict[_Key, str]:
        several_forms: set[str] = set()
        plain = {key: key[0].removeprefix(_PACKAGE) for key in self._schemas}
        while True:
            names = {
                key: plain[key] + (key[1].value if key[0] in several_forms else "") for key in plain
            }
            by_name: dict[str, Schema] = {}
            conflicts = set(several_forms)
            for key, schema in self._schemas.items():
                resolved = _with_names(schema, names)
                if by_name.setdefault(names[key], resolved) != resolved:
                    conflicts.add(key[0])
            if conflicts == several_forms:
                return names
            several_forms = conflicts


def _with_names(value: Any, names: dict[_Key, str]) -> Any:
    if isinstance(value, dict):
        return {
            name: f"{_REFERENCE}{names[item]}"
            if name == "$ref" and isinstance(item, tuple)
            else _with_names(item, names)
            for name, item in value.items()
        }
    return [_with_names(item, names) for item in value] if isinstance(value, list) else value


def _narrow(schema: Schema, more: Schema) -> None:
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
    if rules.ignore == _IGNORE["IGNORE_ALWAYS"]:
        return {}
    schema = keywords(rules, field.full_name)
    if field.is_repeated:
        return schema
    if field.enum_type is not None:
        return _enum_keywords(field, schema)
    if field.type == FieldDescriptor.TYPE_BYTES:
        # Rules limit bytes. Base64 text is longer, and raw JSON has no length.
        is_raw = bool(form_of(field).raw_json)
        return (
            {
                name: 4 * ((limit + 2) // 3)
                for name, limit in schema.items()
                if name.endswith("Length")
            }
            if not is_raw
            else {}
        )
    return schema


def _enum_keywords(field: FieldDescriptor, schema: Schema) -> Schema:
    assert field.enum_type is not None
    spellings = enum_spellings(field.enum_type)
    numbers = set(schema.get("enum", spellings)) - set(schema.get("not", {}).get("enum", ()))
    if "const" in schema:
        numbers &= {schema["const"]}
    return {"enum": sorted(spellings[number] for number in numbers if number in spellings)}


def _or_zero(field: FieldDescriptor, schema: Schema) -> Schema:
    return {"anyOf": [schema, {"const": field.default_value}]} if not field.is_repeated else schema


def is_required(field: FieldDescriptor) -> bool:
    return _presence(field, SchemaForm.REQUEST)[0]


def _presence(field: FieldDescriptor, form: SchemaForm) -> tuple[bool, bool]:
    rules = rules_of(field)
    if form is not SchemaForm.ANSWER:
        is_required = rules.required or _refuses_zero(field, rules)
        return is_required, not is_required
    if field.is_repeated:
        return not form_of(field).omit_empty, False
    if not field.has_presence:
        return True, False
    is_null = bool(form_of(field).always_null)
    return rules.required or is_null, is_null and not rules.required


def _refuses_zero(field: FieldDescriptor, rules: Any) -> bool:
    if field.has_presence or rules.ignore != _IGNORE["IGNORE_UNSPECIFIED"]:
        return False
    schema = _keywords(field, rules)
    least = max(schema.get(name, 0) for name in ("minLength", "minItems", "minProperties"))
    is_number = field.type in _SCALARS and _SCALARS[field.type]["type"] in ("integer", "number")
    if is_number and ("minimum" in schema or "exclusiveMinimum" in schema):
        return bool(schema.get("minimum", 0) > 0 or schema.get("exclusiveMinimum", -1) >= 0)
    pattern = schema.get("pattern")
    return least > 0 or (pattern is not None and re.search(pattern, "") is None)


def _nullable(schema: Schema) -> Schema:
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
