"""Changes during an outage of the data plane. Only the changes in `test_stored_changes` and some
deletions wait for the data plane.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import uuid4

import pytest

from pyservice.storage.database import open_database
from tests.faults.control.stored_changes import (
    CHANGES,
    TRANSPORTS,
    control_client,
    suspended_data_plane,
)
from tests.support import game_programs
from tests.support.authorization_results import OK, Callers
from tests.support.authorization_rows import ROWS
from tests.support.databases import KINDS, Databases
from tests.support.full_service import FullService, eventually
from tests.support.namespace_scenario import NamespaceScenario, Records

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

CHANGING: Final = {row.slug: row for row in ROWS if row.changes}

DELETIONS: Final = {"delete_version", "delete_namespace", "delete_game"}
"""Deletions that change nothing before the data plane says what it runs."""


@pytest.fixture(scope="module", params=KINDS)
async def scenario(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> AsyncIterator[NamespaceScenario]:
    folder = tmp_path_factory.mktemp("s")
    url, rays = databases.url(request.param), {"per_second": 10_000}
    full_service = FullService(folder, url, rays=rays, runtime=game_programs.SETTINGS)
    try:
        full_service.start()
        database = open_database(full_service.database_url, full_service.data_dir / "control")
        client = full_service.client("http")
        created = NamespaceScenario(full_service, Records(database), client)
        yield await created.build()
        await created.close()
        await client.close()
        await database.close()
    finally:
        full_service.close()


def test_changes_that_wait_for_the_data_plane_are_listed() -> None:
    assert set(CHANGES) <= CHANGING.keys()
    assert len(CHANGES) == 10
    assert CHANGING.keys() >= DELETIONS


async def waits_of(scenario: NamespaceScenario, ray_id: str) -> list[str]:
    async def perf_lists() -> list[Any]:
        response = await scenario.owner.good("get_ray_perf", ray_id=ray_id)
        lists: list[Any] = response["perf_lists"]
        return lists

    (one,) = await eventually(perf_lists)
    return [span["label"] for span in one["spans"] if "wait" in span["label"]]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_other_changes_do_not_wait_for_a_silent_data_plane(
    scenario: NamespaceScenario, transport: str
) -> None:
    client = control_client(scenario.full_service, transport)
    unwaited = [row for slug, row in CHANGING.items() if slug not in {*CHANGES, *DELETIONS}]
    requested = [(row, await row.fields(scenario)) for row in unwaited]
    returned, rays, unexpected = {}, {}, {}
    with suspended_data_plane(scenario.full_service):
        for row, fields in requested:
            rays[row.slug] = ray_id = uuid4().hex
            trace = f"00-{ray_id}-{ray_id[:16]}-01"
            before = await scenario.records.tables()
            answer = await client.call(
                row.slug, fields, token=scenario.owner.token, traceparent=trace
            )
            returned[row.slug] = answer.code
            after = await scenario.records.tables()
            changed = {one for one in before if before[one] != after[one]}
            # A job removes the rest of a deleted object, before or after the response.
            is_deletion = row.slug.startswith("delete_")
            is_expected = changed <= row.changes if is_deletion else changed == row.changes
            if not (changed and is_expected):
                unexpected[row.slug] = changed
    await client.close()
    assert returned == dict.fromkeys(returned, OK)
    assert unexpected == {}
    # A request without a token has no ray.
    waited = {
        row.slug: await waits_of(scenario, rays[row.slug])
        for row in unwaited
        if row.callers is not Callers.ANYBODY
    }
    assert waited == {key: [] for key in waited}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_deletion_changes_nothing_while_the_data_plane_is_silent(
    scenario: NamespaceScenario, transport: str
) -> None:
    client = control_client(scenario.full_service, transport)
    requested = [(slug, await CHANGING[slug].fields(scenario)) for slug in sorted(DELETIONS)]
    with suspended_data_plane(scenario.full_service):
        before = await scenario.records.tables()
        for slug, fields in requested:
            answer = await client.call(slug, fields, token=scenario.owner.token)
            assert answer.code == "CONTROL_PLANE_UNAVAILABLE", slug
            assert "nothing was deleted" in answer.detail, slug
        assert await scenario.records.tables() == before
    await client.close()
