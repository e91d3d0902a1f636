"""Confirmation of fed changes: each caller gets the result of its own change."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter

import pytest
from sqlalchemy import update

from pyservice.app import data_plane_client
from pyservice.control import feeder
from pyservice.errors import ServiceError
from pyservice.observability.rays import Trace, current
from pyservice.storage import namespaces
from pyservice.storage.database import open_database
from pyservice.storage.tables import versions
from tests.control.feeder_setup import TOO_MANY, Fed, FedPlane, Source
from tests.support.databases import KINDS, Databases
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def fed(
    request: pytest.FixtureRequest, tmp_path: Path, databases: Databases
) -> AsyncIterator[Fed]:
    source = Source(open_database(databases.url(request.param), tmp_path))
    await source.prepare()
    # A socket path has a length limit that `tmp_path` can exceed.
    with tempfile.TemporaryDirectory() as folder:
        plane = FedPlane(Path(folder))
        await plane.start()
        created = Fed(source, plane)
        created.run()
        async with asyncio.timeout(PATIENCE_S):
            while not created.feeder.is_connected:
                await asyncio.sleep(0.005)
        yield created
        await created.close()
        await plane.stop()
    await source.database.close()


async def code_of(fed: Fed, namespace_id: str, version_id: str | None = None) -> str:
    try:
        await fed.enqueue_and_confirm(namespace_id, version_id=version_id)
    except ServiceError as error:
        return error.code
    return "OK"


async def wait_until_running(fed: Fed, namespace_id: str, version_id: str) -> None:
    await fed.wait_until_equal(namespace_id)
    assert (await fed.source.row(namespace_id)).version_id == version_id
    await fed.wait_until_idle()


# A refused version --------------------------------------------------------------------------------


async def test_refused_version_fails_only_its_caller(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    runs = (await fed.source.row(namespace_id)).version_id
    refused = await fed.source.version(TOO_MANY)
    fed.plane.go_on.clear()
    await fed.source.set_version(namespace_id, refused)
    setting = asyncio.create_task(code_of(fed, namespace_id, refused))
    await fed.source.touch(namespace_id, 7)
    others = [
        asyncio.create_task(code_of(fed, namespace_id, version_id)) for version_id in (None, runs)
    ]
    await asyncio.sleep(0)
    fed.plane.go_on.set()
    assert await setting == "VALIDATION_FAILED"
    assert await asyncio.gather(*others) == ["OK", "OK"]
    await wait_until_running(fed, namespace_id, runs)
    held = fed.plane.holds(namespace_id)
    assert held is not None
    assert held.matchmaker.lobby_count_max == 7


async def test_refused_version_is_reported_to_a_late_caller(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    runs = (await fed.source.row(namespace_id)).version_id
    refused = await fed.source.version(TOO_MANY)
    await fed.source.set_version(namespace_id, refused)
    fed.feeder.enqueue(namespace_id)
    await fed.wait_until_idle()
    await wait_until_running(fed, namespace_id, runs)
    for _ in range(2):
        assert await code_of(fed, namespace_id, refused) == "VALIDATION_FAILED"
    assert await code_of(fed, namespace_id, runs) == "OK"
    await fed.plane.stop()
    fed.plane.limit = TOO_MANY
    await fed.plane.start()
    await fed.source.set_version(namespace_id, refused)
    await asyncio.sleep(0)
    assert await code_of(fed, namespace_id, refused) == "OK"
    await fed.source.set_version(namespace_id, runs)
    assert await code_of(fed, namespace_id, runs) == "OK"
    assert await code_of(fed, namespace_id, refused) == "OK"


async def test_refused_version_is_replaced_by_the_previous_one(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    runs = (await fed.source.row(namespace_id)).version_id
    good, refused = await fed.source.version(16), await fed.source.version(TOO_MANY)
    fed.plane.go_on.clear()
    setting = []
    for version_id in (good, refused):
        await fed.source.set_version(namespace_id, version_id)
        setting.append(asyncio.create_task(code_of(fed, namespace_id, version_id)))
    await asyncio.sleep(0)
    fed.plane.go_on.set()
    assert await asyncio.gather(*setting) == ["OK", "VALIDATION_FAILED"]
    await wait_until_running(fed, namespace_id, good)
    assert await fed.source.history(namespace_id) == [good, runs]


async def test_two_refused_versions_are_both_reverted(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    runs = (await fed.source.row(namespace_id)).version_id
    refused = [await fed.source.version(TOO_MANY + number) for number in range(2)]
    fed.plane.go_on.clear()
    setting = []
    for version_id in refused:
        await fed.source.set_version(namespace_id, version_id)
        setting.append(asyncio.create_task(code_of(fed, namespace_id, version_id)))
    await asyncio.sleep(0)
    fed.plane.go_on.set()
    assert await asyncio.gather(*setting) == ["VALIDATION_FAILED"] * 2
    await wait_until_running(fed, namespace_id, runs)
    assert await fed.source.history(namespace_id) == [runs]


# Independent namespaces ---------------------------------------------------------------------------


async def test_too_large_namespace_is_refused_alone(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plane_client, "_ITEM_BYTES_MAX", 20_000)
    large, others = await fed.source.namespace("large"), [await fed.source.namespace("small")]
    await fed.enqueue_and_confirm(large)
    before = (await fed.source.row(large)).version_id
    too_large = await fed.source.version(bulk=24_000)
    await fed.source.set_version(large, too_large)
    codes = await asyncio.gather(
        code_of(fed, large, too_large), *(code_of(fed, one) for one in others)
    )
    assert codes == ["VALIDATION_FAILED", "OK"]
    assert fed.feeder.is_connected
    await wait_until_running(fed, large, before)
    # A running version does not change the refusal: the namespace stays refused, and the feeder
    # retries it.
    monkeypatch.setattr(data_plane_client, "_ITEM_BYTES_MAX", 50)
    assert await code_of(fed, large) == "VALIDATION_FAILED"
    assert "at most 50 get to the data plane" in fed.feeder.refused_reasons()[large]
    monkeypatch.undo()
    assert await code_of(fed, large) == "OK"
    assert fed.feeder.refused_reasons() == {}


async def all_but_one_are_fed(fed: Fed, names: list[str], broken: str) -> None:
    fed.feeder.enqueue(*names)
    for name in names:
        if name != broken:
            await fed.wait_until_equal(name)
    assert fed.plane.holds(broken) is None
    async with asyncio.timeout(PATIENCE_S):
        while fed.feeder.waiting > 1:
            await asyncio.sleep(0.005)


async def test_slow_namespace_does_not_block_others(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction holds the record of the namespace that must be reverted."""
    met, taken = fed.feeder.job.record_failure, fed.plane.acknowledged
    earlier: list[int] = []

    def noted(error: Exception, **about: object) -> None:
        earlier.append(len(taken))
        met(error, **about)

    monkeypatch.setattr(fed.feeder.job, "record_failure", noted)
    slow = await fed.source.namespace("slow")
    names = [await fed.source.namespace(f"n{number}") for number in range(20)]
    await asyncio.gather(*map(fed.enqueue_and_confirm, [slow, *names]))
    await fed.wait_until_idle()
    refused = await fed.source.version(TOO_MANY)
    await fed.source.set_version(slow, refused)
    for name in names:
        await fed.source.touch(name, 7)
    taken.clear()
    async with fed.source.database.write() as tx:
        await namespaces.lock(tx, slow)
        waiting = asyncio.create_task(code_of(fed, slow, refused))
        async with asyncio.timeout(PATIENCE_S):
            while slow not in fed.feeder.refused_reasons():
                await asyncio.sleep(0.005)
        await asyncio.gather(*map(fed.enqueue_and_confirm, names))
        assert {name for name, _ in taken} == set(names)
        assert (waiting.done(), fed.feeder.waiting) == (False, 1)
        # PostgreSQL ends a lock wait after 10 s. The other callers must get their results before.
        assert 0 not in earlier
    assert await waiting == "VALIDATION_FAILED"
    await fed.wait_until_equal(slow)


