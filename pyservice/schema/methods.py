"""Operations of the API as the protobuf files declare them: names, messages, HTTP bindings, limits
and options.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.api import annotations_pb2
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, MethodDescriptor
from google.protobuf.message import Message

import pyservice.pb.hosting.v1
from pyservice.pb.hosting.v1 import options_pb2

# Clients of these paths can be newer and send unknown fields.
LENIENT_PATHS = ("/matchmaker/", "/events/")
_VERBS = ("get", "put", "post", "delete", "patch")
_WITHOUT_TOKEN: Final = frozenset(
    {options_pb2.CREDENTIAL_NONE, options_pb2.CREDENTIAL_ORIGIN, options_pb2.CREDENTIAL_CHANNEL}
)
_PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    """Full proto name, such as `hosting.v1.Matchmaker.JoinLobby`."""
    slug: str
    """Short name for metrics, logs and settings, such as `join`."""
    request: type[Message]
    response: type[Message]
    http_method: str
    template: str
    """URL path with `{field}` for fields of the request."""
    path_fields: tuple[str, ...]
    body_field: str
    """Field of the request that the JSON body contains. `*`: the whole request. Empty: no body."""
    response_field: str
    """Field of the message that is the JSON body of the response. Empty: the whole message."""
    text_field: str
    """Field of the message that, if it is set, is the whole response as text. Empty: none."""
    body_limit_bytes: int | None
    """Limit of the body in bytes. None: the general limit applies."""
    ignores_unknown: bool
    needs_token: bool
    """Whether a call needs a token of the service. An `Origin` or an event channel secret is no
    such token.
    """

    @property
    def grpc_path(self) -> str:
        service, _, method = self.name.rpartition(".")
        return f"/{service}/{method}"

    @property
    def takes_key(self) -> bool:
        """Whether the idempotency key of a call has to have its form. A read ignores the key."""
        return self.http_method not in ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Stream:
    """Streaming method that repeats a unary long poll, and sends each newer response."""

    rpc_name: str
    repeated: str
    """Full name of the repeated method. The messages of both methods are identical on the wire."""
    request: type[Message]
    response: type[Message]

    def next_request(self, data: bytes, reply: bytes) -> bytes:
        request: Any = self.request.FromString(data)
        request.watch_index = self.index_of(reply)
        following: bytes = request.SerializeToString()
        return following

    def index_of(self, reply: bytes) -> str:
        response: Any = self.response.FromString(reply)
        index: str = response.watch.index
        return index


# Descriptors --------------------------------------------------------------------------------------


def descriptor_of(message: Message | type[Message]) -> Descriptor:
    # Protobuf implementations declare its type differently.
    descriptor: Any = message.DESCRIPTOR
    return descriptor  # type: ignore[no-any-return]


def option(described: MethodDescriptor | FieldDescriptor | Descriptor, extension: Any) -> Any:
    return described.GetOptions().Extensions[extension]


def form_of(field: FieldDescriptor) -> Any:
    return option(field, options_pb2.form)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_key(field: FieldDescriptor) -> FieldDescriptor:
    return _entry_of(field).fields_by_name["key"]


def map_value(field: FieldDescriptor) -> FieldDescriptor:
    return _entry_of(field).fields_by_name["value"]


def _entry_of(field: FieldDescriptor) -> Descriptor:
    if field.message_type is None:
        raise TypeError(f"{field.full_name} is not a map")
    return field.message_type


# Operations ---------------------------------------------------------------------------------------


def read_methods(files: Iterable[FileDescriptor]) -> dict[str, Method]:
    """Returns all unary methods of the protobuf files by full name.

    Raises ValueError if a method's slug, HTTP rule or path is missing or invalid.
    """
    methods: dict[str, Method] = {}
    slugs: dict[str, str] = {}
    for file in files:
        for service in file.services_by_name.values():
            for descriptor in service.methods:
                if descriptor.server_streaming:
                    continue
                method = _read_method(descriptor)
                if method.slug in slugs:
                    raise ValueError(f"{method.name} and {slugs[method.slug]}: slug {method.slug}")
                slugs[method.slug] = method.name
                methods[method.name] = method
    return methods


def _read_method(descriptor: MethodDescriptor) -> Method:
    operation = option(descriptor, options_pb2.operation)
    rule = option(descriptor, annotations_pb2.http)
    verb = rule.WhichOneof("pattern")
    if not operation.slug or verb not in _VERBS:
        raise ValueError(f"{descriptor.full_name}: needs an operation slug and an HTTP rule")
    template: str = getattr(rule, verb)
    path_fields = tuple(_PARAMETER.findall(template))
    unknown = set(path_fields) - set(descriptor.input_type.fields_by_name)
    if unknown:
        raise ValueError(f"{descriptor.full_name}: the path names {sorted(unknown)}")
    return Method(
        name=descriptor.full_name,
        slug=operation.slug,
        request=message_factory.GetMessageClass(descriptor.input_type),
        response=message_factory.GetMessageClass(descriptor.output_type),
        http_method=verb.upper(),
        template=template,
        path_fields=path_fields,
        body_field=rule.body,
        response_field=rule.response_body,
        text_field=next(
            (field.name for field in descriptor.output_type.fields if form_of(field).plain_text), ""
        ),
        body_limit_bytes=operation.body_limit_bytes or None,
        ignores_unknown=template.startswith(LENIENT_PATHS),
        needs_token=_WITHOUT_TOKEN.isdisjoint(operation.credentials),
    )


def read_streams(
    files: Iterable[FileDescriptor], methods: Mapping[str, Method]
) -> dict[str, Stream]:
    """Returns all streaming methods, by the full name of the unary method that each one repeats.

    The method `StreamX` repeats `GetX` of the same service. Raises ValueError if the messages of
    the two methods differ.
    """
    streams: dict[str, Stream] = {}
    for file in files:
        for service in file.services_by_name.values():
            for descriptor in service.methods:
                if descriptor.server_streaming:
                    stream = _read_stream(descriptor, methods)
                    streams[stream.repeated] = stream
    return streams


def _read_stream(descriptor: MethodDescriptor, methods: Mapping[str, Method]) -> Stream:
    service, _, name = descriptor.full_name.rpartition(".")
    repeated = methods.get(f"{service}.Get{name.removeprefix('Stream')}")
    if repeated is None:
        raise ValueError(f"{descriptor.full_name}: no Get{name.removeprefix('Stream')} to poll")
    request, response = descriptor_of(repeated.request), descriptor_of(repeated.response)
    is_watched = "watch_index" in request.fields_by_name and "watch" in response.fields_by_name
    is_same = _wire_form(request) == _wire_form(descriptor.input_type) and (
        _wire_form(response) == _wire_form(descriptor.output_type)
    )
    if descriptor.client_streaming or not is_watched or not is_same:
        raise ValueError(f"{descriptor.full_name}: must match {repeated.name}, a long poll")
    return Stream(name, repeated.name, repeated.request, repeated.response)


def _wire_form(message: Descriptor) -> list[tuple[object, ...]]:
    return [
        (field.number, field.name, field.type, field.is_repeated, field.message_type)
        for field in message.fields
    ]


def public_files() -> tuple[FileDescriptor, ...]:
    package = pyservice.pb.hosting.v1
    names = sorted(name for _, name, _ in pkgutil.iter_modules(package.__path__))
    modules = [
        importlib.import_module(f"{package.__name__}.{name}")
        for name in names
        if name.endswith("_pb2")
    ]
    return tuple(module.DESCRIPTOR for module in modules)


METHODS: Final[dict[str, Method]] = read_methods(public_files())

STREAMS: Final[dict[str, Stream]] = read_streams(public_files(), METHODS)
