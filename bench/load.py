"""Load on a door: `connected` with fresh player tokens from the native generator on the load's
core, in a closed loop (each worker asks when it was answered) or an open one (a fixed rate, answers
counted from when they should have been asked for). Tokens are made before and spent in one window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import LOAD_CORE, Bench
from bench.players import Lobby, Players
from bench.results import Run, WrongAnswer

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

    players: Players
    plan: Path
    count: int
    lobbies: list[Lobby]

    @classmethod
    def make(cls, players: Players, plan: Path, count: int) -> Tokens:
        """So many tokens of `LOBBIES` lobbies in turn."""
        lobbies = players.attach([players.namespaces[0]] * LOBBIES)
        of_lobbies = players.reserve(lobbies, count // LOBBIES)
        with plan.open("w") as file:
            for tokens in zip(*of_lobbies, strict=True):
                for lobby, token in zip(lobbies, tokens, strict=True):
                    file.write(f"{lobby.lobby_token} {token}\n")
        return cls(players, plan, count // LOBBIES * LOBBIES, lobbies)

    def check_spent(self) -> None:
        """Every token has brought its player in."""
        connected = self.players.connected(self.players.namespaces[0])
        if connected != self.count:
            raise WrongAnswer(f"{self.count} players were let in, {connected} are connected")

    def end(self) -> None:
        """Ends the lobbies."""
        self.players.detach(self.lobbies)


def ask(
    bench: Bench,
    shape: Shape,
    address: str,
    plan: Path,
    cpu_s: Callable[[], float],
    rate: float = 0.0,
) -> Run:
    """One window of load; the answers must all be right. `cpu_s`: what the server has taken so far."""
    before_s = cpu_s()
    run = bench.native(
        "bench-load",
        shape.door,
        *("--address", address, "--plan", str(plan)),
        *("--connections", str(shape.connections), "--streams", str(shape.streams)),
        *("--rate", str(rate)),
        core=LOAD_CORE,
    )
    run["server_cpu_us_per_answer"] = (cpu_s() - before_s) / run["answers"] * 1e6
    if run["error_count"]:
        raise WrongAnswer(f"{shape.door} answered with {run['errors']}")
    return run


def window(
    bench: Bench,
    players: Players,
    shape: Shape,
    count: int,
    rate: float = 0.0,
) -> Run:
    """Fresh tokens, one window of load on the service, and a look whether everybody is in."""
    service = players.service
    tokens = Tokens.make(players, service.folder / "plan", count)
    try:
        syncs_before = service.metric("hosting_journal_syncs_total")
        run = ask(bench, shape, service.said[shape.door], tokens.plan, service.cpu_s, rate)
        run["syncs"] = service.metric("hosting_journal_syncs_total") - syncs_before
        if run["rays"] != run["answers"]:
            raise WrongAnswer(f"{run['rays']} ray ids on {run['answers']} answers")
        tokens.check_spent()
    finally:
        tokens.end()
    return run