async def test_failing_namespace_does_not_block_others(fed: Fed) -> None:
    names = [await fed.source.namespace(f"n{number}") for number in range(5)]
    fed.plane.breaks_on = names[2]
    await all_but_one_are_fed(fed, names, names[2])
    fed.plane.breaks_on = ""
    await fed.wait_until_equal(names[2])


async def test_unreadable_record_does_not_block_others(fed: Fed) -> None:
    names = [await fed.source.namespace(f"n{number}") for number in range(3)]
    broken = (await fed.source.row(names[1])).version_id
    statement = update(versions).where(versions.c.version_id == broken)
    async with fed.source.database.write() as tx:
        await tx.run(statement.values(config=b"\xff\xff\xff"))
    await all_but_one_are_fed(fed, names, names[1])


async def test_large_namespaces_are_sent_in_bounded_calls(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyservice.control.batching.BYTES_AT_ONCE", 100_000)
    sizes: list[int] = []
    real = fed.plane.feed.apply_many

    async def noted(request: object) -> object:
        sizes.append(request.ByteSize())  # type: ignore[attr-defined]
        return await real(request)  # type: ignore[arg-type]

    monkeypatch.setattr(fed.plane.feed, "apply_many", noted)
    names = [await fed.source.namespace(f"n{number}") for number in range(12)]
    for name in names:
        await fed.source.set_version(name, await fed.source.version(bulk=40_000))
    assert set(await asyncio.gather(*(code_of(fed, name) for name in names))) == {"OK"}
    assert sum(sizes) > 12 * 40_000
    assert max(sizes) < 101_000


# Changes without a notification -------------------------------------------------------------------


async def test_unannounced_change_is_fed(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "_RECORDS_INTERVAL_S", 0.2)
    namespace_id = await fed.source.namespace()
    await fed.run_anew()
    await fed.wait_until_equal(namespace_id)
    for number in (3, 4):
        await fed.source.touch(namespace_id, number)
        await fed.wait_until_equal(namespace_id)
    await fed.wait_until_equal(await fed.source.namespace("new"))


# Rays ---------------------------------------------------------------------------------------------


async def test_ray_has_the_whole_wait(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    await fed.source.touch(namespace_id, 7)
    trace = Trace("1" * 32, perf_counter())
    let_go: list[float] = []

    def release() -> None:
        let_go.append(perf_counter())
        fed.plane.go_on.set()

    async def change() -> None:
        current.set(trace)
        await fed.enqueue_and_confirm(namespace_id)

    fed.plane.go_on.clear()
    changing = asyncio.create_task(change())
    asyncio.get_running_loop().call_later(0.1, release)
    await changing
    ((label, _, begin, end),) = trace.spans
    assert label == "feed wait"
    assert trace.started <= begin < let_go[0] < end <= perf_counter()


async def test_ray_has_a_wait_that_failed(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    trace, wait_s = Trace("1" * 32, perf_counter()), 0.05

    async def change() -> None:
        current.set(trace)
        await fed.feeder.enqueue_and_confirm(namespace_id, wait_s=wait_s)

    fed.plane.go_on.clear()
    with pytest.raises(ServiceError, match="CONTROL_PLANE_UNAVAILABLE"):
        await asyncio.create_task(change())
    fed.plane.go_on.set()
    ((label, _, begin, end),) = trace.spans
    assert label == "feed wait"
    assert end - begin >= wait_s * 0.9
    await fed.wait_until_idle()
