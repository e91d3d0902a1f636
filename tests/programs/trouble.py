"""Faulty game servers: `python3 -S trouble.py <which>`, based on `server.py`.

`plain` adds nothing. `counts` writes numbered lines without end. `beats` sends heartbeats to the
service. `forks` continues in a child process only. `leaks` allocates memory without end after
SIGUSR1, and `leaks-early` before it is ready. `floods:<MiB>` writes that much output at full
speed. `astray` listens on a wrong port and reports ready. `spies` tries the paths in its
`lobby_config` and writes which kinds of access succeed. `ranges` listens on the first free port of
its range.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.programs import server
else:
    import server  # `server.py` is in the same archive.

LINE = b"flood " + b"x" * 93 + b"\n"


def write(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


def beside(work: Callable[..., None], *arguments: int) -> int:
    threading.Thread(target=work, args=arguments, daemon=True).start()
    return server.main()


def count() -> None:
    for number in itertools.count():
        write(b"n %d\n" % number)
        time.sleep(0.01)


def beat() -> None:
    while True:
        server.call("lobbies/heartbeat")
        time.sleep(0.1)


def leak_on_request() -> None:
    signal.sigwait({signal.SIGUSR1})
    leak()


def leak() -> None:
    blocks = []
    while True:
        blocks.append(b"\1" * (4 << 20))
        time.sleep(0.005)


def flood(mib: int) -> None:
    for _ in range(mib):
        write(LINE * ((1 << 20) // len(LINE)))
        write(b"y" * 10_000 + b"\n")
    while True:
        # The keeper drops part of the output when it arrives too fast.
        write(b"dry\n")
        time.sleep(0.05)


def forks() -> int:
    if os.fork():
        return 0
    os.setsid()
    return server.main()


def leaks() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    return beside(leak_on_request)


def leaks_early() -> int:
    leak()
    return 0


def astray() -> int:
    with socket.socket() as listener, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        # Without a bind, the kernel selects the port. A bind to port 0 is refused.
        listener.listen()
        datagrams.bind(("127.0.0.1", 0))
        server.say("ready", server.is_ready())
        threading.Event().wait()
    return 0


def attempt(path: str) -> str:
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK),
        "write": lambda: os.open(path, os.O_WRONLY | os.O_NONBLOCK),
        "connect": lambda: socket.socket(socket.AF_UNIX).connect(path),
    }
    results = []
    for name, way in ways.items():
        with contextlib.suppress(OSError):
            way()
            results.append(name)
    return ",".join(results) or "nothing"


def spies() -> int:
    for path in json.loads(os.environ["HOSTING_LOBBY_CONFIG"]):
        server.say("spied", attempt(path), path)
    return server.main()


def ranges() -> int:
    first, last = (int(os.environ[f"PORT_RANGE_{end}_GAME"]) for end in ("MIN", "MAX"))
    ports = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("PORT")}
    server.say("ports", json.dumps(ports))
    for number in range(first, last + 1):
        try:
            socket.create_server(("127.0.0.1", number)).close()
        except OSError:
            continue
        server.say("bound", number)
        os.environ["PORT_GAME"] = str(number)
        return server.main()
    return 1


def main() -> int:
    which, _, much = sys.argv[1].partition(":")
    work = {
        "counts": lambda: beside(count),
        "beats": lambda: beside(beat),
        "forks": forks,
        "leaks": leaks,
        "leaks-early": leaks_early,
        "floods": lambda: beside(flood, int(much)),
        "astray": astray,
        "spies": spies,
        "ranges": ranges,
    }
    return work.get(which, server.main)()


if __name__ == "__main__":
    sys.exit(main())
