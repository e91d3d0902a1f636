"""Size limits of scratch folders: real keepers, images and processes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyservice.runtime import scratch_folders
from pyservice.runtime.build_manifests import BadManifest, read_bundle_config, read_server_json
from pyservice.runtime.full_scratch import FullScratch
from pyservice.runtime.isolation_trials import choose_isolation, choose_scratch
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.node_preparation import SYSTEM_PATHS
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.scratch_folders import (
    IMAGE,
    SCRATCH_BYTES_MIN,
    ScratchLimits,
    ScratchWatch,
    remove_templates,
)
from tests.runtime.unstarted_runs import laid_out
from tests.support.runtime_host import RuntimeHost, until
from tests.support.scratch_images import needs_loop_devices, needs_mke2fs
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

MIB = 1 << 20
FILL = (
    'head -c 10G /dev/zero 2>&1 >"$HOME/big" | grep -o "No space left on device"; '
    'stat -c %s "$HOME/big"; echo full; exec sleep 3600'
)
FILL_QUIETLY = 'head -c 10G /dev/zero >"$HOME/big" 2>/dev/null; echo full; exec sleep 3600'
WRITE_ONCE = (
    'while [ ! -e "$HOME/end" ]; do sleep 0.1; echo x >"$HOME/one" && touch "$HOME/end"; done; '
    'cat "$HOME/one"; exec sleep 3600'
)


async def limited(host: RuntimeHost, folder: Path, reserve_bytes: int = 0) -> ScratchLimits:
    """Gives the runs of the host the isolation of this machine and limited scratch folders."""
    folder.parent.chmod(0o755)
    isolation = await choose_isolation("auto", KEEPER_BINARY, folder, SYSTEM_PATHS)
    limits, problem = await choose_scratch(isolation, KEEPER_BINARY, folder, SYSTEM_PATHS, 64 * MIB)
    assert limits.kind != "folder", problem
    host.node = dataclasses.replace(
        host.node,
        isolation=isolation,
        shared_paths=SYSTEM_PATHS,
        scratch=limits,
        reserve_bytes=reserve_bytes,
    )
    await host.anew()
    return limits


async def output(host: RuntimeHost, run_id: str, last: str) -> list[str]:
    folder = host.folder / "servers" / run_id

    async def look_up() -> list[str]:
        lines = [line.text for line in RunFolder(folder).lines()]
        return lines if last in lines else []

    lines: list[str] = await eventually(look_up)
    return lines


def loop_devices(folder: Path) -> Iterator[str]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            file = backing.read_text().strip()
        except OSError:
            continue
        if file.startswith(str(folder)):
            yield file


async def no_loop_devices(folder: Path) -> bool:
    return not list(loop_devices(folder))


async def no_images(folder: Path) -> bool:
    return not list(folder.glob(f"*/{IMAGE}"))


async def test_server_that_writes_10_gb_gets_enospc_and_a_bystander_does_not(
    host: RuntimeHost,
) -> None:
    limits = await limited(host, host.folder / "servers")
    hostile, bystander = host.want(FILL, disk_mb=32), host.want(WRITE_ONCE, disk_mb=32)
    said, size, _ = await output(host, hostile.id, "full")
    assert said == "No space left on device"
    assert 28 * MIB <= int(size) <= 32 * MIB
    assert await output(host, bystander.id, "x") == ["x"]
    assert not (host.of(hostile).scratch / "big").exists(), "the folder of the host was written"
    is_image = limits.kind == "image"
    assert len(list(loop_devices(host.folder))) == (2 if is_image else 0)
    for run in (hostile, bystander):
        host.supervisor.end(run.id, 0)
        assert (await host.reports.end(run.id)).reason == "stopped"
    assert await eventually(lambda: no_loop_devices(host.folder))
    assert await eventually(lambda: no_images(host.folder / "servers"))


@needs_loop_devices
async def test_missing_mke2fs_leaves_folders_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_folders, "_PATH", str(tmp_path))
    limits, problem = await choose_scratch(
        "user", KEEPER_BINARY, tmp_path / "servers", SYSTEM_PATHS, 64 * MIB
    )
    assert limits.kind == "memory"
    assert "e2fsprogs" in problem
    assert not list((tmp_path / "servers").iterdir()), "the trials left files"


@needs_loop_devices
@needs_mke2fs
async def test_run_that_was_laid_out_before_a_restart_keeps_its_template(host: RuntimeHost) -> None:
    servers = host.folder / "servers"
    limits = await limited(host, servers)
    unused = limits.template(32 * MIB)
    assert unused is not None
    order = await laid_out(host)
    remove_templates(servers)
    assert not unused.exists()
    host.supervisor.ensure_running(order)
    await host.reports.wait_for(order.id, "running")
    host.supervisor.end(order.id, 0)
    assert (await host.reports.end(order.id)).reason == "stopped"
    remove_templates(servers)
    assert not list(servers.glob(".scratch-*")), "a started run has its copy"


@needs_loop_devices
@needs_mke2fs
async def test_killed_keeper_leaves_no_image(host: RuntimeHost) -> None:
    await limited(host, host.folder / "servers")
    order = host.want("echo up; exec sleep 3600")
    await output(host, order.id, "up")
    state = host.of(order).state()
    assert state is not None
    os.kill(state.keeper_pid, 9)
    assert (await host.reports.end(order.id)).reason == "lost"
    assert await eventually(lambda: no_loop_devices(host.folder))

    async def is_removed() -> bool:
        return not (host.of(order).path / IMAGE).exists()

    assert await eventually(is_removed)


@needs_loop_devices
@needs_mke2fs
async def test_largest_scratch_folder_ends_before_the_disk_is_full(host: RuntimeHost) -> None:
    status = os.statvfs(host.folder)
    # Half of this reserve is above the free space, as on a full disk.
    reserve = status.f_bavail * status.f_frsize * 3
    await limited(host, host.folder / "servers")
    host.node = dataclasses.replace(host.node, reserve_bytes=0)
    small = host.want("echo up; exec sleep 3600")
    large = host.want(
        'head -c 40M /dev/zero >"$HOME/big"; sync "$HOME/big"; echo up; exec sleep 3600'
    )
    for run in (small, large):
        await output(host, run.id, "up")
    host.node = dataclasses.replace(host.node, reserve_bytes=reserve)
    await host.anew()
    end = await host.reports.end(large.id)
    assert end.reason == "out_of_disk"
    assert "largest" in end.message
    assert end.started_ms is not None
    assert host.supervisor.is_known(small.id)


def test_watch_expects_the_growth_of_the_last_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / IMAGE).open("wb") as image:

        def file_system_of_image(_: object) -> SimpleNamespace:
            """Other programs use the real file system."""
            used = os.fstat(image.fileno()).st_blocks * 512
            return SimpleNamespace(f_bavail=3 * 1024 * MIB - used, f_frsize=1)

        monkeypatch.setattr(os, "statvfs", file_system_of_image)
        watch = ScratchWatch(tmp_path, 2 * 1024 * MIB)
        assert watch.run_to_end(["run", "ended"]) is None
        os.posix_fallocate(image.fileno(), 0, 1200 * MIB)
        assert watch.run_to_end(["run"]) == "run"
        assert watch.run_to_end(["run"]) is None, "the image does not grow"


def test_size_is_the_lowest_limit(tmp_path: Path) -> None:
    limits = ScratchLimits("image", 1024 * MIB, tmp_path)
    assert limits.size(0, 0, 64) == 1024 * MIB
    assert limits.size(100, 512, 64) == 100 * MIB
    assert limits.size(2048, 512, 64) == 512 * MIB
    assert limits.size(0, 1, 64) == SCRATCH_BYTES_MIN
    in_memory = ScratchLimits("memory", 1024 * MIB, tmp_path)
    assert in_memory.size(0, 512, 128) == 64 * MIB


@needs_loop_devices
@needs_mke2fs
def test_template_is_formatted_once_and_takes_little_space(tmp_path: Path) -> None:
    limits = ScratchLimits("image", 1024 * MIB, tmp_path)
    template = limits.template(1024 * MIB)
    assert template is not None
    before = template.stat()
    assert limits.template(1024 * MIB) == template
    assert template.stat() == before
    assert before.st_size == 1024 * MIB
    assert before.st_blocks * 512 < 2 * MIB
    remove_templates(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [15, True, "64", 1.5, 1 << 21])
def test_wrong_size_in_a_manifest_is_refused(size: object) -> None:
    with pytest.raises(BadManifest, match="scratch_mb must be a whole number from 16"):
        read_server_json(json.dumps({"command": ["./x"], "scratch_mb": size}).encode())


def test_manifests_have_a_size() -> None:
    server = {"command": ["./x"], "scratch_mb": 64}
    assert read_server_json(json.dumps(server).encode()).scratch_mb == 64
    label = {"hosting.scratch_mb": "64"}
    bundle = {"process": {"args": ["/x"]}, "root": {}, "annotations": label}
    assert read_bundle_config(json.dumps(bundle).encode()).scratch_mb == 64
    label["hosting.scratch_mb"] = "1"
    with pytest.raises(BadManifest, match=r"hosting\.scratch_mb must be"):
        read_bundle_config(json.dumps(bundle).encode())


@pytest.mark.full
async def test_full_folder_is_named_while_the_program_runs(host: RuntimeHost) -> None:
    await limited(host, host.folder / "servers")
    full = await host.running(FILL_QUIETLY, disk_mb=16)
    other = await host.running(disk_mb=16)
    assert await host.lines(full, 1) == ["full"]
    scratch = FullScratch()
    for _ in range(2):
        await scratch.check(host.supervisor.runs)
    sentence = scratch.problem(full.id)
    assert sentence is not None
    assert sentence.startswith("The scratch folder is full (16 MiB): write less, or ")
    assert scratch.problem(other.id) is None

    def service_lines() -> list[str]:
        return [line.text for line in host.of(full).lines() if line.stream == "service"]

    await until(lambda: service_lines() == [sentence])
    host.supervisor.end(full.id, 0)
    await host.reports.end(full.id)
    await until(lambda: full.id not in host.supervisor.runs)
    await scratch.check(host.supervisor.runs)
    assert (scratch.problem(full.id), service_lines()) == (None, [sentence])
