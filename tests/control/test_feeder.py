"""Feeder: confirmation, refusals, lost databases and rays of changed namespaces."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import pytest
from sqlalchemy import update

from pyservice.app import data_plane_client
from pyservice.calls import Call, Caller, TokenKind
from pyservice.control import feeder
from pyservice.control.authorization import GrantedScope
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.namespaces import NamespaceChange, NamespaceOperations
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.observability.rays import Trace, current
from pyservice.pb.hosting.v1 import namespaces_pb2 as pb
from pyservice.storage import games, namespaces
from pyservice.storage.tables import versions
from pyservice.watch import Topics
from tests.control.feeder_setup import EPOCH, TOO_MANY, Fed, wait_for
from tests.control.feeder_setup import fed as fed
from tests.control.feeder_setup import plane as plane
from tests.control.feeder_setup import source as source
from tests.control.service_fixtures import each_database
from tests.support.waiting import PATIENCE_S, within

pytestmark = pytest.mark.anyio

REFUSED = ["config", "matchmaker", "max_players", "not-allowed"]


async def code_of(fed: Fed, namespace_id: str, version_id: str | None = None) -> str:
    try:
        await fed.enqueue_and_confirm(namespace_id, version_id)
    except ServiceError as error:
        return error.code
    return "OK"


async def unconfirmed(fed: Fed, namespace_id: str, wait_s: float = 0.05) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await fed.feeder.enqueue_and_confirm(namespace_id, wait_s=wait_s)
    assert caught.value.code == "CONTROL_PLANE_UNAVAILABLE"
    return caught.value


async def running_version(fed: Fed, namespace_id: str) -> str:
    return str((await fed.source.row(namespace_id)).version_id)


async def wait_until_running(fed: Fed, namespace_id: str, version_id: str) -> None:
    await fed.wait_until_equal(namespace_id)
    assert await running_version(fed, namespace_id) == version_id
    await fed.wait_until_idle()


# Confirmation -------------------------------------------------------------------------------------


async def test_confirmation_means_stored_on_disk(fed: Fed) -> None:
    namespace_id = await fed.namespace()
    await fed.plane.stop()
    await fed.plane.start()
    configuration = fed.configuration(namespace_id)
    assert (configuration.source_epoch, configuration.revision) == (EPOCH, 1)
    await fed.wait_until_idle()


@each_database
async def test_changes_are_ordered_and_the_last_wins(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()

    async def change(number: int) -> None:
        await fed.source.touch(namespace_id, number)
        await fed.enqueue_and_confirm(namespace_id)

    await asyncio.gather(*(change(number) for number in range(1, 40)))
    revisions = [revision for _, revision in fed.plane.acknowledged]
    assert revisions == sorted(revisions)
    assert revisions[-1] == 40
    row = await fed.source.row(namespace_id)
    assert fed.configuration(namespace_id).matchmaker.lobby_count_max == row.lobby_count_max


@pytest.mark.timing
async def test_slow_data_plane_blocks_a_caller_for_one_second(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    fed.plane.go_on.clear()
    began_s = monotonic()
    with pytest.raises(ServiceError, match="CONTROL_PLANE_UNAVAILABLE"):
        await fed.feeder.enqueue_and_confirm(namespace_id)
    assert 0.9 < monotonic() - began_s < 1.5


async def test_unconfirmed_change_is_stored_and_its_caller_forgotten(fed: Fed) -> None:
    namespace_id = await fed.source.namespace()
    fed.plane.go_on.clear()
    errors = await asyncio.gather(*(unconfirmed(fed, namespace_id) for _ in range(50)))
    assert all("is stored and will take effect" in error.detail for error in errors)
    assert fed.feeder._pending[namespace_id].waiting == []
    fed.plane.go_on.set()
    await fed.enqueue_and_confirm(namespace_id)
    assert fed.configuration(namespace_id).revision == 1


async def test_slow_data_plane_does_not_delay_a_check(fed: Fed) -> None:
    namespace_id = await fed.namespace()
    fed.plane.go_on.clear()
    async with asyncio.timeout(PATIENCE_S):
        await fed.feeder.check_version(namespace_id, await fed.source.version(TOO_MANY))


# Unavailable data plane ---------------------------------------------------------------------------


@pytest.mark.timing
async def test_changes_during_downtime_are_fed_within_two_seconds(fed: Fed) -> None:
    first, _ = await fed.namespaces(2)
    pauses: list[float] = []

    async def noted(pause_s: float) -> None:
        pauses.append(pause_s)
        await asyncio.sleep(pause_s)

    fed.feeder.job._sleep = noted
    await fed.plane.stop()
    await fed.source.touch(first, 7)
    await unconfirmed(fed, first)
    # The pause between two retries is at its maximum.
    await wait_for(lambda: max(pauses, default=0.0) == 0.5)
    await fed.plane.start()
    with within(2.0):
        await fed.wait_until_equal(first)
    await fed.enqueue_and_confirm(first)


async def test_data_plane_without_its_disk_is_fed_again(fed: Fed) -> None:
    names = await fed.namespaces(5)
    for _ in range(2):
        await fed.plane.stop()
        fed.plane.lose_its_disk()
        await fed.plane.start()
        for name in names:
            await fed.wait_until_equal(name)


async def test_idle_data_plane_is_polled_with_pauses(fed: Fed) -> None:
    await fed.namespace()
    times: list[float] = []
    for _ in range(3):
        await fed.plane.wait_for_poll()
        times.append(monotonic())
    assert times[2] - times[1] > 0.9 * feeder._POLL_INTERVAL_S


async def test_change_acknowledged_during_comparison_is_not_resent(fed: Fed) -> None:
    await fed.wait_until_connected()
    fed.plane.may_return_held.clear()
    await fed.run_anew()
    await fed.plane.wait_for_poll()
    names = await fed.namespaces(3)
    fed.plane.may_return_held.set()
    await fed.wait_until_connected()
    await fed.wait_until_idle()
    assert sorted(fed.plane.acknowledged) == sorted((name, 1) for name in names)


@each_database
async def test_new_control_plane_sends_only_differences(fed: Fed) -> None:
    names = await fed.namespaces(3)
    await fed.wait_until_connected()
    await fed.wait_until_idle()
    await fed.end()
    await fed.source.touch(names[1], 9)
    fed.plane.acknowledged.clear()
    await fed.run_anew()
    await fed.wait_until_equal(names[1])
    await fed.wait_until_idle()
    assert fed.plane.acknowledged == [(names[1], 2)]


# Refused versions ---------------------------------------------------------------------------------


@each_database
async def test_refused_version_is_reverted_with_its_history(fed: Fed) -> None:
    namespace_id = await fed.namespace()
    before = await running_version(fed, namespace_id)
    refused = await fed.source.version(TOO_MANY)
    await fed.source.set_version(namespace_id, refused)
    error = await fed.refusal(namespace_id, refused)
    assert [list(problem.path) for problem in error.errors] == [REFUSED]
    await wait_until_running(fed, namespace_id, before)
    assert await fed.source.history(namespace_id) == [before]
    good = await fed.source.version(16)
    await fed.source.set_version(namespace_id, good)
    await fed.enqueue_and_confirm(namespace_id)
    assert await fed.source.history(namespace_id) == [good, before]


async def test_check_reports_the_refusal_before_a_change(fed: Fed) -> None:
    namespace_id = await fed.namespace()
    with pytest.raises(ServiceError) as caught:
        await fed.check_version(namespace_id, await fed.source.version(TOO_MANY))
    assert caught.value.code == "VALIDATION_FAILED"
    assert [list(problem.path) for problem in caught.value.errors] == [REFUSED]
    await fed.check_version(namespace_id, await fed.source.version(16))


async def test_refused_version_fails_only_its_caller(fed: Fed) -> None:
    namespace_id = await fed.namespace()
    runs, refused = await running_version(fed, namespace_id), await fed.source.version(TOO_MANY)
    fed.plane.go_on.clear()
    await fed.source.set_version(namespace_id, refused)
    setting = asyncio.create_task(code_of(fed, namespace_id, refused))
    await fed.source.touch(namespace_id, 7)
    others = [asyncio.create_task(code_of(fed, namespace_id, one)) for one in (None, runs)]
    await asyncio.sleep(0)
    fed.plane.go_on.set()
    assert await setting == "VALIDATION_FAILED"
    assert await asyncio.gather(*others) == ["OK", "OK"]
    await wait_until_running(fed, namespace_id, runs)
    assert fed.configuration(namespace_id).matchmaker.lobby_count_max == 7


async def test_refused_version_is_reported_to_a_late_caller(fed: Fed) -> None:
    namespace_id = await fed.namespace()
    runs, refused = await running_version(fed, namespace_id), await fed.source.version(TOO_MANY)
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


@each_database
@pytest.mark.parametrize("is_first_good", [True, False])
async def test_queued_refused_versions_are_reverted(fed: Fed, is_first_good: bool) -> None:
    namespace_id = await fed.namespace()
    runs = await running_version(fed, namespace_id)
    first = await fed.source.version(16 if is_first_good else TOO_MANY + 1)
    fed.plane.go_on.clear()
    setting = []
    for version_id in (first, await fed.source.version(TOO_MANY)):
        await fed.source.set_version(namespace_id, version_id)
        setting.append(asyncio.create_task(code_of(fed, namespace_id, version_id)))
    await asyncio.sleep(0)
    fed.plane.go_on.set()
    codes = ["OK" if is_first_good else "VALIDATION_FAILED", "VALIDATION_FAILED"]
    assert await asyncio.gather(*setting) == codes
    await wait_until_running(fed, namespace_id, first if is_first_good else runs)
    expected = [first, runs] if is_first_good else [runs]
    assert await fed.source.history(namespace_id) == expected


async def test_change_after_a_refusal_is_sent_at_once(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace has no previous version, so the feeder cannot revert the refused one."""
    # Turns off the automatic retry of refused namespaces.
    monkeypatch.setattr(feeder, "_REFUSED_RETRY_S", 3_600.0)
    namespace_id = await fed.source.namespace(players=TOO_MANY)
    for _ in range(2):
        await fed.refusal(namespace_id)
    assert namespace_id in fed.feeder.refused_reasons()
    await fed.source.set_version(namespace_id, await fed.source.version(16))
    await fed.enqueue_and_confirm(namespace_id)
    assert fed.feeder.refused_reasons() == {}
    await fed.wait_until_idle()


