"""OpenAPI 3.1 document of the service, generated from the protos."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import orjson
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.descriptor_pool import Default

from pyservice.openapi.message_schemas import Schema, SchemaComponents, SchemaForm, is_required
from pyservice.pb.comments import COMMENTS
from pyservice.pb.errors import TABLE
from pyservice.pb.examples import EXAMPLES, SAMPLES
from pyservice.pb.hosting.v1 import envelope_pb2, options_pb2
from pyservice.schema.methods import LENIENT_PATHS, Method, descriptor_of, option
from pyservice.transport.native import version
from pyservice.transport.rate_limits import Limits


class CredentialKind(Enum):
    """Kinds of credentials that an operation accepts.

    The value is the prefix of a token kind, such as `env`, or the name of another credential.
    """

    NONE = "none"
    ORIGIN = "origin"
    PUBLIC = "pub"
    ENVIRONMENT = "env"
    DEVELOPMENT = "dev"
    LOBBY = "lobby"
    CLOUD = "cloud"
    CHANNEL = "channel"


_OF_PROTO: Final = {
    number: CredentialKind[name.removeprefix("CREDENTIAL_")]
    for name, number in options_pb2.Credential.items()
    if number != options_pb2.CREDENTIAL_UNSPECIFIED
}


def credential_kinds(method: Method) -> frozenset[CredentialKind]:
    descriptor = Default().FindMethodByName(method.name)
    numbers = option(descriptor, options_pb2.operation).credentials
    return frozenset(_OF_PROTO[number] for number in numbers if number in _OF_PROTO)


_TOKENS: Final = {
    CredentialKind.PUBLIC: "A token of the game clients of one namespace.",
    CredentialKind.ENVIRONMENT: "A service token, for the game back ends of one namespace.",
    CredentialKind.DEVELOPMENT: "A token of a developer's machine: responses are mock data.",
    CredentialKind.LOBBY: "The token of one lobby server.",
    CredentialKind.CLOUD: "A token of a developer or of CI. Its scope must cover the resource in the path.",
}


def security_schemes() -> dict[str, Any]:
    schemes: dict[str, Any] = {
        kind.value: {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": f"{kind.value}_…",
            "description": text,
        }
        for kind, text in _TOKENS.items()
    }
    schemes[CredentialKind.CHANNEL.value] = {
        "type": "http",
        "scheme": "bearer",
        "description": "The secret of an event channel, 22 to 64 characters chosen by the client.",
    }
    schemes[CredentialKind.ORIGIN.value] = {
        "type": "apiKey",
        "in": "header",
        "name": "Origin",
        "description": "A page of a domain of the namespace needs no token; the browser sends this header.",
    }
    return schemes


def security_requirements(method: Method) -> list[dict[str, list[str]]]:
    """Returns the credentials that an operation accepts, each as an alternative.

    An empty list means that the operation needs no credential.
    """
    kinds = credential_kinds(method)
    if CredentialKind.NONE in kinds:
        return []
    return [{kind.value: []} for kind in CredentialKind if kind in kinds]


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
    descriptor: MethodDescriptor = Default().FindMethodByName(method.name)
    return descriptor


def declared_codes(method: Method) -> tuple[str, ...]:
    """Returns the error codes that the proto declares for an operation.

    Raises ValueError for a code that is not in `proto/errors.toml`.
    """
    codes = tuple(option(descriptor_of_method(method), options_pb2.operation).errors)
    unknown = [code for code in codes if code not in TABLE]
    if unknown:
        raise ValueError(f"{method.name}: {', '.join(unknown)} is not in proto/errors.toml")
    return codes


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
    if is_control or _limits.data_plane_limit(method.slug) is not None:
        codes.append("RATE_LIMITED")
    return tuple(dict.fromkeys(codes))


def accepts_idempotency_key(method: Method) -> bool:
    """Returns whether a repeated request with the same Idempotency-Key gets the stored response."""
    operation = option(descriptor_of_method(method), options_pb2.operation)
    return method.http_method != "GET" and not operation.ignores_key


def has_side_effects(method: Method) -> bool:
    """Returns whether the operation may write data, and therefore needs free disk space."""
    level = descriptor_of_method(method).GetOptions().idempotency_level
    return level != MethodOptions.NO_SIDE_EFFECTS


def codes_by_status(method: Method) -> dict[int, list[str]]:
    codes: dict[int, list[str]] = {}
    for code in sorted({*declared_codes(method), *implied_codes(method)}):
        codes.setdefault(TABLE[code].http, []).append(code)
    return dict(sorted(codes.items()))


_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

FillPlaceholder = Callable[[str], str]
"""Function that returns the value of a placeholder. Raises KeyError for an unknown placeholder."""


class FilledExample(NamedTuple):
    token: str | None
    path: dict[str, str]
    query: dict[str, str]
    body: str | None


NO_EXAMPLE: Final = FilledExample(None, {}, {}, None)


def fill_example(method: Method, fill: FillPlaceholder = SAMPLES.__getitem__) -> FilledExample:
    """Returns the example request of an operation, with its placeholders replaced by values.

    Raises LookupError if the example or a value is missing. The message names the file to change.
    """
    example = EXAMPLES.get(method.slug)
    if example is None:
        raise LookupError(
            f"{method.name} has no example: add [{method.slug}] to a file of proto/examples"
        )

    def put(text: str) -> str:
        return _PLACEHOLDER.sub(lambda found: _value(method, found[1], fill), text)

    path = {name: put(example.path.get(name, f"{{{name}}}")) for name in method.path_fields}
    query = {name: put(text) for name, text in example.query.items()}
    return FilledExample(
        example.token, path, query, None if example.body is None else _in_json(example.body, put)
    )


def curl(method: Method, example: FilledExample) -> str:
    path = method.template.format(
        **{name: quote(text, safe="") for name, text in example.path.items()}
    )
    query = f"?{urlencode(example.query)}" if example.query else ""
    words = ["curl", "--request", method.http_method, f'"$HOSTING_URL{path}{query}"']
    if example.token == "origin":
        words += ["--header", '"Origin: $ORIGIN"']
    elif example.token is not None:
        words += ["--header", '"Authorization: Bearer $TOKEN"']
    if example.body is not None:
        words += [
            "--header",
            "'Content-Type: application/json'",
            "--data",
            shlex.quote(example.body),
        ]
    return " ".join(words)


def _in_json(body: str, put: Callable[[str], str]) -> str:
    def put_into(value: Any) -> Any:
        match value:
            case str():
                return put(value)
            case list():
                return [put_into(item) for item in value]
            case dict():
                return {put(name): put_into(item) for name, item in value.items()}
        return value

    return json.dumps(put_into(json.loads(body)), ensure_ascii=False)


def _value(method: Method, name: str, fill: FillPlaceholder) -> str:
    try:
        return fill(name)
    except KeyError:
        raise LookupError(
            f"the example of {method.name} has the placeholder {{{name}}}, which has no value: "
            "set it in proto/examples/samples.toml"
        ) from None


__all__ = ["document", "gaps"]

VERSION: Final = "3.1.1"
DIALECT: Final = "https://spec.openapis.org/oas/3.1/dialect/base"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_PROBLEM: Final = "application/problem+json"
_INFO: Final = (
    "The operations of a multiplayer hosting service. Every answer has its trace id in `x-ray-id`. An answer that is "
    "not a success is a problem document (RFC 9457): decide by its `code`. This document describes one version of the "
    "service; a later one may answer with more members, so ignore those you do not know. Integers of 64 bits are JSON "
    "numbers. Where a limit is in bytes, `maxLength` counts characters and the description says the bytes."
)


def document(methods: Iterable[Method], *, public_url: str = "/") -> bytes:
    """Returns the OpenAPI document as JSON.

    Raises ValueError for an undeclared error code. Raises TypeError for a field or rule that JSON
    Schema cannot express. Other missing parts are omitted from the document, and `gaps` reports
    them.
    """
    components = SchemaComponents()
    responses: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    services: dict[str, str] = {}
    for method in methods:
        service = method.name.rsplit(".", 2)[1]
        services[service] = COMMENTS.get(method.name.rpartition(".")[0], "")
        item = paths.setdefault(method.template, {})
        item[method.http_method.lower()] = _operation(method, service, components, responses)
    body, schemas = components.finish({"paths": paths, "responses": responses})
    return orjson.dumps(
        {
            "openapi": VERSION,
            "jsonSchemaDialect": DIALECT,
            "info": {
                "title": "Multiplayer hosting",
                "version": version,
                "description": _INFO,
            },
            "servers": [{"url": public_url}],
            "tags": [
                {"name": name, "description": text} for name, text in sorted(services.items())
            ],
            "paths": dict(sorted(body["paths"].items())),
            "components": {
                "schemas": schemas,
                "responses": dict(sorted(body["responses"].items())),
                "headers": _HEADERS,
                "parameters": _PARAMETERS,
                "securitySchemes": security_schemes(),
            },
        }
    )


def gaps(methods: Iterable[Method]) -> list[str]:
    sentences: list[str] = []
    for method in methods:
        kinds = credential_kinds(method)
        if not kinds:
            sentences.append(
                f"{method.name} has no accepted credentials: add credentials to its (operation)"
            )
        if method.name not in COMMENTS:
            sentences.append(f"{method.name} has no comment: it is the operation's description")
        try:
            example = fill_example(method)
        except LookupError as error:
            sentences.append(str(error))
            continue
        if (example.token or "none") not in {kind.value for kind in kinds}:
            sentences.append(
                f"the example of {method.name} shows {example.token or 'no token'}, "
                "which the operation does not accept"
            )
    return sentences


def _operation(
    method: Method, service: str, components: SchemaComponents, responses: dict[str, Any]
) -> dict[str, Any]:
    example = fill_example(method) if method.slug in EXAMPLES else NO_EXAMPLE
    comment = COMMENTS.get(method.name, "")
    operation: dict[str, Any] = {
        "operationId": method.slug,
        "tags": [service],
        "summary": _summary(comment) or method.name.rpartition(".")[2],
        "description": comment,
        "security": security_requirements(method),
        "parameters": _parameters(method, example, components),
        "responses": {
            "200": _success(method, components),
            **{
                str(status): _refusal(status, codes, components, responses)
                for status, codes in codes_by_status(method).items()
            },
        },
        "x-errors": list(declared_codes(method)),
    }
    body = _body(method, example, components)
    if body is not None:
        operation["requestBody"] = body
    if example is not NO_EXAMPLE:
        operation["x-codeSamples"] = [{"lang": "Shell", "source": curl(method, example)}]
    return operation


_CALLERS: Final = re.compile(r"(Any )?[a-z]+_ |.*_$|Errors: ")
"""Matches sentences about callers or errors, because the document lists these elsewhere."""


def _summary(comment: str) -> str:
    for sentence in comment.removesuffix(".").split(". "):
        if " " in sentence and not _CALLERS.match(sentence):
            return sentence.split(" (")[0]
    return ""


# Requests -----------------------------------------------------------------------------------------


def _parameters(
    method: Method, example: FilledExample, components: SchemaComponents
) -> list[dict[str, Any]]:
    fields = descriptor_of(method.request).fields_by_name
    parameters = [
        _parameter(fields[name], "path", example.path.get(name), components)
        for name in method.path_fields
    ]
    if not method.body_field:
        parameters += [
            _parameter(field, "query", example.query.get(field.name), components)
            for field in descriptor_of(method.request).fields
            if field.name not in method.path_fields
        ]
    if accepts_idempotency_key(method):
        parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
    return parameters


def _parameter(
    field: FieldDescriptor, location: str, example: str | None, components: SchemaComponents
) -> dict[str, Any]:
    schema = components.value(field, SchemaForm.REQUEST)
    parameter: dict[str, Any] = {
        "name": field.name,
        "in": location,
        "required": location == "path" or is_required(field),
        "schema": {name: value for name, value in schema.items() if name != "description"},
    }
    if "description" in schema:
        parameter["description"] = schema["description"]
    if example is not None:
        is_text = schema.get("type") == "string"
        parameter["example"] = example if is_text else json.loads(example)
    return parameter


def _body(
    method: Method, example: FilledExample, components: SchemaComponents
) -> dict[str, Any] | None:
    if not method.body_field:
        return None
    descriptor = descriptor_of(method.request)
    form = SchemaForm.LENIENT if method.ignores_unknown else SchemaForm.REQUEST
    if method.body_field == "*":
        schema = components.reference(descriptor, form, without=method.path_fields)
        is_required = components.has_required(schema)
    else:
        schema = components.value(descriptor.fields_by_name[method.body_field], form)
        is_required = False
    content: dict[str, Any] = {"schema": schema}
    if example.body is not None:
        content["example"] = orjson.Fragment(example.body)
    body: dict[str, Any] = {"content": {_JSON: content}, "required": is_required}
    if method.body_limit_bytes is not None:
        body["description"] = f"At most {method.body_limit_bytes:,} bytes."
    return body


# Responses --------------------------------------------------------------------------------------


def _success(method: Method, components: SchemaComponents) -> dict[str, Any]:
    descriptor = descriptor_of(method.response)
    if method.response_field:
        schema = components.value(
            descriptor.fields_by_name[method.response_field], SchemaForm.ANSWER
        )
    else:
        schema = components.reference(descriptor, SchemaForm.ANSWER)
    content: dict[str, Any] = {_JSON: {"schema": schema}}
    if method.text_field:
        content[_TEXT] = {"schema": {"type": "string"}}
    description = COMMENTS.get(descriptor.full_name, "Done.")
    return {
        "description": description,
        "headers": {"x-ray-id": {"$ref": "#/components/headers/RayId"}},
        "content": content,
    }


def _refusal(
    status: int, codes: list[str], components: SchemaComponents, responses: dict[str, Any]
) -> dict[str, Any]:
    if len(codes) > 1:
        return _problem(status, codes, components)
    (code,) = codes
    if code not in responses:
        responses[code] = _problem(status, codes, components)
    return {"$ref": f"#/components/responses/{code}"}


def _problem(status: int, codes: list[str], components: SchemaComponents) -> dict[str, Any]:
    reference = components.reference(descriptor_of(envelope_pb2.Problem), SchemaForm.ANSWER)
    headers = {"x-ray-id": {"$ref": "#/components/headers/RayId"}}
    if status == 401:
        headers["www-authenticate"] = {"$ref": "#/components/headers/WwwAuthenticate"}
    if all(TABLE[code].retry_after_s is not None for code in codes):
        headers["retry-after"] = {"$ref": "#/components/headers/RetryAfter"}
    schema: Schema = {
        "allOf": [reference, {"properties": {"status": {"const": status}, "code": {"enum": codes}}}]
    }
    return {
        "description": " ".join(f"{code}: {TABLE[code].title}." for code in codes),
        "headers": headers,
        "content": {_PROBLEM: {"schema": schema}},
    }


_HEADERS: Final[dict[str, Any]] = {
    "RayId": {
        "description": "The trace id of the request.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    },
    "RetryAfter": {
        "description": "Seconds to wait before the next attempt.",
        "required": True,
        "schema": {"type": "integer", "minimum": 0},
    },
    "WwwAuthenticate": {
        "description": "The authentication scheme to use.",
        "required": True,
        "schema": {"const": "Bearer"},
    },
}
_PARAMETERS: Final[dict[str, Any]] = {
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "A request is carried out once for each key. A repeated request gets the same response.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    }
}
