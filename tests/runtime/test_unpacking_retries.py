"""Retries of builds that a node cannot unpack at the moment.

The node retries until the run's deadline. A run without its build ends with a reason.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime import run_lifecycle
from pyservice.runtime.build_worker import NoDiskSpace
from pyservice.runtime.run_requests import RunEnd, RunRequest
from pyservice.runtime.unpacked_builds import BuildSource, BuildUnusable, UnpackedBuilds
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.objects import Objects
from pyservice.storage.signed_urls import UrlSigner
from tests.support.build_store import BUILD, GAME, MANIFEST, Store, open_builds
from tests.support.runtime_host import RuntimeHost, build_of, disk_of, open_host, until
from tests.support.upload_files import tar

pytestmark = pytest.mark.anyio

LATE: Final = RunEnd(
    "build_unusable", message="the build could not be fetched and unpacked in time"
)
INODES: Final = 20


@contextlib.contextmanager
def full_but_for(disk: Path, inodes: int) -> Iterator[None]:
    filling = [disk / f"{number}" for number in range(os.statvfs(disk).f_favail - inodes)]
    for path in filling:
        path.touch()
    assert os.statvfs(disk).f_favail == inodes
    yield
    for path in filling:
        path.unlink()


@pytest.mark.parametrize("inodes", [0, 1, 2, 3])
async def test_unpacking_waits_on_a_full_disk_at_every_step(tmp_path: Path, inodes: int) -> None:
    with disk_of(tmp_path / "disk", INODES) as disk:
        builds = open_builds(disk / "builds", Store(tar({"server.json": MANIFEST})))
        with full_but_for(disk, inodes):
            with pytest.raises(NoDiskSpace):
                await builds.get(GAME, BUILD)
            assert list((disk / "builds").iterdir()) == []
        assert (await builds.get(GAME, BUILD)).root.is_dir()


async def test_machine_fault_does_not_reject_the_build(tmp_path: Path) -> None:
    archive = tar({"server.json": MANIFEST})
    with disk_of(tmp_path / "disk", INODES) as disk:

        async def blocks() -> AsyncIterator[bytes]:
            yield archive[:512]
            _mount_again(disk, "ro")
            yield archive[512:]

        async def fetch(game_id: str, build_id: str) -> BuildSource:
            return BuildSource("archive", "none", None, blocks(), len(archive))

        builds = UnpackedBuilds(disk / "builds", fetch, 0)
        builds.recover()
        with pytest.raises(OSError, match="Read-only file system"):
            await builds.get(GAME, BUILD)
        _mount_again(disk, "rw")
        builds = open_builds(disk / "builds", Store(archive))
        assert (await builds.get(GAME, BUILD)).root.is_dir()


def _mount_again(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[RuntimeHost]:
    node = tmp_path / "node"
    node.mkdir()
    with disk_of(tmp_path / "disk", INODES) as disk:
        async with open_host(node, disk / "builds") as host:
            host.store.archives[BUILD] = build_of("sleep", "3600")
            yield host


async def waiting(host: RuntimeHost) -> RunRequest:
    order = host.want(build_id=BUILD, args=())
    await until(lambda: len(host.store.requests) > 1)
    assert host.supervisor.runs[order.id].state == "preparing"
    return order


async def test_run_waits_for_disk_space_and_starts(host: RuntimeHost) -> None:
    with full_but_for(host._builds.parent, 0):
        order = await waiting(host)
    await host.reports.wait_for(order.id, "running")
    assert host.reports.of(order.id) == ["placed", "running"]


async def test_run_waits_for_a_temporary_fault_and_starts(host: RuntimeHost) -> None:
    builds = host._builds
    builds.rename(builds.parent / "elsewhere")
    # No folder can be created below a dangling link, and this is not a full disk.
    builds.symlink_to("nothing")
    order = await waiting(host)
    builds.unlink()
    (builds.parent / "elsewhere").rename(builds)
    await host.reports.wait_for(order.id, "running")
    assert host.reports.of(order.id) == ["placed", "running"]


@pytest.mark.parametrize("is_full", [True, False])
async def test_run_without_its_build_ends_with_a_reason(
    host: RuntimeHost, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    monkeypatch.setattr(run_lifecycle, "BUILD_TIMEOUT_S", 0.5)
    with full_but_for(host._builds.parent, 0) if is_full else contextlib.nullcontext():
        if not is_full:
            (host._builds / f"{BUILD}.unpacking").symlink_to("/proc")
        order = host.want(build_id=BUILD, args=())
        assert await host.reports.end(order.id) == LATE
    await until(lambda: order.id not in host.supervisor.runs)
    assert host.supervisor.capacity.free == host.capacity


async def test_missing_build_file_is_named(tmp_path: Path) -> None:
    signer = UrlSigner(secrets.token_bytes(32))
    blobs = FolderBlobStore(tmp_path / "objects", signer, "http://cdn.invalid", 0)
    objects = Objects(blobs, signer, "http://cdn.invalid")

    async def fetch(game_id: str, build_id: str) -> BuildSource:
        return BuildSource(
            "archive", "none", None, objects.read(f"builds/{build_id}/image"), 10_240
        )

    try:
        builds = UnpackedBuilds(tmp_path / "builds", fetch, 0)
        builds.recover()
        with pytest.raises(BuildUnusable, match="the file that was uploaded is missing") as caught:
            await builds.get(GAME, BUILD)
        assert str(tmp_path) not in str(caught.value)
        assert list((tmp_path / "builds").iterdir()) == []
    finally:
        blobs.close()
