"""Containers of the host's own programs, started by a real keeper and OCI runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pyservice.runtime.containers import PATH, ContainerRuntime
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.root_filesystem import ContainerProgram, container_root_uid
from pyservice.runtime.run_folder import KeeperSpec, RunFolder
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS
from tests.support.waiting import eventually

INSIDE: Final = ContainerProgram((), (), {}, "/", 0, 0, (), "/", is_readonly=False)
SHARED: Final = [path for path in ("/usr", "/bin", "/lib", "/lib64") if os.path.isdir(path)]


def start_container(containers: ContainerRuntime, folder: Path, *command: str) -> RunFolder:
    root = folder / "root"
    run = RunFolder(folder / "run")
    around = containers.command(root, run.path, run.scratch)
    run.prepare(KeeperSpec("run", around, Path("/"), {"PATH": PATH}, "processes"))
    root.mkdir(mode=0o755)
    of_root = container_root_uid(DEFAULT_CONTAINER_USER_IDS.numbers)
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
