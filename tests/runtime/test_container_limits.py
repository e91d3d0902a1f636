from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from pyservice.app.game_runtime import KEEPER_BINARY
from pyservice.runtime.containers import PATH, PROCESSES_MAX, ContainerRuntime, process_limits
from pyservice.runtime.isolation_trials import choose_container_runtime
from pyservice.runtime.root_filesystem import ContainerProgram, container_root_uid
from pyservice.runtime.run_folder import KeeperSpec, RunFolder
from tests.support.container_images import needs_oci_runtime
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full]

INSIDE: Final = ContainerProgram((), (), {}, "/", 0, 0, (), "/", is_readonly=False)
SHARED: Final = [path for path in ("/usr", "/bin", "/lib", "/lib64") if os.path.isdir(path)]
FORKS: Final = """$| = 1;
while (defined($pid = fork)) { $pid or sleep 1000; $made++ }
print "$made\\n";
sleep 1000"""
FEW: Final = 8
"""Without root, the OCI runtime's own processes count against the limit too."""


def start_container(containers: ContainerRuntime, folder: Path, *command: str) -> RunFolder:
    root = folder / "root"
    run = RunFolder(folder / "run")
    around = containers.command(root, run.path, run.scratch)
    run.prepare(KeeperSpec("run", around, Path("/"), {"PATH": PATH}, "processes"))
    root.mkdir(mode=0o755)
    of_root = container_root_uid()
    if of_root is not None:
        os.chown(root, of_root, of_root)
    containers.write_bundle(run.path, INSIDE, command, {"PATH": PATH}, SHARED)
    run.start(KEEPER_BINARY)
    return run


async def output_lines(run: RunFolder) -> list[str]:
    async def looked() -> list[str]:
        return [line.text for line in run.lines()]

    lines: list[str] = await eventually(looked)
    return lines


@needs_oci_runtime
async def test_fork_bomb_in_a_container_ends_with_its_container(tmp_path: Path) -> None:
    if not process_limits(os.uname().release):
        pytest.skip("this kernel counts all containers as one user")
    runtime, problem = await choose_container_runtime(None, KEEPER_BINARY, tmp_path)
    assert runtime is not None, problem
    greedy = start_container(runtime, tmp_path / "greedy", "/usr/bin/perl", "-e", FORKS)
    try:
        [count] = await output_lines(greedy)
        assert PROCESSES_MAX - FEW <= int(count) < PROCESSES_MAX
        other = start_container(
            runtime, tmp_path / "other", "/bin/sh", "-c", "sleep 0 & wait; echo well"
        )
        assert await output_lines(other) == ["well"]
        files = start_container(runtime, tmp_path / "files", "/bin/sh", "-c", "ulimit -Hn")
        [most] = await output_lines(files)
        assert int(most) <= 65_536
    finally:
        greedy.stop(0)


def test_process_limit_requires_linux_5_14() -> None:
    assert process_limits("5.13.19-generic") == []
    for release in ("5.14.0", "6.1.0-18-amd64", "10.0"):
        [limit] = process_limits(release)
        assert limit["type"] == "RLIMIT_NPROC"
        assert 0 < limit["hard"] <= PROCESSES_MAX
