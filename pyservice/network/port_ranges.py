"""Which numbers are whose (contract, network; decisions 4, 6.6): those that players are led to are fixed, the others
defaults of settings.
"""

from __future__ import annotations

from typing import Final

PUBLIC_PORTS: Final = range(26_000, 32_000)
"""Where edge-guard leads to lobbies and servers."""

PROCESS_PORTS: Final = range(12_000, 20_000)

HOST_PORTS: Final = range(20_000, 26_000)
"""What game servers with host networking may bind: with a `port_range`, or `routing.host`."""
