"""Backups of a data directory: what they need of it, and what they leave in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyservice.backup.target import BackupFailed
from pyservice.storage.ownership import Instance
from tests.support.backups import SLOW, back_up, names, problems, start_backup
from tests.support.command_line import run
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

NewService = Callable[[str], Path]


def restored(target: Path, data_dir: Path, *words: str) -> Path:
    ended = run(data_dir, "restore", str(target), "--yes", *words)
    assert ended.returncode == 0, ended.stderr
    # The first start does this.
    Instance.of_folder(data_dir)
    return data_dir


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
