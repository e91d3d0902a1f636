"""Backups of one target, one after the other: no later one damages an earlier one."""

from __future__ import annotations

import filecmp
import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pyservice.backup.target import BackupFailed, Target
from pyservice.storage.ownership import EarlierState, Instance
from tests.support.backups import (
    SLOW,
    Operator,
    back_up,
    names,
    problems,
    start_backup,
    stored_objects,
)
from tests.support.command_line import run
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

NewService = Callable[[str], Path]
AGE = b"age-encryption.org"


def restored(target: Path, data_dir: Path, *words: str) -> Path:
    ended = run(data_dir, "restore", str(target), "--yes", *words)
    assert ended.returncode == 0, ended.stderr
    # The first start does this.
    Instance.of_folder(data_dir)
    return data_dir


def same_objects(one: Path, other: Path) -> bool:
    left, right = one / "control/objects/kept", other / "control/objects/kept"
    files = [str(path.relative_to(left)) for path in left.rglob("*") if path.is_file()]
    equal, _, _ = filecmp.cmpfiles(left, right, files, shallow=False)
    return bool(files) and sorted(equal) == sorted(files)


async def test_change_of_encryption_keeps_the_earlier_backups(
    new_service: NewService, tmp_path: Path
) -> None:
    """The second backup is killed after it has encrypted an object."""
    service, target = new_service("service"), tmp_path / "backups"
    operator = Operator(tmp_path / "private.key")
    plain = await back_up(service, target)
    recipients = f"backup.recipients={json.dumps([operator.public_key])}"
    process = start_backup(service, target, *SLOW, "--set", recipients)
    until(lambda: any(path.read_bytes().startswith(AGE) for path in stored_objects(target)))
    process.kill()
    process.wait()
    assert names(target) == [plain]
    assert problems(target) == {plain: []}
    assert same_objects(service, restored(target, tmp_path / "restored"))
    await back_up(service, target, operator.public_key)
    await back_up(service, target)
    found = problems(target, operator.file)
    assert [found[name] for name in names(target)] == [[], [], []]


