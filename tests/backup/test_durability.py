"""Backups in a folder and restores: they are durable, and an error of the disk fails the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyservice.data_formats import UNFINISHED_RESTORE
from tests.support.backups import back_up, names, problems
from tests.support.command_line import run
from tests.support.fault_shim import Shim, compiled_library

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

NewService = Callable[[str], Path]


def shim_of(folder: Path) -> Shim:
    return Shim(compiled_library(), folder.with_name("shim"), folder)


@pytest.mark.parametrize(
    "file",
    [
        *("", "objects/*/kept", "objects/*.part", "objects/*/kept/*-????????????"),
        *("backups/*/records.db.part", "backups/*/manifest.json.part", "backups/*-????????"),
    ],
)
async def test_backup_fails_if_its_disk_does_not_sync(
    new_service: NewService, tmp_path: Path, file: str
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    shim = shim_of(target)
    rule = shim.fail("fsync", file)
    ended = run(service, "backup", "create", str(target), **shim.environment())
    assert (ended.returncode, rule.hits) == (1, 1), ended.stderr
    assert "backups cannot be used: [Errno 5] Input/output error" in ended.stderr
    assert not (service / "control/last-backup.json").exists()
    rule.release()
    assert run(service, "backup", "create", str(target)).returncode == 0
    assert not any(problems(target).values())
    assert names(target)


@pytest.mark.parametrize(
    "file", ["control/records.db", "control/objects/kept/*", "control/objects"]
)
async def test_restore_fails_if_its_disk_does_not_sync(
    new_service: NewService, tmp_path: Path, file: str
) -> None:
    target, new = tmp_path / "backups", tmp_path / "new"
    await back_up(new_service("service"), target)
    shim = shim_of(new)
    rule = shim.fail("fsync", file)
    ended = run(new, "restore", str(target), "--yes", **shim.environment())
    assert (ended.returncode, rule.hits) == (1, 1), ended.stderr
    assert "new cannot be written: Input/output error" in ended.stderr
    assert (new / UNFINISHED_RESTORE).exists()
    rule.release()
    ended = run(new, "restore", str(target), "--yes")
    assert ended.returncode == 0, ended.stderr
