"""A disk that is full: new places are refused with 503 STORAGE_FULL, who is there goes on, reads go
on, and when there is room again everything does, without a restart.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from pathlib import Path

import pytest

from tests.faults.actors import LobbyActor, Scene, attach_fields, until
from tests.faults.conftest import MakePlane, OpenDoors
from tests.faults.disk import SmallDisk, small_disk
from tests.faults.doors import Answer, Door, Doors
from tests.faults.plane import GAME, Plane
from tests.faults.shim import Shim

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

DISK_MIB = 24
STATE_BYTES = 60_000


@pytest.fixture
def disk(tmp_path: Path) -> SmallDisk:
    return small_disk(tmp_path, DISK_MIB)


@pytest.fixture
async def plane(make_plane: MakePlane, disk: SmallDisk) -> Plane:
    plane = make_plane(
        shim=None,
        data_dir=disk.mount_point / "data",
        command_prefix=disk.command_prefix,
        settings={"journal": {"segment_bytes": 1 << 20}, "storage_reserve_bytes": 1 << 20},
    )
    await plane.start()
    return plane


@pytest.fixture
def doors(plane: Plane, open_doors: OpenDoors) -> Doors:
    return open_doors(plane)


@pytest.fixture
def scene(plane: Plane, doors: Doors) -> Scene:
    # The env_ token: an administrative socket inside of the namespace is out of reach.
    return Scene(plane, doors.http, plane.environment_token)


async def use_up(scene: Scene, lobby: LobbyActor) -> None:
    """Writes into the journal until there is only the reserve left."""
    for number in range(DISK_MIB * (1 << 20) // STATE_BYTES + 100):
        state = b'"%d %s"' % (number, b"." * STATE_BYTES)
        answer = await scene.door.call("set_state", {"state": state}, token=lobby.token)
        if answer.code == "STORAGE_FULL":
            break
        assert answer.code == "OK", answer
    else:
        raise AssertionError("the disk never gets full")
    # A state is no player: it may not use what is kept for those who are there.
    kept = await scene.plane.metric("hosting_journal_credit_bytes")
    assert kept > 0.9 * await scene.plane.metric("hosting_journal_reserve_bytes")


def check_is_full(answer: Answer) -> None:
    assert answer.code == "STORAGE_FULL", answer
    assert answer.status in ("503", "UNAVAILABLE")
    assert answer.retry_after_s is not None
    assert answer.retry_after_s > 0


async def check_reads_go_on(scene: Scene, door: Door, lobby: LobbyActor) -> None:
    for operation in ("list", "regions", "statistics"):
        answer = await door.call(operation, token=scene.client_token)
        assert answer.code == "OK", answer
    answer = await door.call("get_state", {"lobby_id": lobby.id}, token=lobby.token)
    assert answer.code == "OK", answer
    assert len(answer.body) > STATE_BYTES


async def check_new_places_are_refused(
    scene: Scene, door: Door, lobby: LobbyActor, starting: LobbyActor
) -> None:
    token = scene.client_token
    check_is_full(await door.call("find", {"game_modes": ["crowd"]}, token=token))
    check_is_full(await door.call("join", {"lobby_id": lobby.id}, token=token))
    check_is_full(await door.call("attach", attach_fields("crowd"), token=token))
    check_is_full(await door.call("ready", token=starting.token))


async def check_players_go_on(scene: Scene, door: Door, lobby: LobbyActor, token: str) -> None:
    body = {"player_token": token}
    answers = [
        await door.call("connected", body, token=lobby.token),
        await door.call("connected", body, token=lobby.token),
        await door.call("closed", {"is_closed": True}, token=lobby.token),
        await door.call("disconnected", body, token=lobby.token),
        await door.call("disconnected", body, token=lobby.token),
        await door.call("closed", {"is_closed": False}, token=lobby.token),
        await door.call("connected", body, token=lobby.token),
    ]
    assert [answer.code for answer in answers] == [
        "OK",
        "PLAYER_TOKEN_CONSUMED",
        "OK",
        "OK",
        "OK",
        "OK",
        "PLAYER_TOKEN_CONSUMED",
    ]


async def check_heals(scene: Scene, door: Door, lobby: LobbyActor) -> None:
    async def is_well() -> bool:
        answer = await door.call("join", {"lobby_id": lobby.id}, token=scene.client_token)
        assert answer.code in ("OK", "STORAGE_FULL"), answer
        return answer.code == "OK"

    await until(is_well, "places to be given again", timeout_s=30)


async def test_a_full_disk_refuses_new_places_only_and_heals_without_a_restart(
    plane: Plane, disk: SmallDisk, scene: Scene, doors: Doors
) -> None:
    lobby, ending = await scene.attach("crowd"), await scene.attach("crowd")
    starting = await scene.attach("rented", is_ready=False)
    tokens = await scene.join(lobby, party_size=4)
    keyed = {"lobby_id": lobby.id}
    first = await scene.must("join", keyed, token=scene.client_token, key="before")
    for round_number in range(2):
        filler = disk.fill(plane.pid)
        await use_up(scene, lobby)
        for door in doors:
            await check_new_places_are_refused(scene, door, lobby, starting)
            await check_reads_go_on(scene, door, lobby)
            await check_players_go_on(scene, door, lobby, tokens.pop())
            again = await door.call("join", keyed, token=scene.client_token, key="before")
            assert again.tokens == first.tokens, "a repetition needs no room"
        assert (await plane.look("/livez"))[0] == 200
        if round_number == 1:
            await scene.must(
                "detach", {"game_id": GAME, "lobby_id": ending.id}, token=scene.client_token
            )
        filler.unlink()
        for door in doors:
            await check_heals(scene, door, lobby)
    await scene.must("ready", token=starting.token)
    for door in doors:
        found = await door.call("find", {"game_modes": ["rented"]}, token=scene.client_token)
        assert found.code == "OK", found
    assert plane.process is not None
    assert plane.process.poll() is None
    assert await plane.metric("hosting_ledger_violations_total") == 0
    await plane.stop()


async def test_a_service_that_starts_on_a_full_disk_tells_what_it_knows_and_heals(
    plane: Plane, disk: SmallDisk, scene: Scene, doors: Doors
) -> None:
    if not disk.survives_its_service:
        pytest.skip("this small disk is a tmpfs: it ends with the service (needs root for ext4)")
    lobby = await scene.attach("crowd")
    starting = await scene.attach("rented", is_ready=False)
    tokens = await scene.join(lobby, party_size=2)
    disk.fill(plane.pid)
    await use_up(scene, lobby)
    await plane.kill()
    await plane.start()
    await check_reads_go_on(scene, doors.http, lobby)
    await check_new_places_are_refused(scene, doors.http, lobby, starting)
    await check_players_go_on(scene, doors.http, lobby, tokens.pop())
    (disk.inside(plane.pid) / "filler").unlink()
    await check_heals(scene, doors.http, lobby)
    await plane.stop()


@pytest.mark.proof
async def test_when_the_reserve_is_used_up_too_nothing_is_lost_and_it_heals(
    plane: Plane, disk: SmallDisk, scene: Scene, doors: Doors
) -> None:
    lobby = await scene.attach("crowd")
    came, comes = await scene.join(lobby, party_size=2)
    await scene.must("connected", {"player_token": came}, token=lobby.token)
    filler = disk.fill(plane.pid)
    await use_up(scene, lobby)
    is_used_up = asyncio.Event()

    async def toggle(door: Door) -> None:
        """`closed` may use the reserve, as all that lets players go may."""
        is_closed = False
        while not is_used_up.is_set():
            is_closed = not is_closed
            answer = await door.call("closed", {"is_closed": is_closed}, token=lobby.token)
            assert answer.code in ("OK", "STORAGE_FULL"), answer
            if answer.code == "STORAGE_FULL":
                is_used_up.set()

    await asyncio.gather(*(toggle(door) for door in doors))
    body = {"player_token": comes}
    for door in doors:
        check_is_full(await door.call("connected", body, token=lobby.token))
        check_is_full(await door.call("disconnected", body, token=lobby.token))
        consumed = await door.call("connected", {"player_token": came}, token=lobby.token)
        assert consumed.code == "PLAYER_TOKEN_CONSUMED"
        await check_reads_go_on(scene, door, lobby)
    filler.unlink()

    async def is_well() -> bool:
        answer = await scene.door.call("connected", body, token=lobby.token)
        assert answer.code in ("OK", "STORAGE_FULL"), answer
        return answer.code == "OK"

    await until(is_well, "the reserve to be there again", timeout_s=30)
    await scene.must("closed", {"is_closed": False}, token=lobby.token)
    await check_heals(scene, doors.grpc, lobby)
    await plane.kill()
    await plane.start()
    answer = await doors.http.call("connected", body, token=lobby.token)
    assert answer.code == "PLAYER_TOKEN_CONSUMED"
    await plane.stop()


async def test_a_disk_that_refuses_new_segments_is_a_full_disk_and_no_reason_to_die(
    make_plane: MakePlane, open_doors: OpenDoors
) -> None:
    """The same without a mount: a quota, say. Every way of asking for room is refused."""
    plane = make_plane(settings={"journal": {"segment_bytes": 1 << 20}})
    await plane.start()
    doors = open_doors(plane)
    scene = Scene(plane, doors.grpc, plane.environment_token)
    lobby = await scene.attach("crowd")
    shim: Shim = plane.commanded
    rules = [
        shim.fail("fallocate pwrite", "*.tmp", error=errno.EDQUOT),
        shim.fail("pwrite", "free-*", error=errno.EDQUOT),
    ]
    await use_up(scene, lobby)
    check_is_full(await doors.http.call("join", {"lobby_id": lobby.id}, token=scene.client_token))
    for rule in rules:
        rule.release()
    await check_heals(scene, doors.http, lobby)
    await plane.stop()


async def test_without_room_for_an_image_no_new_places_are_given_until_there_is(
    make_plane: MakePlane, open_doors: OpenDoors
) -> None:
    """A log that cannot be made shorter may not grow for ever."""
    plane = make_plane()
    await plane.start()
    doors = open_doors(plane)
    scene = Scene(plane, doors.http, plane.environment_token)
    lobby = await scene.attach("crowd")
    token = await scene.player(lobby)
    full = plane.commanded.fail("pwrite", "image.tmp", error=errno.ENOSPC)

    numbers = itertools.count()

    async def is_refused() -> bool:
        state = b'"%d %s"' % (next(numbers), b"." * STATE_BYTES)
        answer = await scene.door.call("set_state", {"state": state}, token=lobby.token)
        return answer.code == "STORAGE_FULL"

    await until(is_refused, "the full disk to be noticed", timeout_s=60)
    for door in doors:
        check_is_full(await door.call("join", {"lobby_id": lobby.id}, token=scene.client_token))
        await check_reads_go_on(scene, door, lobby)
    await scene.must("connected", {"player_token": token}, token=lobby.token)
    # Tried again each second, so that it heals soon after there is room.
    tries = full.struck
    await until(lambda: full.struck >= tries + 2, "more tries", timeout_s=15)
    full.release()
    await check_heals(scene, doors.grpc, lobby)
    journal = plane.commanded.journal_folder
    await until(lambda: list(journal.glob("image-*.img")), "the image", timeout_s=30)
    await plane.stop()
