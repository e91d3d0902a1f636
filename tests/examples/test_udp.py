"""The UDP example, deployed as in its README and played through edge-guard."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.examples.udp_game import (
    BY_HAND,
    ENDED,
    LOBBY_ENDED,
    MARK,
    MOVED,
    PONG,
    REFUSED,
    SERVER_STOPS,
    SILENT,
    STATE,
    TOKEN_USED,
    UNDECIDED,
    WELCOME,
    WRONG_LOBBY,
    Datagram,
    HandMade,
    Player,
    Players,
    Reservation,
    Stage,
    compiled_programs,
    first,
    run_server,
    ticks_of,
)
from tests.support import game_programs
from tests.support.front_metrics import passed_besides_creation
from tests.support.full_service import FullService, running
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full

GRACE_MS = 300
PSS_MAX_KB = 3_000
CONFIRM_S = 10.0


@pytest.fixture(scope="session")
def programs() -> Path:
    return compiled_programs()


@pytest.fixture(scope="module")
def stage(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("udp")
    full_service = FullService(
        folder, runtime=game_programs.SETTINGS, empty_lobby_grace_ms=GRACE_MS
    )
    with running(full_service):
        stage = Stage(full_service, programs)
        stage.deploy()
        yield stage


@pytest.fixture
def players(stage: Stage) -> Iterator[Players]:
    with contextlib.closing(Players(stage)) as players:
        yield players


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.full)])
def test_find_starts_a_lobby_and_bots_play_through_edge_guard(stage: Stage, seconds: int) -> None:
    with contextlib.closing(stage.bots("large", 8, seconds=seconds)) as bots:
        report = bots.report()
    assert (report["joined"], report["played"], report["failures"]) == (8, 8, {})
    [lobby_id] = report["lobbies"]
    assert report["players_here_max"] == 8
    page = httpx.get(
        f"http://{stage.full_service.ready['metrics']}/metrics", timeout=PATIENCE_S
    ).text
    assert passed_besides_creation(page) == set()
    assert report["score"] > 0
    assert report["states"] > 8 * 20
    assert report["pongs"] > 0
    assert 0 < report["rtt_ms_p50"] <= report["rtt_ms_p99"]
    until(lambda: stage.players("large") == 0)
    end = stage.end_of(lobby_id)
    assert (end["failed"], end["exit_code"]) == (False, 0)
    output = "\n".join(stage.lines(lobby_id))
    assert output.count("said goodbye") == 8
    assert "player_" not in output
    assert stage.lines(lobby_id, "std_err") == []


def test_player_address_is_a_port_of_edge_guard(stage: Stage, players: Players) -> None:
    player = players.enter("wire")
    host, port = player.reservation.server
    assert host == "127.0.0.1"
    assert 26_000 <= port <= 31_999
    [line] = [line for line in stage.lines(player.reservation.lobby_id) if "listening on" in line]
    bound = re.search(r"127\.0\.0\.1:(\d+)", line)
    assert bound is not None
    assert 12_000 <= int(bound[1]) <= 19_999


def test_goodbye_frees_the_slot_at_once(stage: Stage, players: Players) -> None:
    one, other = players.enter("pair"), players.enter("pair")
    assert one.reservation.lobby_id == other.reservation.lobby_id
    full = stage.find("pair", prevent_auto_create_lobby=True)
    assert full == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    one.leave()
    until(lambda: stage.players("pair") == 1)
    assert stage.reserve("pair").lobby_id == other.reservation.lobby_id


def test_silent_player_times_out_and_frees_the_slot(stage: Stage, players: Players) -> None:
    player = players.enter("impatient")
    assert player.wait_for(ENDED) == bytes([SILENT])
    until(lambda: stage.players("impatient") == 0)


def test_player_of_one_lobby_cannot_enter_another(stage: Stage, players: Players) -> None:
    player, other_player = players.enter("alone"), players.enter("other-pair")
    with contextlib.closing(stage.bots("other-pair", 3, seconds=2)) as bots:
        report = bots.report()
    assert report["played"] == 3
    assert len(report["lobbies"]) == 2
    assert report["players_here_max"] == 2
    other_player.leave()
    reserved = stage.reserve("other-pair")
    lost = players.at(
        Reservation(player.reservation.lobby_id, reserved.token, player.reservation.server)
    )
    assert lost.wait_for(REFUSED, lost.hello) == bytes([WRONG_LOBBY])
    players.at(reserved).enter()


def test_sigterm_stops_the_server_and_notifies_players_at_edge_guard(
    stage: Stage, players: Players
) -> None:
    player = players.enter("stopped")
    os.kill(stage.pid(player.reservation.lobby_id), signal.SIGTERM)
    assert player.wait_for(ENDED) == bytes([SERVER_STOPS])
    assert stage.end_of(player.reservation.lobby_id)["exit_code"] == 0
    assert stage.lines(player.reservation.lobby_id)[-1].endswith("ended: asked to stop")
    assert stage.lines(player.reservation.lobby_id, "std_err") == []


def test_server_of_a_deleted_lobby_stops_cleanly(stage: Stage, players: Players) -> None:
    lobby_id = players.enter("wire").reservation.lobby_id
    stage.remove(lobby_id)
    until(lambda: stage.lines(lobby_id)[-1].endswith("ended: asked to stop"))
    assert stage.lines(lobby_id, "std_err") == []


def by_hand(stage: Stage, players: Players) -> Player:
    def listed_reservation() -> Reservation | None:
        reservation = stage.find(BY_HAND)
        return reservation if isinstance(reservation, Reservation) else None

    return players.at(first(listed_reservation)).enter()


def ended_with(server: HandMade) -> tuple[int, str, str]:
    output, problems = server.process.communicate(timeout=PATIENCE_S)
    return server.process.returncode, output, problems


def test_sigterm_closes_the_lobby_and_frees_its_slots(stage: Stage, players: Players) -> None:
    with stage.by_hand() as server:
        player = by_hand(stage, players)
        assert stage.players(BY_HAND) == 1
        server.process.send_signal(signal.SIGTERM)
        assert player.wait_for(ENDED) == bytes([SERVER_STOPS])
        code, output, problems = ended_with(server)
        assert (code, problems) == (0, "")
        assert output.endswith("ended: asked to stop\n")
        assert stage.players(BY_HAND) == 0
        assert stage.lobby(server.lobby_id)["is_closed"] is True


def test_server_exits_when_its_lobby_has_ended(stage: Stage, players: Players) -> None:
    with stage.by_hand() as server:
        player = by_hand(stage, players)
        stage.remove(server.lobby_id)
        assert player.wait_for(ENDED, player.input) == bytes([LOBBY_ENDED])
        code, output, _ = ended_with(server)
        assert code == 0
        assert "the hosting service has ended this lobby" in output


def test_server_with_players_uses_little_memory(stage: Stage, players: Players) -> None:
    with stage.by_hand() as server:
        by_hand(stage, players)
        rollup = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text()
        pss = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
        assert pss is not None
        assert int(pss[1]) < PSS_MAX_KB


def test_replies_before_confirmation_are_not_larger_than_requests(
    stage: Stage, players: Players
) -> None:
    guest = players.at(stage.reserve("wire"))
    hello = guest.hello()
    forged = MARK + b"\x02" + bytes(10) + bytes(9)
    ping, long_ping = MARK + b"\x04ping", MARK + b"\x04" + bytes(600)
    returned = []
    for datagram in (hello[:40], hello[:63], forged, MARK + b"\x03" + bytes(10), MARK, b"", ping):
        guest.say(datagram)
        returned.append(guest.receive())
    guest.say(long_ping)
    # Only the short ping gets a pong. A late pong arrives with a later read.
    answers = [one for one in (*returned, guest.receive()) if one is not None]
    assert answers == [Datagram(PONG, b"ping")]
    forger = players.at(guest.reservation)
    refusal = forger.wait_for(REFUSED, lambda: forger.hello("player_forged"))
    assert 3 + len(refusal) <= 64
    # A welcome is not longer than the hello. No other message follows until the client has proven
    # its address.
    welcome = guest.wait_for(WELCOME, lambda: hello)
    assert 3 + len(welcome) <= 64
    later = [guest.receive() for _ in range(6)]
    assert all(one is None or one.kind == WELCOME for one in later)


def test_token_has_one_session(players: Players) -> None:
    player = players.enter("wire")
    second = players.at(player.reservation)
    assert second.wait_for(REFUSED, second.hello) == bytes([TOKEN_USED])
    player.wait_for(STATE, player.input)
    player.leave()
    later = players.at(player.reservation)
    assert later.wait_for(REFUSED, later.hello) == bytes([TOKEN_USED])


def test_player_enters_during_a_flood_of_false_tokens(stage: Stage, players: Players) -> None:
    reservation = stage.reserve("wire")
    flooders = [players.at(reservation) for _ in range(32)]
    is_over = threading.Event()

    def flood() -> None:
        for number in itertools.count():
            flooder = flooders[number % len(flooders)]
            flooder.say(flooder.hello(f"player_{number}"))
            if number % 10 == 0 and is_over.wait(0.001):
                return

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        flooders[0].wait_for(REFUSED, lambda: b"")
        players.at(reservation).enter()
    finally:
        is_over.set()
        thread.join()


def test_client_continues_at_a_new_address(stage: Stage, players: Players) -> None:
    player = players.enter("wire")
    player.move()
    returned = player.wait_for(MOVED, player.input)
    assert len(returned) + 3 <= len(player.input())
    player.cookie = returned
    state = player.wait_for(STATE, player.input)
    own_id = state[12:14]
    assert own_id == player.id_and_secret[:2]
    player.leave()
    until(lambda: "said goodbye" in stage.lines(player.reservation.lobby_id)[-1])


@pytest.mark.timeout(300)
def test_sessions_survive_a_service_restart(stage: Stage) -> None:
    with contextlib.closing(stage.bots("siege", 12)) as bots:
        for _ in range(2):
            until(lambda: stage.players("siege") == 12)
            stage.kill()
            stage.full_service.start()
        until(lambda: stage.players("siege") == 12)
        bots.stop()
        report = bots.report()
    assert (report["played"], report["failures"]) == (12, {})
    [lobby_id] = report["lobbies"]
    assert report["players_here_max"] == 12
    assert report["moves"] == 0
    assert report["states_missed"] < report["states"] / 100
    until(lambda: stage.players("siege") == 0)
    assert stage.end_of(lobby_id)["exit_code"] == 0


@pytest.mark.timeout(300)
def test_outage_delays_no_tick_and_releases_unconfirmed_players(
    stage: Stage, players: Players
) -> None:
    player = players.enter("outage")
    reserved = players.at(stage.reserve("outage"))
    assert reserved.reservation.lobby_id == player.reservation.lobby_id
    stage.kill()
    try:
        reserved.say(reserved.hello())
        ticks = ticks_of(player, lambda: reserved.receive(0.001))
        assert ticks.last == Datagram(REFUSED, bytes([UNDECIDED]))
        assert CONFIRM_S - 1 < ticks.passed * 0.05 < CONFIRM_S + 5
        assert ticks.states > ticks.passed * 0.9
    finally:
        stage.full_service.start()

    # Without the release, the reservation would occupy the slot for two minutes.
    def found_again() -> Reservation | None:
        player.say(player.input())
        reservation = stage.find("outage", prevent_auto_create_lobby=True)
        return reservation if isinstance(reservation, Reservation) else None

    again = first(found_again)
    assert again.lobby_id == player.reservation.lobby_id
    players.at(again).enter()


def test_all_environment_problems_are_reported_at_once(programs: Path) -> None:
    wrong = {"HOSTING_API_URL": "https://127.0.0.1", "PORT": "70000", "HOSTING_LOBBY_ID": "x"}
    server = run_server(programs, wrong)
    output, problems = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, output) == (1, "")
    no_api, no_token, no_port, *usage = problems.splitlines()
    assert no_api.startswith("HOSTING_API_URL is https, which this program does not speak")
    assert no_token == "HOSTING_LOBBY_TOKEN must be set"
    assert no_port == "PORT must be a whole number from 1 to 65535"
    assert usage[0].startswith("usage:")


def test_bot_reports_all_missing_arguments(programs: Path) -> None:
    command = [str(programs / "udp-bot"), "--api", "http://127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert [line.split()[0] for line in result.stderr.splitlines()[:2]] == [
        "--token-file",
        "--mode",
    ]
