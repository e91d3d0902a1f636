"""The API server is away for a minute: games and joins go on, and starts resume when it is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.hosted_service import GAMES
from tests.cluster.many_lobbies import SHARED, SMALL, ManyLobbies, at_once, id_of, many_lobbies
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.proof, pytest.mark.timeout(900)]

AWAY_S: Final = 60.0
LOBBIES: Final = 5
_PAUSE_S: Final = 1.0


@pytest.fixture(scope="module")
def lobbies(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManyLobbies]:
    with many_lobbies(cluster, service_image, tmp_path_factory.mktemp("hosted")) as lobbies:
        yield lobbies


def test_games_go_on_while_the_api_server_is_away(cluster: Cluster, lobbies: ManyLobbies) -> None:
    game = lobbies.game
    with cluster.network():
        *reserved, unwanted = lobbies.start(LOBBIES)
        shared = game.find(SHARED)
        before = set(lobbies.nodes())
        cluster.stop_api_server()
        back_s = time.monotonic() + AWAY_S
        with ThreadPoolExecutor() as pool, game.player(shared) as connection:
            starting = pool.submit(game.find_again, SMALL)
            game.end(id_of(unwanted))
            while time.monotonic() < back_s:
                connection.sendall(b"shoot")
                assert connection.recv(65_536) == b"shoot"
                joined = game.find(SHARED)
                assert id_of(joined) == id_of(shared)
                assert game.is_admitted(joined)
                assert not starting.done(), "no Pod can be created"
                time.sleep(_PAUSE_S)
            cluster.restart_api_server()
            started = starting.result()
            assert id_of(started) not in before
            cluster.wait_gone(f"{GAMES}/{id_of(unwanted)}")
            until(lambda: game.record(id_of(unwanted))["state"] == "stopped")
            lobbies.require_one_pod_each({id_of(one) for one in (*reserved, shared, started)})
            connection.sendall(b"still here")
            assert connection.recv(65_536) == b"still here"
        assert all(at_once(game.is_admitted, [*reserved, started]))
        assert {record.get("failure") for record in game.records().values()} == {None}
        lobbies.end_all()
