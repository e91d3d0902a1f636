"""Lists of many rows: first and last page of a long one beside those of a short one, and whole lists that have no
pages by their rows. One request at a time over HTTP, both planes on one core; rows are put straight into the records.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from bench.asking import Question, ask_all
from bench.list_rows import FIRST_MS, PAGED, WHOLE_LISTS, Paged, Place, Whole
from bench.machine import Bench
from bench.planes import Planes, loaded, running
from bench.results import Figure, Result, Run, WrongAnswer, interleaved
from pyservice.control.timestamps import rfc3339

NAME = "lists"
SHORT, LONG = 100, 100_000
WHOLE = (1_000, 10_000, 20_000)
ASKED = 100
"""Requests of a page in one window."""
ASKED_WHOLE = 3
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    """Each list by itself; short and long in turn."""
    runs: dict[str, list[Run]] = {}
    with running(bench.scratch("lists")) as planes:
        for paged in PAGED:
            runs |= _paged(planes, paged)
        for whole in WHOLE_LISTS:
            if not whole.is_of_group:
                runs |= interleaved(_whole(planes, whole, WHOLE))
    for whole in WHOLE_LISTS:
        if whole.is_of_group:
            # A group has one of each: three services in turn instead.
            for count in WHOLE:
                with running(bench.scratch("lists")) as planes:
                    runs |= interleaved(_whole(planes, whole, [count]))
    return Result(NAME, [*_paged_figures(runs), *_whole_figures(runs)], runs)


def _paged(planes: Planes, paged: Paged) -> dict[str, list[Run]]:
    asked: dict[str, Callable[[], Run]] = {}
    for count in (SHORT, LONG):
        place = Place.make(planes, f"{paged.slug.replace('_', '-')}-{count}")
        planes.fill(paged.table, (paged.row(place, number) for number in range(count)))
        # The last page is a full one too: as much to tell as on the first.
        last = {paged.anchor: quote(rfc3339(FIRST_MS + paged.page))}
        for which, more, newest in (("first", {}, count - 1), ("last", last, paged.page - 1)):
            fields = {"game_id": place.game_id, "namespace_id": place.namespace_id, **more}
            question = planes.question(paged.slug, fields)
            look = partial(_look_page, paged, newest)
            asked[f"{paged.slug} {which} {count}"] = partial(_window, planes, question, ASKED, look)
    return interleaved(asked)


def _look_page(paged: Paged, newest: int, answer: Any) -> None:
    rows = answer[paged.member]
    times = [one.get("deploy_ts") or one.get("create_ts") for one in rows]
    wanted = [rfc3339(FIRST_MS + newest - number) for number in range(len(rows))]
    # The namespace's own first version is on no page of these: it is newer than all.
    times = [one for one in times if one < rfc3339(FIRST_MS + 10 * LONG)]
    if len(rows) != paged.page or times != wanted[: len(times)] or len(times) < len(rows) - 1:
        raise WrongAnswer(f"{paged.slug}: another page was asked for: {times[:1]} {wanted[:1]}")


def _whole(planes: Planes, whole: Whole, counts: Sequence[int]) -> dict[str, Callable[[], Run]]:
    asked: dict[str, Callable[[], Run]] = {}
    for count in counts:
        place = Place.make(planes, f"{whole.slug.replace('_', '-')}-{count}")
        for table, rows in whole.rows(place, count):
            planes.fill(table, rows)
        # Only what its path names.
        question = planes.question(whole.slug, _only_path(whole.slug, place.fields))
        look = partial(_look_whole, whole, count)
        asked[f"{whole.slug} {count}"] = partial(_window, planes, question, ASKED_WHOLE, look)
    return asked


def _only_path(slug: str, fields: Mapping[str, str]) -> Mapping[str, str]:
    return {name: fields[name] for name in Planes.path_fields(slug)}


def _look_whole(whole: Whole, count: int, answer: Any) -> None:
    rows = answer[whole.member]
    # What every new game has is on it too.
    if not count <= len(rows) <= count + 2:
        raise WrongAnswer(f"{whole.slug}: {len(rows)} rows of {count}")


def _window(planes: Planes, question: Question, count: int, look: Callable[[Any], None]) -> Run:
    asked = loaded(lambda: ask_all(planes.address, [question] * count, 1, is_kept=True))
    for body in {asked.bodies[0], asked.bodies[-1]}:
        look(json.loads(body))
    return asked.run


# Figures ------------------------------------------------------------------------------------------


def _paged_figures(runs: Runs) -> list[Figure]:
    figures = []
    for paged in PAGED:
        for which in ("first", "last"):
            short, long = (_p50_ms(runs[f"{paged.slug} {which} {n}"]) for n in (SHORT, LONG))
            figures.append(
                Figure(
                    f"{paged.slug}, {which} page of {LONG:,} rows against {SHORT}",
                    long / short,
                    "times",
                    at_most=2,
                    note=f"{long:.2f} ms against {short:.2f} ms, medians of {ASKED} one by one",
                )
            )
    return figures


def _whole_figures(runs: Runs) -> list[Figure]:
    """By the row; the shortest list says how linear it is."""
    figures = []
    for whole in WHOLE_LISTS:
        times_ms = [_p50_ms(runs[f"{whole.slug} {count}"]) for count in WHOLE]
        per_row_us = times_ms[-1] * 1e3 / WHOLE[-1]
        others = ", ".join(
            f"{time_ms * 1e3 / count:.1f} at {count:,}"
            for count, time_ms in zip(WHOLE[:-1], times_ms[:-1], strict=True)
        )
        figures.append(
            Figure(
                f"{whole.slug}, {WHOLE[-1]:,} rows",
                per_row_us,
                "µs a row",
                at_most=20,
                note=f"{others}; {times_ms[-1]:.0f} ms in all",
            )
        )
    return figures


def _p50_ms(runs: Sequence[Run]) -> float:
    return statistics.median(float(run["p50_us"]) for run in runs) / 1e3
