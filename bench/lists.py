"""Response time of lists with many rows, on SQLite and on PostgreSQL.

Load: one request at a time over HTTP, both planes on one core, PostgreSQL on the other core. Baseline: the same list
with few rows. Lists with pages by time compare the first and the last page. Other lists compare the time per row, and
the first page of a short and of a long list.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from bench.http_load import Request, send_all
from bench.list_rows import FIRST_MS, PAGED, WHOLE_LISTS, ListedGame, Paged, Whole
from bench.machine import Bench, loaded
from bench.postgres import postgres, tidy
from bench.results import Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import Service, running
from pyservice.timestamps import rfc3339

NAME = "lists"
SHORT, LONG = 100, 100_000
WHOLE = (1_000, 5_000, 9_000)
LINEAR = 1.5
"""Limit of the time per row in the longest list, as a multiple of the time per row in the shortest list."""
PAGE_REQUESTS = 100
WHOLE_REQUESTS = 3
LIMIT = 100
"""Rows of a page of a list that is otherwise returned whole."""
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    runs = _on(bench, "SQLite", lambda: None)
    with postgres() as new_url:
        runs |= _on(bench, "PostgreSQL", new_url)
    figures = [
        figure
        for database in ("SQLite", "PostgreSQL")
        for figure in (*_paged_figures(runs, database), *_whole_figures(runs, database))
    ]
    return Result(NAME, figures, runs)


def _on(bench: Bench, database: str, new_url: Callable[[], str | None]) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    folder = bench.scratch("lists")
    with running(folder, new_url()) as service:
        for paged in PAGED:
            runs |= _in_turn(service, _paged(service, paged))
        for whole in WHOLE_LISTS:
            if not whole.is_of_group:
                runs |= _in_turn(service, _whole(service, whole, WHOLE))
    for whole in WHOLE_LISTS:
        if whole.is_of_group:
            # A group has only one list of each kind, so that each length needs its own service.
            for count in WHOLE:
                with running(folder, new_url()) as service:
                    runs |= _in_turn(service, _whole(service, whole, [count]))
    return {f"{database} {name}": of_name for name, of_name in runs.items()}


def _in_turn(service: Service, runs: Mapping[str, Callable[[], Run]]) -> dict[str, list[Run]]:
    if service.database_url is not None:
        tidy(service.database_url)
    return interleaved(runs)


def _paged(service: Service, paged: Paged) -> dict[str, Callable[[], Run]]:
    runs: dict[str, Callable[[], Run]] = {}
    for count in (SHORT, LONG):
        game = ListedGame.make(service, f"{paged.slug.replace('_', '-')}-{count}")
        service.fill(paged.table, (paged.row(game, number) for number in range(count)))
        # The last page is full, so that both pages have the same length.
        last = {paged.anchor: quote(rfc3339(FIRST_MS + paged.page))}
        for which, more, newest in (("first", {}, count - 1), ("last", last, paged.page - 1)):
            fields = {"game_id": game.game_id, "namespace_id": game.namespace_id, **more}
            request = service.request(paged.slug, fields)
            look = partial(_look_page, paged, newest)
            runs[f"{paged.slug} {which} {count}"] = partial(
                _window, service, request, PAGE_REQUESTS, look
            )
    return runs


def _look_page(paged: Paged, newest: int, answer: Any) -> None:
    rows = answer[paged.member]
    times = [one.get("deploy_ts") or one.get("create_ts") for one in rows]
    expected = [rfc3339(FIRST_MS + newest - number) for number in range(len(rows))]
    # Ignores the first version of the namespace, which is newer than all inserted rows.
    times = [one for one in times if one < rfc3339(FIRST_MS + 10 * LONG)]
    if len(rows) != paged.page or times != expected[: len(times)] or len(times) < len(rows) - 1:
        raise WrongAnswer(f"{paged.slug}: unexpected page: {times[:1]} {expected[:1]}")


def _whole(service: Service, whole: Whole, counts: Sequence[int]) -> dict[str, Callable[[], Run]]:
    runs: dict[str, Callable[[], Run]] = {}
    for count in counts:
        game = ListedGame.make(service, f"{whole.slug.replace('_', '-')}-{count}")
        for table, rows in whole.rows(game, count):
            service.fill(table, rows)
        # Passes only the path parameters.
        fields = _only_path(whole.slug, game.fields)
        request = service.request(whole.slug, fields)
        look = partial(_look_whole, whole, count)
        runs[f"{whole.slug} {count}"] = partial(_window, service, request, WHOLE_REQUESTS, look)
        page = service.request(whole.slug, {**fields, "limit": str(LIMIT)})
        look_page = partial(_look_limited, whole)
        runs[f"{whole.slug} page {count}"] = partial(
            _window, service, page, PAGE_REQUESTS, look_page
        )
    return runs


def _only_path(slug: str, fields: Mapping[str, str]) -> Mapping[str, str]:
    return {name: fields[name] for name in Service.path_fields(slug)}


def _look_whole(whole: Whole, count: int, answer: Any) -> None:
    rows = answer[whole.member]
    # The list also contains the rows of every new game.
    if not count <= len(rows) <= count + 2:
        raise WrongAnswer(f"{whole.slug}: {len(rows)} rows of {count}")
    if len({json.dumps(row) for row in rows}) != len(rows):
        raise WrongAnswer(f"{whole.slug}: a row occurs twice")


def _look_limited(whole: Whole, answer: Any) -> None:
    if len(answer[whole.member]) != LIMIT or not answer["cursor"]:
        raise WrongAnswer(f"{whole.slug}: {len(answer[whole.member])} rows on the page")


def _window(service: Service, request: Request, count: int, look: Callable[[Any], None]) -> Run:
    before_s = service.cpu_s()
    batch = loaded(lambda: send_all(service.address, [request] * count, 1, is_kept=True))
    batch.run["server_cpu_us_per_answer"] = (service.cpu_s() - before_s) / count * 1e6
    for body in {batch.bodies[0], batch.bodies[-1]}:
        look(json.loads(body))
    return batch.run


# Figures ------------------------------------------------------------------------------------------


def _paged_figures(runs: Runs, database: str) -> list[Figure]:
    figures = []
    for paged in PAGED:
        for which in ("first", "last"):
            short, long = (
                _p50_ms(runs[f"{database} {paged.slug} {which} {count}"]) for count in (SHORT, LONG)
            )
            figures.append(
                Figure(
                    f"{paged.slug}, {which} page of {LONG:,} rows against {SHORT}, {database}",
                    long / short,
                    "times",
                    at_most=2,
                    note=f"{long:.2f} ms against {short:.2f} ms, medians of {PAGE_REQUESTS} one by one",
                )
            )
    return figures


def _whole_figures(runs: Runs, database: str) -> list[Figure]:
    figures = []
    for whole in WHOLE_LISTS:
        times_ms = [_p50_ms(runs[f"{database} {whole.slug} {count}"]) for count in WHOLE]
        rows_us = [time_ms * 1e3 / count for count, time_ms in zip(WHOLE, times_ms, strict=True)]
        each = ", ".join(
            f"{row_us:.1f} µs a row at {count:,}"
            for count, row_us in zip(WHOLE, rows_us, strict=True)
        )
        longest = runs[f"{database} {whole.slug} {WHOLE[-1]}"]
        cpu_us = median(longest, "server_cpu_us_per_answer") / WHOLE[-1]
        what = f"{whole.slug}, {WHOLE[-1]:,} rows"
        short_ms, long_ms = (
            _p50_ms(runs[f"{database} {whole.slug} page {count}"])
            for count in (WHOLE[0], WHOLE[-1])
        )
        figures += [
            Figure(
                f"{what}, {database}",
                rows_us[-1],
                "µs a row",
                at_most=20,
                note=f"{times_ms[-1]:.0f} ms in all; {cpu_us:.1f} µs CPU a row, both planes",
            ),
            Figure(
                f"{what}: a row over one of {WHOLE[0]:,}, {database}",
                rows_us[-1] / rows_us[0],
                "times",
                at_most=LINEAR,
                note=each,
            ),
            Figure(
                f"{what}: page of {LIMIT} over one of {WHOLE[0]:,} rows, {database}",
                long_ms / short_ms,
                "times",
                at_most=2,
                note=f"{long_ms:.2f} ms against {short_ms:.2f} ms",
            ),
        ]
    return figures


def _p50_ms(runs: Sequence[Run]) -> float:
    return statistics.median(float(run["p50_us"]) for run in runs) / 1e3
