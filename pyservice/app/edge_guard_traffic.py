"""Traffic of lobbies and servers, read from the admin socket of edge-guard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyservice.app.edge_guard_probe import query_edge_guard
from pyservice.control.resource_usage import Traffic, TrafficReading

_OK: Final = 200
_TRAFFIC_TIMEOUT_S: Final = 1.0
_NOT_RUNNING: Final = TrafficReading("", {})


class EdgeGuardTraffic:
    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "edge"

    async def read(self) -> TrafficReading | None:
        """Returns the traffic of each lobby and server. None: edge-guard does not respond in time."""
        series, after, by_owner, has_more = "", "", dict[str, Traffic](), True
        while has_more:
            try:
                path = f"/traffic?after={after}"
                status, text = await query_edge_guard(self._folder, path, _TRAFFIC_TIMEOUT_S)
                page = json.loads(text) if status == _OK else None
            except (FileNotFoundError, ConnectionRefusedError):
                return _NOT_RUNNING
            except (OSError, ValueError):
                return None
            # Another edge-guard may have replaced the one of the first page.
            if page is None or series not in ("", page["series"]):
                return None
            series, has_more = page["series"], page["has_more"]
            for owner in page["owners"]:
                after = owner["owner_id"]
                by_owner[after] = Traffic(*(owner[name] for name in Traffic._fields))
        return TrafficReading(series, by_owner)
