"""Lobbies of a node that is cut off end and are replaced. Nothing of them comes back."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from pyservice_cli.api import Answer
from tests.cluster.cluster import Cluster, is_ready
from tests.cluster.hosted_service import GAMES
from tests.cluster.machines import until_started
from tests.cluster.many_lobbies import SMALL, ManyLobbies, at_once, id_of, many_lobbies
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.cluster, pytest.mark.proof, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lobbies(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManyLobbies]:
    with many_lobbies(cluster, service_image, tmp_path_factory.mktemp("hosted")) as lobbies:
        yield lobbies


def replaced(lobbies: ManyLobbies, earlier: Answer) -> Answer:
    """Waits for the end of a lobby, and finds another one for its player."""
    game, lobby_id = lobbies.game, id_of(earlier)
    end = time.monotonic() + 2 * PATIENCE_S
    while game.record(lobby_id)["state"] != "failed":
        assert time.monotonic() < end, f"{lobby_id} has not ended"
        time.sleep(0.2)
    return game.find_again(SMALL)


@pytest.mark.parametrize(("count", "limit_s"), [(20, 30.0), (50, 60.0)])
def test_lobbies_of_a_lost_node_are_replaced_and_stay_ended(
    cluster: Cluster, lobbies: ManyLobbies, count: int, limit_s: float
) -> None:
    game, lost = lobbies.game, cluster.nodes[-1]
    with cluster.network():
        cluster.kubectl("cordon", lobbies.hosted.node)
        first = lobbies.start(count)
        cluster.kubectl("uncordon", lobbies.hosted.node)
        ended = {id_of(one) for one in first}
        assert lobbies.nodes() == dict.fromkeys(ended, lost)

        cut_s = time.monotonic()
        cluster.cut_off(lost)
        try:
            second = at_once(lambda one: replaced(lobbies, one), first)
            took_s = time.monotonic() - cut_s
            records = game.records()
            assert {records[one]["failure"] for one in ended} == {"LOST"}
            assert all(lost in records[one]["problem"] for one in ended)
            assert len(lobbies.running_on(lost)) == count, "its programs run on"
        finally:
            cluster.reconnect(lost)
        require_ended(lobbies, first)
        cluster.wait_for(f"/api/v1/nodes/{lost}", is_ready)
        lobbies.require_one_pod_each({id_of(one) for one in second})
        assert not lobbies.running_on(lost)
        assert all(at_once(game.is_admitted, second))
        lobbies.end_all()
    print(f"{count} lobbies of a lost node were replaced after {took_s:.1f} s")
    assert took_s <= limit_s


def test_players_on_a_node_that_is_cut_off_play_on(cluster: Cluster, lobbies: ManyLobbies) -> None:
    game, lost = lobbies.game, cluster.nodes[-1]
    with cluster.network():
        cluster.kubectl("cordon", lobbies.hosted.node)
        [found] = lobbies.start(1)
        cluster.kubectl("uncordon", lobbies.hosted.node)
    lobby_id, port = id_of(found), found["ports"]["game"]
    assert lobbies.nodes() == {lobby_id: lost}
    address = port["hostname"], port["port"]
    # The player reaches edge-guard on the node without the network that is cut.
    with cluster.network_on(lost), game.player(found) as player:
        cluster.cut_off(lost)
        try:
            with cluster.network():
                assert game.record_with_problem(lobby_id)["failure"] == "LOST"
            assert not is_refused(address), "the data plane has not been away for 30 s"
            require_echo(player)
            until(lambda: is_refused(address))
            require_echo(player)
        finally:
            cluster.reconnect(lost)
        until_started(lambda: not is_connected(player))
    with cluster.network():
        cluster.wait_gone(f"{GAMES}/{lobby_id}")
        cluster.wait_for(f"/api/v1/nodes/{lost}", is_ready)


def require_echo(player: socket.socket) -> None:
    player.sendall(b"shoot")
    assert player.recv(65_536) == b"shoot"


def is_refused(address: tuple[str, int]) -> bool:
    """Returns whether a new connection is closed at once."""
    with socket.create_connection(address, PATIENCE_S) as connection:
        return not is_connected(connection)


def is_connected(connection: socket.socket) -> bool:
    connection.settimeout(1.0)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def require_ended(lobbies: ManyLobbies, places: list[Answer]) -> None:
    """Players try to get in to ended lobbies until the Pods of these are gone. No player succeeds."""
    ended = {id_of(one) for one in places}

    def is_gone() -> bool:
        admitted = at_once(lobbies.game.is_admitted, places)
        assert not any(admitted), "a player got in to an ended lobby"
        return not ended & lobbies.nodes().keys()

    until_started(is_gone)
    assert not any(at_once(lobbies.game.is_admitted, places))
