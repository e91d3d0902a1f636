"""Warnings of settings that exceed the processor or the memory of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from pyservice.settings import load
from pyservice.settings.machine_capacity import MachineCapacity, capacity_warnings

MACHINE = MachineCapacity(cpu_millicores=4_000, memory_mb=8_000)


@pytest.mark.parametrize(
    ("runtime", "names"),
    [
        ({}, []),
        ({"cpu_millicores": 4_000, "memory_mb": 8_000}, []),
        ({"cpu_millicores": 4_001}, ["runtime.cpu_millicores"]),
        ({"memory_mb": 8_001}, ["runtime.memory_mb"]),
    ],
)
def test_capacity_above_the_machine_is_a_warning(runtime: dict[str, Any], names: list[str]) -> None:
    settings = load({"runtime": runtime}, environ={})
    assert [one.split()[0] for one in capacity_warnings(settings, MACHINE)] == names
