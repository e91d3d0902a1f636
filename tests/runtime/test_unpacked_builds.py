"""Retention of unpacked builds: a build without a run for a day is removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.runtime.unpacked_builds import UNUSED_RETENTION_S
from tests.support.build_store import BUILD, GAME, Store, open_builds, whole
from tests.support.runtime_host import disk_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "builds"


@pytest.mark.full
async def test_unused_builds_are_removed_after_a_day_or_on_a_full_disk(folder: Path) -> None:
    builds = open_builds(folder, Store(whole()))
    used, fresh, old = (f"{BUILD[:-2]}{name}" for name in ("01", "02", "03"))
    for build_id in (used, fresh, old):
        await builds.get(GAME, build_id)
    then = time.time() - UNUSED_RETENTION_S - 60
    for build_id in (used, old):
        os.utime(folder / build_id, (then, then))
    await builds.remove_unused(lambda: {used}, is_full=False)
    assert {path.name for path in folder.iterdir()} == {used, fresh}
    await builds.remove_unused(lambda: {used}, is_full=True)
    assert {path.name for path in folder.iterdir()} == {used}
    assert (await builds.get(GAME, old)).root.is_dir()


async def test_deleted_build_is_removed_when_no_run_uses_it(folder: Path) -> None:
    used, deleted, other = (f"{BUILD[:-2]}{number:02}" for number in range(3))
    builds = open_builds(folder, Store(whole()))
    for build_id in (used, deleted, other):
        await builds.get(GAME, build_id)

    async def is_deleted(build_id: str) -> bool:
        return build_id != other

    await builds.remove_unused(lambda: {used}, is_full=False, is_deleted=is_deleted)
    assert {path.name for path in folder.iterdir()} == {used, other}


def _grow_old(folder: Path, build_id: str = BUILD) -> None:
    then = time.time() - 2 * UNUSED_RETENTION_S
    os.utime(folder / build_id, (then, then))


async def test_build_stays_for_a_day_after_a_run_starts_or_ends(folder: Path) -> None:
    builds = open_builds(folder, Store(whole()))
    await builds.get(GAME, BUILD)
    _grow_old(folder)
    await builds.get(GAME, BUILD)
    await builds.remove_unused(set, is_full=False)
    assert (folder / BUILD).is_dir()
    _grow_old(folder)
    builds.mark_used(BUILD)
    await builds.remove_unused(set, is_full=False)
    assert (folder / BUILD).is_dir()
    _grow_old(folder)
    await builds.remove_unused(set, is_full=False)
    assert list(folder.iterdir()) == []
    builds.mark_used(BUILD)


async def test_build_requested_during_the_cleanup_stays_whole(folder: Path) -> None:
    store = Store(whole())
    builds = open_builds(folder, store)
    await builds.get(GAME, BUILD)
    used: set[str] = set()
    removing = asyncio.create_task(builds.remove_unused(lambda: used, is_full=True))
    await asyncio.sleep(0)
    used.add(BUILD)
    path = await builds.get(GAME, BUILD)
    await removing
    assert (path.root / "data/map").stat().st_size == 3 << 20
    assert len(store.requests) == 1


@pytest.mark.full
async def test_build_requested_during_its_removal_is_unpacked_again(folder: Path) -> None:
    store = Store(whole())
    builds = open_builds(folder, store)
    first = await builds.get(GAME, BUILD)
    for number in range(2_000):
        (first.root / f"{number}").touch()
    removing = asyncio.create_task(builds.remove_unused(set, is_full=True))
    while (folder / BUILD).exists():
        await asyncio.sleep(0)
    assert not removing.done()
    repeat = await builds.get(GAME, BUILD)
    await removing
    assert (repeat.root / "data/map").stat().st_size == 3 << 20
    assert not (repeat.root / "0").exists()
    assert [path.name for path in folder.iterdir()] == [BUILD]


async def test_start_removes_partly_removed_builds(folder: Path) -> None:
    await open_builds(folder, Store(whole())).get(GAME, BUILD)
    for name in ("unpacking", "removed"):
        (folder / f"{BUILD}.{name}").mkdir()
        shutil.copy(folder / BUILD / "boot_id", folder / f"{BUILD}.{name}")
    await open_builds(folder, Store()).remove_unused(lambda: {BUILD}, is_full=True)
    assert [path.name for path in folder.iterdir()] == [BUILD]


def _of_an_earlier_boot(folder: Path, build_id: str = BUILD) -> None:
    (folder / build_id / "boot_id").write_text("0b9e0f5c-0000-4000-8000-000000000000")


@pytest.mark.full
async def test_start_after_a_reboot_waits_for_no_removal(folder: Path) -> None:
    store = Store(whole())
    ids = [f"{BUILD[:-2]}{number:02}" for number in range(3)]
    before = open_builds(folder, store)
    for build_id in ids:
        await before.get(GAME, build_id)
        _of_an_earlier_boot(folder, build_id)
    maps = {path.stat().st_ino for path in folder.glob("*/root/data/map")}
    builds = open_builds(folder, store)
    assert {path.stat().st_ino for path in folder.glob("*/root/data/map")} == maps
    await builds.get(GAME, ids[0])
    assert store.requests.count(f"{GAME}/{ids[0]}") == 2
    _of_an_earlier_boot(folder, ids[0])
    builds = open_builds(folder, store)
    await builds.get(GAME, ids[0])
    await builds.remove_unused(set, is_full=False)
    assert [path.name for path in folder.iterdir()] == [ids[0]]


async def test_rest_of_a_failed_removal_never_counts_as_complete(folder: Path) -> None:
    store = Store(whole())
    builds = open_builds(folder, store)
    first = await builds.get(GAME, BUILD)
    _of_an_earlier_boot(folder)
    with _busy(first.root / "busy"):
        builds = open_builds(folder, store)
        await builds.remove_unused(set, is_full=False)
        repeat = await builds.get(GAME, BUILD)
        assert (repeat.root / "data/map").stat().st_size == 3 << 20
        assert len(list(folder.iterdir())) == 2
    await builds.remove_unused(set, is_full=False)
    assert [path.name for path in folder.iterdir()] == [BUILD]


@contextlib.contextmanager
def _busy(folder: Path) -> Iterator[None]:
    """Returns a folder that cannot be removed, even after its parents were renamed."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a file system")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "test", str(folder)], check=True)
    try:
        yield
    finally:
        for moved in folder.parents[2].glob("*/root/busy"):
            subprocess.run(["umount", "--lazy", str(moved)], check=True)


