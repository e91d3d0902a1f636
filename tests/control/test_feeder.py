from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from pyservice.control import feeder
from pyservice.errors import ServiceError
from pyservice.storage.database import open_database
from tests.control.feeder_setup import EPOCH, TOO_MANY, Fed, FedPlane, Source
from tests.support.databases import KINDS, Databases
from tests.support.waiting import PATIENCE_S, within

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def source(
    request: pytest.FixtureRequest, tmp_path: Path, databases: Databases
) -> AsyncIterator[Source]:
    database = open_database(databases.url(request.param), tmp_path)
    created = Source(database)
    await created.prepare()
    yield created
    await database.close()


@pytest.fixture
async def plane() -> AsyncIterator[FedPlane]:
    # A socket path has a length limit that `tmp_path` can exceed.
    with tempfile.TemporaryDirectory() as folder:
        created = FedPlane(Path(folder))
        await created.start()
        yield created
        await created.stop()


@pytest.fixture
async def fed(source: Source, plane: FedPlane) -> AsyncIterator[Fed]:
    created = Fed(source, plane)
    created.run()
    yield created
    await created.close()


async def error_of(work: Awaitable[None]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await work
    return caught.value


# Confirmation -------------------------------------------------------------------------------------


async def test_confirmation_means_stored_on_disk(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    await fed.plane.stop()
    await fed.plane.start()
    held = fed.plane.holds(namespace_id)
    assert held is not None
    assert (held.source_epoch, held.revision) == (EPOCH, 1)
    await fed.wait_until_idle()


async def test_changes_are_ordered_and_the_last_wins(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()

    async def change(number: int) -> None:
        await fed.source.touch(namespace_id, number)
        await fed.enqueue_and_confirm(namespace_id)

    await asyncio.gather(*(change(number) for number in range(1, 40)))
    revisions = [revision for _, revision in fed.plane.acknowledged]
    assert revisions == sorted(revisions)
    assert revisions[-1] == 40
    row, held = await fed.source.row(namespace_id), fed.plane.holds(namespace_id)
    assert held is not None
    assert held.matchmaker.lobby_count_max == row.lobby_count_max


@pytest.mark.timing
async def test_slow_data_plane_blocks_a_caller_for_one_second(
    fed: Fed,
) -> None:
    namespace_id = await fed.source.namespace()
    fed.plane.go_on.clear()
    began_s = time.monotonic()
    error = await error_of(fed.feeder.enqueue_and_confirm(namespace_id))
    assert error.code == "CONTROL_PLANE_UNAVAILABLE"
    assert "is stored and will take effect" in error.detail
    assert 0.9 < time.monotonic() - began_s < 1.5
    assert (await error_of(fed.feeder.enqueue_and_confirm(namespace_id))).code == error.code
    fed.plane.go_on.set()
    await fed.enqueue_and_confirm(namespace_id)
    assert fed.plane.holds(namespace_id) is not None


@pytest.mark.timing
async def test_slow_data_plane_does_not_delay_a_check(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    fed.plane.go_on.clear()
    with within(1.0):
        await fed.feeder.check_version(namespace_id, await fed.source.version(TOO_MANY))


async def test_timed_out_caller_is_forgotten(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    fed.plane.go_on.clear()
    await asyncio.gather(
        *(error_of(fed.feeder.enqueue_and_confirm(namespace_id)) for _ in range(50))
    )
    assert fed.feeder._wanted[namespace_id].waiting == []


async def problem_of(fed: Fed, namespace_id: str) -> str:
    async with asyncio.timeout(PATIENCE_S):
        while namespace_id not in fed.feeder.refused_reasons():
            await asyncio.sleep(0.005)
    return fed.feeder.refused_reasons()[namespace_id]


# Unavailable data plane ---------------------------------------------------------------------------


async def test_changes_during_downtime_are_fed_within_a_second(
    fed: Fed,
) -> None:
    first, second = await fed.source.namespace("one"), await fed.source.namespace("two")
    await asyncio.gather(fed.enqueue_and_confirm(first), fed.enqueue_and_confirm(second))
    await fed.plane.stop()
    await fed.source.touch(first, 7)
    error = await error_of(fed.feeder.enqueue_and_confirm(first))
    assert error.code == "CONTROL_PLANE_UNAVAILABLE"
    # After 3 s of failures, the pause between two retries is at its maximum.
    await asyncio.sleep(3)
    await fed.plane.start()
    await fed.wait_until_equal(first)
    await fed.enqueue_and_confirm(first)


async def test_data_plane_without_its_disk_is_fed_again(fed: Fed) -> None:
    names = [await fed.source.namespace(f"n{number}") for number in range(5)]
    await asyncio.gather(*map(fed.enqueue_and_confirm, names))
    for _ in range(2):
        await fed.plane.stop()
        fed.plane.lose_its_disk()
        await fed.plane.start()
        for name in names:
            await fed.wait_until_equal(name)


async def test_polling_an_idle_data_plane_is_cheap(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    held_requests, began_s = fed.plane.held_requests, time.monotonic()
    await asyncio.sleep(2)
    async with asyncio.timeout(PATIENCE_S):
        while fed.plane.held_requests == held_requests:
            await asyncio.sleep(0.01)
    assert fed.plane.held_requests - held_requests <= 3 * (time.monotonic() - began_s)


async def test_change_acknowledged_during_comparison_is_not_resent(
    fed: Fed,
) -> None:
    await fed.wait_until_connected()
    fed.plane.may_return_held.clear()
    await fed.run_anew()
    held_requests = fed.plane.held_requests
    async with asyncio.timeout(PATIENCE_S):
        while fed.plane.held_requests == held_requests:
            await asyncio.sleep(0.001)
    names = [await fed.source.namespace(f"n{number}") for number in range(3)]
    await asyncio.gather(*map(fed.enqueue_and_confirm, names))
    fed.plane.may_return_held.set()
    await fed.wait_until_connected()
    await fed.wait_until_idle()
    assert sorted(fed.plane.acknowledged) == sorted((name, 1) for name in names)


async def test_new_control_plane_sends_only_differences(fed: Fed) -> None:
    names = [await fed.source.namespace(f"n{number}") for number in range(3)]
    await asyncio.gather(*map(fed.enqueue_and_confirm, names))
    await fed.wait_until_connected()
    await fed.wait_until_idle()
    await fed.end()
    await fed.source.touch(names[1], 9)
    fed.plane.acknowledged.clear()
    await fed.run_anew()
    await fed.wait_until_equal(names[1])
    await fed.wait_until_idle()
    assert fed.plane.acknowledged == [(names[1], 2)]


# Refused ------------------------------------------------------------------------------------------


async def test_refused_version_is_reverted_with_its_history(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    before = await fed.source.row(namespace_id)
    refused = await fed.source.version(TOO_MANY)
    await fed.source.set_version(namespace_id, refused)
    error = await error_of(fed.enqueue_and_confirm(namespace_id, version_id=refused))
    assert error.code == "VALIDATION_FAILED"
    assert [list(problem.path) for problem in error.errors] == [
        ["config", "matchmaker", "max_players", "not-allowed"]
    ]
    await fed.wait_until_equal(namespace_id)
    assert (await fed.source.row(namespace_id)).version_id == before.version_id
    assert await fed.source.history(namespace_id) == [before.version_id]
    good = await fed.source.version(16)
    await fed.source.set_version(namespace_id, good)
    await fed.enqueue_and_confirm(namespace_id)
    assert await fed.source.history(namespace_id) == [good, before.version_id]


async def test_check_reports_the_refusal_before_a_change(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    error = await error_of(fed.check_version(namespace_id, await fed.source.version(TOO_MANY)))
    assert error.code == "VALIDATION_FAILED"
    assert [list(problem.path) for problem in error.errors] == [
        ["config", "matchmaker", "max_players", "not-allowed"]
    ]
    await fed.check_version(namespace_id, await fed.source.version(16))


async def test_change_after_a_refusal_is_sent_at_once(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace has no previous version, so the feeder cannot revert the refused one."""
    # Turns off the automatic retry of refused namespaces.
    monkeypatch.setattr(feeder, "_REFUSED_RETRY_S", 3_600.0)
    namespace_id = await fed.source.namespace(players=TOO_MANY)
    for _ in range(2):
        error = await error_of(fed.enqueue_and_confirm(namespace_id))
        assert error.code == "VALIDATION_FAILED"
    assert namespace_id in fed.feeder.refused_reasons()
    await fed.source.set_version(namespace_id, await fed.source.version(16))
    await fed.enqueue_and_confirm(namespace_id)
    assert fed.feeder.refused_reasons() == {}
    await fed.wait_until_idle()


async def test_lowered_limit_does_not_block_other_changes(fed: Fed) -> None:
    namespace_id = await fed.source.namespace(players=200)
    await fed.enqueue_and_confirm(namespace_id)
    await fed.plane.stop()
    fed.plane.limit = 16
    await fed.plane.start()
    await fed.source.touch(namespace_id, 9)
    await fed.enqueue_and_confirm(namespace_id)
    held = fed.plane.holds(namespace_id)
    assert held is not None
    assert held.matchmaker.lobby_count_max == 9
    assert fed.feeder.refused_reasons() == {}
    refused = await fed.source.version(17)
    await fed.source.set_version(namespace_id, refused)
    error = await error_of(fed.enqueue_and_confirm(namespace_id, version_id=refused))
    assert error.code == "VALIDATION_FAILED"
    assert "runs its previous version" in error.detail
    await fed.wait_until_equal(namespace_id)
    await fed.wait_until_idle()


async def test_refused_change_is_reported_as_stored(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    await fed.source.touch(namespace_id, 0)
    error = await error_of(fed.enqueue_and_confirm(namespace_id))
    assert error.code == "VALIDATION_FAILED"
    assert "is stored" in error.detail
    assert "runs its previous configuration" in error.detail
    assert "was not changed" not in error.detail
    [problem] = error.errors
    assert problem.path == ("lobby_count_max", "not-allowed")
    assert problem.message == "lobby_count_max must be greater than or equal to 1"
    assert "matchmaker.lobby_count_max must be" in fed.feeder.refused_reasons()[namespace_id]
    held = fed.plane.holds(namespace_id)
    assert held is not None
    assert held.matchmaker.lobby_count_max == 512
    await fed.source.touch(namespace_id, 5)
    await fed.enqueue_and_confirm(namespace_id)


async def test_refused_namespace_does_not_block_others(fed: Fed) -> None:
    bad = await fed.source.namespace("bad", TOO_MANY)
    await error_of(fed.enqueue_and_confirm(bad))
    good = await fed.source.namespace("good")
    await fed.enqueue_and_confirm(good)
    assert fed.feeder.waiting == 1


# Stale --------------------------------------------------------------------------------------------


async def test_restored_backup_catches_up_with_the_data_plane(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    for number in range(1, 6):
        await fed.source.touch(namespace_id, number)
        await fed.enqueue_and_confirm(namespace_id)
    await fed.end()
    await fed.source.set_revision(namespace_id, 2)
    await fed.source.touch(namespace_id, 77)
    await fed.run_anew()
    await fed.wait_until_equal(namespace_id)
    held = fed.plane.holds(namespace_id)
    assert held is not None
    assert held.revision > 6
    assert held.matchmaker.lobby_count_max == 77


async def forked(fed: Fed) -> str:
    """Creates a namespace with a record that differs from the held one under the same revision."""
    namespace_id = await fed.source.namespace()
    await fed.source.touch(namespace_id, 5)
    await fed.enqueue_and_confirm(namespace_id)
    await fed.wait_until_idle()
    await fed.end()
    await fed.source.set_revision(namespace_id, 1)
    await fed.source.touch(namespace_id, 77)
    row, held = await fed.source.row(namespace_id), fed.plane.holds(namespace_id)
    assert held is not None
    assert (row.revision, row.lobby_count_max) == (held.revision, 77)
    assert held.matchmaker.lobby_count_max == 5
    return namespace_id


async def test_change_after_a_restore_wins_at_an_equal_revision(
    fed: Fed,
) -> None:
    namespace_id = await forked(fed)
    await fed.run_anew()
    await fed.enqueue_and_confirm(namespace_id)
    held = fed.plane.holds(namespace_id)
    assert held is not None
    assert held.matchmaker.lobby_count_max == 77
    await fed.wait_until_equal(namespace_id)


async def test_restored_records_are_compared_by_content(
    fed: Fed,
) -> None:
    others = [await fed.source.namespace(f"n{number}") for number in range(40)]
    await asyncio.gather(*(fed.enqueue_and_confirm(one) for one in others))
    namespace_id = await forked(fed)
    fed.plane.acknowledged.clear()
    await fed.run_anew()
    async with asyncio.timeout(PATIENCE_S):
        while (held := fed.plane.holds(namespace_id)) is None or (
            held.matchmaker.lobby_count_max != 77
        ):
            await asyncio.sleep(0.005)
    await fed.wait_until_equal(namespace_id)
    await fed.wait_until_idle()
    assert {name for name, _ in fed.plane.acknowledged} == {namespace_id}


async def test_older_database_loses_at_an_equal_revision(fed: Fed) -> None:
    namespace_id = await forked(fed)
    await fed.run_anew(epoch=EPOCH - 1)
    error = await error_of(fed.feeder.enqueue_and_confirm(namespace_id))
    assert error.code == "CONTROL_PLANE_UNAVAILABLE"
    held = fed.plane.holds(namespace_id)
    assert held is not None
    assert (held.source_epoch, held.matchmaker.lobby_count_max) == (EPOCH, 5)
    assert "newer database" in await problem_of(fed, namespace_id)


async def test_older_database_is_not_fed_and_is_reported(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    await fed.run_anew(epoch=EPOCH - 1)
    error = await error_of(fed.feeder.enqueue_and_confirm(namespace_id))
    assert error.code == "CONTROL_PLANE_UNAVAILABLE"
    assert "newer database" in await problem_of(fed, namespace_id)


async def test_new_database_replaces_the_old_one(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    for number in range(1, 4):
        await fed.source.touch(namespace_id, number)
    await fed.enqueue_and_confirm(namespace_id)
    await fed.source.set_revision(namespace_id, 1)
    await fed.run_anew(epoch=EPOCH + 1)
    await fed.wait_until_equal(namespace_id)


async def test_feeder_survives_a_missing_database(fed: Fed, tmp_path: Path) -> None:
    if fed.source.database.name != "sqlite":
        pytest.skip("tests/faults/control tests an unavailable server")
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    (tmp_path / "records.db").rename(tmp_path / "away")
    fed.feeder.enqueue(namespace_id)
    await fed.plane.stop()
    fed.plane.lose_its_disk()
    await fed.plane.start()
    held_requests = fed.plane.held_requests
    async with asyncio.timeout(PATIENCE_S):
        while fed.plane.held_requests < held_requests + 2:
            await asyncio.sleep(0.005)
    assert fed.plane.holds(namespace_id) is None
    (tmp_path / "away").rename(tmp_path / "records.db")
    await fed.wait_until_equal(namespace_id)
