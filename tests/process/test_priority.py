"""Priorities of real processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pyservice.process.priority import CONTROL_NICE

LOWERED = """
import os, subprocess, sys
from pyservice.process.priority import lower_priority, restore_priority
lower_priority()
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    restore_priority(child.pid)
    print(*(os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, child.pid)))
"""


def niceness(*before: str, nice: int) -> str:
    command = [*before, sys.executable, "-c", LOWERED]

    def set_nice() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, nice)

    return subprocess.run(
        command, check=True, capture_output=True, text=True, preexec_fn=set_nice
    ).stdout


def test_lowered_process_gives_its_child_the_normal_priority() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can raise a priority")
    assert niceness(nice=0) == f"{CONTROL_NICE} 0\n"


def test_process_that_could_not_raise_its_priority_again_keeps_it() -> None:
    without = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness(*(without if os.geteuid() == 0 else ()), nice=own) == f"{own} {own}\n"
