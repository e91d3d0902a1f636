"""Game server that ticks 60 times in a second and prints the tick times of each second.

A tick time is the time in microseconds from the moment in which a tick is due until its work is
done. The server listens on the port that it gets.
"""

from __future__ import annotations

import json
import os
import socket
import time

TICKS_PER_S = 60
WORK = 10_000


def main() -> None:
    with (
        socket.create_server(("127.0.0.1", int(os.environ["PORT"]))),
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", int(os.environ["PORT"])))
        due_s, times_us = time.monotonic(), []
        while True:
            due_s += 1 / TICKS_PER_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            sum(range(WORK))
            now_s = time.monotonic()
            times_us.append(round((now_s - due_s) * 1e6))
            # A tick that is missed is left out, as a game would.
            due_s = max(due_s, now_s - 1 / TICKS_PER_S)
            if len(times_us) == TICKS_PER_S:
                print(json.dumps(times_us), flush=True)
                times_us = []


if __name__ == "__main__":
    main()
