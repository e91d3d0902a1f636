"""Comparison of fed and stored namespaces with unreadable records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy import update

from pyservice.control import feed_comparison
from pyservice.control.feed_comparison import ContentComparison, Message
from pyservice.control.feed_messages import ComposeRequest
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.storage.tables import versions
from tests.control.feeder_setup import Fed
from tests.control.test_feeder import fed as fed
from tests.control.test_feeder import plane as plane
from tests.control.test_feeder import source as source
from tests.support.waiting import PATIENCE_S, within

pytestmark = pytest.mark.anyio

NEW_LIMIT = 77
JOB_MESSAGE = "configuration not sent"


async def all_fed(fed: Fed, count: int) -> list[str]:
    names = [await fed.source.namespace(f"n{number}") for number in range(count)]
    await asyncio.gather(*(fed.feeder.enqueue_and_confirm(one, wait_s=PATIENCE_S) for one in names))
    await fed.wait_until_idle()
    return names


async def configuration(fed: Fed, namespace_id: str, config: bytes | None = None) -> bytes:
    version_id = (await fed.source.row(namespace_id)).version_id
    is_it = versions.c.version_id == version_id
    async with fed.source.database.write() as tx:
        row = await tx.first(versions.select().where(is_it))
        assert row is not None
        if config is not None:
            await tx.run(update(versions).where(is_it).values(config=config))
    return bytes(row.config)


async def fork(fed: Fed, namespace_id: str, limit: int = NEW_LIMIT) -> None:
    """Gives the records a different change under the revision that the data plane holds."""
    revision = (await fed.source.row(namespace_id)).revision
    await fed.source.set_revision(namespace_id, revision - 1)
    await fed.source.touch(namespace_id, limit)


async def wait_until_fed(fed: Fed, namespace_id: str, limit: int = NEW_LIMIT) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (held := fed.plane.holds(namespace_id)) is None or (
            held.matchmaker.lobby_count_max != limit
        ):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("count", [1, 40], ids=["one", "more than are compared at once"])
async def test_unreadable_namespaces_do_not_block_comparison(fed: Fed, count: int) -> None:
    names = await all_fed(fed, count + 20)
    broken, others = names[:count], names[count:]
    await fed.end()
    for one in broken:
        await configuration(fed, one, b"\xff\xff\xff")
    for one in (others[0], others[-1]):
        await fork(fed, one)
    await fed.run_anew()
    for one in (others[0], others[-1]):
        await wait_until_fed(fed, one)


async def test_unreadable_namespace_is_logged_once(
    fed: Fed, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, other, last = await all_fed(fed, 3)
    await fed.end()
    await configuration(fed, broken, b"\xff\xff\xff")
    await fork(fed, last)
    capsys.readouterr()
    await fed.run_anew()
    await wait_until_fed(fed, last)
    output = capsys.readouterr()
    assert (output.out + output.err).count(f"namespace_ids=['{broken}']") == 1
    assert fed.feeder.job.unexpected_errors == 1
    for limit in (5, 6):
        await fork(fed, other, limit)
        fed.feeder.compare_again()
        await wait_until_fed(fed, other, limit)
    output = capsys.readouterr()
    assert broken not in output.out + output.err
    assert fed.feeder.job.unexpected_errors == 1


async def test_readable_namespace_is_compared_again_unasked(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_comparison, "_AGAIN_S", 0.05)
    broken, other = await all_fed(fed, 2)
    await fed.end()
    stored = await configuration(fed, broken, b"\xff\xff\xff")
    for one in (broken, other):
        await fork(fed, one)
    await fed.run_anew()
    await wait_until_fed(fed, other)
    async with asyncio.timeout(PATIENCE_S):
        while not fed.feeder.job.unexpected_errors:
            await asyncio.sleep(0.005)
    await configuration(fed, broken, stored)
    await wait_until_fed(fed, broken)


@pytest.mark.timing
async def test_database_wait_does_not_lengthen_the_pause() -> None:
    """The pause is a multiple of the comparison time, which must not contain the wait for the database."""
    pause_s, tried, left = 1.5, 0, asyncio.Event()

    async def compose(requests: Sequence[ComposeRequest]) -> list[Message | None]:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE")
        if requests[-1].namespace_id == "last":
            left.set()
        return [None for _ in requests]

    job = RetryingJob("feeder", JOB_MESSAGE, pauses_s=(pause_s, pause_s))
    contents = ContentComparison(compose, lambda namespace_id: None, job)
    names = [f"n{number}" for number in range(20)]
    contents.compare(feed_pb2.HeldConfiguration(namespace_id=one) for one in [*names, "last"])
    with within(2 * pause_s):
        running = asyncio.create_task(contents.run())
        async with asyncio.timeout(PATIENCE_S):
            await left.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert tried > 2