async def test_build_from_before_a_reboot_that_cannot_be_renamed_is_not_run(folder: Path) -> None:
    store = Store(whole())
    first = await open_builds(folder, store).get(GAME, BUILD)
    elsewhere = first.root.parent.rename(folder.parent / "elsewhere")
    with disk_of(folder / BUILD, 100) as disk:
        # A mount point cannot be renamed.
        shutil.copytree(elsewhere, disk, symlinks=True, dirs_exist_ok=True)
        _of_an_earlier_boot(folder)
        builds = open_builds(folder, store)
        with pytest.raises(OSError, match="busy"):
            await builds.get(GAME, BUILD)
    assert (await builds.get(GAME, BUILD)).root.is_dir()
    await builds.remove_unused(set, is_full=False)
    assert [path.name for path in folder.iterdir()] == [BUILD]


async def test_unreadable_build_stays_for_its_runs(folder: Path) -> None:
    store = Store(whole())
    first = await open_builds(folder, store).get(GAME, BUILD)
    boot_id = folder / BUILD / "boot_id"
    content = boot_id.read_bytes()
    boot_id.unlink()
    boot_id.symlink_to("/proc/self/mem")
    builds = open_builds(folder, store)
    assert first.root.is_dir()
    with pytest.raises(OSError, match="Input/output error"):
        await builds.get(GAME, BUILD)
    boot_id.unlink()
    boot_id.write_bytes(content)
    assert await builds.get(GAME, BUILD) == first
    assert len(store.requests) == 1
