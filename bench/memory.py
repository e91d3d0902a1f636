"""Memory of the data plane under many namespaces with large versions, and with slow readers of lobby lists.

Load: 300 namespaces that run one version of 600 KiB, or one each. Then 60 clients that read a list with states at
1 KiB/s, beside an open loop of finds.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final

from bench.http_load import send_all
from bench.machine import Bench, loaded
from bench.players import MODE, Players
from bench.processes import begin_peak, memory_kib
from bench.results import Figure, Result, Run
from bench.service import Service, running

NAME: Final = "memory"
NAMESPACES: Final = 300
_MODES: Final = 32
_VARIABLES: Final = 64
_VALUE_BYTES: Final = 300
READERS: Final = 60
_READ_BYTES: Final = 1_024
_READ_INTERVAL_S: Final = 1.0
_RECEIVE_BUFFER: Final = 4_096
_LOBBIES: Final = 64
_STATE_BYTES: Final = 32 * 1_024
_FINDS: Final = 1_000
_FINDS_PER_S: Final = 50.0


def run(bench: Bench) -> Result:
    equal, different = (_versions(bench, is_equal=is_equal) for is_equal in (True, False))
    readers = _slow_readers(bench)
    figures = [
        Figure(f"{NAMESPACES} namespaces with one version of 600 KiB, memory of the data plane",
               equal["growth_mib"], "MiB", at_most=20, note=f"without: {equal['before_mib']:.0f} MiB"),
        Figure(f"{NAMESPACES} namespaces with a version of 600 KiB each", different["growth_mib"],
               "MiB", at_most=250),
        Figure(f"{READERS} readers of lists with states at 1 KiB/s, memory of the data plane",
               readers["growth_mib"], "MiB", at_most=128, note="the peak"),
        Figure("the longest find meanwhile", readers["max_us"] / 1e3, "ms", at_most=100,
               note=f"p50 {readers['p50_us'] / 1e3:.1f} ms, p99 {readers['p99_us'] / 1e3:.1f} ms, "
               f"{_FINDS_PER_S:.0f}/s"),
    ]  # fmt: skip
    runs = {"equal versions": [equal], "different versions": [different], "readers": [readers]}
    return Result(NAME, figures, runs)


def _data_plane(service: Service) -> int:
    return int((service.data_dir / "LOCK").read_text().split()[0])


def _versions(bench: Bench, *, is_equal: bool) -> Run:
    with running(bench.scratch("memory")) as service:
        game_id = service.game("bench")
        before_mib = memory_kib(_data_plane(service)) / 1_024
        versions = [service.version(game_id, large_config(0))] * NAMESPACES
        if not is_equal:
            versions[1:] = [
                service.version(game_id, large_config(one)) for one in range(1, NAMESPACES)
            ]
        requests = [
            service.request(
                "create_namespace",
                {
                    "game_id": game_id,
                    "display_name": f"N{number}",
                    "name_id": f"n{number}",
                    "version_id": version_id,
                },
            )
            for number, version_id in enumerate(versions)
        ]
        service.call_all(requests)
        service.wait_held()
        after_mib = memory_kib(_data_plane(service)) / 1_024
    return {"before_mib": before_mib, "growth_mib": after_mib - before_mib}


def large_config(number: int) -> Any:
    """Returns a configuration of 600 KiB that differs from those of other numbers in each variable."""
    env = {
        f"NAME_{name}": f"{number:05}-{name:02}-".ljust(_VALUE_BYTES, "x")
        for name in range(_VARIABLES)
    }
    docker = {"env": env, "ports": {"game": {"protocol": "http"}}}
    modes = {f"mode-{name:02}": {"max_players": 4, "docker": docker} for name in range(_MODES)}
    return {"matchmaker": {"game_modes": modes}}


def _slow_readers(bench: Bench) -> Run:
    with running(bench.scratch("memory")) as service:
        players = Players(service)
        [namespace] = players.namespaces
        lobbies = players.attach([namespace] * _LOBBIES)
        state = {"text": "x" * _STATE_BYTES}
        service.call_all(
            [service.request("set_state", state, token=one.lobby_token) for one in lobbies]
        )
        find = service.request("find", {"game_modes": [MODE]}, token=namespace.service_token)
        wanted = service.request("list", {"include_state": "true"}, token=namespace.service_token)
        plane = _data_plane(service)
        before_kib = memory_kib(plane)
        begin_peak(plane)
        with _reading(service.address, wanted.raw):
            # One connection, because the service closes those that it hears nothing from.
            run = loaded(lambda: send_all(service.address, [find] * _FINDS, 1, _FINDS_PER_S)).run
        run["growth_mib"] = (memory_kib(plane, "VmHWM") - before_kib) / 1_024
    return run


@contextlib.contextmanager
def _reading(address: str, request: bytes) -> Iterator[None]:
    """Reads responses slowly on all connections. A connection that the service closes is opened again."""
    host, _, port = address.rpartition(":")
    has_ended = threading.Event()

    def read() -> None:
        connections: list[socket.socket | None] = [None] * READERS
        while not has_ended.wait(_READ_INTERVAL_S):
            for number, connection in enumerate(connections):
                if connection is None:
                    connection = connections[number] = _slow_connection(host, int(port))
                    connection.sendall(request)
                try:
                    is_open = bool(connection.recv(_READ_BYTES))
                except BlockingIOError:
                    is_open = True
                except OSError:
                    is_open = False
                if not is_open:
                    connection.close()
                    connections[number] = None
        for connection in connections:
            if connection is not None:
                connection.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def _slow_connection(host: str, port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    connection.connect((host, port))
    connection.setblocking(False)
    return connection
