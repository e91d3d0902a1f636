"""OpenAPI 3.1 document of the service, generated from the protos."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import orjson
from google.protobuf.descriptor import FieldDescriptor

from pyservice.openapi.error_codes import accepts_idempotency_key, codes_by_status, declared_codes
from pyservice.openapi.examples import NO_EXAMPLE, FilledExample, curl, fill_example
from pyservice.openapi.message_schemas import Schema, SchemaComponents, SchemaForm, is_required
from pyservice.openapi.security_schemes import (
    credential_kinds,
    security_requirements,
    security_schemes,
)
from pyservice.pb.comments import COMMENTS
from pyservice.pb.errors import TABLE
from pyservice.pb.examples import EXAMPLES
from pyservice.pb.hosting.v1 import envelope_pb2
from pyservice.schema.methods import Method, descriptor_of

__all__ = ["document", "gaps"]

VERSION: Final = "3.1.1"
DIALECT: Final = "https://spec.openapis.org/oas/3.1/dialect/base"
_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_INFO: Final = (
    "The operations of a multiplayer hosting service. Every answer has its trace id in `x-ray-id`. An answer that is "
    "not a success is a problem document (RFC 9457): decide by its `code`. This document describes one version of the "
    "service; a later one may answer with more members, so ignore those you do not know. Integers of 64 bits are JSON "
    "numbers. Where a limit is in bytes, `maxLength` counts characters and the description says the bytes."
)


def document(methods: Iterable[Method], *, version: str = "0.1.0", public_url: str = "/") -> bytes:
    """Returns the document as JSON.

    Raises ValueError for an undeclared error code, and TypeError for a field or rule without a JSON
    Schema form. Omits other missing parts, which `gaps` reports.
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
            "info": {"title": "Multiplayer hosting", "version": version, "description": _INFO},
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
    """Returns a sentence for each missing part of the protos: credentials, examples, comments."""
    found: list[str] = []
    for method in methods:
        kinds = credential_kinds(method)
        if not kinds:
            found.append(
                f"{method.name} does not say who may call it: add credentials to its (operation)"
            )
        if method.name not in COMMENTS:
            found.append(f"{method.name} has no comment: it is the operation's description")
        try:
            example = fill_example(method)
        except LookupError as error:
            found.append(str(error))
            continue
        if (example.token or "none") not in {kind.value for kind in kinds}:
            found.append(
                f"the example of {method.name} shows {example.token or 'no token'}, "
                "which is none of its credentials"
            )
    return found


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
    found = [
        _parameter(fields[name], "path", example.path.get(name), components)
        for name in method.path_fields
    ]
    if not method.body_field:
        found += [
            _parameter(field, "query", example.query.get(field.name), components)
            for field in descriptor_of(method.request).fields
            if field.name not in method.path_fields
        ]
    if accepts_idempotency_key(method):
        found.append({"$ref": "#/components/parameters/IdempotencyKey"})
    return found


def _parameter(
    field: FieldDescriptor, place: str, example: str | None, components: SchemaComponents
) -> dict[str, Any]:
    schema = components.value(field, SchemaForm.REQUEST)
    parameter: dict[str, Any] = {
        "name": field.name,
        "in": place,
        "required": place == "path" or is_required(field),
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
    description = COMMENTS.get(descriptor.full_name, "Done.")
    return {
        "description": description,
        "headers": {"x-ray-id": {"$ref": "#/components/headers/RayId"}},
        "content": {_JSON: {"schema": schema}},
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
        "allOf": [
            reference,
            {"properties": {"status": {"const": status}, "code": {"enum": codes}}},
        ]
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
        "description": "Seconds after which it is worth trying again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 0},
    },
    "WwwAuthenticate": {
        "description": "How to show who calls.",
        "required": True,
        "schema": {"const": "Bearer"},
    },
}
_PARAMETERS: Final[dict[str, Any]] = {
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The same request with the same key is done once and answered alike.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    },
}
