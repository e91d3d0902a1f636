"""Alerts of a real Prometheus with the shipped files: none under normal load, one for each outage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.process.directory_lock import lock_holder_pid
from tests.support.databases import Server
from tests.support.fault_shim import Rule, Shim, compiled_library
from tests.support.full_service import ARENA_MODES, Developer, FullService
from tests.support.hosted_game import Hosted
from tests.support.prometheus import Prometheus, running_prometheus
from tests.support.published_game import Machine
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, running_s3
from tests.support.small_disk import small_disk
from tests.support.waiting import PATIENCE_S, cancel, until_met, within

FIRES_WITHIN_S: Final = 120.0
QUIET_WITHIN_S: Final = 120.0
DISK_MIB: Final = 64
PLAYERS: Final = 8
RESERVE_BYTES: Final = 1 << 20
HOUR_MS: Final = 3_600_000
STATE_BYTES: Final = 60_000
STATES_MAX: Final = (DISK_MIB << 20) // STATE_BYTES
GAUGES: Final = (
    'up{job="hosting"}',
    *("hosting_control_plane_up", "hosting_control_database_up", "hosting_edge_up"),
    *("hosting_control_object_store_up", "hosting_control_cdn_up"),
)


def wait_for(condition: Any, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition was not met"
        time.sleep(1.0)


def address(service: FullService) -> str:
    return str(service.ready["metrics"])


def edge_guard_pid(service: FullService) -> int:
    return int((service.data_dir / "edge/LOCK").read_text().split()[0])


def is_healthy(prometheus: Prometheus, service: FullService) -> bool:
    return all(prometheus.value(gauge, address(service)) == 1 for gauge in GAUGES)


def is_quiet(prometheus: Prometheus, services: Iterable[FullService]) -> bool:
    """Returns whether all services answer, and no alert is about to fire."""
    if prometheus.alerts("pending", "firing"):
        return False
    return all(is_healthy(prometheus, service) for service in services)


class ServiceOnStuckDisk(FullService):
    """Service with a game. Its data plane can be made to wait for the disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir()
        self._shim = Shim(compiled_library(), folder / "shim", self.data_dir)
        variables = [f"{name}={value}" for name, value in self._shim.environment().items()]
        self.interpreter = ["env", *variables, sys.executable]
        self._rules: list[Rule] = []

    async def prepare(self) -> None:
        async with self.open_client("http") as client:
            developer = Developer(self, client)
            self._game_id = await developer.arena()
            self._service_token = await developer.service_token(self._game_id)

    async def stall(self) -> None:
        """Stalls syncs of the journal and of configurations, with a lobby and a change that wait for them."""
        calls = (("fdatasync", "journal/seg-*"), ("fsync", "feed/*"))
        self._rules = [self._shim.stall(*call) for call in calls]
        async with self.open_client("http") as client:
            developer = Developer(self, client)
            waiting = (
                developer.lobby(self._game_id, self._service_token),
                developer.service_token(self._game_id),
            )
            requests = [asyncio.create_task(request) for request in waiting]
            await until_met(lambda: all(rule.waiting for rule in self._rules))
            # The event and the change go on to wait without their clients.
            await cancel(*requests)

    def close(self) -> None:
        for rule in self._rules:
            rule.release()
        super().close()


