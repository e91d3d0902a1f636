"""Malformed requests for every operation: error code, problem paths and no change."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from pyservice.schema.methods import descriptor_of
from tests.control.authorization import Row
from tests.control.authorization_rows import ROWS
from tests.control.namespace_scenario import NamespaceScenario
from tests.support.databases import KINDS
from tests.support.full_service import BY_SLUG, Developer, FullService, HttpDoor

# Malformed requests do not reach the database, so one kind of database is enough.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("full_service", KINDS[:1], indirect=True)]

_OF_THE_DATA_PLANE: Final = ("hosting.v1.Matchmaker.", "hosting.v1.Events.")
NOUNS: Final = tuple(
    row for row in ROWS if not BY_SLUG[row.slug].name.startswith(_OF_THE_DATA_PLANE)
)
IDS: Final = ("game_id", "group_id", "namespace_id", "environment_id", "version_id", "token_id")
IN_PATH: Final = tuple(
    (row, name) for row in NOUNS for name in BY_SLUG[row.slug].path_fields if name in IDS
)
WITH_BODY: Final = tuple(row for row in NOUNS if BY_SLUG[row.slug].body_field == "*")
WITHOUT_BODY: Final = tuple(row for row in NOUNS if not BY_SLUG[row.slug].body_field)


def name_of(value: Any) -> str:
    return value.slug if isinstance(value, Row) else str(value)


@pytest.mark.parametrize(("row", "name"), IN_PATH, ids=name_of)
async def test_malformed_id_is_refused(
    scenario: NamespaceScenario, developer: Developer, row: Row, name: str
) -> None:
    fields = await row.fields(scenario)
    before = await scenario.records.tables()
    longest = 40 if name == "game_id" else 20
    for text in ("A", "a--b", "-a", "a_b", "é", "x" * (longest + 1), str(uuid4()).upper()):
        answer = await developer.door.call(
            row.slug, {**fields, name: text}, token=scenario.owner.token
        )
        assert (answer.code, {path[0] for path in answer.errors}) == ("ID_INVALID", {name}), text
        assert answer.detail
    assert await scenario.records.tables() == before


@pytest.mark.parametrize(("row", "name"), IN_PATH, ids=name_of)
async def test_unknown_id_is_not_found(
    scenario: NamespaceScenario, developer: Developer, row: Row, name: str
) -> None:
    fields = await row.fields(scenario)
    before = await scenario.records.tables()
    noun = name.removesuffix("_id").replace("environment", "namespace").upper()
    answer = await developer.door.call(
        row.slug, {**fields, name: str(uuid4())}, token=scenario.owner.token
    )
    assert answer.code == f"{noun}_NOT_FOUND"
    assert await scenario.records.tables() == before


# Input that only JSON can express -----------------------------------------------------------------


async def send(
    full_service: FullService,
    scenario: NamespaceScenario,
    row: Row,
    fields: dict[str, Any],
    body: Any,
    query: str = "",
) -> Any:
    method = BY_SLUG[row.slug]
    path = method.template
    for name in method.path_fields:
        path = path.replace(f"{{{name}}}", fields[name])
    content = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
    client = HttpDoor(full_service.said["http"])
    try:
        answer = await client.request(
            method.http_method,
            path + query,
            content.encode() if isinstance(content, str) else content,
            token=scenario.owner.token,
        )
    finally:
        await client.close()
    body_json = answer.json()
    paths = [tuple(one["path"]) for one in body_json.get("errors", ())]
    return answer.status_code, body_json.get("code", "OK"), paths


def body_of(row: Row, fields: dict[str, Any]) -> dict[str, Any]:
    in_path = BY_SLUG[row.slug].path_fields
    return {name: value for name, value in fields.items() if name not in in_path}


@pytest.mark.parametrize("row", WITH_BODY, ids=name_of)
async def test_malformed_body_is_refused(
    full_service: FullService, scenario: NamespaceScenario, row: Row
) -> None:
    fields = await row.fields(scenario)
    good = body_of(row, fields)
    before = await scenario.records.tables()
    bodies: tuple[Any, ...] = (
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b"{} x",
        b"[" * 100 + b"]" * 100,
        [],
        "x",
        7,
    )
    for body in bodies:
        status, code, paths = await send(full_service, scenario, row, fields, body)
        assert (status, code, len(paths)) == (400, "BODY_INVALID", 1), body
    found = await send(full_service, scenario, row, fields, {**good, "nonsense": 1, "none": None})
    unknown = [("nonsense", "unknown-field"), ("none", "unknown-field")]
    assert found == (400, "BODY_INVALID", unknown)
    for name in BY_SLUG[row.slug].path_fields:
        found = await send(full_service, scenario, row, fields, {**good, name: "x"})
        assert found == (400, "BODY_INVALID", [(name, "unknown-field")])
    assert await scenario.records.tables() == before


@pytest.mark.parametrize("row", WITH_BODY, ids=name_of)
async def test_wrong_types_are_all_reported(
    full_service: FullService, scenario: NamespaceScenario, row: Row
) -> None:
    fields = await row.fields(scenario)
    good = body_of(row, fields)
    before = await scenario.records.tables()
    if not good:
        return
    wrong = {name: 7 if isinstance(value, str) else "x" for name, value in good.items()}
    status, code, paths = await send(full_service, scenario, row, fields, wrong)
    assert (status, code) == (400, "BODY_INVALID")
    assert set(paths) == {(name, "wrong-type") for name in good}
    nothing: dict[str, None] = dict.fromkeys(good)
    status, code, paths = await send(full_service, scenario, row, fields, nothing)
    assert (status, code) == (400, "BODY_INVALID")
    assert set(paths) == {(name, "required") for name in good}
    assert await send(full_service, scenario, row, fields, {}) == (status, code, paths)
    assert await scenario.records.tables() == before


@pytest.mark.parametrize("row", WITHOUT_BODY, ids=name_of)
async def test_unknown_query_parameter_is_refused(
    full_service: FullService, scenario: NamespaceScenario, row: Row
) -> None:
    fields = await row.fields(scenario)
    before = await scenario.records.tables()
    unknown = [("nonsense", "unknown-parameter"), ("more", "unknown-parameter")]
    good = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in body_of(row, fields).items()
    }
    query = "?" + urlencode({**good, "nonsense": "1", "more": ""})
    found = await send(full_service, scenario, row, fields, None, query)
    assert found == (400, "QUERY_INVALID", unknown)
    assert await scenario.records.tables() == before


@pytest.mark.parametrize("row", WITHOUT_BODY, ids=name_of)
async def test_badly_encoded_parameter_is_named(
    full_service: FullService, scenario: NamespaceScenario, row: Row
) -> None:
    fields = await row.fields(scenario)
    before = await scenario.records.tables()
    path_fields = BY_SLUG[row.slug].path_fields
    parameters = [
        one.name
        for one in descriptor_of(BY_SLUG[row.slug].request).fields
        if one.name not in path_fields
    ]
    for name in parameters:
        given = {key: text for key, text in body_of(row, fields).items() if key != name}
        for text in ("%zz", "%ff", "%"):
            query = "?" + urlencode(given) + f"&{name}={text}"
            status, code, paths = await send(full_service, scenario, row, fields, None, query)
            assert (status, code) == (400, "QUERY_INVALID"), query
            assert (name, "invalid") in paths
    assert await scenario.records.tables() == before


async def test_null_means_unset(owner: Developer) -> None:
    fields = {"display_name": "x", "name_id": None}
    assert await owner.good("validate_game", **fields) == {"errors": []}
    target = {"game_id": await owner.game(), "namespace_id": "prod"}
    ports = {"a": {"protocol": "udp", "port": None, "port_range": {"min": 1, "max": 2}}}
    await owner.good("create_development_token", **target, hostname=None, ports=ports)
    await owner.good("create_development_token", **target, hostname=None, ports=None)


async def test_number_beyond_32_bits_is_refused(owner: Developer) -> None:
    target = {"game_id": await owner.game(), "namespace_id": "prod"}
    for number, word in ((2**32, "too-high"), (-1, "too-low"), (1.5, "wrong-type")):
        answer = await owner.call(
            "set_mm_config", **target, lobby_count_max=number, max_players=number
        )
        paths = {("lobby_count_max", word), ("max_players", word)}
        assert (answer.code, set(answer.errors)) == ("BODY_INVALID", paths)
