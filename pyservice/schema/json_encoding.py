"""Encoding of protobuf messages as JSON values, compiled from descriptors.

Fields without presence tracking are always written. Unset optional fields are omitted, or written
as null if a field option requires it. Map entries are sorted by key.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.schema.json_decoding import enum_spellings
from pyservice.schema.methods import form_of, is_map, map_value
from pyservice.timestamps import rfc3339

JsonEncoder = Callable[[Any], Any]

_Put = Callable[[Any, dict[str, Any]], None]


def compile_encoder(descriptor: Descriptor) -> JsonEncoder:
    if descriptor.full_name == "google.protobuf.Timestamp":
        return _write_timestamp
    puts = [_put_field(field) for field in descriptor.fields]

    def write(message: Message) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for put in puts:
            put(message, out)
        return out

    return write


def _put_field(field: FieldDescriptor) -> _Put:
    if field.is_repeated:
        return _put_entries(field)
    name, write = field.name, _writer_of(field)
    if not field.has_presence:

        def put_always(message: Message, out: dict[str, Any]) -> None:
            out[name] = write(getattr(message, name))

        return put_always

    is_null_when_unset = form_of(field).always_null

    def put_present(message: Message, out: dict[str, Any]) -> None:
        if message.HasField(name):
            out[name] = write(getattr(message, name))
        elif is_null_when_unset:
            out[name] = None

    return put_present


def _put_entries(field: FieldDescriptor) -> _Put:
    name, write = field.name, _writer_of_entries(field)
    omits_empty = form_of(field).omit_empty

    def put(message: Message, out: dict[str, Any]) -> None:
        entries = getattr(message, name)
        if entries or not omits_empty:
            out[name] = write(entries)

    return put


def _writer_of_entries(field: FieldDescriptor) -> JsonEncoder:
    if is_map(field):
        write_value = _writer_of(map_value(field))
        return lambda entries: {str(key): write_value(entries[key]) for key in sorted(entries)}
    write = _writer_of(field)
    return lambda entries: [write(entry) for entry in entries]


def _writer_of(field: FieldDescriptor) -> JsonEncoder:
    if field.message_type is not None:
        if form_of(field).unwrap:
            (inner,) = field.message_type.fields
            write_inner = _writer_of_entries(inner)
            return lambda message: write_inner(getattr(message, inner.name))
        return compile_encoder(field.message_type)
    if field.enum_type is not None:
        return enum_spellings(field.enum_type).get
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _write_raw if form_of(field).raw_json else _write_bytes
    return _write_same


def _write_same(value: Any) -> Any:
    return value


def _write_raw(text: bytes) -> orjson.Fragment:
    return orjson.Fragment(text or b"null")


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _write_timestamp(message: Any) -> str:
    return rfc3339(message.seconds * 1000 + message.nanos // 1_000_000)


class PrerenderedJson(Message):
    """Response with JSON text that is already encoded. Both transports accept it as a message.

    For protobuf encoding, `make` creates the message.
    """

    __slots__ = ("_make", "body")

    def __init__(self, body: bytes, make: Callable[[], Message]) -> None:
        self.body = body
        self._make = make

    def SerializeToString(self, **options: Any) -> bytes:
        return self._make().SerializeToString(**options)