class Scene:
    """Four services, a database server and an S3 server, in which the test causes outages."""

    def __init__(self, folder: Path, server: Server, s3: S3Server) -> None:
        self.server, self.s3 = server, s3
        bucket = {
            "bucket": BUCKET,
            "endpoint": s3.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }
        self.parts = FullService(folder / "a", server.url(), s3=bucket)
        self.plane, self.whole = FullService(folder / "b"), FullService(folder / "c")
        self.stuck = ServiceOnStuckDisk(folder / "d")
        self.services = (self.parts, self.plane, self.whole, self.stuck)
        self._stopped: list[int] = []

    def start(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(FullService.start, self.services))
        asyncio.run(self.stuck.prepare())

    def close(self) -> None:
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for service in self.services:
            service.close()

    def cause_outages(self) -> set[tuple[str, str]]:
        """Causes one outage of each kind. Returns service and name of the alerts to expect."""
        self.s3.kill()
        self.server.stop()
        self._stop(edge_guard_pid(self.parts))
        self._stop(lock_holder_pid(self.parts.data_dir / "control/cdn"))
        self._stop(self.plane.control_pid())
        # The next edge-guard does not find the socket of the data plane.
        (self.plane.data_dir / "admin.sock").unlink()
        os.kill(edge_guard_pid(self.plane), signal.SIGKILL)
        assert self.whole.process is not None
        data_plane = lock_holder_pid(self.whole.data_dir)
        assert data_plane
        self.whole.process.kill()
        os.kill(data_plane, signal.SIGKILL)
        asyncio.run(self.stuck.stall())
        of_parts = ("Database", "ObjectStore", "EdgeGuard", "Cdn")
        return {
            *((address(self.parts), f"Hosting{name}Down") for name in of_parts),
            (address(self.plane), "HostingControlPlaneDown"),
            (address(self.plane), "HostingEdgeGuardDisconnected"),
            (address(self.whole), "HostingDown"),
            (address(self.stuck), "HostingDiskStuck"),
            (address(self.stuck), "HostingChangesHang"),
        }

    def _stop(self, pid: int | None) -> None:
        assert pid
        os.kill(pid, signal.SIGSTOP)
        self._stopped.append(pid)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    server = Server()
    with running_s3(tmp_path / "s3" / "buckets") as s3:
        scene = Scene(tmp_path, server, s3)
        try:
            scene.start()
            yield scene
        finally:
            scene.close()
            server.close()


@pytest.mark.timing
@pytest.mark.timeout(600)
def test_each_outage_alerts_within_two_minutes(scene: Scene, tmp_path: Path) -> None:
    targets = [address(service) for service in scene.services]
    with running_prometheus(tmp_path / "prometheus", targets) as prometheus:
        wait_for(lambda: is_quiet(prometheus, scene.services), QUIET_WITHIN_S)
        with within(FIRES_WITHIN_S):
            outages = scene.cause_outages()
            wait_for(lambda: outages <= prometheus.alerts("firing"), FIRES_WITHIN_S)
        assert prometheus.alerts("firing") == outages
        # A dead database and a dead control plane look different.
        parts, plane = address(scene.parts), address(scene.plane)
        assert prometheus.value("hosting_control_plane_up", parts) == 1
        assert prometheus.value("hosting_control_database_up", parts) == 0
        assert prometheus.value("hosting_control_plane_up", plane) == 0
        assert prometheus.value("hosting_control_database_up", plane) is None
        readiness = httpx.get(f"http://{parts}/readyz?verbose", timeout=PATIENCE_S)
        assert readiness.status_code == 200
        assert "\nedge_guard: dead" in readiness.text


