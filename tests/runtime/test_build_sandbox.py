"""Sandbox of build workers: what a hostile build in a worker cannot reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import pyservice
from pyservice.runtime import build_worker
from pyservice.runtime.build_sandbox import (
    SANDBOX_UID,
    refused_sandbox_parts,
    sandboxed_python,
)
from pyservice.runtime.build_worker import WorkerFailed, check_build
from tests.support.unprivileged_python import interpreter

_HOSTILE: Final = (Path(__file__).parents[1] / "support" / "hostile_worker.py").read_text()
_STARTS: Final = """
import json, os, subprocess, sys
from pathlib import Path
from pyservice.runtime.build_sandbox import sandbox_environment, sandboxed_python
write, hostile, goals = sys.argv[1:]
command = sandboxed_python("none", [], Path(write) if write else None)
goals = {**json.loads(goals), "service": os.getpid(), "descriptor": os.dup(2)}
command[command.index("-m"):] = ["-c", hostile, json.dumps(goals)]
done = subprocess.run(
    command,
    env=sandbox_environment(),
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    pass_fds=[goals["descriptor"]],
)
assert done.returncode == 0, done.returncode
print(done.stdout.decode())
"""
_REFUSED: Final = {"ENOENT", "EACCES", "EPERM", "EROFS"}
_NO_SUCH_FILE: Final = {"ENOENT", "EACCES"}


class Attempts(NamedTuple):
    environment: list[str]
    user: int
    groups: list[int]
    errors: dict[str, str]


def attempt_all(folder: Path, python: list[str], *, unpacks: bool) -> Attempts:
    """Runs the hostile program as a worker that reads a build, or also unpacks it."""
    target = folder / "builds" / "one.unpacking"
    target.mkdir(parents=True)
    files = {"settings": folder / "pyservice.toml", "database": folder / "records.db"}
    for path in files.values():
        path.write_text("secret")
        path.chmod(0o600)
    owner = folder.stat()
    for path in (*files.values(), target.parent, target):
        os.chown(path, owner.st_uid, owner.st_gid)
    goals = {
        "files": {name: str(path) for name, path in files.items()},
        "beside": str(target.parent / "other"),
        "target": str(target / "file"),
        "package": pyservice.__file__,
    }
    words = [str(target) if unpacks else "", _HOSTILE, json.dumps(goals)]
    environ = {**os.environ, "PYSERVICE_S3": "secret"}
    done = subprocess.run(
        [*python, "-c", _STARTS, *words], capture_output=True, text=True, env=environ, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(path.read_text() == "secret" for path in files.values())
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files.values())
    return Attempts(**json.loads(done.stdout))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that an ordinary user can reach, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("user", ["service", "ordinary"])
@pytest.mark.parametrize("unpacks", [False, True])
def test_hostile_worker_reaches_nothing(folder: Path, user: str, *, unpacks: bool) -> None:
    python = [sys.executable] if user == "service" else list(interpreter(folder))
    result = attempt_all(folder, python, unpacks=unpacks)
    # Python itself sets LC_CTYPE in an empty environment.
    assert set(result.environment) - {"LC_CTYPE"} == {"PYTHONPATH"}
    assert result.user != 0
    errors = dict(result.errors)
    assert errors.pop("change the target") == ("done" if unpacks else "ENOENT")
    expected: dict[str, set[str]] = {
        "descriptor of the service": {"EBADF"},
        "memory": {"MemoryError"},
        "root": {"EPERM", "EINVAL"},
        "thread": {"RuntimeError"},
    }
    for name, error in errors.items():
        assert error in expected.get(name, _REFUSED), name
    for name in ("read settings", "read database", "environment of the service"):
        assert errors[name] in _NO_SUCH_FILE, name


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_worker_under_root_has_another_user(tmp_path: Path) -> None:
    result = attempt_all(tmp_path, [sys.executable], unpacks=True)
    assert (result.user, result.groups) == (SANDBOX_UID, [])


async def blocks() -> AsyncIterator[bytes]:
    yield b"build"


@pytest.mark.anyio
async def test_check_runs_in_the_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker of a check is replaced by a program that reports what it can open."""
    secret = tmp_path / "pyservice.toml"
    secret.write_text("secret")
    program = f"""
import sys, socket
for attempt in (lambda: open({str(secret)!r}), socket.socket):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__, end=" ", file=sys.stderr)
sys.exit(1)
"""

    def hostile(_module: str, words: list[str], write: Path | None = None) -> list[str]:
        command = sandboxed_python("none", words, write)
        command[command.index("-m") :] = ["-c", program]
        return command

    monkeypatch.setattr(build_worker, "sandboxed_python", hostile)
    with pytest.raises(WorkerFailed, match="FileNotFoundError PermissionError"):
        await check_build("archive", "none", 5, None, blocks())


@pytest.mark.anyio
async def test_this_machine_refuses_no_part_or_names_it() -> None:
    for part in await refused_sandbox_parts():
        assert part.startswith(("a root file system", "file access rules", "system call filters"))
