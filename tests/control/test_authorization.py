"""Authorization of every operation with every kind and state of token, proven by effects."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pyservice.pb.hosting.v1 import options_pb2
from pyservice.schema.methods import METHODS, option
from tests.support.authorization_results import OK, Row, expected, is_concerned, token_of
from tests.support.authorization_rows import ROWS
from tests.support.full_service import BY_SLUG, ServiceClient, ServiceResponse
from tests.support.namespace_scenario import Bearer, NamespaceScenario
from tests.support.tiers import one_of
from tests.support.waiting import PATIENCE_S, POLL_S

pytestmark = pytest.mark.anyio


def test_table_has_every_operation_once_with_a_visible_effect() -> None:
    slugs = [row.slug for row in ROWS if row.changes or row.moves or row.shows]
    assert sorted(slugs) == sorted(method.slug for method in METHODS.values())


def test_proto_lists_the_accepted_credentials() -> None:
    for row in ROWS:
        service, _, name = BY_SLUG[row.slug].name.rpartition(".")
        request: Any = METHODS[f"{service}.{name}"].request
        pool = request.DESCRIPTOR.file.pool
        descriptor = pool.FindServiceByName(service).methods_by_name[name]
        declared = set(option(descriptor, options_pb2.operation).credentials)
        assert declared == row.callers.credentials, row.slug


@pytest.mark.parametrize("row", one_of(3, ROWS), ids=lambda row: row.slug)
async def test_only_admitted_callers_have_an_effect(scenario: NamespaceScenario, row: Row) -> None:
    await _assert_only_admitted_have_an_effect(scenario, scenario.client, row)


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
async def test_only_admitted_callers_have_an_effect_over_grpc(
    scenario: NamespaceScenario, row: Row
) -> None:
    async with scenario.full_service.open_client("grpc") as client:
        await _assert_only_admitted_have_an_effect(scenario, client, row)


async def _assert_only_admitted_have_an_effect(
    scenario: NamespaceScenario, client: ServiceClient, row: Row
) -> None:
    admitted = [bearer for bearer in scenario.bearers if expected(row, bearer) == OK]
    refused = [bearer for bearer in scenario.bearers if expected(row, bearer) != OK]
    assert len(admitted) >= 1
    if row.changes or row.moves:
        await _assert_without_effect(scenario, client, row, refused)
        for bearer in admitted:
            await _assert_effect(scenario, client, row, bearer)
            if row.undo is not None:
                await row.undo(scenario)
    else:
        await _assert_without_effect(scenario, client, row, [*refused, *admitted])


async def _assert_without_effect(
    scenario: NamespaceScenario, client: ServiceClient, row: Row, bearers: list[Bearer]
) -> None:
    """Sends the calls of all bearers at once. Only a read is also called by admitted bearers."""
    fields = await row.fields(scenario)
    before = await _state(scenario, row)
    answers = await asyncio.gather(*(_call(scenario, client, row, fields, one) for one in bearers))
    codes = {one.name: answer.code for one, answer in zip(bearers, answers, strict=True)}
    assert codes == {one.name: expected(row, one) for one in bearers}
    assert await _state(scenario, row) == before
    for bearer, answer in zip(bearers, answers, strict=True):
        _assert_shown(scenario, row, bearer, answer)


async def _assert_effect(
    scenario: NamespaceScenario, client: ServiceClient, row: Row, bearer: Bearer
) -> None:
    fields = await row.fields(scenario)
    tables, engine = await _state(scenario, row)
    answer = await _call(scenario, client, row, fields, bearer)
    assert answer.code == OK, (bearer.name, answer)
    changed, engine_after = await _changed_tables(scenario, row, tables)
    end = time.monotonic() + PATIENCE_S
    # After a deletion, a background job removes more rows.
    while changed != row.changes and row.slug.startswith("delete_") and time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        changed, engine_after = await _changed_tables(scenario, row, tables)
    assert changed == row.changes, bearer.name
    assert (engine != engine_after) == (row.moves and is_concerned(row, bearer)), bearer.name
    _assert_shown(scenario, row, bearer, answer)


async def _changed_tables(
    scenario: NamespaceScenario, row: Row, before: dict[str, int]
) -> tuple[set[str], Any]:
    after, engine = await _state(scenario, row)
    return {name for name in before if before[name] != after[name]}, engine


def _assert_shown(
    scenario: NamespaceScenario, row: Row, bearer: Bearer, answer: ServiceResponse
) -> None:
    if row.shows is None or (answer.code == OK and bearer.kind == "dev"):
        return
    may_see = answer.code == OK and (is_concerned(row, bearer) or not row.is_private)
    assert (row.shows(scenario) in str(answer.body)) == may_see, bearer.name


async def _call(
    scenario: NamespaceScenario,
    client: ServiceClient,
    row: Row,
    fields: dict[str, Any],
    bearer: Bearer,
) -> ServiceResponse:
    token = token_of(scenario, row, bearer)
    return await client.call(row.slug, fields, token=token, origin=bearer.origin)


async def _state(scenario: NamespaceScenario, row: Row) -> tuple[dict[str, int], Any]:
    is_of_data_plane = BY_SLUG[row.slug].name.startswith("hosting.v1.Matchmaker.")
    engine = await scenario.engine() if is_of_data_plane else None
    return await scenario.records.tables(), engine
