"""Which codes an operation can answer: those that it declares, and those that follow from what it is.

An operation that has a body can refuse it, one that needs a token can refuse that. What the codes
mean is the error table's.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.descriptor_pool import Default

from pyservice.openapi.credentials import Kind, kinds_of
from pyservice.pb.errors import TABLE
from pyservice.pb.hosting.v1 import options_pb2
from pyservice.schema.methods import LENIENT_PATHS, Method, option
from pyservice.transport.rate_limits import Limits

ALWAYS: Final = (
    "QUERY_INVALID",
    "REQUEST_TIMEOUT",
    "URI_TOO_LONG",
    "HEADERS_TOO_LARGE",
    "INTERNAL",
    "OVERLOADED",
    "SHUTTING_DOWN",
    "DEADLINE_EXCEEDED",
)
"""Any request can meet these."""

_OF_BODY: Final = ("BODY_INVALID", "BODY_TOO_LARGE", "MEDIA_TYPE_UNSUPPORTED")
OF_KINDS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.PUBLIC: ("TOKEN_REVOKED",),
    Kind.ENVIRONMENT: ("TOKEN_REVOKED", "TOKEN_EXPIRED"),
    Kind.DEVELOPMENT: ("TOKEN_REVOKED", "TOKEN_EXPIRED"),
    Kind.LOBBY: ("TOKEN_EXPIRED",),
    Kind.CLOUD: ("TOKEN_REVOKED", "TOKEN_EXPIRED"),
}
"""How a token of a kind ends, beside not being one of ours."""

_limits: Final = Limits()


def descriptor_of_method(method: Method) -> MethodDescriptor:
    """The descriptor of an operation."""
    found: MethodDescriptor = Default().FindMethodByName(method.name)
    return found


def declared(method: Method) -> tuple[str, ...]:
    """The codes about the operation's subject, as its proto declares them. Raises ValueError for an unknown one."""
    named = tuple(option(descriptor_of_method(method), options_pb2.operation).errors)
    unknown = [code for code in named if code not in TABLE]
    if unknown:
        raise ValueError(f"{method.name}: {', '.join(unknown)} is not in proto/errors.toml")
    return named


def implied(method: Method) -> tuple[str, ...]:
    """The codes that follow from what the operation is."""
    kinds = kinds_of(method)
    codes = [*ALWAYS]
    if method.path_fields:
        codes.append("ID_INVALID")
    if method.body_field:
        codes += _OF_BODY
    if method.http_method != "GET":
        codes.append("HEADER_INVALID")
        if takes_key(method):
            codes.append("IDEMPOTENCY_KEY_REUSED")
    if changes_something(method):
        codes.append("STORAGE_FULL")
    if Kind.NONE not in kinds:
        codes += ["TOKEN_MISSING", "TOKEN_INVALID"]
        if kinds - {Kind.CHANNEL}:
            codes.append("FORBIDDEN")
    for kind in kinds:
        codes += OF_KINDS.get(kind, ())
    is_control = not method.template.startswith(LENIENT_PATHS)
    if Kind.CLOUD in kinds or is_control:
        codes.append("CONTROL_PLANE_UNAVAILABLE")
    if is_control or _limits.gate(method.slug) is not None:
        codes.append("RATE_LIMITED")
    return tuple(dict.fromkeys(codes))


def takes_key(method: Method) -> bool:
    """Whether a repetition under its Idempotency-Key is told from another request."""
    said = option(descriptor_of_method(method), options_pb2.operation)
    return method.http_method != "GET" and not said.ignores_key


def changes_something(method: Method) -> bool:
    """Whether it may leave anything behind: who only reads, or judges what is sent, needs no room."""
    level = descriptor_of_method(method).GetOptions().idempotency_level
    return level != MethodOptions.NO_SIDE_EFFECTS


def by_status(method: Method) -> dict[int, list[str]]:
    """All codes of an operation by their HTTP status, both in ascending order."""
    found: dict[int, list[str]] = {}
    for code in sorted({*declared(method), *implied(method)}):
        found.setdefault(TABLE[code].http, []).append(code)
    return dict(sorted(found.items()))