class ServiceOnSmallDisk(FullService):
    """Service with a game, on a disk that can be filled."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, storage_reserve_bytes=RESERVE_BYTES)
        folder.mkdir()
        self.disk = small_disk(folder, DISK_MIB)
        self.data_dir = self.disk.mount_point / "data"
        self.interpreter = [*self.disk.command_prefix, sys.executable]

    async def prepare(self) -> None:
        assert self.process is not None
        data_dir = self.disk.inside(self.process.pid) / self.data_dir.name
        owner_token = (data_dir / "control/owner.token").read_text().strip()
        async with self.open_client("http") as client:
            developer = Developer(self, client, owner_token)
            game_id = await developer.game()
            modes = {"arena": {**ARENA_MODES["arena"], "heartbeat_timeout": HOUR_MS}}
            version_id = await developer.version(game_id, {"matchmaker": {"game_modes": modes}})
            target = {"game_id": game_id, "namespace_id": "prod"}
            await developer.good("set_version", **target, version_id=version_id)
            service_token = await developer.service_token(game_id)
            self._lobby = await developer.lobby(game_id, service_token)

    async def fill(self) -> None:
        """Fills the disk, and then the prepared segments of the journal up to its reserve."""
        assert self.process is not None
        self.disk.fill(self.process.pid)
        async with self.open_client("http") as client:
            for number in range(STATES_MAX):
                state = {"state": [number, "." * STATE_BYTES]}
                answer = await client.call("set_state", state, token=self._lobby["lobby_token"])
                if answer.code == "STORAGE_FULL":
                    return
                assert answer.code == "OK", answer
        raise AssertionError("the journal has more room than the disk")


@pytest.mark.timing
@pytest.mark.timeout(600)
def test_full_disk_alerts_within_two_minutes(tmp_path: Path) -> None:
    service = ServiceOnSmallDisk(tmp_path / "s")
    try:
        service.start()
        asyncio.run(service.prepare())
        with running_prometheus(tmp_path / "prometheus", [address(service)]) as prometheus:
            wait_for(lambda: is_quiet(prometheus, [service]), QUIET_WITHIN_S)
            outages = {(address(service), f"Hosting{name}") for name in ("DiskFull", "NoNewSlots")}
            with within(FIRES_WITHIN_S):
                asyncio.run(service.fill())
                wait_for(lambda: outages <= prometheus.alerts("firing"), FIRES_WITHIN_S)
            assert prometheus.alerts("firing") == outages
    finally:
        service.close()


class Load:
    """A game with a lobby that the service runs, and players that come and go."""

    def __init__(self, service: FullService, developer: Developer) -> None:
        self._service = service
        self._developer = developer

    async def begin(self) -> None:
        developer = self._developer
        self._game_id = await developer.game()
        hosted = Hosted(developer, self._game_id)
        await hosted.upload()
        arena = {"max_players": 8, "docker": {"ports": {"game": {"protocol": "http"}}}}
        modes = {"arena": arena, "hosted": hosted.mode()}
        version_id = await developer.version(self._game_id, {"matchmaker": {"game_modes": modes}})
        target = {"game_id": self._game_id, "namespace_id": "prod"}
        await developer.good("set_version", **target, version_id=version_id)
        await hosted.begin()
        self._public_token = await developer.public_token(self._game_id)
        service_token = await developer.service_token(self._game_id)
        self._lobby = await developer.lobby(self._game_id, service_token)

    async def play(self) -> None:
        client, token = self._developer.client, self._lobby["lobby_token"]
        found = await client.call("find", {"game_modes": ["arena"]}, token=self._public_token)
        assert found.code == "OK", found
        player = {"player_token": found.body["player"]["token"]}
        for operation in ("connected", "disconnected"):
            answer = await client.call(operation, player, token=token)
            assert answer.code == "OK", answer
        await self._developer.good("get_game", game_id=self._game_id)


@contextlib.asynccontextmanager
async def loaded(service: FullService) -> AsyncIterator[Load]:
    async with service.open_client("http") as client:
        load = Load(service, Developer(service, client))
        await load.begin()
        yield load


@pytest.mark.anyio
@pytest.mark.proof
@pytest.mark.timeout(4500)
@pytest.mark.parametrize("duration_s", [3600])
async def test_normal_load_fires_no_alert(tmp_path: Path, duration_s: int) -> None:
    """Players come and go, game servers run, and a backup is made beside them."""
    server = Server()
    machine = Machine(tmp_path / "s", server.url())
    service = machine.service
    fired: set[tuple[str, str]] = set()
    played = 0
    try:
        await asyncio.to_thread(service.start)
        with running_prometheus(tmp_path / "prometheus", [address(service)]) as prometheus:
            async with loaded(service) as load:
                end = time.monotonic() + duration_s
                target = str(tmp_path / "backups")
                backup = asyncio.create_task(
                    asyncio.to_thread(machine.good, "backup", "create", target)
                )
                while time.monotonic() < end:
                    await asyncio.gather(*(load.play() for _ in range(PLAYERS)))
                    played += PLAYERS
                    fired |= await asyncio.to_thread(prometheus.alerts, "firing")
                    await asyncio.sleep(0.2)
                await backup
            assert is_healthy(prometheus, service)
    finally:
        service.close()
        server.close()
    assert played > duration_s
    assert fired == set()
