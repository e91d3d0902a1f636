"""Start and shutdown of `pyservice serve` under faults: a full or slow disk, an early signal, a
failed task.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from pyservice.app.data_plane import DataPlane
from pyservice.process.listening_sockets import bound_address
from pyservice.process.stop_signals import StopSignals
from pyservice.settings import load
from tests.support.data_plane_service import MODES, MakeService, Service, document, version
from tests.support.fault_shim import Shim, compiled_library
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import attach_fields
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import PATIENCE_S, until

REGIONS = "/matchmaker/regions"
WITH_BRAWL: dict[str, Any] = {"brawl": {}, **MODES}


@contextmanager
def _mounted(disk: SmallDisk) -> Iterator[int]:
    """Yields the id of a process that keeps the disk mounted while other processes start and end."""
    before = disk.mount_point.stat().st_dev
    holder = subprocess.Popen([*disk.command_prefix, "sleep", "600"])
    with holder:
        try:
            until(lambda: disk.inside(holder.pid).stat().st_dev != before)
            yield holder.pid
        finally:
            holder.kill()


@pytest.fixture
def small(make_service: MakeService, tmp_path: Path) -> Iterator[tuple[Service, Path]]:
    """Service after its first run, with data directory and ready file on a full disk.

    The file beside it is removed to free space.
    """
    disk = small_disk(tmp_path, 12)
    with _mounted(disk) as holder:
        # The path of a Unix socket has a maximum length.
        (tmp_path / "disk-inside").symlink_to(disk.inside(holder))
        service = make_service(settings={"journal": {"segment_bytes": 1 << 20}})
        service.data_dir = tmp_path / "disk-inside" / "data"
        service.ready_file = tmp_path / "disk-inside" / "ready.json"
        service.start()
        assert service.stop() == 0
        service.feed |= {"revision": 2, "versions": [version(**WITH_BRAWL)]}
        service.write_feed()
        # The service removes the ready file at its start. That would free space for the
        # configuration.
        service.ready_file.unlink()
        yield service, disk.fill(holder)
        service.close()


def _serves(service: Service) -> bool:
    try:
        return service.probe("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.full
def test_start_on_a_full_disk_serves_stored_namespaces_first(small: tuple[Service, Path]) -> None:
    service, filler = small
    service.spawn()
    until(lambda: _serves(service))
    token = service.service_token
    assert service.good("GET", REGIONS, None, token)
    assert service.find(token, "brawl").json()["code"] == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    status = service.probe("/readyz?verbose").text
    assert "arena/prod: is not applied yet: STORAGE_FULL" in status
    assert not service.ready_file.exists()
    filler.unlink()
    until(lambda: service.find(token, "brawl").json()["code"] == "MATCHMAKER_NO_AVAILABLE_LOBBIES")
    until(lambda: "feed: 1 namespaces\n" in service.probe("/readyz?verbose").text)
    until(service.ready_file.exists)
    assert service.stop() == 0


@pytest.mark.full
def test_start_on_a_full_disk_stops_on_a_signal(small: tuple[Service, Path]) -> None:
    service, _ = small
    service.spawn()
    until(lambda: "feed file delayed" in service.log())
    assert service.stop() == 0


def test_start_stops_on_a_signal(make_service: MakeService) -> None:
    service = make_service(settings={"lame_duck_ms": 60_000})
    many = 3_000
    namespaces = [
        document(namespace_id=str(UUID(int=number)), name_id=f"n{number}")
        for number in range(1, many + 1)
    ]
    service.feed_file.write_text(json.dumps({"namespaces": namespaces}))
    process = service.spawn()
    feed_folder = service.data_dir / "feed"
    until(lambda: feed_folder.is_dir() and any(feed_folder.glob("*.cfg")))
    assert service.stop() == 0
    # The start was stopped before it had read all files.
    assert len(list(feed_folder.glob("*.cfg"))) < many
    assert not service.ready_file.exists()
    assert process.returncode == 0


@pytest.fixture
async def shimmed(tmp_path: Path) -> AsyncIterator[Plane]:
    """Running service with a journal on a disk that can stall."""
    library = compiled_library()
    folder = tmp_path / "plane"
    folder.mkdir()
    plane = Plane(folder, shim=Shim(library, folder / "control", folder / "data" / "journal"))
    await plane.start()
    yield plane
    plane.end()


@pytest.mark.full
@pytest.mark.anyio
async def test_forced_shutdown_does_not_wait_for_a_stalled_disk(shimmed: Plane) -> None:
    client = shimmed.http_client()
    stall = shimmed.commanded.stall("fdatasync")
    calling = asyncio.create_task(
        client.call("attach", attach_fields("duel"), token=shimmed.service_token)
    )
    await asyncio.to_thread(until, lambda: stall.waiting)
    shimmed.process_signal(signal.SIGTERM)
    await asyncio.to_thread(until, lambda: "stopping" in shimmed.log_tail())
    shimmed.process_signal(signal.SIGTERM)
    assert await shimmed.wait_ended(15) == 1
    assert "the disk does not answer" in shimmed.log_tail()
    await asyncio.gather(calling, return_exceptions=True)
    await client.close()
    stall.forget()
    # The request had no response, so the restart loses no acknowledged change.
    await shimmed.start()
    await shimmed.stop()


@pytest.mark.anyio
async def test_failed_background_task_makes_the_service_not_ready(tmp_path: Path) -> None:
    free = dict.fromkeys(("http", "grpc", "metrics"), "127.0.0.1:0")
    plane = DataPlane(load({"data_dir": tmp_path, **free}, environ={}))
    signals = StopSignals()
    assert await plane.recover(signals)
    await plane.start()

    async def dies() -> None:
        raise ValueError("unforeseen")

    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        url = f"http://{bound_address(plane._probes_socket)}/readyz"
        assert (await client.get(url)).status_code == 200
        plane._tasks.own("Mayfly", dies())
        await asyncio.sleep(0)
        answer = await client.get(url)
        assert answer.status_code == 503
        assert "Mayfly died" in answer.text
    await plane.stop(signals)
