"""Quota of the stored logs of a group."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pyservice.control.log_quota import LogQuota
from pyservice.control.quotas import QuotaChecks
from pyservice.runtime.run_layout import REPORTED
from pyservice.settings.quotas import QuotaSettings
from pyservice.storage import quotas
from tests.control.build_uploads import BuildUploads
from tests.control.build_uploads import builds as builds
from tests.control.lobby_record_rows import LobbyRecords

pytestmark = pytest.mark.anyio

SEGMENT_BYTES = 1_000


class LogScenario:
    def __init__(self, records: LobbyRecords, folder: Path) -> None:
        self.records = records
        self.folder = folder
        self.checks = QuotaChecks()
        self.restart()

    async def run(self, game_id: str, *, segments: int, ended_ago_s: float | None = None) -> str:
        """Creates the folder of a run that ended some time ago, or that goes on."""
        [run_id] = await self.records.ended(game_id)
        log = self.folder / run_id / "log"
        log.mkdir(parents=True)
        for number in range(segments):
            (log / f"{number * SEGMENT_BYTES:020}").write_bytes(bytes(SEGMENT_BYTES))
        if ended_ago_s is not None:
            self.age(run_id, ended_ago_s)
        return run_id

    def age(self, run_id: str, ended_ago_s: float) -> None:
        (self.folder / run_id / REPORTED).touch()
        ended_s = time.time() - ended_ago_s
        os.utime(self.folder / run_id / REPORTED, (ended_s, ended_s))

    def append(self, run_id: str) -> None:
        """Adds a segment to the log of a running run."""
        log = self.folder / run_id / "log"
        last = max(int(path.name) for path in log.iterdir())
        (log / f"{last + SEGMENT_BYTES:020}").write_bytes(bytes(SEGMENT_BYTES))

    def restart(self) -> None:
        self.quota = LogQuota(self.records.builds.database, self.checks, self.folder)

    def segments(self, run_id: str) -> int:
        log = self.folder / run_id / "log"
        return len(list(log.iterdir())) if log.exists() else 0

    async def enforce(self, limit: int) -> None:
        self.checks.defaults = QuotaSettings(log_bytes=limit)
        await self.quota.enforce()


@pytest.fixture
async def logs(builds: BuildUploads, tmp_path: Path) -> LogScenario:
    """Returns a scenario without logs, after the first check."""
    folder = tmp_path / "servers"
    folder.mkdir()
    logs = LogScenario(LobbyRecords(builds), folder)
    await logs.quota.enforce()
    return logs


async def test_logs_of_ended_runs_go_first_and_oldest_first(logs: LogScenario) -> None:
    game_id = await logs.records.game()
    running = await logs.run(game_id, segments=3)
    old = await logs.run(game_id, segments=2, ended_ago_s=3_000)
    new = await logs.run(game_id, segments=1, ended_ago_s=2_000)
    await logs.enforce(6_000)
    assert [logs.segments(run_id) for run_id in (running, old, new)] == [3, 2, 1]
    newest = await logs.run(game_id, segments=1, ended_ago_s=1_000)
    await logs.enforce(6_000)
    assert [logs.segments(run_id) for run_id in (running, old, new, newest)] == [3, 0, 1, 1]
    assert not (logs.folder / old).exists()
    [group_id] = logs.records.group_ids
    assert logs.quota.use(group_id) == 5_000


async def test_lower_limit_removes_nothing_until_new_logs_need_room(logs: LogScenario) -> None:
    game_id = await logs.records.game()
    [group_id] = logs.records.group_ids
    old, new = [await logs.run(game_id, segments=2, ended_ago_s=ago) for ago in (3_000, 2_000)]
    running = await logs.run(game_id, segments=2)
    await logs.enforce(7_000)
    for _ in range(2):
        await logs.enforce(1_000)
        assert [logs.segments(run_id) for run_id in (old, new, running)] == [2, 2, 2]
        assert logs.quota.use(group_id) == 6_000
    logs.append(running)
    await logs.enforce(1_000)
    assert [logs.segments(run_id) for run_id in (old, new, running)] == [0, 2, 3]
    logs.append(running)
    await logs.enforce(1_000)
    # The removal of a whole run made room, which new logs do not get again.
    assert [logs.segments(run_id) for run_id in (old, new, running)] == [0, 0, 4]
    assert logs.quota.use(group_id) == 4_000


async def test_first_check_after_a_start_removes_nothing(logs: LogScenario) -> None:
    game_id = await logs.records.game()
    running = await logs.run(game_id, segments=4)
    logs.restart()
    await logs.enforce(1_000)
    assert logs.segments(running) == 4
    logs.append(running)
    await logs.enforce(1_000)
    assert logs.segments(running) == 4


async def test_logs_that_cannot_be_removed_yet_do_not_raise_the_limit(logs: LogScenario) -> None:
    game_id = await logs.records.game()
    recent = await logs.run(game_id, segments=3, ended_ago_s=0)
    await logs.enforce(1_000)
    assert logs.segments(recent) == 3
    logs.age(recent, 3_000)
    await logs.enforce(1_000)
    assert logs.segments(recent) == 0


async def test_running_logs_lose_their_oldest_lines_and_keep_the_newest(logs: LogScenario) -> None:
    game_id = await logs.records.game()
    small, large = [await logs.run(game_id, segments=count) for count in (2, 5)]
    await logs.enforce(5_000)
    assert sorted(path.name for path in (logs.folder / large / "log").iterdir()) == [
        f"{number * SEGMENT_BYTES:020}" for number in (2, 3, 4)
    ]
    assert logs.segments(small) == 2


async def test_running_logs_keep_their_newest_lines_at_a_limit_of_zero(logs: LogScenario) -> None:
    game_id = await logs.records.game()
    small, large = [await logs.run(game_id, segments=count) for count in (2, 5)]
    await logs.enforce(0)
    assert [logs.segments(run_id) for run_id in (small, large)] == [1, 1]


async def test_logs_of_other_groups_and_of_the_last_minute_stay(logs: LogScenario) -> None:
    game_id, other_game_id = await logs.records.game(), await logs.records.game()
    group_id, other_group_id = logs.records.group_ids
    other = await logs.run(other_game_id, segments=9, ended_ago_s=3_000)
    recent = await logs.run(game_id, segments=2, ended_ago_s=0)
    async with logs.records.builds.database.write() as tx:
        await quotas.set_limit(tx, other_group_id, "log_bytes", 9_000)
    await logs.enforce(1_000)
    assert [logs.segments(run_id) for run_id in (other, recent)] == [9, 2]
    assert [logs.quota.use(each) for each in (group_id, other_group_id)] == [2_000, 9_000]


async def test_folder_of_a_run_without_a_record_is_not_counted(logs: LogScenario) -> None:
    game_id = await logs.records.game()
    kept = await logs.run(game_id, segments=1)
    (logs.folder / "unknown" / "log").mkdir(parents=True)
    (logs.folder / "unknown" / "log" / "0").write_bytes(bytes(SEGMENT_BYTES))
    await logs.enforce(0)
    assert logs.segments("unknown") == logs.segments(kept) == 1
