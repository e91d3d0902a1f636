"""The control plane is killed again and again while lobbies start and end. No lobby suffers."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from pyservice_cli.api import Answer
from tests.cluster.cluster import Cluster
from tests.cluster.machines import until_started
from tests.cluster.many_lobbies import SMALL, ManyLobbies, at_once, id_of, many_lobbies

pytestmark = [pytest.mark.cluster, pytest.mark.proof, pytest.mark.timeout(1_200)]

STARTS: Final = 300
KILLS: Final = 20
PLAYERS: Final = 10
KEPT: Final = 10
_ROLE: Final = "--role=control"


@pytest.fixture(scope="module")
def lobbies(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManyLobbies]:
    with many_lobbies(cluster, service_image, tmp_path_factory.mktemp("hosted")) as lobbies:
        yield lobbies


class Matches:
    """Players that play one match after the other. Each match is a lobby, which then ends."""

    def __init__(self, lobbies: ManyLobbies) -> None:
        self._lobbies = lobbies
        self._lock = threading.Lock()
        self._started = 0
        self.begun = threading.Semaphore(0)
        """Is released once for each lobby that has started."""
        self.played: list[str] = []
        self.kept: list[Answer] = []
        self.problems: list[BaseException] = []

    def play_all(self) -> None:
        try:
            while self._take_turn():
                self._play()
        except BaseException as error:  # noqa: BLE001 — the main thread raises it
            self.problems.append(error)

    def _take_turn(self) -> bool:
        with self._lock:
            self._started += 1
            return self._started <= STARTS and not self.problems

    def _play(self) -> None:
        game = self._lobbies.game
        found = game.find_again(SMALL)
        self.begun.release()
        with self._lock:
            if len(self.kept) < KEPT:
                self.kept.append(found)
                return
        with game.player(found) as connection:
            connection.sendall(b"shoot")
            assert connection.recv(65_536) == b"shoot"
            # Otherwise its slot would be free while the control plane is away.
            game.end(id_of(found))
        self.played.append(id_of(found))


def control_planes(lobbies: ManyLobbies) -> list[int]:
    commands = lobbies.cluster.processes_on(lobbies.hosted.node)
    return [pid for pid, command in commands.items() if _ROLE in command]


def kill_control_plane(lobbies: ManyLobbies, killed: list[int]) -> None:
    """Kills the control plane as soon as it runs again."""
    until_started(lambda: bool(set(control_planes(lobbies)) - set(killed)))
    for pid in control_planes(lobbies):
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)


def test_killed_control_plane_loses_and_doubles_no_lobby(
    cluster: Cluster, lobbies: ManyLobbies
) -> None:
    choose, killed = random.Random(40), list[int]()
    matches = Matches(lobbies)
    with cluster.network():
        players = [threading.Thread(target=matches.play_all) for _ in range(PLAYERS)]
        for player in players:
            player.start()
        for _ in range(KILLS):
            for _ in range(STARTS // KILLS - choose.randrange(5)):
                until_started(
                    lambda: bool(matches.problems) or matches.begun.acquire(blocking=False)
                )
            kill_control_plane(lobbies, killed)
        for player in players:
            player.join()
        for problem in matches.problems:
            raise problem
        assert len(killed) >= KILLS

        kept = {id_of(one) for one in matches.kept}
        lobbies.require_one_pod_each(kept)
        records = lobbies.game.records()
        assert len(matches.played) == len(set(matches.played)) == STARTS - KEPT
        assert {records[one]["state"] for one in matches.played} == {"stopped"}
        failed = [one for one in records.values() if one.get("failure") or one.get("problem")]
        assert failed == [], lobbies.hosted.logs()
        assert all(at_once(lobbies.game.is_admitted, matches.kept)), "a kept lobby has no server"
        lobbies.end_all()
