"""Edge-guard's metrics for the service's own page: it has them on a unix socket alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyservice.app.edge_admin import ask

_TIMEOUT_S: Final = 0.2
_UP: Final = (
    "# HELP hosting_edge_up Whether edge-guard answers.\n"
    "# TYPE hosting_edge_up gauge\n"
    "hosting_edge_up {}\n"
)


class EdgeScrape:
    """Asks the edge-guard of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "edge"

    async def scrape(self) -> bytes:
        """Its metrics behind `hosting_edge_up`; the 0 alone when it does not answer within 200 ms. Does not raise."""
        try:
            status, told = await ask(self._folder, "/metrics", _TIMEOUT_S)
        except (OSError, ValueError):
            status, told = 0, b""
        is_up = status == 200
        return _UP.format(int(is_up)).encode() + (told if is_up else b"")
