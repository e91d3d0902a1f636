"""Game server that attempts the forbidden actions listed in `goals.json` and reports which
succeed. `lives` proves that ordinary programs still work.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW)


@contextlib.contextmanager
def trying(name: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        return
    print("BROKE", name, flush=True)


def reach(path: str) -> None:
    for kind in KINDS:
        with trying(f"connects to {path} by {kind!r}"):
            socket.socket(socket.AF_UNIX, kind).connect(path)
        if kind != socket.SOCK_SEQPACKET:
            with trying(f"sends to {path} by a pair of {kind!r}"):
                socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", path)


def open_all(path: str) -> None:
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        with trying(f"opens {path} by {flags}"):
            os.close(os.open(path, flags | os.O_NONBLOCK))
    with trying(f"links {path}"):
        os.link(path, "link")


def enter(path: str) -> None:
    with trying(f"lists {path}"):
        os.listdir(path)
    with trying(f"writes into {path}"):
        os.mkdir(f"{path}/made")


def touch(pid: int, *, is_scoped: bool) -> None:
    if is_scoped:
        with trying(f"signals {pid}"):
            os.kill(pid, 0)
    with trying(f"limits {pid}"):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    for name in ("environ", "mem", "maps", "fd/0", "cwd/keys.json"):
        with trying(f"reads {name} of {pid}"):
            os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))


async def live() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    child.send_signal(signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", int(os.environ["PORT"])
    )
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.close()
    server.close()
    print("lives", flush=True)


def main() -> None:
    goals = json.loads(Path(__file__).with_name("goals.json").read_text())
    for path in goals["sockets"]:
        reach(path)
    for path in goals["files"]:
        open_all(path)
    for path in goals["folders"]:
        enter(path)
    for pid in goals["pids"]:
        touch(pid, is_scoped=goals["is_scoped"])
    asyncio.run(live())
    print("over", flush=True)


if __name__ == "__main__":
    main()
