"""Decoding of JSON values into protobuf messages, compiled from descriptors.

A decoder reports every problem up to a limit, so that hostile input costs linear time.

Integers have no decimal point and at most 64 bits, and booleans are not numbers. Enum values are
lower case without their prefix, and bytes are base64. A null member of an object counts as absent.
A null entry of a list or map is an error.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.schema.findings import (
    MAX_PROBLEMS,
    Finding,
    Findings,
    bounded_findings,
    count_findings,
    nested_under,
)
from pyservice.schema.methods import form_of, is_map, map_key, map_value
from pyservice.schema.size_limits import entry_limit, too_many_entries

FieldDecoder = Callable[[Any, Any], Findings]
"""Function that sets a value in a message and returns findings about undecodable parts."""

ScalarConverter = Callable[[Any], Any]

_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ZEROS: Final[Mapping[int, Any]] = {
    FieldDescriptor.TYPE_STRING: "",
    FieldDescriptor.TYPE_BYTES: b"",
}
"""Placeholders for undecodable entries, if 0 has the wrong type."""

_INTEGERS: Final[Mapping[int, tuple[int, int]]] = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


def compile_decoder(
    descriptor: Descriptor, *, ignores_unknown: bool = False, without: tuple[str, ...] = ()
) -> FieldDecoder:
    """Returns a function that decodes JSON objects into messages of one type.

    `without` names fields that the object must not have, such as path parameters. The decoder
    treats them as unknown fields. Raises TypeError for a field without a JSON form.
    """
    if descriptor.full_name == "google.protobuf.Timestamp":
        return _read_timestamp
    fields = {
        field.name: compile_field_decoder(field, ignores_unknown=ignores_unknown)
        for field in descriptor.fields
        if field.name not in without
    }
    groups = [
        [field.name for field in oneof.fields]
        for oneof in descriptor.oneofs
        if len(oneof.fields) > 1
    ]

    def read(message: Message, value: Any) -> Findings:
        if type(value) is not dict:
            return [Finding((), "wrong-type", "must be an object")]
        findings: list[Finding] = []
        unlisted = 0
        for name, item in value.items():
            read_field = fields.get(name)
            if read_field is None:
                if ignores_unknown:
                    continue
                if len(findings) < MAX_PROBLEMS:
                    findings.append(Finding((name,), "unknown-field", "is not known"))
                else:
                    unlisted += 1
            elif item is not None:
                below = read_field(message, item)
                if below:
                    findings += below
        for group in groups:
            findings += _too_many_of(group, value)
        return bounded_findings(findings, unlisted) if findings else findings

    return read


def _too_many_of(group: list[str], value: dict[str, Any]) -> list[Finding]:
    present = [name for name, item in value.items() if name in group and item is not None]
    return [
        Finding((name,), "not-allowed", f"must not be set together with {present[0]}")
        for name in present[1:]
    ]


def compile_field_decoder(field: FieldDescriptor, *, ignores_unknown: bool = False) -> FieldDecoder:
    if is_map(field):
        return _map_field(field, ignores_unknown)
    if field.is_repeated:
        return _repeated_field(field, ignores_unknown)
    if field.message_type is None:
        return _scalar_field(field)
    if form_of(field).unwrap:
        return _unwrapped_field(field, ignores_unknown)
    return _message_field(field, ignores_unknown)


def _scalar_field(field: FieldDescriptor) -> FieldDecoder:
    name, convert = field.name, scalar_converter(field)

    def read(message: Message, value: Any) -> Findings:
        converted = convert(value)
        if type(converted) is Finding:
            return nested_under(name, [converted])
        setattr(message, name, converted)
        return ()

    return read


def _message_field(field: FieldDescriptor, ignores_unknown: bool) -> FieldDecoder:
    name, read_below = field.name, _message_reader(field, ignores_unknown)

    def read(message: Message, value: Any) -> Findings:
        below = getattr(message, name)
        below.SetInParent()
        findings = read_below(below, value)
        return nested_under(name, findings) if findings else findings

    return read


def _message_reader(field: FieldDescriptor, ignores_unknown: bool) -> FieldDecoder:
    if field.message_type is None:
        raise TypeError(f"{field.full_name} is not a message")
    return compile_decoder(field.message_type, ignores_unknown=ignores_unknown)


def _unwrapped_field(field: FieldDescriptor, ignores_unknown: bool) -> FieldDecoder:
    if field.message_type is None or len(field.message_type.fields) != 1:
        raise TypeError(f"{field.full_name}: only a message of one field is unwrapped")
    name = field.name
    read_inner = compile_field_decoder(
        field.message_type.fields[0], ignores_unknown=ignores_unknown
    )

    def read(message: Message, value: Any) -> Findings:
        below = getattr(message, name)
        below.SetInParent()
        findings = read_inner(below, value)
        return [Finding((name, *location[1:]), word, reason) for location, word, reason in findings]

    return read


def _repeated_field(field: FieldDescriptor, ignores_unknown: bool) -> FieldDecoder:
    name, limit = field.name, entry_limit(field)
    wrong = nested_under(name, [Finding((), "wrong-type", "must be an array")])
    fill = _fill_messages(field, ignores_unknown) if field.message_type else _fill_scalars(field)

    def read(message: Message, value: Any) -> Findings:
        if type(value) is not list:
            return wrong
        if limit is not None and len(value) > limit:
            findings = [too_many_entries(limit), *fill(getattr(message, name), value[:limit])]
            return nested_under(name, findings)
        below = fill(getattr(message, name), value)
        return nested_under(name, below) if below else below

    return read


def _fill_scalars(field: FieldDescriptor) -> FieldDecoder:
    convert = scalar_converter(field)
    is_text = field.type == FieldDescriptor.TYPE_STRING
    zero = _ZEROS.get(field.type, 0)

    def fill(target: Any, values: list[Any]) -> Findings:
        if is_text and set(map(type, values)) <= {str}:
            target.extend(values)
            return ()
        findings: list[Finding] = []
        unlisted = 0
        for index, value in enumerate(values):
            converted = convert(value)
            if type(converted) is Finding:
                if len(findings) < MAX_PROBLEMS:
                    findings.append(Finding((str(index),), converted.word, converted.reason))
                else:
                    unlisted += 1
                converted = zero
            target.append(converted)
        return bounded_findings(findings, unlisted)

    return fill


def _fill_messages(field: FieldDescriptor, ignores_unknown: bool) -> FieldDecoder:
    read_below = _message_reader(field, ignores_unknown)

    def fill(target: Any, values: list[Any]) -> Findings:
        findings: list[Finding] = []
        unlisted = 0
        for index, value in enumerate(values):
            below = read_below(target.add(), value)
            if len(findings) < MAX_PROBLEMS:
                findings += nested_under(str(index), below)
            else:
                unlisted += count_findings(below)
        return bounded_findings(findings, unlisted)

    return fill


def _map_field(field: FieldDescriptor, ignores_unknown: bool) -> FieldDecoder:
    if map_key(field).type != FieldDescriptor.TYPE_STRING:
        raise TypeError(f"{field.full_name}: keys of a map are strings")
    name, of_value, limit = field.name, map_value(field), entry_limit(field)
    wrong = nested_under(name, [Finding((), "wrong-type", "must be an object")])
    put = (
        _put_message(of_value, ignores_unknown) if of_value.message_type else _put_scalar(of_value)
    )

    def read(message: Message, value: Any) -> Findings:
        if type(value) is not dict:
            return wrong
        target = getattr(message, name)
        findings: list[Finding] = []
        if limit is not None and len(value) > limit:
            findings.append(too_many_entries(limit))
        unlisted = 0
        for key, item in islice(value.items(), limit):
            below = put(target, key, item)
            if not below:
                continue
            if len(findings) < MAX_PROBLEMS:
                findings += nested_under(key, below)
            else:
                unlisted += count_findings(below)
        return nested_under(name, bounded_findings(findings, unlisted)) if findings else findings

    return read


def _put_scalar(field: FieldDescriptor) -> Callable[[Any, str, Any], Findings]:
    convert = scalar_converter(field)

    def put(target: Any, key: str, value: Any) -> Findings:
        converted = convert(value)
        if type(converted) is Finding:
            return [converted]
        target[key] = converted
        return ()

    return put


def _put_message(
    field: FieldDescriptor, ignores_unknown: bool
) -> Callable[[Any, str, Any], Findings]:
    read_below = _message_reader(field, ignores_unknown)
    return lambda target, key, value: read_below(target[key], value)


# Scalars ------------------------------------------------------------------------------------------


def scalar_converter(field: FieldDescriptor) -> ScalarConverter:
    """Returns a function that converts the JSON values of a scalar field.

    Raises TypeError for a field type without a JSON form.
    """
    if field.type in _INTEGERS:
        return _integer(*_INTEGERS[field.type])
    if field.enum_type is not None:
        return _enum(field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES and form_of(field).raw_json:
        return _raw
    simple = _SIMPLE.get(field.type)
    if simple is None:
        raise TypeError(f"{field.full_name} has no JSON form")
    return simple


def _text(value: Any) -> Any:
    return value if type(value) is str else Finding((), "wrong-type", "must be a string")


def _bool(value: Any) -> Any:
    return value if type(value) is bool else Finding((), "wrong-type", "must be true or false")


def _float(value: Any) -> Any:
    is_number = type(value) is float or type(value) is int
    return float(value) if is_number else Finding((), "wrong-type", "must be a number")


def _integer(low: int, high: int) -> ScalarConverter:
    wrong = Finding((), "wrong-type", "must be an integer")
    too_low = Finding((), "too-low", f"must be at least {low}")
    too_high = Finding((), "too-high", f"must be at most {high}")

    def convert(value: Any) -> Any:
        if type(value) is not int:
            # The parser returns integers beyond 64 bits as floats.
            if type(value) is float and abs(value) >= 2.0**63 and value.is_integer():
                return too_high if value > 0 else too_low
            return wrong
        if value < low:
            return too_low
        return too_high if value > high else value

    return convert


def _enum(descriptor: EnumDescriptor) -> ScalarConverter:
    numbers = {spelling: number for number, spelling in enum_spellings(descriptor).items()}
    expected = ", ".join(sorted(numbers))
    wrong_value = Finding((), "not-allowed", f"must be one of {expected}")

    def convert(value: Any) -> Any:
        if type(value) is not str:
            return Finding((), "wrong-type", "must be a string")
        return numbers.get(value, wrong_value)

    return convert


def enum_spellings(descriptor: EnumDescriptor) -> dict[int, str]:
    """Returns the JSON text of each enum value by its number. The unspecified value (0) has none."""
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", descriptor.name).upper() + "_"
    return {
        value.number: value.name.removeprefix(prefix).lower()
        for value in descriptor.values
        if value.number != 0
    }


def _raw(value: Any) -> Any:
    return value if type(value) is bytes else Finding((), "wrong-type", "must be JSON text")


def _bytes(value: Any) -> Any:
    wrong = Finding((), "wrong-type", "must be base64 in a string")
    if type(value) is not str:
        return wrong
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return wrong


_SIMPLE: Final[Mapping[int, ScalarConverter]] = {
    FieldDescriptor.TYPE_STRING: _text,
    FieldDescriptor.TYPE_BOOL: _bool,
    FieldDescriptor.TYPE_DOUBLE: _float,
    FieldDescriptor.TYPE_BYTES: _bytes,
}


def _read_timestamp(message: Any, value: Any) -> Findings:
    if type(value) is not str:
        return [Finding((), "wrong-type", "must be a string")]
    wrong = [Finding((), "invalid", "must be an RFC 3339 timestamp")]
    match = _TIMESTAMP.fullmatch(value)
    if match is None:
        return wrong
    seconds, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(seconds.upper() + zone.upper())
        # Whole seconds avoid rounding of the fraction.
        message.seconds = int((moment - _EPOCH).total_seconds())
    except (ValueError, OverflowError):
        return wrong
    message.nanos = int((fraction or "0").ljust(9, "0"))
    return ()
