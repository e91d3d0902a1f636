"""Parent group of version 2 for an ordinary user, in the layouts of systemd units and containers.

The kernel's rules are tested with any controller that this machine has left to version 2. Limits of
memory, CPU, processes and I/O need a machine with all controllers in version 2:
`test_control_groups.py` tests them there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.run_requests import Resources
from tests.support.unified_groups import UnifiedGroups, unified_groups
from tests.support.unprivileged_python import interpreter

PROJECT: Final = Path(__file__).parents[2]
FIND: Final = """
import sys
from pathlib import Path
from pyservice.runtime.control_groups import find_parent

def own_group():
    return Path("/proc/self/cgroup").read_text().splitlines()[-1].removeprefix("0::")

root, controller = sys.argv[1:]
print(find_parent(Path(root), own_group(), "parent", [controller], ["missing"]))
print(own_group())
"""


@pytest.fixture
def groups() -> Iterator[UnifiedGroups]:
    with unified_groups() as groups:
        yield groups


@pytest.fixture
def python(tmp_path: Path) -> Sequence[str]:
    return interpreter(tmp_path)


def find(groups: UnifiedGroups, python: Sequence[str], own: str) -> tuple[str, str]:
    """Returns the parent that a process of the user finds, and the process's group afterwards.

    The process starts in the group `own`. Paths are relative to the folder of the test.
    """
    join = f'echo 0 > {groups.path(own)}/cgroup.procs; exec "$@"'
    words = ["sh", "-ec", join, "sh", *python, "-c", FIND, str(groups.root), groups.controller]
    result = subprocess.run(words, capture_output=True, text=True, check=True, cwd=PROJECT)
    found, now = result.stdout.splitlines()
    return found.removeprefix(f"{groups.folder}/"), now.removeprefix(f"/{groups.folder.name}/")


def test_group_without_delegation_is_not_used(groups: UnifiedGroups, python: Sequence[str]) -> None:
    groups.make("own")
    assert find(groups, python, "own") == ("None", "own")


def test_parent_is_below_a_delegated_slice(groups: UnifiedGroups, python: Sequence[str]) -> None:
    """The unit's own group stays free of controllers, so systemd can start the service again."""
    groups.make("hosting.slice", "hosting.slice/hosting.service")
    groups.give("hosting.slice", "hosting.slice/hosting.service")
    own = "hosting.slice/hosting.service"
    assert find(groups, python, own) == ("hosting.slice/parent", own)
    assert groups.enabled("hosting.slice/parent") == {groups.controller}
    assert groups.enabled(own) == set()
    groups.make("hosting.slice/parent/run")
    survivor = groups.start_in("hosting.slice/parent/run")
    assert find(groups, python, own) == ("hosting.slice/parent", own)
    assert groups.processes("hosting.slice/parent/run") == {survivor}


def test_processes_of_a_delegated_group_move_below_it(
    groups: UnifiedGroups, python: Sequence[str]
) -> None:
    groups.make("container")
    groups.give("container")
    other = groups.start_in("container")
    with pytest.raises(OSError, match="busy"):
        (groups.path("container") / "cgroup.subtree_control").write_text(f"+{groups.controller}")
    assert find(groups, python, "container") == ("container/parent", "container/service")
    assert groups.enabled("container") == {groups.controller}
    assert groups.processes("container") == set()
    assert groups.processes("container/service") == {other}
    # A restart starts in the group of the process that starts it.
    assert find(groups, python, "container/service") == ("container/parent", "container/service")


def test_group_of_a_systemd_service_keeps_its_processes(
    groups: UnifiedGroups, python: Sequence[str]
) -> None:
    """Otherwise systemd could not start the service again while game servers run."""
    groups.make("hosting.service")
    groups.give("hosting.service")
    assert find(groups, python, "hosting.service") == ("None", "hosting.service")
    assert not groups.path("hosting.service/parent").exists()


def test_parent_is_beside_a_delegated_subgroup_of_systemd(
    groups: UnifiedGroups, python: Sequence[str]
) -> None:
    groups.make("hosting.service", "hosting.service/main")
    groups.give("hosting.service", "hosting.service/main")
    found = ("hosting.service/parent", "hosting.service/main")
    assert find(groups, python, "hosting.service/main") == found


def test_start_of_a_process_in_a_group_with_controllers_fails(groups: UnifiedGroups) -> None:
    """The rule of the kernel for which a unit's own group stays free of controllers."""
    groups.make("hosting.service", "hosting.service/parent", "hosting.service/parent/run")
    for name in ("hosting.service", "hosting.service/parent"):
        (groups.path(name) / "cgroup.subtree_control").write_text(f"+{groups.controller}")
    groups.start_in("hosting.service/parent/run")
    groups.make("other")
    started = groups.start_in("other")
    with pytest.raises(OSError, match="busy"):
        (groups.path("hosting.service") / "cgroup.procs").write_text(str(started))


def test_limits_of_version_2_follow_the_tier(tmp_path: Path) -> None:
    """Imitates no kernel: only the files and their content."""
    groups = ControlGroups(
        tmp_path, tmp_path, is_unified=True, network=tmp_path, processes=tmp_path, io=tmp_path
    )
    contents = {
        millicores: {
            Path(step.path).name: step.content.decode()
            for step in groups.steps("run", Resources(millicores, 64))
            if step.what != "group"
        }
        for millicores in (5, 125, 1_000, 50_000, 500_000)
    }
    assert contents[125] == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.weight": "12",
        "pids.max": "4096",
        "io.weight": "12",
        "io.bfq.weight": "12",
    }
    names = ("cpu.weight", "io.weight", "io.bfq.weight")
    weights = {cpu: tuple(int(files[name]) for name in names) for cpu, files in contents.items()}
    assert weights[5] == (1, 1, 1)
    assert weights[1_000] == (100, 100, 100)
    assert weights[50_000] == (5_000, 5_000, 1_000)
    assert weights[500_000] == (10_000, 10_000, 1_000)


def test_missing_limits_are_named(tmp_path: Path) -> None:
    none = {problem.partition(":")[0] for problem in ControlGroups(None, None).unenforced}
    assert none == {
        "memory is watched twice a second, not limited",
        "processors are shared by nice values",
        "processes are limited for each user only",
        "disk I/O is not shared by weight",
    }
    every = ControlGroups(tmp_path, tmp_path, processes=tmp_path, io=tmp_path)
    assert every.unenforced == []
