"""Signals that arrive before the process can handle them: the process handles them later, and none
of them kills it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.supervised_service import SupervisedService, processes_of, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.full]

WAIT_S = 30.0
ENDING = [signal.SIGTERM, signal.SIGINT]


class DataPlaneService(SupervisedService):
    role: Any = ("--role", "data")
    listeners: Any = ("http", "grpc", "metrics")


class ControlPlaneService(SupervisedService):
    role: Any = ("--role", "control")
    listeners: Any = ("cdn",)


def blocked(pid: int) -> int:
    """Returns the bit mask of the blocked signals of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigBlk:"):
            return int(line.split()[1], 16)
    raise AssertionError


def holds(supervised: SupervisedService, number: signal.Signals) -> bool:
    assert supervised.process is not None
    return bool(blocked(supervised.process.pid) >> (number - 1) & 1)


Make = Callable[[type[SupervisedService]], SupervisedService]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    services: list[SupervisedService] = []

    def one(kind: type[SupervisedService]) -> SupervisedService:
        services.append(kind(tmp_path))
        return services[-1]

    yield one
    for supervised in services:
        supervised.close()
    until(lambda: not processes_of(tmp_path))


@pytest.mark.parametrize("later_s", [0.0, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("number", ENDING)
def test_early_stop_signal_ends_the_process_after_its_start(
    make: Make, number: signal.Signals, later_s: float
) -> None:
    supervised = make(SupervisedService)
    process = supervised.spawn()
    until(lambda: len(processes_of(supervised.data_dir)) >= 3)
    time.sleep(later_s)
    supervised.signal(number)
    assert process.wait(WAIT_S) == 0
    until(lambda: not processes_of(supervised.data_dir))


@pytest.mark.parametrize("later_s", [0.0, 0.1, 0.3, 0.6])
def test_early_sighup_does_not_end_the_process(make: Make, later_s: float) -> None:
    supervised = make(SupervisedService)
    process = supervised.spawn()
    until(lambda: len(processes_of(supervised.data_dir)) >= 3)
    time.sleep(later_s)
    supervised.signal(signal.SIGHUP)
    until(lambda: supervised.ready_file.exists() or process.poll() is not None)
    assert process.poll() is None
    until(lambda: supervised.events("reloaded"))
    assert supervised.stop() == 0


@pytest.mark.parametrize("kind", [DataPlaneService, ControlPlaneService])
@pytest.mark.parametrize("number", [*ENDING, signal.SIGHUP])
def test_single_plane_defers_early_signals(
    make: Make, kind: type[SupervisedService], number: signal.Signals
) -> None:
    supervised = make(kind)
    process = supervised.spawn()
    until(lambda: holds(supervised, number))
    supervised.signal(number)
    if number is signal.SIGHUP:
        until(lambda: supervised.events("reloaded"))
        assert supervised.stop() == 0
    assert process.wait(WAIT_S) == 0


def test_running_service_and_its_children_block_no_signals(make: Make) -> None:
    supervised = make(SupervisedService)
    supervised.start()
    assert supervised.process is not None
    for pid in (supervised.process.pid, supervised.pid("data"), supervised.pid("control")):
        for number in (*ENDING, signal.SIGHUP):
            # The process blocks all signals for a moment while it starts another process.
            until(lambda pid=pid, number=number: not blocked(pid) >> (number - 1) & 1)  # type: ignore[misc]
    assert supervised.stop() == 0
