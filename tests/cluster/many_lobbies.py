"""Many small lobbies in the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from pyservice_cli.api import Answer
from tests.cluster.cluster import Cluster
from tests.cluster.hosted_service import GAMES, HostedService, PublishedGame
from tests.cluster.machines import until_started

SMALL: Final = "small"
"""Game mode of lobbies with room for one player."""
SHARED: Final = "shared"
"""Game mode of lobbies with room for four players."""
CONFIGURATION: Final = """
[rate_limits.client]
per_second = 0
[rate_limits.operator]
per_second = 0
[rate_limits.operator_group]
per_second = 0
[rate_limits.address]
per_second = 0
[[tiers]]
tier_name_id = "small"
cpu = 75
memory = 32
disk = 64
bandwidth = 1_000
service_cores_numerator = 1
service_cores_denominator = 40
"""
"""Fifty lobbies of the tier `small` fit on a node of two cores."""
_PROGRAM: Final = "server.py"
_STARTS_AT_ONCE: Final = 10
"""More starts at once may take longer than a find waits."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def at_once(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int = 50
) -> list[Result]:
    """Does the same with all items in parallel, in the network of the caller."""
    # A new thread is in the network of the thread that starts it.
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


class ManyLobbies:
    """The service with a game, and what the cluster runs of it."""

    def __init__(self, cluster: Cluster, hosted: HostedService) -> None:
        self.cluster = cluster
        self.hosted = hosted
        # A lobby with a reserved slot does not end by itself.
        usual = {"tier": "small", "player_token_ttl": 1_200_000}
        modes = {SMALL: {**usual, "max_players": 1}, SHARED: {**usual, "max_players": 4}}
        self.game = PublishedGame(hosted, modes)

    def start(self, count: int) -> list[Answer]:
        """Finds as many lobbies. Each is reserved for its player."""
        found = at_once(lambda _: self.game.find_again(SMALL), range(count), _STARTS_AT_ONCE)
        assert len({id_of(one) for one in found}) == count
        return found

    def nodes(self) -> dict[str, str]:
        """Returns the node of each Pod of a lobby, by id of the lobby."""
        # The Pod of the network probe has no such label.
        pods = (self.cluster.get(f"{GAMES}?labelSelector=hosting%2Frun") or {"items": []})["items"]
        return {pod["metadata"]["name"]: str(pod["spec"].get("nodeName")) for pod in pods}

    def running_on(self, node: str) -> list[int]:
        """Returns the processes of game servers on a node."""
        commands = self.cluster.processes_on(node)
        return [pid for pid, command in commands.items() if _PROGRAM in command]

    def live(self) -> set[str]:
        """Returns the lobbies that have not ended."""
        records = self.game.records()
        return {
            one for one, record in records.items() if record["state"] in ("starting", "running")
        }

    def end_all(self) -> None:
        at_once(self.game.end, self.live())
        until_started(lambda: not self.nodes())

    def require_one_pod_each(self, lobby_ids: set[str]) -> None:
        """Waits until exactly these lobbies have Pods, and each Pod has one process."""
        until_started(lambda: set(self.nodes()) == lobby_ids)
        until_started(lambda: self.live() == lobby_ids)
        count = sum(len(self.running_on(node)) for node in self.cluster.nodes)
        assert count == len(lobby_ids)


def id_of(found: Answer) -> str:
    """Returns the id of the lobby that `find` returned."""
    return str(found["lobby"]["lobby_id"])


@contextmanager
def many_lobbies(cluster: Cluster, image: str, folder: Path) -> Iterator[ManyLobbies]:
    """Installs the service without limits of rates, and publishes the game."""
    hosted = HostedService(cluster, image, folder, CONFIGURATION)
    with ExitStack() as stack:
        stack.callback(hosted.remove)
        hosted.install()
        with cluster.network():
            lobbies = ManyLobbies(cluster, hosted)
        yield lobbies
