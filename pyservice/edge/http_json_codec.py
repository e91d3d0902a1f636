"""Conversion of HTTP requests to proto messages, and of proto messages to JSON bodies.

The converters of a method are compiled once. They read each field from the path, the query or the
body.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.pb.errors import MALFORMED_PARAMETER, REPEATED_PARAMETER, WORDS
from pyservice.schema import json_text
from pyservice.schema.findings import MAX_PROBLEMS, Finding, Findings
from pyservice.schema.json_decoding import compile_decoder, compile_field_decoder
from pyservice.schema.json_encoding import PrerenderedJson, compile_encoder
from pyservice.schema.json_text import LARGE_BYTES, garbage_collection_paused
from pyservice.schema.methods import Method, descriptor_of, form_of, is_map, map_value
from pyservice.schema.validation import NO_UNDECODED_FIELDS, UndecodedFields

Decode = Callable[[bytes, bytes, Mapping[str, str]], tuple[Message, UndecodedFields]]
"""Body, raw query and path parameters to the request message, with the fields that could not be read. Never raises."""

Encode = Callable[[Message], bytes]
"""Response message to body."""

_Read = Callable[[Message, bytes], Findings]


def decoder(method: Method) -> Decode:
    make, path_fields = method.request, method.path_fields
    read_body = _compile_body(method)
    read_query = _compile_query(method)

    def decode(
        body: bytes, query: bytes, path: Mapping[str, str]
    ) -> tuple[Message, UndecodedFields]:
        message = make()
        for name in path_fields:
            setattr(message, name, path[name])
        in_body = read_body(message, body) if read_body else ()
        in_query = read_query(message, query) if query else ()
        if in_body or in_query:
            return message, UndecodedFields(in_query, in_body)
        return message, NO_UNDECODED_FIELDS

    return decode


def _compile_body(method: Method) -> _Read | None:
    descriptor = descriptor_of(method.request)
    if method.body_field == "*":
        return _object_body(descriptor, method)
    if method.body_field:
        return _bare_body(descriptor.fields_by_name[method.body_field])
    return None


def _object_body(descriptor: Descriptor, method: Method) -> _Read:
    read_object = compile_decoder(
        descriptor, ignores_unknown=method.ignores_unknown, without=method.path_fields
    )
    raw = _raw_members(descriptor, ignores_unknown=method.ignores_unknown)

    def read(message: Message, body: bytes) -> Findings:
        if not body:
            return ()
        if len(body) > LARGE_BYTES and gc.isenabled():
            with garbage_collection_paused():
                return read(message, body)
        try:
            value = json_text.parse(body)
        except json_text.JsonTextError as error:
            return [Finding((), error.word, error.reason)]
        if raw and _has_raw(value, raw):
            _put_texts(value, raw, body)
        return read_object(message, value)

    return read


class _RawMembers(dict[str, "_RawMembers | None"]):
    """Tree of the fields of a message that keep unparsed JSON text.

    Such a field is a leaf with the value None. The value of a nested message is its own tree.
    """

    most: int


def _raw_members(descriptor: Descriptor, *, ignores_unknown: bool) -> _RawMembers:
    members = _RawMembers()
    members.most = sys.maxsize if ignores_unknown else len(descriptor.fields) + MAX_PROBLEMS
    for field in descriptor.fields:
        if form_of(field).raw_json:
            members[field.name] = None
            continue
        kind = map_value(field) if is_map(field) else field
        below = (
            _raw_members(kind.message_type, ignores_unknown=ignores_unknown)
            if kind.message_type
            else None
        )
        if below and field.is_repeated:
            raise TypeError(f"{field.full_name}: raw JSON in a list or a map cannot be read")
        if below:
            members[field.name] = below
    return members


def _has_raw(value: Any, raw: _RawMembers | None) -> bool:
    if raw is None or value is None:
        return value is not None
    return type(value) is dict and any(
        _has_raw(value.get(name), below) for name, below in raw.items()
    )


def _put_texts(value: dict[str, Any], raw: _RawMembers, text: bytes) -> None:
    if len(value) > raw.most:
        for name in raw:
            value.pop(name, None)
        return
    texts = json_text.member_texts(text)
    for name, below in raw.items():
        if below is None:
            if value.get(name) is not None:
                value[name] = texts[name]
        elif _has_raw(value.get(name), below):
            _put_texts(value[name], below, texts[name])


def _bare_body(field: FieldDescriptor) -> _Read:
    if not form_of(field).raw_json:
        raise TypeError(f"{field.full_name}: only a field of raw JSON can be the whole body")
    name = field.name

    def read(message: Message, body: bytes) -> Findings:
        setattr(message, name, body)
        return ()

    return read


# Query --------------------------------------------------------------------------------------------


def _compile_query(method: Method) -> _Read:
    fields = [
        field
        for field in descriptor_of(method.request).fields
        if not method.body_field and field.name not in method.path_fields
    ]
    readers = {field.name: compile_field_decoder(field) for field in fields}
    converters = {field.name: _from_text(field) for field in fields}

    def read(message: Message, query: bytes) -> Findings:
        findings: list[Finding] = []
        names: set[str] = set()
        for raw_name, raw_text in _parameters(query):
            name, text = _decode_text(raw_name), _decode_text(raw_text)
            if name is None:
                findings.append(Finding((_readable(raw_name),), "invalid", MALFORMED_PARAMETER))
            elif name not in readers:
                findings.append(Finding((name,), "unknown-parameter", WORDS["unknown-parameter"]))
            elif name in names:
                findings.append(Finding((name,), "not-unique", REPEATED_PARAMETER))
            else:
                names.add(name)
                if text is None:
                    findings.append(Finding((name,), "invalid", MALFORMED_PARAMETER))
                else:
                    findings += readers[name](message, converters[name](text))
        return findings

    return read


_NO_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def _parameters(query: bytes) -> Iterator[tuple[bytes, bytes]]:
    for parameter in query.split(b"&"):
        if parameter:
            name, _, text = parameter.partition(b"=")
            yield name, text


def _decode_text(raw: bytes) -> str | None:
    if not raw.isascii() or _NO_ESCAPE.search(raw):
        return None
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        return None


def _readable(name: bytes) -> str:
    return name.decode("ascii", "backslashreplace")


# Digits beyond which a number exceeds 64 bits even when it is cut there.
_MAX_DIGITS = 21
_UNSIGNED = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_TEXTS = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_ENUM)


def _from_text(field: FieldDescriptor) -> Callable[[str], Any]:
    if not field.is_repeated and field.cpp_type in _TEXTS:
        return str
    if not field.is_repeated and field.type == FieldDescriptor.TYPE_BOOL:
        return lambda text: {"true": True, "false": False}.get(text, text)
    if not field.is_repeated and field.cpp_type in _UNSIGNED:
        return _unsigned_from_text
    raise TypeError(f"{field.full_name} cannot be a query parameter")


def _unsigned_from_text(text: str) -> int | str:
    if not (text.isascii() and text.isdigit()):
        return text  # which is no integer, and is refused as such
    return int(text.lstrip("0")[:_MAX_DIGITS] or "0")


# Responses ----------------------------------------------------------------------------------------


def encoder(method: Method) -> Encode:
    descriptor = descriptor_of(method.response)
    if method.response_field:
        return _bare_answer(descriptor.fields_by_name[method.response_field])
    if not descriptor.fields:
        return lambda _message: b"{}"
    write = compile_encoder(descriptor)

    def encode(message: Message) -> bytes:
        return message.body if type(message) is PrerenderedJson else orjson.dumps(write(message))

    return encode


def _bare_answer(field: FieldDescriptor) -> Encode:
    if not form_of(field).raw_json:
        raise TypeError(f"{field.full_name}: only a field of raw JSON can be the whole response")
    name = field.name
    return lambda message: getattr(message, name) or b"null"
