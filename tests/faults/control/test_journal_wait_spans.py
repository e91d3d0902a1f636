"""The `journal wait` span of a ray starts before a disk stall and ends after it, over both
transports.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from pyservice.timestamps import milliseconds
from tests.support.full_service import Developer, ServiceClient, eventually
from tests.support.killed_service import KilledService
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

STALLED_S: Final = 0.3
ROUNDED_MS: Final = 1


@pytest.fixture(scope="module")
async def full_service(
    shim_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KilledService]:
    folder = tmp_path_factory.mktemp("s") / "h"
    full_service = KilledService(folder, shim_library, None, rays={"per_second": 10_000})
    try:
        await asyncio.to_thread(full_service.start)
        yield full_service
    finally:
        full_service.close()


def now_ms() -> float:
    return time.time() * 1000


async def spans_of(developer: Developer, ray_id: str) -> dict[str, tuple[int, int]]:
    async def perf_lists() -> Any:
        return (await developer.good("get_ray_perf", ray_id=ray_id))["perf_lists"]

    (one,) = await eventually(perf_lists)
    return {
        span["label"]: (milliseconds(span["start_ts"]), milliseconds(span["finish_ts"]))
        for span in one["spans"]
    }


@pytest.fixture(params=["http", "grpc"])
async def client(
    request: pytest.FixtureRequest, full_service: KilledService
) -> AsyncIterator[ServiceClient]:
    client = full_service.client(request.param)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("slug", ["join", "connected"])
async def test_journal_wait_span_lasts_as_long_as_the_disk_stall(
    full_service: KilledService, client: ServiceClient, slug: str
) -> None:
    developer = Developer(full_service, client)
    game_id = await developer.arena()
    token = await developer.service_token(game_id)
    lobby = await developer.lobby(game_id, token)
    fields: dict[str, Any] = {"lobby_id": lobby["lobby_id"]}
    if slug == "connected":
        join_response = await client.call("join", fields, token=token)
        fields = {"player_token": join_response.body["player"]["token"]}
    asking = lobby["lobby_token"] if slug == "connected" else token
    ray_id = uuid4().hex
    with full_service.shim.stalled("fdatasync", "journal/*") as rule:
        asked_ms = now_ms()
        trace = f"00-{ray_id}-{ray_id[:16]}-01"
        call = asyncio.create_task(client.call(slug, fields, token=asking, traceparent=trace))
        await asyncio.to_thread(until, lambda: rule.waiting)
        # One event loop serves both requests, so a response proves that the earlier request waits
        # for the disk.
        assert (await client.call("regions", {}, token=token)).code == "OK"
        begun_ms = now_ms()
        await asyncio.sleep(STALLED_S)
        assert not call.done()
        let_go_ms = now_ms()
    answer = await call
    answered_ms = now_ms()
    assert answer.code == "OK", answer
    spans = await spans_of(developer, ray_id)
    begin_ms, end_ms = spans["journal wait"]
    assert asked_ms - ROUNDED_MS <= begin_ms <= begun_ms
    assert let_go_ms - ROUNDED_MS <= end_ms <= answered_ms
    assert end_ms - begin_ms >= STALLED_S * 1000 - ROUNDED_MS
    # The other spans must not include the stall.
    for label, longest_ms in (("engine", begun_ms - asked_ms), ("handler", answered_ms - asked_ms)):
        begin, end = spans[label]
        assert end - begin <= longest_ms + ROUNDED_MS, label
    assert spans["engine"][1] <= begin_ms
    assert spans["handler"][0] <= begin_ms <= end_ms <= spans["handler"][1]
