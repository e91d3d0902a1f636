from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.containers import PROCESSES_MAX, process_limits
from pyservice.runtime.isolation_trials import choose_container_runtime
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from tests.support.bare_containers import output_lines, start_container
from tests.support.container_images import needs_oci_runtime

pytestmark = [pytest.mark.anyio, pytest.mark.full]

FORKS: Final = """$| = 1;
while (defined($pid = fork)) { $pid or sleep 1000; $made++ }
print "$made\\n";
sleep 1000"""
FEW: Final = 8
"""Without root, the OCI runtime's own processes count against the limit too."""


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