async def test_lowered_limit_does_not_block_other_changes(fed: Fed) -> None:
    namespace_id = await fed.namespace(players=200)
    await fed.plane.stop()
    fed.plane.limit = 16
    await fed.plane.start()
    await fed.source.touch(namespace_id, 9)
    await fed.enqueue_and_confirm(namespace_id)
    assert fed.configuration(namespace_id).matchmaker.lobby_count_max == 9
    assert fed.feeder.refused_reasons() == {}
    refused = await fed.source.version(17)
    await fed.source.set_version(namespace_id, refused)
    assert "runs its previous version" in (await fed.refusal(namespace_id, refused)).detail
    await fed.wait_until_equal(namespace_id)
    await fed.wait_until_idle()


async def test_refused_change_is_reported_as_stored(fed: Fed) -> None:
    namespace_id = await fed.namespace()
    await fed.source.touch(namespace_id, 0)
    error = await fed.refusal(namespace_id)
    assert "is stored" in error.detail
    assert "runs its previous configuration" in error.detail
    assert "was not changed" not in error.detail
    [problem] = error.errors
    assert problem.path == ("lobby_count_max", "not-allowed")
    assert problem.message == "lobby_count_max must be greater than or equal to 1"
    assert "matchmaker.lobby_count_max must be" in fed.feeder.refused_reasons()[namespace_id]
    assert fed.configuration(namespace_id).matchmaker.lobby_count_max == 512
    await fed.source.touch(namespace_id, 5)
    await fed.enqueue_and_confirm(namespace_id)


