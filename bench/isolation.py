"""Cost of network isolation: start time of a lobby, and round trip of a player's datagram through the edge.

Baseline: the same game servers with `network_mode` `host`, interleaved. No process is pinned to a core.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time
from typing import Any, Final

from bench.http_load import send_one
from bench.lobbies import (
    ARENA_TIER,
    CREATE,
    SETTINGS,
    SMALL,
    Builds,
    GameModes,
    deploy,
    end_lobbies,
    play_arena,
    udp_server,
)
from bench.machine import Bench
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, median
from bench.service import Service, running

NAME: Final = "isolation"
MODES: Final = ("bridge", "host")
STARTS: Final = 20
PINGS: Final = 2_000
_PING: Final = b"\x5d\x01\x04"
_PONG: Final = b"\x5d\x01\x15"
_TIMEOUT_S: Final = 10.0


def run(bench: Bench) -> Result:
    program = udp_server()
    with running(bench.scratch("isolation"), is_pinned=False, more=SETTINGS) as service:
        token = asyncio.run(deploy(service, program, _modes))
        starts: dict[str, list[Run]] = {mode: [] for mode in MODES}
        for _ in range(STARTS):
            for mode in MODES:
                starts[mode].append(asyncio.run(play_arena(service, token, f"arena-{mode}")))
        trips = _round_trips(service, token)
    start_ms = {
        mode: statistics.median(one["connected_ms"] for one in starts[mode]) for mode in MODES
    }
    trip_us = {mode: median(trips[mode], "p50_us") for mode in MODES}
    figures = [
        Figure("network isolation, added to the start of an arena lobby, p50",
               start_ms["bridge"] - start_ms["host"], "ms", at_most=15,
               note=f"without: {start_ms['host']:.0f} ms"),
        Figure("network isolation, added to a datagram's round trip through the edge, p50",
               trip_us["bridge"] - trip_us["host"], "µs", at_most=20,
               note=f"without: {trip_us['host']:.0f} µs"),
    ]  # fmt: skip
    runs = {f"start {mode}": starts[mode] for mode in MODES}
    return Result(NAME, figures, {**runs, **{f"round trip {mode}": trips[mode] for mode in MODES}})


def _modes(builds: Builds) -> GameModes:
    modes: GameModes = {}
    for mode in MODES:
        arena, udp = ({**docker, "network_mode": mode} for docker in builds)
        modes[f"arena-{mode}"] = {**SMALL, "tier": ARENA_TIER, "docker": arena}
        modes[f"udp-{mode}"] = {**SMALL, "actions": CREATE, "docker": udp}
    return modes


def _round_trips(service: Service, token: str) -> dict[str, list[Run]]:
    lobbies = {mode: _created(service, token, f"udp-{mode}") for mode in MODES}
    trips: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):
        for mode in MODES:
            trips[mode].append(_pings(lobbies[mode]))
    end_lobbies(service, [one["lobby"]["lobby_id"] for one in lobbies.values()])
    return trips


def _created(service: Service, token: str, game_mode: str) -> Any:
    request = service.request("create", {"game_mode": game_mode}, token=token)
    return json.loads(send_one(service.address, request))


def _pings(placement: Any) -> Run:
    port = placement["ports"]["game"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(_TIMEOUT_S)
        player.connect((port["hostname"], port["port"]))
        times = [_ping(player, number) for number in range(PINGS)]
    return {
        "p50_us": statistics.median(times) * 1e6,
        "p99_us": sorted(times)[PINGS * 99 // 100] * 1e6,
    }


def _ping(player: socket.socket, number: int) -> float:
    began_s = time.perf_counter()
    player.send(_PING + number.to_bytes(4))
    answer = player.recv(512)
    took_s = time.perf_counter() - began_s
    if answer != _PONG + number.to_bytes(4):
        raise WrongAnswer(f"unexpected answer to a ping: {answer!r}")
    return took_s
