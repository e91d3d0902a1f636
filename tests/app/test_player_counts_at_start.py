"""Player counts that the control plane reads before its server opens.

Its first responses include players from before a restart.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.app.control_plane import ControlPlane
from pyservice.control import player_counts
from pyservice.process.stop_signals import StopSignals
from pyservice.settings import load
from tests.support.data_plane_service import NAMESPACE_ID, MakeService
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture
def _same_switching() -> Iterator[None]:
    """The control plane changes the thread switch interval of its process, here of the test
    process.
    """
    before_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("_same_switching")
async def test_server_opens_after_the_player_counts_are_known(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player_counts, "_FIRST_READ_TIMEOUT_S", PATIENCE_S)
    service = await asyncio.to_thread(make_service().start)

    def connect() -> Path:
        _, lobby_token = service.attach()
        placement = service.find(service.public_token()).json()
        service.connected(lobby_token, placement["player"]["token"]).raise_for_status()
        return service.data_dir

    data_dir = await asyncio.to_thread(connect)
    (data_dir / "control").mkdir(mode=0o700, exist_ok=True)
    plane = ControlPlane(load({"data_dir": data_dir, "cdn": "127.0.0.1:0"}, environ={}))
    signals = StopSignals()
    signals.forced.set()
    assert await plane.recover(signals)
    known: list[int] = []
    start_http = plane._http.start

    async def note_and_open() -> None:
        known.append(plane._counts.players([NAMESPACE_ID]))
        await start_http()

    monkeypatch.setattr(plane._http, "start", note_and_open)
    try:
        await plane.start()
    finally:
        await plane.stop(signals)
    assert known == [1]
