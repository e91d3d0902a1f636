from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from schemathesis.specs.openapi import definitions

from pyservice import _native, openapi
from pyservice.errors import ServiceError
from pyservice.openapi import codes_by_status, declared_codes, fill_example
from pyservice.openapi.message_schemas import (
    SchemaComponents,
    SchemaForm,
    UnsupportedConstraint,
    keywords,
    rules_of,
)
from pyservice.pb.errors import TABLE
from pyservice.pb.examples import EXAMPLES
from pyservice.schema.methods import METHODS, Method, descriptor_of
from tests.edge.conftest import Decode

BY_SLUG = {method.slug: method for method in METHODS.values()}
WITH_BODY = sorted(slug for slug in BY_SLUG.keys() & EXAMPLES if BY_SLUG[slug].body_field == "*")
"""Another test reports operations without an example."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(openapi.document(METHODS.values()))
    return parsed


def operations(document: dict[str, Any]) -> dict[str, Any]:
    return {
        operation["operationId"]: operation
        for item in document["paths"].values()
        for operation in item.values()
    }


def test_protos_have_everything_that_the_document_needs() -> None:
    owed = openapi.gaps(METHODS.values())
    assert not owed, "\n" + "\n".join(owed)


def test_no_example_is_for_an_unknown_operation() -> None:
    assert not set(EXAMPLES) - set(BY_SLUG)


def test_every_version_is_that_of_the_cargo_workspace(document: dict[str, Any]) -> None:
    cargo = tomllib.loads(Path("Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert [document["info"]["version"], _native.version] == [cargo] * 2
    of_python = cargo.replace("-dev", ".dev0")
    assert metadata.version("pyservice-cli") == of_python
    service = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    # The service imports modules of the command line.
    assert f"pyservice-cli=={of_python}" in service["dependencies"]


def test_document_is_openapi_3_1(document: dict[str, Any]) -> None:
    validator = definitions.OPENAPI_31_VALIDATOR
    problems = [str(error) for error in validator.iter_errors(document)]
    assert not problems, problems[:5]


def test_every_schema_is_json_schema_2020_12(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert "FindLobbyRequest" in schemas
    for name, schema in schemas.items():
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )
        assert schema.get("description"), f"{name} has no description"


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    references = set(
        re.findall(r'"\$ref":"#/([^"]+)"', json.dumps(document, separators=(",", ":")))
    )
    assert "components/schemas/FindLobbyRequest" in references
    for reference in references:
        node: Any = document
        for part in reference.split("/"):
            assert part in node, reference
            node = node[part]


def test_every_operation_is_documented(document: dict[str, Any]) -> None:
    documented = operations(document)
    assert set(documented) == set(BY_SLUG)
    for slug, operation in documented.items():
        assert operation["summary"], slug
        assert operation["description"], slug
        assert {"200", "500", "503"} <= set(operation["responses"]), slug


def test_document_is_deterministic() -> None:
    program = (
        "import sys; from pyservice import openapi; from pyservice.schema.methods import METHODS; "
        "sys.stdout.buffer.write(openapi.document(METHODS.values()))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        result = subprocess.run(command, env=environment, capture_output=True, check=True)
        assert result.stdout == openapi.document(METHODS.values())


def test_status_lists_exactly_its_codes(document: dict[str, Any]) -> None:
    join = operations(document)["join"]["responses"]
    assert join["404"] == {"$ref": "#/components/responses/MATCHMAKER_LOBBY_NOT_FOUND"}
    (_, own) = join["409"]["content"]["application/problem+json"]["schema"]["allOf"]
    assert "MATCHMAKER_LOBBY_FULL" in own["properties"]["code"]["enum"]
    assert own["properties"]["status"] == {"const": 409}
    for method in METHODS.values():
        for status, codes in codes_by_status(method).items():
            assert all(TABLE[code].http == status for code in codes)
        assert set(declared_codes(method)) <= {
            code for codes in codes_by_status(method).values() for code in codes
        }


def test_reading_operation_never_returns_a_disk_error() -> None:
    slugs = {
        slug for slug, method in BY_SLUG.items() if "STORAGE_FULL" in codes_by_status(method)[503]
    }
    validations = {slug for slug in BY_SLUG if slug.startswith("validate_")}
    assert len(validations) == 4
    reads = {slug for slug, method in BY_SLUG.items() if method.http_method == "GET"}
    assert slugs == BY_SLUG.keys() - validations - reads


def test_tokens_are_security_schemes(document: dict[str, Any]) -> None:
    documented = operations(document)
    assert documented["attach"]["security"] == [{"env": []}, {"cloud": []}]
    assert {"origin": []} in documented["find"]["security"]
    assert set(document["components"]["securitySchemes"]) >= {
        "pub",
        "env",
        "lobby",
        "cloud",
        "origin",
    }


def body_of(method: Method) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(fill_example(method).body or "{}")
    return body


def validator_of(document: dict[str, Any], slug: str) -> Any:
    content = operations(document)[slug]["requestBody"]["content"]["application/json"]
    return jsonschema_rs.Draft202012Validator(
        {"allOf": [content["schema"]], "components": document["components"]}, validate_formats=True
    )


@pytest.mark.parametrize("slug", WITH_BODY)
def test_example_matches_its_schema(document: dict[str, Any], slug: str) -> None:
    problems = [
        str(error) for error in validator_of(document, slug).iter_errors(body_of(BY_SLUG[slug]))
    ]
    assert not problems


def test_parameter_examples_match_their_schemas(document: dict[str, Any]) -> None:
    examples = [
        (slug, parameter)
        for slug, operation in operations(document).items()
        for parameter in operation["parameters"]
        if "example" in parameter
    ]
    assert examples
    for slug, parameter in examples:
        assert jsonschema_rs.is_valid(parameter["schema"], parameter["example"]), slug


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 65_536, 2**32, 2**64 - 1, 2**64, 1.5, "", "a", "A b", "a-b"),
    *("é" * 300, "x" * 5_000, "127.0.0.1", "::1", "a.example.com", "not an address"),
    *("2026-01-01T00:00:00.000Z", "00010000-0000-4000-8000-000000000001"),
    *([], [1], ["a"], ["a", "a"], ["a"] * 100, [None], {}, {"a": 1}, {"a": "b"}, {"a": None}),
    {"a": "é" * 300},
    *({"A B": "b"}, {"é" * 200: "b"}, {f"a{n}": "b" for n in range(100)}),
)
ABSENT = object()


def mutations(slug: str) -> Iterator[dict[str, Any]]:
    """Yields the example with one changed field at any depth."""
    method = BY_SLUG[slug]
    names = [
        field.name
        for field in descriptor_of(method.request).fields
        if field.name not in method.path_fields
    ]
    for place in [*([name] for name in (*names, "no_such_member")), *inner(body_of(method))]:
        for value in (ABSENT, *VALUES):
            body = body_of(method)
            target: Any = body
            for part in place[:-1]:
                target = target[part]
            if value is not ABSENT:
                target[place[-1]] = value
            elif isinstance(target, dict):
                target.pop(place[-1], None)
            yield body


def inner(value: Any, place: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in entries:
        if isinstance(item, dict | list):
            yield from inner(item, (*place, name))
        if place:
            yield [*place, name]


@pytest.mark.parametrize("slug", WITH_BODY)
def test_schema_agrees_with_the_server(document: dict[str, Any], decode: Decode, slug: str) -> None:
    validator = validator_of(document, slug)
    path = fill_example(BY_SLUG[slug]).path
    accepted = 0
    for body in mutations(slug):
        text = json.dumps(body).encode()
        try:
            decode(slug, text, path=path)
            refusal = None
        except ServiceError as error:
            refusal = error
        problems = [str(error) for error in validator.iter_errors(body)]
        if refusal is None:
            accepted += 1
            assert not problems, (slug, text[:300], problems)
        elif not problems:
            assert is_unsayable(refusal), (slug, text[:300], refusal)
    # One mutation is the unchanged example.
    assert accepted


def is_unsayable(refusal: ServiceError) -> bool:
    """Returns whether the rule is a byte length or CEL, which a JSON schema cannot express."""
    words = {
        problem.path[-1] for problem in refusal.errors if tuple(problem.path) not in ONE_OF_TWO
    }
    return bool(refusal.errors) and words <= {"too-long", "not-allowed", "invalid"}


ONE_OF_TWO = (("image_file", "required"),)
"""Problems of a message that requires one of two fields."""


def schema_of(shape: type[Any], form: SchemaForm) -> dict[str, Any]:
    components = SchemaComponents()
    reference = components.reference(descriptor_of(shape), form)
    _, schemas = components.finish(reference)
    return schemas


def test_response_schema_has_required_and_nullable_fields(shape: type[Any]) -> None:
    schemas = schema_of(shape, SchemaForm.ANSWER)
    schema = schemas["tests.shapes.Shape"]
    assert {"text", "numbers", "by_name", "kind", "nullable"} <= set(schema["required"])
    assert not {"optional_text", "quiet", "inner"} & set(schema["required"])
    assert {"type": "null"} in schema["properties"]["nullable"]["anyOf"]
    assert schema["properties"]["optional_text"]["type"] == "string"
    assert schema["properties"]["large"]["maximum"] == 2**64 - 1
    assert schema["properties"]["made_ts"]["format"] == "date-time"
    assert schema["properties"]["digest"]["contentEncoding"] == "base64"
    assert schema["properties"]["listed"]["type"] == "array"
    assert schema["properties"]["kind"]["enum"] == ["round", "very_round"]
    assert schema["additionalProperties"] is False


def test_request_may_omit_optional_fields_or_send_null(shape: type[Any]) -> None:
    schema = schema_of(shape, SchemaForm.REQUEST)["tests.shapes.Shape"]
    assert "required" not in schema
    assert schema["properties"]["optional_text"]["type"] == ["string", "null"]
    assert None in schema["properties"]["kind"]["enum"]
    assert schema["additionalProperties"] is False
    lenient = schema_of(shape, SchemaForm.LENIENT)["tests.shapes.Shape"]
    assert "additionalProperties" not in lenient


def test_different_forms_have_different_names(shape: type[Any]) -> None:
    components = SchemaComponents()
    both = [
        components.reference(descriptor_of(shape), form)
        for form in (SchemaForm.ANSWER, SchemaForm.REQUEST)
    ]
    references, schemas = components.finish(both)
    names = [reference["$ref"].rpartition("/")[2] for reference in references]
    assert names == ["tests.shapes.Shape", "tests.shapes.ShapeInput"]
    assert set(names) <= set(schemas)


def test_rule_without_a_schema_form_is_rejected_by_name() -> None:
    (field, *_) = descriptor_of(BY_SLUG["find"].request).fields
    rules = type(rules_of(field))()
    rules.string.ulid = True
    with pytest.raises(UnsupportedConstraint, match="ulid"):
        keywords(rules, "here")


def test_byte_limit_is_a_character_limit_with_a_description() -> None:
    tags = schema_of(BY_SLUG["find"].request, SchemaForm.LENIENT)["FindLobbyRequest"]["properties"][
        "tags"
    ]
    value = tags["additionalProperties"]
    assert value["maxLength"] == 512
    assert value["description"] == "At most 512 bytes of UTF-8."
