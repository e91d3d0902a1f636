"""Benchmark results: measured values with their limits, raw runs, table output and JSON files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

Run = dict[str, Any]

ROUNDS: Final = 5


class WrongAnswer(Exception):
    """The measured program returned a wrong result, so that its figures are invalid."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value. `at_least` or `at_most` is its limit, if any."""

    what: str
    measured: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def is_reached(self) -> bool | None:
        """Reports whether the value is within its limit. None without a limit."""
        if self.at_least is not None:
            return self.measured >= self.at_least
        if self.at_most is not None:
            return self.measured <= self.at_most
        return None

    @property
    def required(self) -> str:
        if self.at_least is not None:
            return f"≥ {number(self.at_least)} {self.unit}"
        if self.at_most is not None:
            return f"≤ {number(self.at_most)} {self.unit}"
        return "stated"


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    figures: Sequence[Figure]
    runs: Mapping[str, Sequence[Run]]
    about: Mapping[str, Any] = field(default_factory=dict)


def number(value: float) -> str:
    if value and abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def median(runs: Sequence[Run], name: str) -> float:
    return statistics.median(float(run[name]) for run in runs)


def interleaved(
    variants: Mapping[str, Callable[[], Run]], rounds: int = ROUNDS
) -> dict[str, list[Run]]:
    """Runs all variants in turn, several times, so that changes of the machine affect all variants."""
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, measure in variants.items():
            runs[name].append(measure())
    return runs


def keep(result: Result, machine: Mapping[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    document = {
        "name": result.name,
        "machine": dict(machine),
        "about": dict(result.about),
        "figures": [
            asdict(figure) | {"required": figure.required, "is_reached": figure.is_reached}
            for figure in result.figures
        ],
        "runs": {name: list(runs) for name, runs in result.runs.items()},
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return path


def show(figures: Sequence[Figure], title: str, console: Console) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("required", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    table.add_column("how")
    words = {True: "[green]pass[/]", False: "[red]MISS[/]", None: ""}
    for figure in figures:
        table.add_row(
            figure.what,
            figure.required,
            f"{number(figure.measured)} {figure.unit}",
            words[figure.is_reached],
            figure.note,
        )
    console.print(table)
