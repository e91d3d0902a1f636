"""Authorization of every operation with every kind and state of token, proven by effects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyservice.pb.hosting.v1 import options_pb2
from pyservice.schema.methods import METHODS, option
from tests.control.authorization import OK, Row, expected, is_concerned, token_of
from tests.control.authorization_rows import ROWS
from tests.control.namespace_scenario import Bearer, NamespaceScenario
from tests.support.full_service import BY_SLUG, Answer, Door

pytestmark = pytest.mark.anyio


def test_table_has_every_operation_once() -> None:
    slugs = [row.slug for row in ROWS]
    assert sorted(slugs) == sorted(method.slug for method in METHODS.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_proto_lists_the_accepted_credentials(row: Row) -> None:
    name = BY_SLUG[row.slug].name
    descriptor = _descriptor(name)
    declared = set(option(descriptor, options_pb2.operation).credentials)
    assert declared == row.scope.credentials


def test_every_operation_has_a_visible_effect() -> None:
    unseen = [row.slug for row in ROWS if not (row.changes or row.moves or row.shows)]
    assert unseen == []


def _descriptor(name: str) -> Any:
    service, _, method = name.rpartition(".")
    request: Any = METHODS[name].request
    pool = request.DESCRIPTOR.file.pool
    return pool.FindServiceByName(service).methods_by_name[method]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
async def test_only_admitted_callers_have_an_effect(
    scenario: NamespaceScenario, client: Door, row: Row
) -> None:
    let_in = [bearer for bearer in scenario.bearers if expected(row, bearer) == OK]
    refused = [bearer for bearer in scenario.bearers if expected(row, bearer) != OK]
    assert len(let_in) >= 1
    await _refused_change_nothing(scenario, client, row, refused)
    for bearer in let_in:
        await _let_in_has_effect(scenario, client, row, bearer)
        if row.undo is not None:
            await row.undo(scenario)


async def _refused_change_nothing(
    scenario: NamespaceScenario, client: Door, row: Row, refused: list[Bearer]
) -> None:
    fields = await row.fields(scenario)
    before = await _state(scenario, row)
    answers = await asyncio.gather(*(_call(scenario, client, row, fields, one) for one in refused))
    codes = {one.name: answer.code for one, answer in zip(refused, answers, strict=True)}
    assert codes == {one.name: expected(row, one) for one in refused}
    assert await _state(scenario, row) == before
    if row.shows:
        text = row.shows(scenario)
        assert not any(text in str(answer.body) for answer in answers)


async def _let_in_has_effect(
    scenario: NamespaceScenario, client: Door, row: Row, bearer: Bearer
) -> None:
    fields = await row.fields(scenario)
    tables, engine = await _state(scenario, row)
    answer = await _call(scenario, client, row, fields, bearer)
    assert answer.code == OK, (bearer.name, answer)
    tables_after, engine_after = await _state(scenario, row)
    changed = {name for name in tables if tables[name] != tables_after[name]}
    is_concerned_by_it = is_concerned(row, bearer)
    assert changed == row.changes, bearer.name
    assert (engine != engine_after) == (row.moves and is_concerned_by_it), bearer.name
    if row.shows and bearer.kind != "dev":
        is_shown = row.shows(scenario) in str(answer.body)
        assert is_shown == (is_concerned_by_it or not row.is_private), bearer.name


async def _call(
    scenario: NamespaceScenario, client: Door, row: Row, fields: dict[str, Any], bearer: Bearer
) -> Answer:
    token = token_of(scenario, row, bearer)
    return await client.call(row.slug, fields, token=token, origin=bearer.origin)


async def _state(scenario: NamespaceScenario, row: Row) -> tuple[dict[str, int], Any]:
    is_of_data_plane = BY_SLUG[row.slug].name.startswith("hosting.v1.Matchmaker.")
    engine = await scenario.engine() if is_of_data_plane else None
    return await scenario.records.tables(), engine
