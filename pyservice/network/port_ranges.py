"""Default port ranges of players, game servers and host networking."""

from __future__ import annotations

from typing import Final

PUBLIC_PORTS: Final = range(26_000, 32_000)

PROCESS_PORTS: Final = range(12_000, 20_000)

HOST_PORTS: Final = range(20_000, 26_000)