async def test_refused_version_is_set_again_under_its_key(fed: Fed) -> None:
    source, plane = fed.source, fed.plane
    namespace_id = await fed.namespace()
    ran, version_id = await running_version(fed, namespace_id), await source.version(TOO_MANY)
    changes = IdempotentChanges(source.database)
    context = RecordContext(source.database, changes, RecordIds(), Topics())
    operations = NamespaceOperations(context, fed.feeder, NamespaceChange(context, fed.feeder))
    async with source.database.read() as tx:
        game = await games.find(tx, source.game_id)
    assert game is not None
    scope = GrantedScope("identity", "token", None, None, (game.group_id,))
    call = Call("0" * 32, b"\x7f\0\0\1", idempotency_key="key")
    caller = Caller(TokenKind.CLOUD, b"", b"", b"x" * 16, call, scope)
    request = pb.UpdateNamespaceVersionRequest(
        game_id=source.game_id, namespace_id=namespace_id, version_id=version_id
    )

    async def code() -> str:
        try:
            await operations.set_version(request, caller)
        except ServiceError as error:
            return error.code
        return "OK"

    plane.go_on.clear()
    assert await code() == "CONTROL_PLANE_UNAVAILABLE"
    plane.go_on.set()
    await fed.wait_until_idle()
    assert await running_version(fed, namespace_id) == ran
    assert await code() == "VALIDATION_FAILED"
    await plane.stop()
    plane.limit = TOO_MANY
    await plane.start()
    fed.feeder.compare_again()
    await fed.wait_until_connected()
    async with asyncio.timeout(PATIENCE_S):
        while (output := await code()) == "CONTROL_PLANE_UNAVAILABLE":
            pass
    assert output == "OK"
    assert await running_version(fed, namespace_id) == version_id


