"""`pyservice deploy` with a build of 2 GiB: in parts, with little memory, and after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pyservice_cli.failures import ExitStatus
from tests.support.forward_proxy import Moment, RequestLost, forward_proxy
from tests.support.game_folder import GameFolder
from tests.support.game_folder import folder as folder

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]

MIB: Final = 1 << 20
BUILD_BYTES: Final = 2 << 30
PART_BYTES: Final = 64 * MIB
MEMORY_MAX_KIB: Final = 100 << 10
"""Memory of the command, of which the interpreter and its modules take about 50 MiB."""
PROGRAM: Final = """
import os, pathlib, pyservice_cli
try:
    pyservice_cli.main()
finally:
    # The maximum of `getrusage` includes the process that started this one.
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path(os.environ["MEMORY_FILE"]).write_text(status.partition("VmHWM:")[2].split()[0])
"""


@pytest.fixture
def large_file(folder: GameFolder) -> Iterator[Path]:
    """A file of different blocks, none of which can be compressed."""
    path = folder.path / "level.map"
    block = os.urandom(MIB)
    with path.open("wb") as file:
        for number in range(BUILD_BYTES // MIB):
            file.write(number.to_bytes(8) + block[8:])
    yield path
    path.unlink()


@pytest.mark.usefixtures("large_file")
def test_build_of_2_gib_is_sent_in_parts_with_little_memory(
    folder: GameFolder, tmp_path: Path
) -> None:
    output, memory = tmp_path / "output", tmp_path / "memory"
    count = BUILD_BYTES // PART_BYTES + 1
    parts = 0
    process: subprocess.Popen[bytes] | None = None

    def interrupt_in_the_middle(name: str, moment: Moment) -> None:
        nonlocal parts
        if name.startswith("PUT /.objects") and moment is Moment.ARRIVED:
            parts += 1
            if parts == count // 2:
                assert process is not None
                process.send_signal(signal.SIGINT)
                raise RequestLost

    def deploy() -> int:
        """Returns the exit status. Fails if the command needs too much memory."""
        nonlocal process
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "deploy"],
                cwd=folder.path,
                env={**os.environ, **proxy.environment(), "MEMORY_FILE": str(memory)},
                stdout=file,
                stderr=file,
            )
        status = process.wait()
        print(f"exit status {status}, {memory.read_text()} KiB\n{output.read_text()}")
        assert int(memory.read_text()) < MEMORY_MAX_KIB
        return status

    with forward_proxy() as proxy:
        proxy.when = interrupt_in_the_middle
        assert deploy() == ExitStatus.INTERRUPTED
        first = parts - 1
        assert deploy() == ExitStatus.DONE, output.read_text()
    assert f"{count - first} parts are missing" in output.read_text()
    assert parts - 1 == count
    (build,) = folder.api.get(f"{folder.game}/builds")["builds"]
    assert build["complete"] is True
    assert int(build["content_length"]) > BUILD_BYTES
