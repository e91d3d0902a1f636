"""Which numbers are whose: what players are led to, and what game servers bind (decisions 4, 5.9, 6.6)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pyservice.network.port_ranges import PUBLIC_PORTS
from pyservice.settings.model import Settings


def port_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    """Location and message. A number is of one kind."""
    runtime = settings.runtime
    kinds = (
        ("the public ports of lobbies and servers", PUBLIC_PORTS),
        ("runtime.process_ports", runtime.process_ports.numbers),
        ("runtime.host_ports", runtime.host_ports.numbers),
    )
    for (other, taken), (name, wanted) in itertools.combinations(kinds, 2):
        first, last = max(taken.start, wanted.start), min(taken.stop, wanted.stop) - 1
        if first <= last:
            yield name.split("."), f"has {first}-{last} in common with {other}"