async def test_version_is_kept_while_its_domain_is_moving(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "_REFUSED_RETRY_S", 3_600.0)
    source = fed.source
    # The feeder sends the older namespace first.
    taking, giving = await source.namespace("taking"), await source.namespace("giving")

    async def change(namespace_id: str, action: Any, *more: int) -> None:
        async with source.database.write() as tx:
            await action(tx, namespace_id, "moves.example", *more)
            await namespaces.change(tx, namespace_id, {})

    await change(giving, namespaces.add_domain, 1)
    for namespace_id in (giving, taking):
        await fed.enqueue_and_confirm(namespace_id)
    await fed.end()
    await fed.plane.stop()
    await change(giving, namespaces.remove_domain)
    await change(taking, namespaces.add_domain, 1)
    version_id = await source.version(9)
    await source.set_version(taking, version_id)
    await fed.plane.start()
    await fed.run_anew()
    await fed.wait_until_connected()
    await fed.enqueue_and_confirm(taking)
    assert await running_version(fed, taking) == version_id
    assert version_id in await source.history(taking)


# Independent namespaces ---------------------------------------------------------------------------


async def test_too_large_namespace_is_refused_alone(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plane_client, "_ITEM_BYTES_MAX", 20_000)
    large, small = await fed.namespace("large"), await fed.source.namespace("small")
    before, too_large = await running_version(fed, large), await fed.source.version(bulk=24_000)
    await fed.source.set_version(large, too_large)
    setting = code_of(fed, large, too_large), code_of(fed, small)
    assert list(await asyncio.gather(*setting)) == ["VALIDATION_FAILED", "OK"]
    assert fed.feeder.is_connected
    await wait_until_running(fed, large, before)
    # A running version does not change the refusal: the namespace stays refused, and the feeder
    # retries it.
    monkeypatch.setattr(data_plane_client, "_ITEM_BYTES_MAX", 50)
    assert await code_of(fed, large) == "VALIDATION_FAILED"
    assert "the data plane accepts at most 50" in fed.feeder.refused_reasons()[large]
    monkeypatch.undo()
    assert await code_of(fed, large) == "OK"
    assert fed.feeder.refused_reasons() == {}


