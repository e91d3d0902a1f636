"""What a benchmark gives: figures with what they must reach, its raw runs, and how both are shown
and kept. Knows nothing of how anything is measured.
"""

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
"""What one run of one variant said."""

ROUNDS: Final = 5


class WrongAnswer(Exception):
    """What was measured did not do what it is for: there is no figure then."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure; `at_least` or `at_most` is what it must reach, if anything."""

    what: str
    measured: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def is_reached(self) -> bool | None:
        """None: it is only stated."""
        if self.at_least is not None:
            return self.measured >= self.at_least
        if self.at_most is not None:
            return self.measured <= self.at_most
        return None

    @property
    def required(self) -> str:
        """What it must reach, for people."""
        if self.at_least is not None:
            return f"≥ {number(self.at_least)} {self.unit}"
        if self.at_most is not None:
            return f"≤ {number(self.at_most)} {self.unit}"
        return "stated"


@dataclass(frozen=True, slots=True)
class Result:
    """A benchmark that ran. `runs` has every run of every variant, in order."""

    name: str
    figures: Sequence[Figure]
    runs: Mapping[str, Sequence[Run]]
    about: Mapping[str, Any] = field(default_factory=dict)


def number(value: float) -> str:
    """As many digits as say something."""
    if value and abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def median(runs: Sequence[Run], name: str) -> float:
    """The median of one figure over all runs."""
    return statistics.median(float(run[name]) for run in runs)


def interleaved(
    variants: Mapping[str, Callable[[], Run]], rounds: int = ROUNDS
) -> dict[str, list[Run]]:
    """Every variant once, then every variant again: what the machine does in between hits all."""
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, measure in variants.items():
            runs[name].append(measure())
    return runs


def keep(result: Result, machine: Mapping[str, Any], folder: Path) -> Path:
    """Writes a result as JSON."""
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
    """A table of figures: what, required, measured, reached or missed."""
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
