"""Malformed requests for every operation: error code, problem paths and no change."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from pyservice.openapi.message_schemas import is_required
from pyservice.schema.methods import Method, descriptor_of
from tests.support.authorization_results import Row
from tests.support.authorization_rows import ROWS
from tests.support.databases import KINDS
from tests.support.full_service import (
    BY_SLUG,
    Developer,
    FullService,
    HttpClient,
    ServiceClient,
    ServiceResponse,
)
from tests.support.namespace_scenario import NamespaceScenario
from tests.support.tiers import one_of

# Malformed requests do not reach the database, so one kind of database is enough.
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("full_service", KINDS[:1], indirect=True)]

_OF_THE_DATA_PLANE: Final = ("hosting.v1.Matchmaker.", "hosting.v1.Events.")
NOUNS: Final = tuple(
    row for row in ROWS if not BY_SLUG[row.slug].name.startswith(_OF_THE_DATA_PLANE)
)
IDS: Final = ("game_id", "group_id", "namespace_id", "environment_id", "version_id", "token_id")
WITH_ID: Final = [row for row in NOUNS if {*BY_SLUG[row.slug].path_fields} & {*IDS}]
WITH_BODY: Final = [row for row in NOUNS if BY_SLUG[row.slug].body_field == "*"]
WITHOUT_BODY: Final = [row for row in NOUNS if not BY_SLUG[row.slug].body_field]
NO_IDS: Final = ("A", "a--b", "-a", "a_b", "é", str(uuid4()).upper())
NAMED: Final = ("game_id", "namespace_id", "environment_id")
"""Ids that a name can replace."""


def of_rows(rows: Sequence[Row]) -> pytest.MarkDecorator:
    assert len(rows) > 20
    return pytest.mark.parametrize("row", one_of(3, rows), ids=[row.slug for row in rows])


@pytest.fixture
async def request_of(
    row: Row, full_service: FullService, scenario: NamespaceScenario
) -> AsyncIterator[Request]:
    """Yields a good request of an operation. No test may change the records with it."""
    fields = await row.fields(scenario)
    before = await scenario.records.tables()
    async with full_service.open_client("http") as client:
        yield Request(row.slug, fields, client, scenario.owner.token)
    assert await scenario.records.tables() == before


@dataclass
class Request:
    slug: str
    fields: dict[str, Any]
    client: ServiceClient
    token: str

    @property
    def method(self) -> Method:
        return BY_SLUG[self.slug]

    @property
    def ids(self) -> list[str]:
        return [name for name in self.method.path_fields if name in IDS]

    @property
    def outside_path(self) -> dict[str, Any]:
        in_path = self.method.path_fields
        return {name: value for name, value in self.fields.items() if name not in in_path}

    async def call(self, **fields: Any) -> ServiceResponse:
        return await self.client.call(self.slug, {**self.fields, **fields}, token=self.token)

    async def send(self, content: Any = None, query: str = "") -> tuple[int, str, list[str]]:
        """Returns the status, the code and the paths of the problems."""
        assert isinstance(self.client, HttpClient)
        path = self.method.template
        for name in self.method.path_fields:
            path = path.replace(f"{{{name}}}", self.fields[name])
        if content is not None and not isinstance(content, bytes):
            content = json.dumps(content).encode()
        answer = await self.client.request(
            self.method.http_method, path + query, content, token=self.token
        )
        body = answer.json()
        paths = [".".join(one["path"]) for one in body.get("errors", ())]
        return answer.status_code, body.get("code", "OK"), paths


@of_rows(WITH_ID)
async def test_malformed_or_unknown_id_is_refused(request_of: Request) -> None:
    assert request_of.ids
    for name in request_of.ids:
        too_long = "x" * (41 if name == "game_id" else 21)
        for text in (*NO_IDS, too_long, *(() if name in NAMED else ("a-name",))):
            answer = await request_of.call(**{name: text})
            result = (answer.code, {path[0] for path in answer.errors})
            assert result == ("ID_INVALID", {name}), text
            assert answer.detail
        noun = name.removesuffix("_id").replace("environment", "namespace").upper()
        for unknown in (str(uuid4()), *(("no-such-name",) if name in NAMED else ())):
            assert (await request_of.call(**{name: unknown})).code == f"{noun}_NOT_FOUND", unknown


WITHOUT_REQUIRED: Final = {"patch_mm_config"}
"""Operations with a body in which every field is optional."""
REQUIRED_WITHOUT_ANOTHER: Final = {"prepare_build": "image_file", "create_game_build": "image_file"}
"""Fields that may be left out only if another field is set."""
MALFORMED: Final[tuple[Any, ...]] = (
    *(b"{", b"\xff", b'{"a": NaN}', b"{} x", b"[" * 100 + b"]" * 100, [], "x", 7),
)


@of_rows(WITH_BODY)
async def test_malformed_body_is_refused(request_of: Request) -> None:
    for body in MALFORMED:
        status, code, paths = await request_of.send(body)
        assert (status, code, len(paths)) == (400, "BODY_INVALID", 1), body
    good = request_of.outside_path
    for name in ("nonsense", *request_of.method.path_fields):
        refusal = await request_of.send({**good, name: "x"})
        assert refusal == (400, "BODY_INVALID", [f"{name}.unknown-field"])
    if good:
        wrong = {name: 7 if isinstance(value, str) else "x" for name, value in good.items()}
        status, code, paths = await request_of.send(wrong)
        assert (status, code) == (400, "BODY_INVALID")
        assert set(paths) == {f"{name}.wrong-type" for name in good}
        for nothing in (dict.fromkeys(good), {}) if request_of.slug not in WITHOUT_REQUIRED else ():
            status, code, paths = await request_of.send(nothing)
            assert (status, code) == (400, "BODY_INVALID")
            fields = descriptor_of(request_of.method.request).fields_by_name
            conditional = REQUIRED_WITHOUT_ANOTHER.get(request_of.slug)
            required = {
                f"{name}.required"
                for name in good
                if is_required(fields[name]) or name == conditional
            }
            assert set(paths) == required


@of_rows(WITHOUT_BODY)
async def test_malformed_query_is_refused(request_of: Request) -> None:
    method = request_of.method
    good = {name: _query_text(value) for name, value in request_of.outside_path.items()}
    refusal = await request_of.send(query="?" + urlencode({**good, "nonsense": "1", "more": ""}))
    unknown = ["nonsense.unknown-parameter", "more.unknown-parameter"]
    assert refusal == (400, "QUERY_INVALID", unknown)
    fields = descriptor_of(method.request).fields
    for name in (one.name for one in fields if one.name not in method.path_fields):
        others = {key: text for key, text in good.items() if key != name}
        for text in ("%zz", "%ff", "%"):
            query = f"?{urlencode(others)}&{name}={text}"
            status, code, paths = await request_of.send(query=query)
            assert (status, code) == (400, "QUERY_INVALID"), query
            assert f"{name}.invalid" in paths


def _query_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