@each_database
@pytest.mark.full
async def test_slow_namespace_does_not_block_others(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction holds the record of the namespace that must be reverted."""
    record_failure, acknowledged = fed.feeder.job.record_failure, fed.plane.acknowledged
    acknowledged_before_failures: list[int] = []

    def noted(error: Exception, **about: object) -> None:
        acknowledged_before_failures.append(len(acknowledged))
        record_failure(error, **about)

    monkeypatch.setattr(fed.feeder.job, "record_failure", noted)
    slow, *names = await fed.namespaces(21)
    await fed.wait_until_idle()
    refused = await fed.source.version(TOO_MANY)
    await fed.source.set_version(slow, refused)
    for name in names:
        await fed.source.touch(name, 7)
    acknowledged.clear()
    async with fed.source.database.write() as tx:
        await namespaces.lock(tx, slow)
        waiting = asyncio.create_task(code_of(fed, slow, refused))
        await wait_for(lambda: slow in fed.feeder.refused_reasons())
        await asyncio.gather(*map(fed.enqueue_and_confirm, names))
        assert {name for name, _ in acknowledged} == set(names)
        assert (waiting.done(), fed.feeder.waiting) == (False, 1)
        # PostgreSQL ends a lock wait after 10 s. The other callers must get their results before.
        assert 0 not in acknowledged_before_failures
    assert await waiting == "VALIDATION_FAILED"
    await fed.wait_until_equal(slow)


@pytest.mark.parametrize("flaw", ["refused", "failing", "unreadable"])
async def test_bad_namespace_does_not_block_others(fed: Fed, flaw: str) -> None:
    names = [await fed.source.namespace(f"n{number}") for number in range(3)]
    bad = await fed.source.namespace("bad", TOO_MANY if flaw == "refused" else 8)
    if flaw == "failing":
        fed.plane.breaks_on = bad
    elif flaw == "unreadable":
        is_it = versions.c.version_id == await running_version(fed, bad)
        async with fed.source.database.write() as tx:
            await tx.run(update(versions).where(is_it).values(config=b"\xff\xff\xff"))
    fed.feeder.enqueue(bad, *names)
    for name in names:
        await fed.wait_until_equal(name)
    assert fed.plane.holds(bad) is None
    await wait_for(lambda: fed.feeder.waiting == 1)
    if flaw == "failing":
        fed.plane.breaks_on = ""
        await fed.wait_until_equal(bad)


async def test_large_namespaces_are_sent_in_bounded_calls(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyservice.control.batching.BYTES_AT_ONCE", 100_000)
    sizes: list[int] = []
    apply_many = fed.plane.feed.apply_many

    async def noted(request: Any) -> Any:
        sizes.append(request.ByteSize())
        return await apply_many(request)

    await fed.wait_until_connected()
    monkeypatch.setattr(fed.plane.feed, "apply_many", noted)
    names = [await fed.source.namespace(f"n{number}") for number in range(12)]
    for name in names:
        await fed.source.set_version(name, await fed.source.version(bulk=40_000))
    assert await asyncio.gather(*(code_of(fed, name) for name in names)) == ["OK"] * 12
    assert sum(sizes) > 12 * 40_000
    assert max(sizes) < 101_000


# Lost databases -----------------------------------------------------------------------------------


async def test_unannounced_change_is_fed(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "_RECORDS_INTERVAL_S", 0.2)
    namespace_id = await fed.source.namespace()
    await fed.run_anew()
    await fed.wait_until_equal(namespace_id)
    await fed.source.touch(namespace_id, 3)
    await fed.wait_until_equal(namespace_id)
    await fed.wait_until_equal(await fed.source.namespace("new"))


async def test_feeder_survives_a_missing_database(fed: Fed, tmp_path: Path) -> None:
    """`tests/faults/control` tests an unavailable PostgreSQL server."""
    namespace_id = await fed.namespace()
    (tmp_path / "records.db").rename(tmp_path / "moved")
    fed.feeder.enqueue(namespace_id)
    await fed.plane.stop()
    fed.plane.lose_its_disk()
    await fed.plane.start()
    held_requests = fed.plane.held_requests
    await wait_for(lambda: fed.plane.held_requests >= held_requests + 2)
    assert fed.plane.holds(namespace_id) is None
    (tmp_path / "moved").rename(tmp_path / "records.db")
    await fed.wait_until_equal(namespace_id)


@each_database
async def test_missing_tables_do_not_stop_the_feeder(fed: Fed) -> None:
    namespace_id = await fed.namespace()

    async def run(statement: str) -> None:
        database = fed.source.database
        await database.run_sync(lambda connection: connection.exec_driver_sql(statement))

    await run("ALTER TABLE namespaces RENAME TO namespaces_hidden")
    fed.feeder.compare_again()
    await wait_for(lambda: fed.feeder.job.unexpected_errors)
    await run("ALTER TABLE namespaces_hidden RENAME TO namespaces")
    await fed.source.set_version(namespace_id, await fed.source.version(9))
    await fed.enqueue_and_confirm(namespace_id)


# Rays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_ray_has_the_whole_wait(fed: Fed, is_confirmed: bool) -> None:
    namespace_id = await fed.namespace()
    await fed.source.touch(namespace_id, 7)
    trace, released_s = Trace("1" * 32, perf_counter()), 0.0

    async def change() -> str:
        current.set(trace)
        if is_confirmed:
            return await code_of(fed, namespace_id)
        return (await unconfirmed(fed, namespace_id)).code

    fed.plane.go_on.clear()
    changing = asyncio.create_task(change())
    if is_confirmed:
        await asyncio.wait({changing}, timeout=0.05)
        released_s = perf_counter()
        fed.plane.go_on.set()
    assert await changing == ("OK" if is_confirmed else "CONTROL_PLANE_UNAVAILABLE")
    fed.plane.go_on.set()
    ((label, _, begin, end),) = trace.spans
    assert label == "feed wait"
    assert trace.started <= begin < end <= perf_counter()
    assert begin < released_s < end if is_confirmed else end - begin >= 0.045
    await fed.wait_until_idle()
