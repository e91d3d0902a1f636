"""Removal of logs of ended runs when the disk is short or too many logs exist."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime import run_cleanup
from pyservice.runtime.disk_reserve import is_disk_short
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.run_cleanup import RunRetention
from pyservice.runtime.run_folder import KeeperSpec, RunFolder
from pyservice.runtime.run_layout import REPORTED
from pyservice.runtime.run_requests import RunRequest
from tests.support.captured_logs import logged
from tests.support.runtime_host import RuntimeHost, disk_of, open_host, until

pytestmark = pytest.mark.anyio

HOUR_S: Final = 3_600.0
SAYS: Final = "logs of ended game servers are removed before their 7 days"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[RuntimeHost]:
    async with open_host(tmp_path, tmp_path / "builds") as host:
        yield host


async def ended(host: RuntimeHost, *ages_s: float) -> list[RunRequest]:
    orders = [host.want("echo said") for _ in ages_s]
    for order in orders:
        await host.reports.end(order.id)
    await until(lambda: not {order.id for order in orders} & set(host.supervisor.runs))
    for order, age_s in zip(orders, ages_s, strict=True):
        then = time.time() - age_s
        os.utime(host.of(order).path / REPORTED, (then, then))
    return orders


def kept_indexes(host: RuntimeHost, orders: list[RunRequest]) -> list[int]:
    return [index for index, order in enumerate(orders) if host.of(order).path.exists()]


def servers(host: RuntimeHost) -> Path:
    return host.folder / "servers"


async def test_oldest_logs_are_removed_until_the_disk_has_space(host: RuntimeHost) -> None:
    orders = await ended(host, 3 * HOUR_S, HOUR_S, 5 * HOUR_S, 2 * HOUR_S, 4 * HOUR_S)
    runs = await host.running("echo said; exec sleep 3600")
    await host.drop()
    folder_limit = 2

    def has_too_little() -> bool:
        return len(kept_indexes(host, orders)) > folder_limit

    tidied = RunRetention(servers(host), has_too_little)
    with logged() as log:
        await tidied.remove_expired()
        assert kept_indexes(host, orders) == [1, 3]
        folder_limit = 1
        await tidied.remove_expired()
        assert kept_indexes(host, orders) == [1]
    assert await host.lines(orders[1], 1) == ["said"]
    assert await host.lines(runs, 1) == ["said"]
    assert log.getvalue().count(SAYS) == 1
    with logged() as log:
        await tidied.remove_expired()
        folder_limit = 0
        await tidied.remove_expired()
    assert kept_indexes(host, orders) == []
    assert log.getvalue().count(SAYS) == 1


async def test_full_disk_keeps_running_and_recent_runs(host: RuntimeHost) -> None:
    old, new = await ended(host, HOUR_S, 0)
    unreported = host.want("echo said")
    host.reports.rejected.add("over")
    runs = await host.running("echo said; exec sleep 3600")
    await until(lambda: host.supervisor.runs[unreported.id].state == "ended")
    for order in (runs, unreported):
        for path in (host.of(order).path, *host.of(order).path.iterdir()):
            os.utime(path, (0, 0), follow_symlinks=False)
    host.node = replace(host.node, reserve_bytes=1 << 60)
    # A new supervisor removes expired logs at its start.
    await host.drop()
    await host.start()
    await until(lambda: not host.of(old).path.exists())
    await host.supervisor._remove_expired()
    for order in (new, unreported, runs):
        assert await host.lines(order, 1) == ["said"]


async def test_oldest_logs_over_the_count_limit_are_removed(host: RuntimeHost) -> None:
    orders = await ended(host, 3 * HOUR_S, HOUR_S, 5 * HOUR_S, 2 * HOUR_S, 4 * HOUR_S, 0)
    await host.drop()
    await RunRetention(servers(host), lambda: False, 3).remove_expired()
    assert kept_indexes(host, orders) == [1, 3, 5]
    await RunRetention(servers(host), lambda: False).remove_expired()
    assert kept_indexes(host, orders) == [1, 3, 5]


async def test_run_with_an_interrupted_removal_still_counts_as_ended(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    [order] = await ended(host, HOUR_S)
    await host.drop()

    class CutOff(BaseException):
        pass

    def cut_off(path: Path) -> None:
        raise CutOff

    with monkeypatch.context() as until_then:
        until_then.setattr(run_cleanup, "remove_tree", cut_off)
        with pytest.raises(CutOff):
            await RunRetention(servers(host), lambda: True).remove_expired()
    await host.start()
    assert not host.supervisor.runs
    assert (host.of(order).path / REPORTED).exists()
    await RunRetention(servers(host), lambda: True).remove_expired()
    assert not host.of(order).path.exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of(tmp_path / "disk", 400) as mounted:
        yield mounted


async def test_disk_is_short_below_the_reserve_or_a_twentieth_of_inodes(disk: Path) -> None:
    assert not is_disk_short(disk, 4 << 20)
    assert is_disk_short(disk, 16 << 20)
    (disk / "ballast").write_bytes(bytes(5 << 20))
    assert is_disk_short(disk, 4 << 20)
    assert not is_disk_short(disk, 0)
    (disk / "ballast").unlink()
    for number in range(370):
        (disk / str(number)).touch()
    assert not is_disk_short(disk, 4 << 20)
    for number in range(370, 390):
        (disk / str(number)).touch()
    assert is_disk_short(disk, 4 << 20)


async def test_keeper_receives_the_disk_reserve(disk: Path) -> None:
    folder = RunFolder(disk / "one")
    script = "yes | head -n 1000000; echo end >&2"
    folder.prepare(KeeperSpec("one", ["/bin/sh", "-c", script], Path("/"), reserve_bytes=5 << 20))
    assert folder.start(KEEPER_BINARY)

    def has_ended() -> bool:
        state = folder.state()
        return state is not None and state.status == "ended"

    await until(has_ended)
    file_system = os.statvfs(disk)
    assert file_system.f_bavail * file_system.f_frsize > (5 << 20) - (256 << 10)
    *_, last = folder.lines()
    assert last.stream == "std_err"
    assert last.text.endswith(" lines omitted: not enough disk space]")


async def test_game_servers_leave_the_disk_reserve_free(host: RuntimeHost) -> None:
    host.node = replace(host.node, reserve_bytes=1 << 60)
    await host.anew()
    order = host.want("echo one; echo two; exit 3")
    assert (await host.reports.end(order.id)).exit_code == 3
    assert await host.lines(order, 1) == ["[2 lines omitted: not enough disk space]"]
