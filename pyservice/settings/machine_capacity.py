"""Processor and memory of this machine, and warnings of settings that exceed them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from pyservice.settings.model import Settings


class MachineCapacity(NamedTuple):
    cpu_millicores: int
    memory_mb: int


def machine_capacity() -> MachineCapacity:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return MachineCapacity(len(os.sched_getaffinity(0)) * 1000, memory)


def capacity_warnings(settings: Settings, machine: MachineCapacity | None = None) -> Iterator[str]:
    """Yields a warning for each part that game servers may request beyond the machine.

    A quota above the machine is no problem, because the runtime's capacity limits all groups together.
    """
    machine = machine or machine_capacity()
    cpu_millicores, memory_mb = settings.runtime.cpu_millicores, settings.runtime.memory_mb
    if cpu_millicores is not None and cpu_millicores > machine.cpu_millicores:
        yield (
            f"runtime.cpu_millicores is {cpu_millicores:,}, but this machine has {machine.cpu_millicores:,}, so full "
            "game servers get less than their tier: lower it, and leave a core to the service"
        )
    if memory_mb is not None and memory_mb > machine.memory_mb:
        yield (
            f"runtime.memory_mb is {memory_mb:,}, but this machine has {machine.memory_mb:,}, so game servers can "
            "fill its memory, and the kernel then kills processes: lower it, and leave 1 GiB to the service"
        )
