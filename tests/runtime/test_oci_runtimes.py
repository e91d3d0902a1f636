"""Detection of a working OCI runtime, and its handling of a bundle.

The tests run as root and not, for each kind of scratch folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.containers import (
    PATH,
    ContainerRuntime,
    mount_point_outside,
    runtime_failure,
)
from pyservice.runtime.isolation_trials import choose_container_runtime
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.root_filesystem import ContainerProgram, RootFilesystem, container_root_uid
from pyservice.runtime.run_folder import KeeperSpec, RunFolder
from pyservice.runtime.scratch_folders import ScratchKind, ScratchLimits
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS
from tests.support.container_images import PROGRAM, needs_oci_runtime, server_program
from tests.support.scratch_images import needs_loop_devices, needs_mke2fs
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

INSIDE: Final = ContainerProgram((), (), {}, "/", 0, 0, (), "/", is_readonly=False)
AS_NOBODY: Final = """
import asyncio, concurrent.futures.thread, os, sys
from pathlib import Path
from pyservice.runtime.isolation_trials import choose_container_runtime
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
folder = Path(sys.argv[1])
print(*asyncio.run(choose_container_runtime(None, folder / "keeper", folder / "trials")))
"""
"""The Python installation may be in a folder that only root can read."""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@needs_oci_runtime
async def test_oci_runtime_of_the_machine_is_found(tmp_path: Path) -> None:
    runtime, problem = await choose_container_runtime(None, KEEPER_BINARY, tmp_path)
    assert runtime is not None, problem
    assert shutil.which(runtime.runtime.name, path=PATH) == str(runtime.runtime)
    assert list(tmp_path.iterdir()) == [], "the trial left no files"


async def test_missing_and_broken_runtimes_are_reported(tmp_path: Path) -> None:
    idle = tmp_path / "crun-that-does-nothing"
    idle.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    idle.chmod(0o755)
    for runtime, words in ((tmp_path / "nowhere", "nowhere"), (idle, "exited with 3")):
        chosen, problem = await choose_container_runtime(
            runtime, KEEPER_BINARY, tmp_path / "trials"
        )
        assert chosen is None
        assert str(runtime) in problem
        assert words in problem


@pytest.mark.full
@needs_oci_runtime
@pytest.mark.skipif(os.geteuid() != 0, reason="another user than root is tried by root")
async def test_ordinary_user_can_run_containers(open_folder: Path) -> None:
    shutil.copy(KEEPER_BINARY, open_folder / "keeper")
    result = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(open_folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.startswith("ContainerRuntime("), (result.stdout, result.stderr)


@pytest.mark.full
@needs_oci_runtime
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("image", marks=(needs_loop_devices, needs_mke2fs)),
        "memory",
        "folder",
    ],
)
async def test_container_writes_to_an_overlay_and_the_root_is_unchanged(
    tmp_path: Path, kind: ScratchKind
) -> None:
    runtime, _ = await choose_container_runtime(None, KEEPER_BINARY, tmp_path)
    assert runtime is not None
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / PROGRAM[1:]).write_bytes(server_program())
    (root / PROGRAM[1:]).chmod(0o755)
    RootFilesystem(root, container_root_uid(DEFAULT_CONTAINER_USER_IDS.numbers), lambda _: None)
    run = RunFolder(tmp_path / "run")
    containers = ContainerRuntime(runtime.runtime, runtime.mount_point)
    command = containers.command(root, run.path, run.scratch)
    spec = KeeperSpec("run", command, Path("/"), {"PATH": PATH}, "processes")
    if kind != "folder":
        size = 16 << 20
        template = ScratchLimits(kind, size, tmp_path).template(size)
        spec = replace(spec, scratch=run.scratch, scratch_bytes=size, scratch_template=template)
    run.prepare(spec)
    play = {"PLAY": "write:/own write:/tmp/own see:/ exit:3"}
    containers.write_bundle(run.path, INSIDE, [PROGRAM], play)
    run.start(KEEPER_BINARY)

    async def is_over() -> bool:
        return not run.is_kept()

    await eventually(is_over)
    state = run.state()
    assert state is not None
    lines = [line.text for line in run.lines()]
    assert (state.status, state.exit_code, runtime_failure(run)) == ("ended", 3, None), lines
    assert lines[1:] == [
        "write /own written",
        "write /tmp/own written",
        "see / bin dev etc own proc tmp",
    ]
    assert sorted(path.name for path in root.iterdir()) == ["bin"]
    is_in_folder = (run.scratch / "upper" / "own").exists()
    assert is_in_folder == (kind == "folder")


@pytest.mark.full
@needs_oci_runtime
@pytest.mark.skipif(os.geteuid() != 0, reason="a folder of the machine is written by root")
async def test_data_directory_may_be_at_a_container_mount_point() -> None:
    with tempfile.TemporaryDirectory(dir="/mnt") as name:
        runtime, problem = await choose_container_runtime(None, KEEPER_BINARY, Path(name))
        assert runtime is not None, problem
        assert runtime.mount_point != "/mnt"


def test_container_mounts_hide_nothing_that_is_needed() -> None:
    assert mount_point_outside(Path("/var/lib/data"), Path("/usr/bin/crun")) == "/mnt"
    assert mount_point_outside(Path("/mnt/data"), Path("/usr/bin/crun")) not in ("/mnt", None)
    assert (
        mount_point_outside(*map(Path, ("/mnt/a", "/media/a", "/srv/a", "/opt/a", "/run/a")))
        is None
    )