async def test_new_key_alone_reads_the_backups_after_a_rotation(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    before, after = Operator(tmp_path / "before.key"), Operator(tmp_path / "after.key")
    await back_up(service, target, before.public_key)
    await back_up(service, target, before.public_key, after.public_key)
    name = await back_up(service, target, after.public_key, keep=1)
    assert problems(target, after.file) == {name: []}
    identity = ("--identity", str(after.file))
    assert same_objects(service, restored(target, tmp_path / "restored", *identity))


async def test_same_recipients_in_another_order_store_no_object_again(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    one, other = (Operator(tmp_path / name).public_key for name in ("one.key", "other.key"))
    await back_up(service, target, one, other)
    before = stored_objects(target)
    await back_up(service, target, other, one)
    assert stored_objects(target) == before


async def test_service_without_its_owner_token_is_backed_up(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    (service / "control/owner.token").unlink()
    name = await back_up(service, target)
    assert problems(target) == {name: []}
    new = restored(target, tmp_path / "restored")
    assert (new / "control/records.db").exists()
    assert not (new / "control/owner.token").exists()
    (service / "control/keys.json").unlink()
    with pytest.raises(BackupFailed, match=r"control/keys\.json is missing: start the service"):
        await back_up(service, target)


async def test_backup_removes_the_records_that_a_killed_one_has_left(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"

    def copies() -> list[Path]:
        return list((service / "control").glob(".backup-*/records.db"))

    process = start_backup(service, target, *SLOW)
    # The copy has the limit, too, so it is there for seconds.
    until(copies)
    process.kill()
    process.wait()
    assert copies()
    await back_up(service, target)
    assert not list((service / "control").glob(".backup-*"))


@pytest.mark.parametrize("is_first", [False, True])
async def test_backup_first_removes_what_a_failed_one_has_stored(
    new_service: NewService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    operator = Operator(tmp_path / "private.key")
    before = [] if is_first else [await back_up(service, target)]
    complete = stored_objects(target)
    stored_by_failed = []

    def fail(*_: object) -> None:
        stored_by_failed.append(stored_objects(target) - complete)
        raise BackupFailed("the target is full")

    with monkeypatch.context() as failing:
        failing.setattr(Target, "put_file", fail)
        for _ in range(2):
            with pytest.raises(BackupFailed, match="the target is full"):
                await back_up(service, target, operator.public_key)
    one, other = stored_by_failed
    assert len(one) == len(other) > 0
    assert one.isdisjoint(other)
    last = await back_up(service, target, operator.public_key)
    assert problems(target, operator.file) == {name: [] for name in (*before, last)}
    assert len(stored_objects(target) - complete) == len(one)


async def test_copy_of_the_records_leaves_the_storage_reserve(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    reserve = ("--set", f"storage_reserve_bytes={1 << 60}")
    ended = run(service, "backup", "create", str(target), *reserve)
    assert ended.returncode == 1
    assert "has no room for a copy of the records" in ended.stderr
    assert names(target) == []
    assert not list((service / "control").glob(".backup-*"))


async def test_full_backup_follows_a_damaged_list_of_objects(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    first = await back_up(service, target)
    second = await back_up(service, target)
    objects = stored_objects(target)
    (target / "backups" / second / "objects.json").write_text("[")
    third = await back_up(service, target)
    found = problems(target)
    assert (found[first], found[third]) == ([], [])
    assert found[second] == [
        f"{target}/backups/{second}/objects.json is damaged: use another backup"
    ]
    assert len(stored_objects(target)) == 2 * len(objects)
    last = await back_up(service, target, keep=1)
    assert problems(target) == {last: []}
    assert len(stored_objects(target)) == len(objects)


async def test_old_backups_are_removed_beside_a_damaged_one(
    new_service: NewService, tmp_path: Path
) -> None:
    """Only the list of the oldest kept backup is read, because a week has 168."""
    service, target = new_service("service"), tmp_path / "backups"
    made = [await back_up(service, target) for _ in range(4)]
    (target / "backups" / made[2] / "objects.json").write_text("[")
    made.append(await back_up(service, target, keep=4))
    assert sorted(path.name for path in (target / "backups").iterdir()) == made[1:]
    found = problems(target)
    assert [name for name in made[1:] if found[name]] == [made[2]]


async def test_target_of_an_upgrade_inside_another_has_a_retention_of_its_own(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    before = await back_up(service, target / "before-1.2.0")
    last = [await back_up(service, target, keep=1) for _ in range(2)][-1]
    assert problems(target / "before-1.2.0") == {before: []}
    assert problems(target) == {last: []}


@pytest.mark.parametrize("content", [None, b"a"])
async def test_lost_or_cut_object_of_a_target_is_stored_again(
    new_service: NewService, tmp_path: Path, content: bytes | None
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    await back_up(service, target)
    [lost, *_] = stored_objects(target)
    lost.unlink()
    if content is not None:
        lost.write_bytes(content)
    second = await back_up(service, target)
    assert problems(target)[second] == []


@pytest.mark.parametrize("hours", [1, -1])
async def test_backups_go_on_in_order_if_the_clock_was_an_hour_off(
    new_service: NewService, tmp_path: Path, hours: int
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    now = datetime(2027, 1, 15, 8, tzinfo=UTC)
    off = now + timedelta(hours=hours)
    made = [await back_up(service, target, clock=lambda: off)]
    made += [await back_up(service, target, clock=lambda: now, keep=2) for _ in range(2)]
    assert made == sorted(set(made))
    assert names(target) == made[1:]
    assert not any(problems(target).values())
    noted = json.loads((service / "control/last-backup.json").read_bytes())
    assert noted["created_ms"] == now.timestamp() * 1000


async def test_restored_service_goes_on_with_the_target_and_replaces_the_old_one(
    new_service: NewService, tmp_path: Path
) -> None:
    old, target = new_service("old"), tmp_path / "backups"
    first = await back_up(old, target)
    new = restored(target, tmp_path / "new")
    second = await back_up(old, target)
    third = await back_up(new, target, keep=1)
    assert problems(target) == {first: [], second: [], third: []}
    with pytest.raises(BackupFailed, match=f"newest backup of .*, {third}, is of another service"):
        await back_up(old, target)
    fourth = await back_up(new, target, keep=1)
    assert problems(target) == {first: [], second: [], fourth: []}
    # An older backup of the old service is restored because the new one was no good.
    again = restored(target, tmp_path / "again", "--backup", first)
    fifth = await back_up(again, target)
    assert names(target) == [first, second, fourth, fifth]


async def test_another_service_is_refused(new_service: NewService, tmp_path: Path) -> None:
    one, other, target = new_service("one"), new_service("other"), tmp_path / "backups"
    (other / "control/instance.json").unlink()
    with pytest.raises(BackupFailed, match=r"instance\.json is missing: start the service first"):
        await back_up(other, target)
    Instance.of_folder(other)
    name = await back_up(one, target)
    with pytest.raises(BackupFailed, match="is of another service: choose another target"):
        await back_up(other, target)
    assert names(target) == [name]


async def test_records_of_an_earlier_time_replace_no_good_backup(
    new_service: NewService, tmp_path: Path
) -> None:
    """Such a file is left over if the service uses PostgreSQL now, and the command has no database URL."""
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    instance = Instance.of_folder(service)
    epoch, position = instance.seen
    instance.note(epoch, position + 1)
    with pytest.raises(
        EarlierState,
        match=r"records\.db \(no database URL is set\) was restored to an earlier time",
    ):
        await back_up(service, target, keep=1)
    assert problems(target) == {name: []}


async def test_two_services_at_once_leave_each_other_complete_backups(
    new_service: NewService, tmp_path: Path
) -> None:
    """The lost machine is back, and its timer backs up into the target of its successor."""
    old, target = new_service("old"), tmp_path / "backups"
    first = await back_up(old, target)
    new = restored(target, tmp_path / "new")
    process = start_backup(old, target, *SLOW)

    def unfinished() -> bool:
        return len(list((target / "backups").iterdir())) == 2

    until(unfinished)
    process.send_signal(signal.SIGSTOP)
    made = [await back_up(new, target, keep=1) for _ in range(2)]
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    found = problems(target)
    assert len(found) == 3
    assert {first, made[-1]} < set(found)
    assert not any(found.values())
    await back_up(new, target)
    ended = run(old, "backup", "create", str(target))
    assert ended.returncode == 1
    assert "is of another service: choose another target" in ended.stderr
