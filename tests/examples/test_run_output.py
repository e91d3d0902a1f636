"""The banner and the log of `make run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.example_run import StartRun
from tests.support.example_run import start_run as start_run
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full

OPEN = "Ctrl-C ends all of it"
READY = "control plane is up"


def test_banner_comes_first_and_names_the_log_file(start_run: StartRun) -> None:
    run = start_run()
    run.wait_for(OPEN)
    assert run.output().startswith("\nThe arena is open.")
    log = run.data_dir / "service.log"
    assert f"log {log}\n" in run.output()
    until(lambda: READY in run.log())
    assert log.stat().st_mode & 0o777 == 0o600
    assert READY not in run.stop()


def test_flag_prints_the_log(start_run: StartRun) -> None:
    run = start_run("--log")
    run.wait_for(OPEN)
    run.wait_for(READY)
    assert not (run.data_dir / "service.log").exists()


def test_next_run_keeps_the_log_of_the_one_before(start_run: StartRun) -> None:
    first = start_run()
    first.wait_for(OPEN)
    first.stop()
    log = first.log()
    second = start_run()
    second.wait_for(OPEN)
    assert (first.data_dir / "service.log.1").read_text() == log
    until(lambda: second.log().count(READY) == 1)


def test_failed_start_prints_the_end_of_the_log(start_run: StartRun, tmp_path: Path) -> None:
    (tmp_path / "data/SERVE.LOCK").mkdir(parents=True)
    run = start_run()
    assert run.process.wait(timeout=PATIENCE_S) == 1, run.output()
    first, *lines = run.output().splitlines()
    assert first == f"The last lines of {run.data_dir}/service.log:"
    assert any("cannot be used: Is a directory" in line for line in lines[:-1]), run.output()
    assert lines[-1] == "the service cannot start: see the lines of its log above"
