"""Wall clock steps of a day, during operation and across restarts, and reboots. No deadline may
move.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.faults.conftest import MakePlane, OpenClients
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby, until
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.full]

DAY_S = 86_400
TTLS_S = (6, 12, 24, 48)
"""Token lifetimes. The test uses the shortest lifetime above `STARTS_OF_TTL` times the start time
of the machine.
"""
STARTS_OF_TTL = 4
SILENCE_S = 1.0
MODES = {
    **{f"short-{ttl_s}": {"max_players": 3, "player_token_ttl": ttl_s * 1000} for ttl_s in TTLS_S},
    "beating": {
        "max_players": 3,
        "player_token_ttl": 600_000,
        "heartbeat_timeout": int(SILENCE_S * 1000),
    },
}


@dataclass
class FullLobby:
    """A full lobby: one connected player, one that connects later, and one that never connects."""

    session: ApiSession
    lobby: AttachedLobby
    connected_token: str
    later_token: str
    absent_token: str
    ttl_s: int
    reserved_s: float

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.reserved_s

    async def connected(self, token: str) -> str:
        answer = await self.session.client.call(
            "connected", {"player_token": token}, token=self.lobby.token
        )
        return answer.code

    async def is_full(self) -> bool:
        answer = await self.session.client.call(
            "join", {"lobby_id": self.lobby.id}, token=self.session.client_token
        )
        assert answer.code in ("OK", "MATCHMAKER_LOBBY_FULL"), answer
        return answer.code != "OK"

    async def wait_for_the_free_slot(self, timeout_s: float) -> None:
        async def is_free() -> bool:
            return not await self.is_full()

        await until(is_free, "the slot of the absent player", timeout_s)

    async def check_no_token_expired(self) -> None:
        assert self.age_s < self.ttl_s, "the machine is too slow for this test"
        assert await self.is_full()
        assert await self.connected(self.later_token) == "OK"
        assert await self.connected(self.connected_token) == "PLAYER_TOKEN_CONSUMED"

    async def check_absent_player_expires_in_time(self) -> None:
        await self.wait_for_the_free_slot(self.ttl_s + PATIENCE_S)
        assert self.age_s > self.ttl_s - 0.1
        assert await self.connected(self.absent_token) == "PLAYER_TOKEN_EXPIRED"
        assert await self.connected(self.connected_token) == "PLAYER_TOKEN_CONSUMED"


async def begin(plane: Plane, open_clients: OpenClients) -> FullLobby:
    starting_s = time.monotonic()
    await plane.start()
    least_s = STARTS_OF_TTL * (time.monotonic() - starting_s)
    ttl_s = next((one for one in TTLS_S if one > least_s), TTLS_S[-1])
    clients = open_clients(plane)
    session = ApiSession(plane, clients.http, await plane.public_token())
    lobby = await session.attach(f"short-{ttl_s}")
    connected_token = await session.player(lobby, is_connected=True)
    reserved_s = time.monotonic()
    later_token, absent = await session.join(lobby, party_size=2)
    return FullLobby(session, lobby, connected_token, later_token, absent, ttl_s, reserved_s)


async def step_while_it_runs(plane: Plane, open_clients: OpenClients, step_s: int) -> None:
    full_lobby = await begin(plane, open_clients)
    plane.commanded.shift_wall_clock(step_s)
    await full_lobby.check_no_token_expired()
    await full_lobby.check_absent_player_expires_in_time()
    await plane.stop()


async def step_over_a_restart(plane: Plane, open_clients: OpenClients, step_s: int) -> None:
    full_lobby = await begin(plane, open_clients)
    await plane.kill()
    plane.commanded.shift_wall_clock(step_s)
    await plane.start()
    await full_lobby.check_no_token_expired()
    await full_lobby.check_absent_player_expires_in_time()
    await plane.stop()


@pytest.mark.parametrize("session", [step_while_it_runs, step_over_a_restart])
async def test_wall_clock_step_changes_no_deadline(
    make_plane: MakePlane,
    open_clients: OpenClients,
    session: Callable[[Plane, OpenClients, int], Coroutine[None, None, None]],
) -> None:
    async with asyncio.TaskGroup() as group:
        for step_s in (DAY_S, -DAY_S):
            group.create_task(session(make_plane(modes=MODES), open_clients, step_s))


async def test_wall_clock_step_changes_no_heartbeat_timeout(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    async with asyncio.TaskGroup() as group:
        for step_s in (DAY_S, -DAY_S):
            group.create_task(step_beside_heartbeats(make_plane(modes=MODES), open_clients, step_s))


async def step_beside_heartbeats(plane: Plane, open_clients: OpenClients, step_s: int) -> None:
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.grpc, await plane.public_token())
    lobby = await session.attach("beating")
    token = await session.player(lobby, is_connected=True)

    async def is_found() -> bool:
        listed = await session.must("list", token=session.client_token)
        return any(one["lobby_id"] == lobby.id for one in listed.body.get("lobbies", ()))

    async def player_connects() -> bool:
        await session.must("heartbeat", token=lobby.token)
        return await is_found()

    await session.must("heartbeat", token=lobby.token)
    plane.commanded.shift_wall_clock(step_s)
    await until(player_connects, "the speaking lobby to be found")
    spoke_s = time.monotonic()
    await session.must("heartbeat", token=lobby.token)

    async def is_hidden() -> bool:
        return not await is_found()

    await until(is_hidden, "the silent lobby to be hidden")
    assert time.monotonic() - spoke_s > 0.9 * SILENCE_S

    async def is_ended() -> bool:
        counted = await session.must("statistics", token=session.client_token)
        return int(counted.body.get("player_count", 0)) == 0

    await until(is_ended, "the silent lobby to be ended")
    assert time.monotonic() - spoke_s > 2.9 * SILENCE_S
    answer = await session.client.call("connected", {"player_token": token}, token=lobby.token)
    assert answer.code == "PLAYER_REMOVED"
    await plane.stop()


class TestReboot:
    """A reboot changes the boot id and restarts the boot clock. The wall clock shows the outage."""

    @pytest.fixture
    def boot_id(self, tmp_path: Path) -> Path:
        path = tmp_path / "boot_id"
        path.write_text(f"{uuid4()}\n")
        return path

    @pytest.fixture
    def plane(self, make_plane: MakePlane, boot_id: Path) -> Plane:
        return make_plane(modes=MODES, settings={"journal": {"boot_id_path": str(boot_id)}})

    async def reboot(self, plane: Plane, boot_id: Path) -> None:
        boot_id.write_text(f"{uuid4()}\n")
        plane.commanded.shift_boot_clock(1 - time.clock_gettime(time.CLOCK_BOOTTIME))
        await plane.start()

    async def test_short_outage_expires_no_token(
        self, plane: Plane, boot_id: Path, open_clients: OpenClients
    ) -> None:
        full_lobby = await begin(plane, open_clients)
        await plane.kill()
        await self.reboot(plane, boot_id)
        await full_lobby.check_no_token_expired()
        await full_lobby.check_absent_player_expires_in_time()

    async def test_outage_counts_toward_deadlines(
        self, plane: Plane, boot_id: Path, open_clients: OpenClients
    ) -> None:
        full_lobby = await begin(plane, open_clients)
        await plane.kill()
        await asyncio.sleep(max(0.0, full_lobby.ttl_s + 0.5 - full_lobby.age_s))
        await self.reboot(plane, boot_id)
        assert await full_lobby.connected(full_lobby.absent_token) == "PLAYER_TOKEN_EXPIRED"
        assert await full_lobby.connected(full_lobby.later_token) == "PLAYER_TOKEN_EXPIRED"
        assert await full_lobby.connected(full_lobby.connected_token) == "PLAYER_TOKEN_CONSUMED"
        await full_lobby.session.join(full_lobby.lobby, party_size=2)
        assert await full_lobby.is_full()

    async def test_day_long_outage_counts_toward_deadlines(
        self, plane: Plane, boot_id: Path, open_clients: OpenClients
    ) -> None:
        full_lobby = await begin(plane, open_clients)
        await plane.kill()
        plane.commanded.shift_wall_clock(DAY_S)
        await self.reboot(plane, boot_id)
        assert await full_lobby.connected(full_lobby.later_token) == "PLAYER_TOKEN_EXPIRED"
        assert await full_lobby.connected(full_lobby.connected_token) == "PLAYER_TOKEN_CONSUMED"
        await full_lobby.session.join(full_lobby.lobby, party_size=2)

    @pytest.mark.proof
    async def test_wall_clock_set_back_does_not_move_time_back(
        self, plane: Plane, boot_id: Path, open_clients: OpenClients
    ) -> None:
        full_lobby = await begin(plane, open_clients)
        await plane.kill()
        plane.commanded.shift_wall_clock(-DAY_S)
        await self.reboot(plane, boot_id)
        assert await full_lobby.connected(full_lobby.later_token) == "OK"
        await full_lobby.wait_for_the_free_slot(full_lobby.ttl_s + PATIENCE_S)
        assert await full_lobby.connected(full_lobby.absent_token) == "PLAYER_TOKEN_EXPIRED"
