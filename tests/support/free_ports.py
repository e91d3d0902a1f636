"""TCP ports that must be known before the program listens on them."""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

# Below the ports that the kernel gives to connections: one of those could be taken before its use.
_FIRST: Final = 10_000
_OF_A_WORKER: Final = 1_000
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10

_next: Final = itertools.cycle(
    range(_FIRST + _WORKER * _OF_A_WORKER, _FIRST + (_WORKER + 1) * _OF_A_WORKER)
)


def free_port() -> int:
    """Returns a TCP port without a listener. No other worker of this run of the tests gets it."""
    for port in itertools.islice(_next, _OF_A_WORKER):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"all {_OF_A_WORKER} ports of this worker have listeners")
