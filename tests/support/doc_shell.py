"""Shell and service for the examples of the documentation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.doc_pages import (
    CDN,
    GRPC,
    HTTP,
    METRICS,
    ROOM,
    ROOT,
    Reader,
    Shell,
    help_of_curl,
    port_of,
)
from tests.support.example_run import Run
from tests.support.free_ports import free_port


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    yield from _shell_in(tmp_path, tmp_path, monkeypatch)


@pytest.fixture
def repository_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Returns a shell in a stand-in for the repository, beside which pages create folders."""
    repository = tmp_path / "repository"
    repository.mkdir()
    yield from _shell_in(repository, tmp_path, monkeypatch)


def _shell_in(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    # The command line of a page finds only the service of its test.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    if not help_of_curl():
        pytest.skip("the pages use curl 7.82 or newer: apt-get install curl")
    # The package of this system is too old as well, so CI cannot install a newer one.
    if b"--json" not in help_of_curl():
        pytest.skip("the curl of this system is older than 7.82, which the pages use")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "clients").symlink_to(ROOT / "clients")
    shell = Shell(folder)
    yield shell
    shell.close()


def reader_beside(run: Run, shell: Shell) -> Reader:
    """Returns the reader of a page that begins in the repository, beside `make run`."""
    (shell.folder / "data").symlink_to(run.data_dir)
    return Reader(shell.folder, shell, wait_until_open(run))


def names_in(folder: Path) -> set[str]:
    """Returns the names in a folder of a shell, without the shell's own files."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def wait_until_open(run: Run) -> dict[str, str]:
    run.wait_for("Ctrl-C ends all of it.")
    ready = json.loads((run.data_dir / "ready.json").read_text())
    return {
        HTTP: port_of(ready["http"]),
        GRPC: port_of(ready["grpc"]),
        METRICS: port_of(ready["metrics"]),
        CDN: port_of(ready["cdn"]),
        ROOM: str(free_port()),
    }
