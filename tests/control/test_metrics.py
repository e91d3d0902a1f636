"""Metrics of the control plane: feed, objects, watches and job errors."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.support.full_service import Developer, FullService, eventually
from tests.support.namespace_scenario import Records
from tests.support.unknown_namespace import CLAIMED
from tests.support.unknown_namespace import full_service as full_service
from tests.support.upload_files import png, put
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

Figures = dict[str, float]
JOBS = (
    *(
        "answers",
        "audit",
        "exports",
        "lobbies",
        "servers",
        "counts",
        "database",
        "deletions",
        "devices",
    ),
    *("facts", "feeder", "object_store", "rays", "server_retention", "tokens", "uploads", "usage"),
)


async def scraped(full_service: FullService) -> str:
    url = f"http://{full_service.ready['metrics']}/metrics"
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:

        async def scrape() -> str | None:
            page = (await client.get(url)).text
            is_whole = "\nhosting_control_plane_up 1\n" in page
            return page if is_whole and "\nhosting_control_cdn_up 1\n" in page else None

        return str(await eventually(scrape))


async def figures(full_service: FullService) -> Figures:
    samples = re.findall(r"^hosting_control_(.+) (\S+)$", await scraped(full_service), re.M)
    return {name: float(value) for name, value in samples}


async def settled_figures(full_service: FullService) -> Figures:
    async def settled() -> Figures | None:
        current = await figures(full_service)
        is_settled = current.get("feed_connected") == 1 and current["feed_waiting"] == 0
        return current if is_settled else None

    current: Figures = await eventually(settled)
    return current


def grown(before: Figures, after: Figures, prefix: str) -> Figures:
    differences = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: one for name, one in differences.items() if name.startswith(prefix) and one}


@pytest.mark.full
async def test_refused_namespace_counts_until_fixed(
    owner: Developer, full_service: FullService
) -> None:
    before = await settled_figures(full_service)
    game_id = await owner.game()
    created = await settled_figures(full_service)
    assert created["feed_acknowledged_total"] >= before["feed_acknowledged_total"] + 2
    assert (created["feed_refused"], created["feed_lag_seconds"]) == (0, 0)
    claim = {"game_id": game_id, "namespace_id": "prod", "domain": CLAIMED}
    assert await owner.code("add_domain", **claim) == "VALIDATION_FAILED"
    refusal = await figures(full_service)
    states = ("feed_refused", "feed_waiting", "feed_connected")
    assert [refusal[name] for name in states] == [1, 1, 1]
    assert refusal["feed_refusals_total"] > created["feed_refusals_total"]
    assert refusal["feed_lag_seconds"] > 0
    assert (await figures(full_service))["feed_lag_seconds"] > refusal["feed_lag_seconds"]
    await owner.good("remove_domain", **claim)
    after = await settled_figures(full_service)
    assert (after["feed_refused"], after["feed_lag_seconds"]) == (0, 0)
    assert after["feed_acknowledged_total"] > created["feed_acknowledged_total"]


@pytest.mark.full
async def test_objects_are_counted_with_bytes(owner: Developer, full_service: FullService) -> None:
    game_id = await owner.game()
    picture = png(7)
    before = await figures(full_service)
    fields: dict[str, Any] = {"game_id": game_id, "path": "x.png", "content_length": len(picture)}
    response = await owner.good("prepare_avatar", **fields)
    assert (await put(response["presigned_request"], picture)).status_code == 200
    await owner.good("complete_avatar", game_id=game_id, upload_id=response["upload_id"])
    (avatar,) = (await owner.good("list_avatars", game_id=game_id))["custom_avatars"]
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        assert (await client.get(avatar["url"])).content == picture
        assert (await client.get(f"{avatar['url']}x")).status_code == 403
    after = await figures(full_service)
    assert grown(before, after, "object_") == {
        "object_puts_total": 1,
        "object_put_bytes_total": len(picture),
        "object_gets_total": 1,
        "object_get_bytes_total": len(picture),
        'object_failures_total{code="UPLOAD_URL_INVALID"}': 1,
    }


@pytest.mark.full
async def test_watch_changes_are_counted(owner: Developer, full_service: FullService) -> None:
    game_id = await owner.game()
    await settled_figures(full_service)
    index = (await owner.good("get_game", game_id=game_id))["watch"]["index"]
    before = await figures(full_service)
    waiting_task = asyncio.create_task(owner.good("get_game", game_id=game_id, watch_index=index))
    version_id = await owner.version(game_id)
    versions = (await asyncio.wait_for(waiting_task, PATIENCE_S))["game"]["versions"]
    assert version_id in [one["version_id"] for one in versions]
    after = await figures(full_service)
    assert after["watch_changes_total"] > before["watch_changes_total"]


@pytest.mark.full
async def test_unexpected_errors_are_counted_by_job(
    owner: Developer, full_service: FullService, records: Records
) -> None:
    def errors(current: Figures) -> Figures:
        return {name: current[f'unforeseen_errors_total{{work="{name}"}}'] for name in JOBS}

    async def rename(before: str, after: str) -> None:
        statement = f"ALTER TABLE {before} RENAME TO {after}"
        await records.database.run_sync(lambda connection: connection.exec_driver_sql(statement))

    before = await figures(full_service)
    assert sum(name.startswith("unforeseen_errors_total") for name in before) == len(JOBS)
    assert errors(before) == dict.fromkeys(JOBS, 0.0)
    await rename("service_state", "elsewhere")

    async def is_met() -> bool:
        met = errors(await figures(full_service))
        return met["database"] > 1 and met["facts"] > 1

    await eventually(is_met)
    await rename("elsewhere", "service_state")
    game_id = await owner.arena()
    lobby = await owner.lobby(game_id, await owner.service_token(game_id))
    fields = {"game_id": game_id, "namespace_id": "prod", "lobby_id": lobby["lobby_id"]}

    async def is_recorded() -> bool:
        return (await owner.call("get_lobby_record", **fields)).code == "OK"

    await eventually(is_recorded)
