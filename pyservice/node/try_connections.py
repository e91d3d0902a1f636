"""Command of the probe Pod: tries connections that the NetworkPolicies allow or refuse.

Usage: `python3 -m pyservice.node.try_connections <ConnectionTrial as JSON>`. The report is in the last
words of the container.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyservice.kubernetes.build_fetch import TERMINATION_LOG
from pyservice.kubernetes.connection_trial import ConnectionTrial, TrialReport
from pyservice.network.connection_attempt import accepts_connections

ROUNDS: Final = 3
"""Consecutive rounds that prove the policies. A plugin may change its rules while a Pod starts."""
_PAUSE_S: Final = 0.3


async def try_connections(trial: ConnectionTrial) -> TrialReport:
    """Tries all addresses in rounds, until the policies are proven or the time is over.

    A round proves them only if it reaches the API, because a new Pod may have no network at first.
    """
    loop = asyncio.get_running_loop()
    begin_s, proven, open_s = loop.time(), 0, 0.0
    while True:
        is_reached = await asyncio.gather(
            *map(accepts_connections, (trial.allowed, *trial.refused))
        )
        reaches_allowed, *others = is_reached
        reached = tuple(itertools.compress(trial.refused, others))
        passed_s = loop.time() - begin_s
        if reached:
            open_s = passed_s
        proven = proven + 1 if reaches_allowed and not reached else 0
        if proven == ROUNDS or passed_s >= trial.timeout_s:
            return TrialReport(reaches_allowed, reached, math.ceil(open_s * 1_000))
        await asyncio.sleep(_PAUSE_S)


def main(arguments: Sequence[str] = sys.argv[1:], last_words: Path = Path(TERMINATION_LOG)) -> int:
    [text] = arguments
    report = asyncio.run(try_connections(ConnectionTrial.decode(text))).encode()
    print(report)
    last_words.write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
