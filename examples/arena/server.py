"""Entry point of the arena's server. README.md lists variables and flags."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from .hosting import HostingClient
from .lobby import Verdict
from .pages import Pages
from .settings import PORT_NAME, Settings, SettingsError, read_settings
from .sockets import SEND_BUFFER_BYTES_MAX, Arena

log = logging.getLogger("arena")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="examples.arena.server", description=__doc__)
    host = os.environ.get("HOSTING_BIND_ADDRESS", "127.0.0.1")
    parser.add_argument("--host", default=host, help="address to listen on")
    parser.add_argument("--listen-fd", type=int, help="inherited listening socket to use instead")
    parser.add_argument("--seed", type=int, help="makes the places of gems and players repeatable")
    return parser.parse_args(argv)


def open_listener(host: str, port: int, inherited_fd: int | None = None) -> socket.socket:
    if inherited_fd is None:
        listener = socket.create_server((host, port))
    else:
        listener = socket.socket(fileno=inherited_fd)
    # Accepted sockets inherit this size. A large kernel buffer would delay snapshots.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES_MAX)
    return listener


async def _run(arguments: argparse.Namespace, settings: Settings) -> Verdict | None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener = open_listener(arguments.host, settings.port, arguments.listen_fd)
    host, port = listener.getsockname()[:2]
    log.info("listening on http://%s:%d/ (port %s)", host, port, PORT_NAME)
    hosting = HostingClient(settings.api_url, settings.lobby_token)
    seed = int.from_bytes(os.urandom(8)) if arguments.seed is None else arguments.seed
    arena = Arena(settings, hosting, seed)
    try:
        return await arena.run(stop, listener, Pages(Path(__file__).parent / "page"))
    finally:
        hosting.close()
        log.info("ended: %s", arena.counts)


def main(argv: list[str] | None = None) -> int:
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Debug and info lines can contain request paths, and these contain player tokens.
    logging.getLogger("websockets").setLevel(logging.ERROR)
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        for problem in error.problems:
            log.error("%s", problem)
        return 1
    verdict = asyncio.run(_run(arguments, settings))
    if verdict is not None:
        log.info("%s", verdict.value)
    return 1 if verdict is Verdict.NOT_OURS else 0


if __name__ == "__main__":
    sys.exit(main())
