"""Skips of tests: `.ci/run` fails a test that lacks a program, and every reason says what is missing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.tiers import INSTALLABLE

ROOT: Final = Path(__file__).resolve().parents[2]

# CI cannot install rights, features of the kernel, another architecture, or a newer version than the system has.
MACHINE: Final = re.compile(
    r"\b(root|user|kernel|Landlock|control group|namespace|IPv6|x86-64|ulimit|system calls"
    r"|curl of this system|Go of this system|Debian)\b"
)
# The rest of these reasons is known only at run time.
DYNAMIC: Final = {"tests/runtime/test_control_groups.py"}

SUITE: Final = """
import pytest
from tests.support.tiers import pytest_addoption, pytest_configure, pytest_runtest_makereport
"""
TESTS: Final = """
import pytest

@pytest.mark.skipif(True, reason="no thing: apt-get install thing")
def test_program(): ...

def test_program_at_run_time():
    pytest.skip("no server: `make server` makes one")

def test_kernel():
    pytest.skip("this kernel has no Landlock")
"""


def reasons(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match ast.unparse(node.func):
                case "pytest.skip":
                    yield ast.unparse(node.args[0])
                case "pytest.mark.skipif":
                    yield from (ast.unparse(k.value) for k in node.keywords if k.arg == "reason")


def test_every_reason_of_a_skip_names_a_program_or_the_machine() -> None:
    known, unknown = 0, []
    for path in sorted(ROOT.glob("tests/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in DYNAMIC:
            continue
        for reason in reasons(ast.parse(path.read_text())):
            if INSTALLABLE.search(reason) or MACHINE.search(reason):
                known += 1
            else:
                unknown.append(f"{name}: {reason}")
    assert not unknown, "name the install command or the missing feature: " + "; ".join(unknown)
    assert known > 30


@pytest.mark.parametrize(("variables", "failed"), [({}, 0), ({"CI_NO_SKIP": "1"}, 2)])
@pytest.mark.full
def test_missing_program_fails_a_test_only_in_ci(
    tmp_path: Path, variables: dict[str, str], failed: int
) -> None:
    (tmp_path / "conftest.py").write_text(SUITE)
    (tmp_path / "test_some.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if name != "CI_NO_SKIP"}
    options: list[str | Path] = ["-q", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path / "test_some.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": str(ROOT), **variables},
    )
    counts = re.findall(r"(\d+) (failed|errors?|skipped)", result.stdout)
    outcomes = {"skipped": 0, "failed": 0}
    for number, outcome in counts:
        outcomes["skipped" if outcome == "skipped" else "failed"] += int(number)
    assert outcomes == {"skipped": 3 - failed, "failed": failed}, result.stdout
