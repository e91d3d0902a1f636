"""Lobbies of a node that is cut off end and are replaced, and nothing of them comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pyservice_cli.api import Answer
from tests.cluster.cluster import Cluster, is_ready
from tests.cluster.machines import until_started
from tests.cluster.many_lobbies import SMALL, ManyLobbies, at_once, id_of, many_lobbies
from tests.support.waiting import PATIENCE_S

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


def require_ended(lobbies: ManyLobbies, places: list[Answer]) -> None:
    """Players try to get in to ended lobbies until the Pods of these are gone. No player succeeds."""
    ended = {id_of(one) for one in places}

    def is_gone() -> bool:
        admitted = at_once(lobbies.game.is_admitted, places)
        assert not any(admitted), "a player got in to an ended lobby"
        return not ended & lobbies.nodes().keys()

    until_started(is_gone)
    assert not any(at_once(lobbies.game.is_admitted, places))
