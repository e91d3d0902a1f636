"""Error codes of each operation: declared in its proto, or implied by its properties."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.descriptor_pool import Default

from pyservice.openapi.security_schemes import CredentialKind, credential_kinds
from pyservice.pb.errors import TABLE
from pyservice.pb.hosting.v1 import options_pb2
from pyservice.schema.methods import LENIENT_PATHS, Method, option
from pyservice.transport.rate_limits import Limits

CODES_OF_EVERY_OPERATION: Final = (
    "QUERY_INVALID",
    "REQUEST_TIMEOUT",
    "URI_TOO_LONG",
    "HEADERS_TOO_LARGE",
    "INTERNAL",
    "OVERLOADED",
    "SHUTTING_DOWN",
    "DEADLINE_EXCEEDED",
)

_OF_BODY: Final = ("BODY_INVALID", "BODY_TOO_LARGE", "MEDIA_TYPE_UNSUPPORTED")
CODES_BY_CREDENTIAL: Final[dict[CredentialKind, tuple[str, ...]]] = {
    CredentialKind.PUBLIC: ("TOKEN_REVOKED",),
    CredentialKind.ENVIRONMENT: ("TOKEN_REVOKED", "TOKEN_EXPIRED"),
    CredentialKind.DEVELOPMENT: ("TOKEN_REVOKED", "TOKEN_EXPIRED"),
    CredentialKind.LOBBY: ("TOKEN_EXPIRED",),
    CredentialKind.CLOUD: ("TOKEN_REVOKED", "TOKEN_EXPIRED"),
}
"""Error codes of an expired or revoked token, by its kind."""

_limits: Final = Limits()


def descriptor_of_method(method: Method) -> MethodDescriptor:
    found: MethodDescriptor = Default().FindMethodByName(method.name)
    return found


def declared_codes(method: Method) -> tuple[str, ...]:
    """Returns the error codes that the proto declares. Raises ValueError for an unknown code."""
    named = tuple(option(descriptor_of_method(method), options_pb2.operation).errors)
    unknown = [code for code in named if code not in TABLE]
    if unknown:
        raise ValueError(f"{method.name}: {', '.join(unknown)} is not in proto/errors.toml")
    return named


def implied_codes(method: Method) -> tuple[str, ...]:
    kinds = credential_kinds(method)
    codes = [*CODES_OF_EVERY_OPERATION]
    if method.path_fields:
        codes.append("ID_INVALID")
    if method.body_field:
        codes += _OF_BODY
    if method.http_method != "GET":
        codes.append("HEADER_INVALID")
        if accepts_idempotency_key(method):
            codes.append("IDEMPOTENCY_KEY_REUSED")
    if has_side_effects(method):
        codes.append("STORAGE_FULL")
    if CredentialKind.NONE not in kinds:
        codes += ["TOKEN_MISSING", "TOKEN_INVALID"]
        if kinds - {CredentialKind.CHANNEL}:
            codes.append("FORBIDDEN")
    for kind in kinds:
        codes += CODES_BY_CREDENTIAL.get(kind, ())
    is_control = not method.template.startswith(LENIENT_PATHS)
    if CredentialKind.CLOUD in kinds or is_control:
        codes.append("CONTROL_PLANE_UNAVAILABLE")
    if is_control or _limits.gate(method.slug) is not None:
        codes.append("RATE_LIMITED")
    return tuple(dict.fromkeys(codes))


def accepts_idempotency_key(method: Method) -> bool:
    """Returns whether the operation replays its response for a repeated Idempotency-Key."""
    said = option(descriptor_of_method(method), options_pb2.operation)
    return method.http_method != "GET" and not said.ignores_key


def has_side_effects(method: Method) -> bool:
    """Returns whether the operation can store data and so needs disk space."""
    level = descriptor_of_method(method).GetOptions().idempotency_level
    return level != MethodOptions.NO_SIDE_EFFECTS


def codes_by_status(method: Method) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for code in sorted({*declared_codes(method), *implied_codes(method)}):
        found.setdefault(TABLE[code].http, []).append(code)
    return dict(sorted(found.items()))
