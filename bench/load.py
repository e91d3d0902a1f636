"""Load of `connected`, `join` and `find` requests from the native generator on the load's core.

The load is a closed loop, or an open loop at a fixed rate with latency from the planned time of a request. Player
tokens are created before a window of `connected` and consumed in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.machine import LOAD_CORE, Bench
from bench.players import MODE, SLOTS, Lobby, Players
from bench.results import Run, WrongAnswer
from bench.service import Service

PLACEMENT_LOBBIES: Final = 1_000
LOBBIES: Final = 64
"""Minimum number of lobbies. Each worker sends requests of one lobby server."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Distribution of the load. The number of workers is connections times streams."""

    transport: str
    connections: int
    streams: int = 1
    latency_from: str = "planned"
    """`planned` or `sent`: start of the latency in an open loop."""
    headers: str = "usual"
    """`usual`: those of a client that follows the how-to guides, with idempotency keys. `bare`: as few as possible."""


HTTP: Final = Shape("http", 256)
BARE_HTTP: Final = replace(HTTP, headers="bare")
GRPC: Final = Shape("grpc", 4, 64)


@dataclass
class Tokens:
    players: Players
    plan: Path
    count: int
    lobbies: list[Lobby]

    @classmethod
    def make(cls, players: Players, plan: Path, count: int) -> Tokens:
        lobby_count = max(LOBBIES, math.ceil(count / SLOTS))
        lobbies = players.attach([players.namespaces[0]] * lobby_count)
        of_lobbies = players.reserve(lobbies, count // lobby_count)
        with plan.open("w") as file:
            for tokens in zip(*of_lobbies, strict=True):
                for lobby, token in zip(lobbies, tokens, strict=True):
                    file.write(f"connected {lobby.lobby_token} {token}\n")
        return cls(players, plan, count // lobby_count * lobby_count, lobbies)

    def end(self) -> None:
        self.players.detach(self.lobbies)


def run_load(
    bench: Bench,
    shape: Shape,
    address: str,
    plan: Path,
    cpu_s: Callable[[], float],
    rate: float = 0.0,
) -> Run:
    before_s = cpu_s()
    run = bench.native(
        "bench-load",
        shape.transport,
        *("--address", address, "--plan", str(plan)),
        *("--connections", str(shape.connections), "--streams", str(shape.streams)),
        *("--rate", str(rate), "--latency-from", shape.latency_from),
        *("--headers", shape.headers),
        core=LOAD_CORE,
    )
    run["server_cpu_us_per_answer"] = (cpu_s() - before_s) / run["answers"] * 1e6
    if run["error_count"]:
        raise WrongAnswer(f"{shape.transport} answered with {run['errors']}")
    return run


@dataclass(frozen=True, slots=True)
class Load:
    """One window. Rate 0 is a closed loop."""

    shape: Shape
    count: int
    rate: float = 0.0


def window(bench: Bench, players: Players, shape: Shape, count: int, rate: float = 0.0) -> Run:
    (run,) = windows(bench, players, [Load(shape, count, rate)])
    return run


def windows(bench: Bench, players: Players, loads: Sequence[Load]) -> list[Run]:
    """Creates all tokens, runs the windows without a pause, and checks that all players are connected."""
    all_tokens: list[Tokens] = []
    try:
        for number, load in enumerate(loads):
            plan = players.service.folder / f"plan{number}"
            all_tokens.append(Tokens.make(players, plan, load.count))
        runs = _run_all(bench, players.service, loads, [tokens.plan for tokens in all_tokens])
        admitted = sum(tokens.count for tokens in all_tokens)
        connected = players.connected(players.namespaces[0])
        if connected != admitted:
            raise WrongAnswer(f"{admitted} players were admitted, {connected} are connected")
    finally:
        for tokens in all_tokens:
            tokens.end()
    return runs


def placement_window(
    bench: Bench,
    players: Players,
    operation: str,
    count: int,
    rate: float = 0.0,
    shape: Shape = HTTP,
) -> Run:
    (run,) = placement_windows(bench, players, operation, [Load(shape, count, rate)])
    return run


def placement_windows(
    bench: Bench, players: Players, operation: str, loads: Sequence[Load]
) -> list[Run]:
    """Attaches 1,000 lobbies, runs the windows without a pause, and checks the reserved slots."""
    service = players.service
    lobbies = players.attach([players.namespaces[0]] * PLACEMENT_LOBBIES)
    try:
        plans = [service.folder / f"plan{number}" for number in range(len(loads))]
        for plan, load in zip(plans, loads, strict=True):
            write_placements(plan, operation, players.public, lobbies, load.count)
        runs = _run_all(bench, service, loads, plans)
        count = sum(load.count for load in loads)
        reserved = service.metric("hosting_slots", state="reserved")
        if reserved != count:
            raise WrongAnswer(f"{count} players got a slot, {reserved} slots are reserved")
    finally:
        players.detach(lobbies)
    return runs


def _run_all(
    bench: Bench, service: Service, loads: Sequence[Load], plans: Sequence[Path]
) -> list[Run]:
    service.wait_for_facts()
    runs = []
    for load, plan in zip(loads, plans, strict=True):
        syncs_before = service.metric("hosting_journal_syncs_total")
        address = service.ready[load.shape.transport]
        run = run_load(bench, load.shape, address, plan, service.cpu_s, load.rate)
        run["syncs"] = service.metric("hosting_journal_syncs_total") - syncs_before
        if run["rays"] != run["answers"]:
            raise WrongAnswer(f"{run['rays']} ray ids on {run['answers']} answers")
        runs.append(run)
    return runs


def write_placements(
    plan: Path, operation: str, token: str, lobbies: list[Lobby], count: int
) -> None:
    with plan.open("w") as file:
        for number in range(count):
            lobby = lobbies[number % len(lobbies)]
            value = lobby.lobby_id if operation == "join" else MODE
            file.write(f"{operation} {token} {value}\n")
