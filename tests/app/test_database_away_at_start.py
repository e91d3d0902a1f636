"""First start while the PostgreSQL server is away: `/readyz?verbose` and the log name it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.full_service import FullService
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full]

# Nothing listens on port 1, so that each attempt fails at once.
AWAY: Final = "postgresql://me:unguessable@127.0.0.1:1/games"


@pytest.fixture
def full_service(tmp_path: Path) -> Iterator[FullService]:
    service = FullService(tmp_path / "s", AWAY)
    try:
        yield service
    finally:
        service.close()


def events(full_service: FullService, name: str) -> list[dict[str, Any]]:
    lines = full_service.log().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


async def test_away_database_is_named_while_the_service_starts(full_service: FullService) -> None:
    full_service.spawn()

    async def metrics_address() -> str | None:
        ready = events(full_service, "ready")
        return ready[0]["metrics"] if ready else None

    async def has_failed_often() -> bool:
        return any(
            event.get("repeats") == 8 for event in events(full_service, "database unavailable")
        )

    address = await eventually(metrics_address)
    await eventually(has_failed_often)
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S) as client:
        text = (await client.get("/readyz?verbose")).text
    [line] = [line for line in text.splitlines() if "database:" in line]
    assert line.endswith(
        "not known, the control plane is starting and may wait for 127.0.0.1:1/games"
    )
    repeats = [event.get("repeats") for event in events(full_service, "database unavailable")]
    assert repeats[:4] == [None, 2, 4, 8]
    assert "unguessable" not in text + full_service.log()
    assert full_service.stop() == 0
