"""Commands on one machine without a service that answers: durations, and the words of their output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pyservice.cli.commands import app
from pyservice.cli.machine_requests import status_lines
from pyservice.data_formats import note_formats
from pyservice.pb.hosting.internal.v1 import admin_pb2 as pb
from pyservice.process.directory_lock import LOCK_FILE, SUPERVISOR_LOCK_FILE, DirectoryLock


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Data directory of a stopped service."""
    note_formats(tmp_path)
    return tmp_path


def refusal(data_dir: Path, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--data-dir", str(data_dir)])
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    return result.stderr


@pytest.mark.parametrize("deadline", ["100d", "31d", "721h", "2592001s"])
def test_deadline_above_the_longest_drain_is_refused_with_the_limit(
    deadline: str, data_dir: Path
) -> None:
    sentence = f"pyservice drain: --deadline {deadline}: at most 30d are allowed\n"
    assert refusal(data_dir, "drain", "--deadline", deadline) == sentence


@pytest.mark.parametrize("deadline", ["30d", "720h", "0s"])
def test_deadline_up_to_the_longest_drain_is_sent(deadline: str, data_dir: Path) -> None:
    assert "is stopped: start it first" in refusal(data_dir, "drain", "--deadline", deadline)


def test_status_says_once_that_a_part_is_down() -> None:
    parts = [
        pb.PartStatus(name="control", detail="down: its operations are refused"),
        pb.PartStatus(name="database", detail="not known, the control plane is down"),
        pb.PartStatus(name="runtime", is_up=True, detail="runs archive"),
        pb.PartStatus(name="storage", is_up=True),
    ]
    lines = list(status_lines(pb.ReadStatusResponse(parts=parts)))
    assert lines[: len(parts)] == [
        "control: down, its operations are refused",
        "database: down, not known, the control plane is down",
        "runtime: up, runs archive",
        "storage: up",
    ]


@pytest.mark.parametrize("words", [("namespace", "orphans"), ("drain",)], ids=" ".join)
def test_lock_of_a_killed_service_has_the_pid_of_another_process(
    words: tuple[str, ...], data_dir: Path
) -> None:
    (data_dir / SUPERVISOR_LOCK_FILE).write_text(f"{os.getpid()}\n")
    (data_dir / LOCK_FILE).write_text(f"{os.getpid()}\n")
    sentence = f"the service of {data_dir} is stopped: start it first\n"
    assert refusal(data_dir, *words) == f"pyservice {words[0]}: {sentence}"


@pytest.mark.parametrize(
    ("words", "plane"), [(("namespace", "orphans"), "control plane"), (("drain",), "data plane")]
)
def test_plane_that_does_not_answer_is_named(
    words: tuple[str, ...], plane: str, data_dir: Path
) -> None:
    lock = DirectoryLock.take(data_dir)
    try:
        sentence = f"the {plane} of {data_dir} does not answer: see the log of the service\n"
        assert refusal(data_dir, *words) == f"pyservice {words[0]}: {sentence}"
    finally:
        lock.release()
