"""The interface is the one of the stored release, except where the changelog says otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest

from tests.compatibility.changelog import CHANGELOG, is_announced
from tests.compatibility.interface_list import (
    MAPS,
    current_openapi,
    interface,
    stored_interface,
)
from tests.support.stored_openapi import stored_openapi

_RESTRICTING: Final = frozenset(
    (
        *("type", "enum", "const", "format", "pattern", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
        *("properties", "required", "minProperties", "maxProperties", "propertyNames"),
        *("additionalProperties", "patternProperties", "dependentRequired"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    )
)
"""Members that a request schema or a parameter cannot gain: they may refuse earlier requests."""
_LIMITS: Final = frozenset(
    ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "minProperties")
)
_NEUTRAL: Final = {"additionalProperties": True, "required": False, "uniqueItems": False}
_OF_REQUESTS: Final = ("parameters", "requestBody")


def resolved(document: Any, path: str) -> Any:
    for name in path.split("/")[1:]:
        document = document[name]
    return document


class OpenApiComparison:
    def __init__(self, old: Any, new: Any) -> None:
        self._old = old
        self._new = new
        self._request_components = self._components_of(_OF_REQUESTS)
        self._response_components = self._components_of(("responses",))

    def incompatible(self) -> Iterator[str]:
        """Yields the paths at which a client of the old document meets something else in the new one."""
        yield from self._differences(self._old, self._new, "", is_request=False)

    def _components_of(self, parts: Iterable[str]) -> set[str]:
        unread = [
            operation.get(part)
            for item in self._old["paths"].values()
            for operation in item.values()
            for part in parts
        ]
        components: set[str] = set()
        while unread:
            for path in re.findall(r'"\$ref": "#([^"]+)"', json.dumps(unread.pop())):
                if path not in components:
                    components.add(path)
                    unread.append(resolved(self._old, path))
        return components

    def _differences(
        self, old: Any, new: Any, path: str, *, is_request: bool, is_map: bool = False
    ) -> Iterator[str]:
        is_request = is_request or path in self._request_components
        if old != new:
            old, new = _response(self._old, old), _response(self._new, new)
            if is_request and isinstance(old, dict) and "anyOf" not in old:
                new = _without_null(new)
        if isinstance(old, dict) and isinstance(new, dict):
            for name, value in old.items():
                if is_request and name == "required" and new.get(name) is False:
                    continue  # a parameter that is optional now refuses no earlier request
                if name in new:
                    yield from self._differences(
                        value,
                        new[name],
                        f"{path}/{name}",
                        is_request=is_request or (name in _OF_REQUESTS and not is_map),
                        is_map=not is_map and name in MAPS,
                    )
                # A removed limit refuses no earlier request. A shared response is compared where it is used.
                elif not (is_request and name in _LIMITS) and path != "/components/responses":
                    yield f"{path}/{name} is gone"
            if not is_map:
                yield from self._new_restrictions(old, new, path, is_request=is_request)
        elif isinstance(old, list) and isinstance(new, list):
            yield from self._list_differences(old, new, path, is_request=is_request)
        elif old != new:
            yield f"{path} was {old!r} and is {new!r}"

    def _new_restrictions(
        self, old: Any, new: Any, path: str, *, is_request: bool
    ) -> Iterator[str]:
        for name in new.keys() - old.keys():
            is_restriction = name in _RESTRICTING and new[name] != _NEUTRAL.get(name)
            if (
                (is_restriction and (is_request or name == "required"))
                or name == "security"
                or (name == "requestBody" and new[name].get("required", False))
            ):
                yield f"{path}/{name} is new"

    def _list_differences(
        self, old: list[Any], new: list[Any], path: str, *, is_request: bool
    ) -> Iterator[str]:
        if path.endswith("/required"):
            component = path.removesuffix("/required")
            # A member that is optional now refuses no earlier request.
            is_wider = is_request and set(new) <= set(old)
            if old != new and not (is_wider and component not in self._response_components):
                yield f"{path} changed"
            return
        if path.endswith("/allOf") and is_request and len(new) > len(old):
            yield f"{path} has another rule"
        if path.endswith("/parameters"):
            known = [(one["in"], one["name"]) for one in _parameters(self._old, old)]
            for one in _parameters(self._new, new):
                if one.get("required", False) and (one["in"], one["name"]) not in known:
                    yield f"{path} requires {one['name']}"
        for number, one in enumerate(old):
            if not any(
                not list(self._differences(one, other, f"{path}/{number}", is_request=is_request))
                for other in new
            ):
                yield f"{path}/{number} is gone"


def _response(document: Any, value: Any) -> Any:
    """Returns the response that `value` refers to, because a further error code moves it."""
    reference = value.get("$ref", "") if isinstance(value, dict) else ""
    is_response = reference.startswith("#/components/responses/")
    return resolved(document, reference[1:]) if is_response else value


def _without_null(schema: Any) -> Any:
    """Returns the schema of a member that can also be null. This refuses no earlier request."""
    if isinstance(schema, dict) and "anyOf" in schema:
        match [one for one in schema["anyOf"] if one != {"type": "null"}]:
            case [only]:
                return {**only, **{name: schema[name] for name in schema.keys() - {"anyOf"}}}
    return schema


def _parameters(document: Any, parameters: list[Any]) -> list[Any]:
    return [resolved(document, one["$ref"][1:]) if "$ref" in one else one for one in parameters]


def test_interface_changes_only_as_the_changelog_says() -> None:
    changelog = CHANGELOG.read_text()
    changed = sorted(stored_interface() ^ interface())
    assert [line for line in changed if not is_announced(line, changelog)] == []


def test_client_of_stored_openapi_document_still_works() -> None:
    assert list(OpenApiComparison(stored_openapi(), current_openapi()).incompatible()) == []


def test_interface_has_options_of_commands_and_labels_of_metrics() -> None:
    lines = interface()
    assert {"command pyservice serve", "option pyservice serve --data-dir"} <= lines
    assert "metric hosting_requests_total counter code door operation" in lines
    assert "file hosting/v1/matchmaker.proto" in lines


@pytest.mark.parametrize(
    ("line", "changelog", "expected"),
    [
        ("command pyservice token create", "- `pyservice token create` has another output.", True),
        ("command pyservice token create", "- `pyservice` is faster.", False),
        ("option pyservice serve --http", "- `pyservice serve --http` is new.", True),
        ("option pyservice serve --http", "- `pyservice serve` has another output.", False),
        ("route GET /health Health", "- `GET /health` is new.", True),
        ("route GET /health Health", "- `GET` is faster.", False),
        ("metric hosting_lobbies gauge state", "- `hosting_lobbies` has another label.", True),
        ("metric hosting_lobbies gauge state", "- `hosting_lobbies_total` is new.", False),
        ("setting quotas.games int", "- `quotas.*` limit groups.", True),
        ("setting tiers list", "- `quotas.*` limit groups.", False),
        ("error FORBIDDEN 403 7", "## 0.1.0\n\n- `FORBIDDEN` is new.", False),
    ],
)
def test_change_is_announced_by_its_whole_name_before_its_release(
    line: str, changelog: str, expected: bool
) -> None:
    text = f"# Changelog\n\n## Unreleased\n\n{changelog}\n\n## 0.0.1\n\n- First release.\n"
    assert is_announced(line, text) == expected


def document(schema: Any, *, parameters: Any = (), **operation: Any) -> Any:
    """Returns an OpenAPI document with one operation, which has the schema as request and response."""

    def content(name: str) -> Any:
        return {
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        }

    post = {
        "parameters": list(parameters),
        "requestBody": content("Input"),
        "responses": {"200": content("Output")},
        **operation,
    }
    outer = {"type": "object", "properties": {"inner": {"$ref": "#/components/schemas/Inner"}}}
    schemas = {"Input": outer, "Inner": schema, "Output": schema}
    return {"paths": {"/a": {"post": post}}, "components": {"schemas": schemas}}


SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "pattern": {}},
    "required": ["a"],
}


def changes(old: Any, new: Any) -> list[str]:
    return list(OpenApiComparison(old, new).incompatible())


def test_member_becomes_optional_only_in_requests() -> None:
    optional = {**SCHEMA, "required": []}
    assert changes(document(SCHEMA), document(optional))
    old, new = document(SCHEMA), document(optional)
    for one in (old, new):
        one["components"]["schemas"]["Output"] = {"type": "object"}
    assert changes(old, new) == []
    a = {"anyOf": [SCHEMA["properties"]["a"], {"type": "null"}]}
    new["components"]["schemas"]["Inner"] = {
        **optional,
        "properties": {**SCHEMA["properties"], "a": a},
    }
    assert changes(old, new) == []


def with_property(name: str, **members: Any) -> Any:
    properties = SCHEMA["properties"]
    return {**SCHEMA, "properties": {**properties, name: {**properties.get(name, {}), **members}}}


def test_removed_and_newly_required_members_are_incompatible() -> None:
    old = document(SCHEMA)
    assert changes(old, document({**SCHEMA, "deprecated": True})) == []
    assert changes(old, document({**SCHEMA, "additionalProperties": True})) == []
    assert changes(old, document(with_property("format", type="string"))) == []
    assert changes(old, document({**SCHEMA, "required": ["a", "b"]}))
    assert changes(old, document({**SCHEMA, "properties": {"a": {"type": "string"}}}))
    assert changes(old, document(with_property("b", type="number")))


@pytest.mark.parametrize(
    "schema",
    [
        with_property("a", maxLength=10),
        with_property("a", pattern="^a"),
        with_property("a", enum=["a"]),
        with_property("b", minimum=0),
        with_property("pattern", allOf=[{"type": "string"}]),
        {**SCHEMA, "additionalProperties": False},
    ],
)
def test_new_restriction_of_a_request_schema_is_incompatible(schema: Any) -> None:
    old, new = document(SCHEMA), document(schema)
    # A restriction of a response is a promise to the client.
    differences = changes(old, new)
    assert differences
    assert all(one.startswith("/components/schemas/Inner") for one in differences)


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": [{"name": "q", "in": "query", "required": True}]},
        {"security": [{"cloud": []}]},
        {"requestBody": {"content": {}, "required": True}},
    ],
)
def test_new_requirement_of_an_operation_is_incompatible(more: Any) -> None:
    old = document(SCHEMA)
    del old["paths"]["/a"]["post"]["requestBody"]
    new = json.loads(json.dumps(old))
    assert changes(old, new) == []
    new["paths"]["/a"]["post"] |= more
    assert changes(old, new)


def test_removed_limit_is_compatible_in_a_request_only() -> None:
    limited = with_property("a", maxLength=10)
    request_only = document(limited)
    request_only["components"]["schemas"]["Output"] = SCHEMA
    assert changes(request_only, document(SCHEMA)) == []
    assert changes(document(limited), document(SCHEMA))
    assert changes(document(with_property("a", pattern="^a")), document(SCHEMA))


def test_moved_response_is_compared_where_it_is_used() -> None:
    def with_response(name: str, **members: Any) -> Any:
        changed = document(SCHEMA, responses={"404": {"$ref": f"#/components/responses/{name}"}})
        changed["components"]["responses"] = {name: {"description": "gone", **members}}
        return changed

    assert changes(with_response("A"), with_response("B")) == []
    assert changes(with_response("A", content={"text/plain": {}}), with_response("B"))


def test_new_optional_parameter_is_compatible() -> None:
    parameter = {"name": "q", "in": "query", "schema": {"type": "string"}}
    assert changes(document(SCHEMA), document(SCHEMA, parameters=[parameter])) == []
    required = {**parameter, "required": True}
    assert changes(document(SCHEMA), document(SCHEMA, parameters=[required]))
    old = document(SCHEMA, parameters=[parameter])
    assert changes(old, document(SCHEMA, parameters=[required]))


def test_another_rule_of_a_request_is_incompatible() -> None:
    old, new = ({"allOf": [{"type": "string"}][:1] + more} for more in ([], [{"maxLength": 3}]))
    assert changes(document(old), document(new))
