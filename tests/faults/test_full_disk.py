"""A full disk: new slots get 503 STORAGE_FULL, players and reads continue. All recovers without a
restart.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from pathlib import Path

import pytest

from tests.faults.conftest import MakePlane, OpenClients
from tests.support.data_plane_clients import PlaneClient, PlaneClients, TransportResponse
from tests.support.fault_shim import Shim
from tests.support.killable_plane import GAME, Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby, attach_fields, until
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.full]

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
def clients(plane: Plane, open_clients: OpenClients) -> PlaneClients:
    return open_clients(plane)


@pytest.fixture
def session(plane: Plane, clients: PlaneClients) -> ApiSession:
    # The env_ token is needed because the admin socket is not reachable in the mount namespace.
    return ApiSession(plane, clients.http, plane.service_token)


async def use_up(session: ApiSession, lobby: AttachedLobby) -> None:
    for number in range(DISK_MIB * (1 << 20) // STATE_BYTES + 100):
        state = b'"%d %s"' % (number, b"." * STATE_BYTES)
        answer = await session.client.call("set_state", {"state": state}, token=lobby.token)
        if answer.code == "STORAGE_FULL":
            break
        assert answer.code == "OK", answer
    else:
        raise AssertionError("the disk never gets full")
    credit_bytes = await session.plane.metric("hosting_journal_credit_bytes")
    assert credit_bytes > 0.9 * await session.plane.metric("hosting_journal_reserve_bytes")


def check_is_full(answer: TransportResponse) -> None:
    assert answer.code == "STORAGE_FULL", answer
    assert answer.status in ("503", "UNAVAILABLE")
    assert answer.retry_after_s is not None
    assert answer.retry_after_s > 0


async def check_reads_go_on(session: ApiSession, client: PlaneClient, lobby: AttachedLobby) -> None:
    for operation in ("list", "regions", "statistics"):
        answer = await client.call(operation, token=session.client_token)
        assert answer.code == "OK", answer
    answer = await client.call("get_state", {"lobby_id": lobby.id}, token=lobby.token)
    assert answer.code == "OK", answer
    assert len(answer.body) > STATE_BYTES


async def check_new_slots_are_refused(
    session: ApiSession, client: PlaneClient, lobby: AttachedLobby, starting: AttachedLobby
) -> None:
    token = session.client_token
    check_is_full(await client.call("find", {"game_modes": ["large"]}, token=token))
    check_is_full(await client.call("join", {"lobby_id": lobby.id}, token=token))
    check_is_full(await client.call("attach", attach_fields("large"), token=token))
    check_is_full(await client.call("ready", token=starting.token))


async def check_players_continue(
    session: ApiSession, client: PlaneClient, lobby: AttachedLobby, token: str
) -> None:
    body = {"player_token": token}
    answers = [
        await client.call("connected", body, token=lobby.token),
        await client.call("connected", body, token=lobby.token),
        await client.call("closed", {"is_closed": True}, token=lobby.token),
        await client.call("disconnected", body, token=lobby.token),
        await client.call("disconnected", body, token=lobby.token),
        await client.call("closed", {"is_closed": False}, token=lobby.token),
        await client.call("connected", body, token=lobby.token),
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


async def check_recovers(session: ApiSession, client: PlaneClient, lobby: AttachedLobby) -> None:
    async def is_well() -> bool:
        answer = await client.call("join", {"lobby_id": lobby.id}, token=session.client_token)
        assert answer.code in ("OK", "STORAGE_FULL"), answer
        return answer.code == "OK"

    await until(is_well, "slots to be free again", timeout_s=30)


@pytest.mark.fast
async def test_full_disk_refuses_only_new_slots_and_recovers_without_restart(
    plane: Plane, disk: SmallDisk, session: ApiSession, clients: PlaneClients
) -> None:
    lobby, ending = await session.attach("large"), await session.attach("large")
    starting = await session.attach("rented", is_ready=False)
    tokens = await session.join(lobby, party_size=4)
    keyed = {"lobby_id": lobby.id}
    first = await session.must("join", keyed, token=session.client_token, key="before")
    for round_number in range(2):
        filler = disk.fill(plane.pid)
        await use_up(session, lobby)
        for client in clients:
            await check_new_slots_are_refused(session, client, lobby, starting)
            await check_reads_go_on(session, client, lobby)
            await check_players_continue(session, client, lobby, tokens.pop())
            repeat = await client.call("join", keyed, token=session.client_token, key="before")
            assert repeat.tokens == first.tokens, "a repeat needs no disk space"
        assert (await plane.look("/livez"))[0] == 200
        if round_number == 1:
            await session.must(
                "detach", {"game_id": GAME, "lobby_id": ending.id}, token=session.client_token
            )
        filler.unlink()
        for client in clients:
            await check_recovers(session, client, lobby)
    await session.must("ready", token=starting.token)
    for client in clients:
        response = await client.call("find", {"game_modes": ["rented"]}, token=session.client_token)
        assert response.code == "OK", response
    assert plane.process is not None
    assert plane.process.poll() is None
    assert await plane.metric("hosting_ledger_violations_total") == 0
    await plane.stop()


async def test_start_on_full_disk_answers_reads_and_recovers(
    plane: Plane, disk: SmallDisk, session: ApiSession, clients: PlaneClients
) -> None:
    if not disk.survives_its_service:
        pytest.skip("this small disk is a tmpfs: it ends with the service (needs root for ext4)")
    lobby = await session.attach("large")
    starting = await session.attach("rented", is_ready=False)
    tokens = await session.join(lobby, party_size=2)
    disk.fill(plane.pid)
    await use_up(session, lobby)
    await plane.kill()
    await plane.start()
    await check_reads_go_on(session, clients.http, lobby)
    await check_new_slots_are_refused(session, clients.http, lobby, starting)
    await check_players_continue(session, clients.http, lobby, tokens.pop())
    (disk.inside(plane.pid) / "filler").unlink()
    await check_recovers(session, clients.http, lobby)
    await plane.stop()


@pytest.mark.proof
async def test_exhausted_disk_reserve_loses_nothing_and_recovers(
    plane: Plane, disk: SmallDisk, session: ApiSession, clients: PlaneClients
) -> None:
    lobby = await session.attach("large")
    connected_token, later_token = await session.join(lobby, party_size=2)
    await session.must("connected", {"player_token": connected_token}, token=lobby.token)
    filler = disk.fill(plane.pid)
    await use_up(session, lobby)
    is_used_up = asyncio.Event()

    async def toggle(client: PlaneClient) -> None:
        """`closed` may use the disk reserve, like all requests that let players leave."""
        is_closed = False
        while not is_used_up.is_set():
            is_closed = not is_closed
            answer = await client.call("closed", {"is_closed": is_closed}, token=lobby.token)
            assert answer.code in ("OK", "STORAGE_FULL"), answer
            if answer.code == "STORAGE_FULL":
                is_used_up.set()

    await asyncio.gather(*(toggle(client) for client in clients))
    body = {"player_token": later_token}
    for client in clients:
        check_is_full(await client.call("connected", body, token=lobby.token))
        check_is_full(await client.call("disconnected", body, token=lobby.token))
        consumed = await client.call(
            "connected", {"player_token": connected_token}, token=lobby.token
        )
        assert consumed.code == "PLAYER_TOKEN_CONSUMED"
        await check_reads_go_on(session, client, lobby)
    filler.unlink()

    async def is_well() -> bool:
        answer = await session.client.call("connected", body, token=lobby.token)
        assert answer.code in ("OK", "STORAGE_FULL"), answer
        return answer.code == "OK"

    await until(is_well, "the reserve to be there again", timeout_s=30)
    await session.must("closed", {"is_closed": False}, token=lobby.token)
    await check_recovers(session, clients.grpc, lobby)
    await plane.kill()
    await plane.start()
    answer = await clients.http.call("connected", body, token=lobby.token)
    assert answer.code == "PLAYER_TOKEN_CONSUMED"
    await plane.stop()


async def test_failed_segment_allocation_is_storage_full(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    """The shim refuses every call that allocates disk space, like a disk quota."""
    plane = make_plane(settings={"journal": {"segment_bytes": 1 << 20}})
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.grpc, plane.service_token)
    lobby = await session.attach("large")
    shim: Shim = plane.commanded
    rules = [
        shim.fail("fallocate pwrite", "*.tmp", error=errno.EDQUOT),
        shim.fail("pwrite", "free-*", error=errno.EDQUOT),
    ]
    await use_up(session, lobby)
    check_is_full(
        await clients.http.call("join", {"lobby_id": lobby.id}, token=session.client_token)
    )
    for rule in rules:
        rule.release()
    await check_recovers(session, clients.http, lobby)
    await plane.stop()


async def test_failed_compaction_refuses_new_slots_until_it_succeeds(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane()
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.http, plane.service_token)
    lobby = await session.attach("large")
    token = await session.player(lobby)
    full = plane.commanded.fail("pwrite", "image.tmp", error=errno.ENOSPC)

    numbers = itertools.count()

    async def is_refused() -> bool:
        state = b'"%d %s"' % (next(numbers), b"." * STATE_BYTES)
        answer = await session.client.call("set_state", {"state": state}, token=lobby.token)
        return answer.code == "STORAGE_FULL"

    await until(is_refused, "the full disk to be noticed", timeout_s=60)
    for client in clients:
        check_is_full(await client.call("join", {"lobby_id": lobby.id}, token=session.client_token))
        await check_reads_go_on(session, client, lobby)
    await session.must("connected", {"player_token": token}, token=lobby.token)
    tries = full.hits
    await until(lambda: full.hits >= tries + 2, "more tries", timeout_s=15)
    full.release()
    await check_recovers(session, clients.grpc, lobby)
    journal = plane.commanded.journal_folder
    await until(lambda: list(journal.glob("image-*.img")), "the image", timeout_s=30)
    await plane.stop()
