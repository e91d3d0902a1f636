"""Load of `connected`, `join` and `find` requests from the native generator on the load's core.

The load is a closed loop, or an open loop at a fixed rate with latency from the planned time of a request. Player
tokens are created before a window of `connected` and consumed in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import LOAD_CORE, Bench
from bench.players import MODE, Lobby, Players
from bench.results import Run, WrongAnswer

PLACEMENT_LOBBIES: Final = 1_000
LOBBIES: Final = 64
"""Number of lobbies. Each worker sends requests of one lobby server."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Distribution of the load. The number of workers is connections times streams."""

    transport: str
    connections: int
    streams: int = 1
    latency_from: str = "planned"
    """`planned` or `sent`: start of the latency in an open loop."""


HTTP: Final = Shape("http", 256)
GRPC: Final = Shape("grpc", 4, 64)


@dataclass
class Tokens:
    players: Players
    plan: Path
    count: int
    lobbies: list[Lobby]

    @classmethod
    def make(cls, players: Players, plan: Path, count: int) -> Tokens:
        lobbies = players.attach([players.namespaces[0]] * LOBBIES)
        of_lobbies = players.reserve(lobbies, count // LOBBIES)
        with plan.open("w") as file:
            for tokens in zip(*of_lobbies, strict=True):
                for lobby, token in zip(lobbies, tokens, strict=True):
                    file.write(f"connected {lobby.lobby_token} {token}\n")
        return cls(players, plan, count // LOBBIES * LOBBIES, lobbies)

    def check_spent(self) -> None:
        connected = self.players.connected(self.players.namespaces[0])
        if connected != self.count:
            raise WrongAnswer(f"{self.count} players were admitted, {connected} are connected")

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
        core=LOAD_CORE,
    )
    run["server_cpu_us_per_answer"] = (cpu_s() - before_s) / run["answers"] * 1e6
    if run["error_count"]:
        raise WrongAnswer(f"{shape.transport} answered with {run['errors']}")
    return run


def window(bench: Bench, players: Players, shape: Shape, count: int, rate: float = 0.0) -> Run:
    """Creates tokens, runs one window on the service, and checks that all players are connected."""
    service = players.service
    tokens = Tokens.make(players, service.folder / "plan", count)
    try:
        service.wait_for_facts()
        syncs_before = service.metric("hosting_journal_syncs_total")
        run = run_load(
            bench, shape, service.ready[shape.transport], tokens.plan, service.cpu_s, rate
        )
        run["syncs"] = service.metric("hosting_journal_syncs_total") - syncs_before
        if run["rays"] != run["answers"]:
            raise WrongAnswer(f"{run['rays']} ray ids on {run['answers']} answers")
        tokens.check_spent()
    finally:
        tokens.end()
    return run


def placement_window(
    bench: Bench,
    players: Players,
    operation: str,
    count: int,
    rate: float = 0.0,
    shape: Shape = HTTP,
) -> Run:
    """Attaches 1,000 lobbies, runs one window of joins or finds, and checks the reserved slots."""
    service = players.service
    lobbies = players.attach([players.namespaces[0]] * PLACEMENT_LOBBIES)
    try:
        write_placements(service.folder / "plan", operation, lobbies, count)
        service.wait_for_facts()
        syncs_before = service.metric("hosting_journal_syncs_total")
        run = run_load(
            bench, shape, service.ready["http"], service.folder / "plan", service.cpu_s, rate
        )
        run["syncs"] = service.metric("hosting_journal_syncs_total") - syncs_before
        if run["rays"] != run["answers"]:
            raise WrongAnswer(f"{run['rays']} ray ids on {run['answers']} answers")
        reserved = service.metric("hosting_slots", state="reserved")
        if reserved != count:
            raise WrongAnswer(f"{count} players got a slot, {reserved} slots are reserved")
    finally:
        players.detach(lobbies)
    return run


def write_placements(plan: Path, operation: str, lobbies: list[Lobby], count: int) -> None:
    with plan.open("w") as file:
        for number in range(count):
            lobby = lobbies[number % len(lobbies)]
            value = lobby.lobby_id if operation == "join" else MODE
            file.write(f"{operation} {lobby.namespace.service_token} {value}\n")
