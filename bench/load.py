"""Load on a door: `connected` with fresh player tokens from the native generator on the load's
core, in a closed loop (each worker asks when it was answered) or an open one (a fixed rate, answers
counted from when they should have been asked for). Tokens are made before and spent in one window.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import LOAD_CORE, Bench, cpu_seconds
from bench.results import Run, WrongAnswer
from bench.service import Lobby, Service

LOBBIES: Final = 64
"""Game servers that ask at once; each worker speaks for one of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the load is spread: workers are connections × streams."""

    door: str
    connections: int
    streams: int = 1


HTTP: Final = Shape("http", 256)
GRPC: Final = Shape("grpc", 4, 64)


@dataclass
class Tokens:
    """Lobbies and the fresh tokens of their players, as the generator reads them."""

    service: Service
    plan: Path
    count: int
    lobbies: list[Lobby]

    @classmethod
    def make(cls, service: Service, plan: Path, count: int) -> Tokens:
        """So many tokens of `LOBBIES` lobbies in turn."""
        lobbies = [service.attach(service.namespaces[0]) for _ in range(LOBBIES)]
        of_lobbies = [service.reserve(lobby, count // LOBBIES) for lobby in lobbies]
        with plan.open("w") as file:
            for tokens in zip(*of_lobbies, strict=True):
                for lobby, token in zip(lobbies, tokens, strict=True):
                    file.write(f"{lobby.lobby_token} {token}\n")
        return cls(service, plan, count // LOBBIES * LOBBIES, lobbies)

    def check_spent(self) -> None:
        """Every token has brought its player in."""
        namespace = self.service.namespaces[0]
        connected = self.service.connected_players(namespace)
        if connected != self.count:
            raise WrongAnswer(f"{self.count} players were let in, {connected} are connected")

    def end(self) -> None:
        """Ends the lobbies."""
        for lobby in self.lobbies:
            self.service.detach(lobby)


def ask(
    bench: Bench, shape: Shape, address: str, plan: Path, server_pid: int, rate: float = 0.0
) -> Run:
    """One window of load; the answers must all be right."""
    before_s = cpu_seconds(server_pid)
    run = bench.native(
        "bench-load",
        shape.door,
        *("--address", address, "--plan", str(plan)),
        *("--connections", str(shape.connections), "--streams", str(shape.streams)),
        *("--rate", str(rate)),
        core=LOAD_CORE,
    )
    run["server_cpu_us_per_answer"] = (cpu_seconds(server_pid) - before_s) / run["answers"] * 1e6
    if run["error_count"]:
        raise WrongAnswer(f"{shape.door} answered with {run['errors']}")
    return run


def window(
    bench: Bench,
    service: Service,
    shape: Shape,
    count: int,
    rate: float = 0.0,
) -> Run:
    """Fresh tokens, one window of load on the service, and a look whether everybody is in."""
    tokens = Tokens.make(service, service.folder / "plan", count)
    try:
        syncs_before = service.metric("hosting_journal_syncs_total")
        run = ask(bench, shape, service.addresses[shape.door], tokens.plan, service.pid, rate)
        run["syncs"] = service.metric("hosting_journal_syncs_total") - syncs_before
        if run["rays"] != run["answers"]:
            raise WrongAnswer(f"{run['rays']} ray ids on {run['answers']} answers")
        tokens.check_spent()
    finally:
        tokens.end()
    return run
