"""Differences between the placements: what the stories find, and how the documents describe it.

Everything else is the same in both. The table `placements` of `docs/reference/servers.md` has the
same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tests.placement.story_game import NEVER_EXITED, End
from tests.support.game_placement import GamePlacement

_SCRATCH: Final = r"The scratch folder is full \(16 MiB\): .+"


class Side(NamedTuple):
    sentence: str
    """Cell of the table."""
    facts: Any
    """Facts that the stories find."""


class Difference(NamedTuple):
    topic: str
    """First cell of the table."""
    local: Side
    kubernetes: Side


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "capacity": Difference(
        "no machine has room",
        Side(
            "create fails with 503 `CAPACITY_EXHAUSTED`, and find with "
            "`MATCHMAKER_NO_AVAILABLE_LOBBIES`",
            None,
        ),
        Side(
            "the cluster can add nodes, so the Pod waits for `kubernetes.pending_ms`. Then the server "
            "or lobby fails with `CAPACITY_EXHAUSTED`, and find with `MATCHMAKER_LOBBY_START_FAILED`",
            r"no node has room for \d+ millicores and \d+ MB: Insufficient cpu on 2 nodes",
        ),
    ),
    "public-port": Difference(
        "`public_port` and `public_hostname`",
        Side("are in the response to create", True),
        Side(
            "are in the record as soon as the server has a node",
            False,
        ),
    ),
    "full-disk": Difference(
        "a program writes more than its scratch folder holds",
        Side(
            "the write fails with `ENOSPC`. If the program exits because of it, the record has its "
            "exit code and a `problem`",
            {
                "server": End("destroyed", "", 1, _SCRATCH),
                "lobby": End("failed", "EXITED", 1, _SCRATCH),
            },
        ),
        Side(
            "the write succeeds. The node ends the Pod within about a minute. The record has "
            "`OUT_OF_DISK` and the same sentence, and no exit code",
            {
                "server": End("failed", "OUT_OF_DISK", None, _SCRATCH),
                "lobby": End("failed", "OUT_OF_DISK", NEVER_EXITED, _SCRATCH),
            },
        ),
    ),
    "no-time": Difference(
        "a stop with a timeout of 0 ms",
        Side("SIGKILL at once", 128 + 9),
        Side("SIGTERM, and SIGKILL after 1 s. Other timeouts are rounded up to whole seconds", 5),
    ),
    "shorter-time": Difference(
        "a second stop with a shorter timeout",
        Side("the earlier end counts", 128 + 9),
        Side("the first timeout counts, because nodes do not shorten it", 6),
    ),
    "loopback": Difference(
        "a program that listens at `127.0.0.1`",
        Side("players reach it", True),
        Side(
            "players do not reach it, and the record has a `problem`: listen at "
            "`HOSTING_BIND_ADDRESS`",
            False,
        ),
    ),
    "only-ipv6": Difference(
        "a program that listens at `::` and refuses IPv4",
        Side("the record has a `problem`", True),
        Side("players do not reach it over IPv4, and the record has no `problem`", False),
    ),
    "udp-readiness": Difference(
        "an [adapter](adapters.md) with `ready` `port`",
        Side(
            "the sockets of the port count. For `tcp_udp` both are needed, and `udp` is possible",
            "OK",
        ),
        Side(
            "a TCP connection from the service counts. For `tcp_udp` only TCP is needed, and `udp` is "
            "refused: set `ready` to `log` or `query`",
            "VALIDATION_FAILED",
        ),
    ),
    "variable-name": Difference(
        "a variable with another name than letters, digits and `_`, such as `map-name`",
        Side("the program gets it", None),
        Side(
            "the server or lobby fails with `EXEC_FAILED`",
            r"the name of the variable map-name may have only letters, digits and _ .+",
        ),
    ),
}


def facts_of(topic: str, placement: GamePlacement) -> Any:
    """Returns what the stories find in this placement."""
    difference = DIFFERENCES[topic]
    side = difference.local if placement.name == "local" else difference.kubernetes
    return side.facts
