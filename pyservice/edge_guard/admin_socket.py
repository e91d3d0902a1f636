"""Queries to the admin socket of edge-guard: metrics, and traffic and sessions of game servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_RESPONSE_BYTES_MAX: Final = 1 << 20
_OK: Final = 200


async def query_edge_guard(folder: Path, path: str, within_s: float) -> tuple[int, bytes]:
    """Sends a GET request to edge-guard's admin socket.

    Raises OSError if the request fails or times out, and ValueError if the response is invalid.
    """
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_unix_connection(str(folder / "admin.sock"))
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: edge-guard\r\n\r\n".encode())
            response = b""
            while (piece := await reader.read(65_536)) and len(response) < _RESPONSE_BYTES_MAX:
                response += piece
        finally:
            writer.close()
    head, _, body = response.partition(b"\r\n\r\n")
    _, status, *_ = head.split(b" ")
    return int(status), body


_TIMEOUT_S: Final = 0.2
_UP: Final = (
    "# HELP hosting_edge_up Whether edge-guard answers.\n"
    "# TYPE hosting_edge_up gauge\n"
    "hosting_edge_up {}\n"
)


class EdgeGuardMetrics:
    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "edge"

    async def scrape(self) -> bytes:
        """Returns the metric `hosting_edge_up`, followed by edge-guard's own metrics. Does not
        raise.

        If edge-guard does not respond within 200 ms, returns only `hosting_edge_up 0`.
        """
        try:
            status, text = await query_edge_guard(self._folder, "/metrics", _TIMEOUT_S)
        except (OSError, ValueError):
            status, text = 0, b""
        is_up = status == _OK
        return _UP.format(int(is_up)).encode() + (text if is_up else b"")


class Traffic(NamedTuple):
    received_bytes: int = 0
    sent_bytes: int = 0
    received_packets: int = 0
    sent_packets: int = 0

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(*(one + more for one, more in zip(self, other, strict=True)))

    def minus(self, other: Traffic) -> Traffic:
        return Traffic(*(one - less for one, less in zip(self, other, strict=True)))


class TrafficReading(NamedTuple):
    """Counters of edge-guard by lobby or server."""

    series: str
    """Counters of another series began at 0. Empty: edge-guard does not run."""
    by_owner: Mapping[str, Traffic]


_TRAFFIC_TIMEOUT_S: Final = 1.0
_OWNERS_PER_QUERY: Final = 32
"""With the most addresses of each, the response is smaller than its limit."""
_NOT_RUNNING: Final = TrafficReading("", {})


class OwnerSessions(NamedTuple):
    """Sessions with one lobby or server: open ones, and those that ended in the last minutes."""

    by_address: Mapping[str, int]
    others: int


class SessionReading(NamedTuple):
    age_ms: int
    """Time since edge-guard started. It does not know all earlier sessions."""
    by_owner: Mapping[str, OwnerSessions]


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

    async def sessions(self, owner_ids: Sequence[str]) -> SessionReading | None:
        """Returns the sessions of lobbies and servers. None: edge-guard does not respond in time."""
        age_ms, by_owner = 0, dict[str, OwnerSessions]()
        for start in range(0, len(owner_ids), _OWNERS_PER_QUERY):
            path = f"/sessions?owners={','.join(owner_ids[start : start + _OWNERS_PER_QUERY])}"
            try:
                status, text = await query_edge_guard(self._folder, path, _TRAFFIC_TIMEOUT_S)
                # An edge-guard of an earlier release has no sessions.
                page = json.loads(text) if status == _OK else None
            except (OSError, ValueError):
                return None
            if page is None:
                return None
            # Another edge-guard may have replaced the one of the first page.
            age_ms = page["age_ms"] if start == 0 else min(age_ms, page["age_ms"])
            for owner in page["owners"]:
                by_owner[owner["owner_id"]] = OwnerSessions(dict(owner["clients"]), owner["others"])
        return SessionReading(age_ms, by_owner)
