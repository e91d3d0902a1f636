"""`scripts/check-tools`: it names each missing tool with the install command of this machine, and
requires only the needed tools.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OF_SYSTEM = ("env", "bash", "dirname", "awk", "sort", "cc", "git")


class ToolFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in OF_SYSTEM:
            path = shutil.which(name)
            assert path is not None, name
            (folder / name).symlink_to(path)

    def add(self, name: str, script: str) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def check(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("scripts/check-tools", *words)

    def run(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/bash", script, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            env={"PATH": str(self.folder), "PYTHON": sys.executable},
            check=False,
        )


@pytest.fixture
def tools(tmp_path: Path) -> ToolFolder:
    tools = ToolFolder(tmp_path)
    tools.add("rustc", "echo 'rustc 1.88.0 (stable)'")
    tools.add("cargo", 'echo "error: no such command: $1" >&2; exit 101')
    return tools


def test_build_needs_neither_rustfmt_nor_clippy(tools: ToolFolder) -> None:
    result = tools.check()
    assert (result.returncode, result.stderr) == (0, "")


def test_check_prints_the_version_of_each_tool(tools: ToolFolder) -> None:
    tools.add("git", "echo git version 9.9")
    tools.add("cc", "echo cc 8.8; echo a second line")
    lines = tools.check().stdout.splitlines()
    version = ".".join(map(str, sys.version_info[:3]))
    assert lines == [
        f"found: Python {version}, with venv and pip",
        "found: cc 8.8",
        "found: Rust 1.88.0 with cargo",
        "found: git version 9.9",
        "Everything that a build needs is here. Next: make run",
    ]


def test_check_with_a_missing_tool_lists_the_others(tools: ToolFolder) -> None:
    (tools.folder / "git").unlink()
    result = tools.check()
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["missing: git", "  install: apt-get install git"]
    assert len(result.stdout.splitlines()) == 3, "no line says that all is there"


def test_lint_names_both_missing_tools_and_distribution_packages(tools: ToolFolder) -> None:
    result = tools.check("lint")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "missing: rustfmt",
        "  install: apt-get install rustfmt",
        "missing: clippy",
        "  install: apt-get install rust-clippy",
    ]


def test_rustup_commands_are_printed_where_rustup_exists(tools: ToolFolder) -> None:
    tools.add("rustup", "exit 0")
    result = tools.check("lint")
    assert result.returncode == 1
    assert [line for line in result.stderr.splitlines() if "install:" in line] == [
        "  install: rustup component add rustfmt",
        "  install: rustup component add clippy",
    ]


def test_lint_passes_with_both_tools(tools: ToolFolder) -> None:
    tools.add("cargo", "exit 0")
    result = tools.check("lint")
    assert (result.returncode, result.stderr) == (0, "")


def test_old_rust_is_updated_by_its_own_installer(tools: ToolFolder) -> None:
    tools.add("rustc", "echo 'rustc 1.87.0'")
    result = tools.check()
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "missing: Rust 1.88 or newer (found: 1.87.0)",
        "  install: see https://rustup.rs, or apt-get install cargo where it is new enough",
    ]
    tools.add("rustup", "exit 0")
    assert "install: rustup update stable" in tools.check().stderr


def test_lint_checks_its_tools_first(tools: ToolFolder) -> None:
    result = tools.run("scripts/lint")
    assert result.returncode == 1
    assert result.stdout == ""
    assert [line for line in result.stderr.splitlines() if "install:" not in line] == [
        "missing: rustfmt",
        "missing: clippy",
    ]
