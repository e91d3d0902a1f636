"""Lists of many rows: first and last page of a long one beside those of a short one, and whole lists that have no
pages by their rows. One request at a time over HTTP, both planes on one core; rows are put straight into the records.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Table

from bench.asking import Question, ask_all
from bench.machine import Bench
from bench.planes import Planes, loaded, running
from bench.results import Figure, Result, Run, WrongAnswer, interleaved
from pyservice.control.configuration import encode
from pyservice.control.timestamps import rfc3339
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.storage import tables

NAME = "lists"
SHORT, LONG = 100, 100_000
WHOLE = (1_000, 10_000, 20_000)
ASKED = 100
"""Requests of a page in one window."""
ASKED_WHOLE = 3
FIRST_MS: Final = 1_700_000_000_000
Rows = Iterator[Mapping[str, Any]]
Runs = Mapping[str, Sequence[Run]]


@dataclass(frozen=True, slots=True)
class _Place:
    """A game with a namespace that nobody plays in."""

    planes: Planes
    game_id: str
    namespace_id: str
    version_id: str

    @classmethod
    def make(cls, planes: Planes, name: str) -> _Place:
        game_id = planes.game(name)
        version_id = planes.call("list_versions", {"game_id": game_id})["versions"][0]["version_id"]
        return cls(planes, game_id, planes.namespace_id(game_id), version_id)


@dataclass(frozen=True, slots=True)
class _Paged:
    """A list with pages. `anchor` is the parameter that says where a page begins, a time."""

    slug: str
    member: str
    anchor: str
    page: int
    table: Table
    row: Callable[[_Place, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Whole:
    """A list without pages."""

    slug: str
    member: str
    rows: Callable[[_Place, int], tuple[Table, Rows]]


def run(bench: Bench) -> Result:
    """Each list by itself; short and long in turn."""
    runs: dict[str, list[Run]] = {}
    with running(bench.scratch("lists")) as planes:
        for paged in _PAGED:
            runs |= _paged(planes, paged)
        for whole in _WHOLE:
            runs |= _whole(planes, whole)
    return Result(NAME, [*_paged_figures(runs), *_whole_figures(runs)], runs)


def _paged(planes: Planes, paged: _Paged) -> dict[str, list[Run]]:
    asked: dict[str, Callable[[], Run]] = {}
    for count in (SHORT, LONG):
        place = _Place.make(planes, f"{paged.slug.replace('_', '-')}-{count}")
        planes.fill(paged.table, (paged.row(place, number) for number in range(count)))
        # The last page is a full one too: as much to tell as on the first.
        last = {paged.anchor: quote(rfc3339(FIRST_MS + paged.page))}
        for which, more, newest in (("first", {}, count - 1), ("last", last, paged.page - 1)):
            fields = {"game_id": place.game_id, "namespace_id": place.namespace_id, **more}
            question = planes.question(paged.slug, fields)
            look = partial(_look_page, paged, newest)
            asked[f"{paged.slug} {which} {count}"] = partial(_window, planes, question, ASKED, look)
    return interleaved(asked)


def _look_page(paged: _Paged, newest: int, answer: Any) -> None:
    rows = answer[paged.member]
    times = [one.get("deploy_ts") or one.get("create_ts") for one in rows]
    wanted = [rfc3339(FIRST_MS + newest - number) for number in range(len(rows))]
    # The namespace's own first version is on no page of these: it is newer than all.
    times = [one for one in times if one < rfc3339(FIRST_MS + 10 * LONG)]
    if len(rows) != paged.page or times != wanted[: len(times)] or len(times) < len(rows) - 1:
        raise WrongAnswer(f"{paged.slug}: another page was asked for: {times[:1]} {wanted[:1]}")


def _whole(planes: Planes, whole: _Whole) -> dict[str, list[Run]]:
    asked: dict[str, Callable[[], Run]] = {}
    for count in WHOLE:
        place = _Place.make(planes, f"{whole.slug.replace('_', '-')}-{count}")
        planes.fill(*whole.rows(place, count))
        fields = {"game_id": place.game_id, "namespace_id": place.namespace_id}
        # Only what its path names.
        question = planes.question(whole.slug, _only_path(whole.slug, fields))
        look = partial(_look_whole, whole, count)
        asked[f"{whole.slug} {count}"] = partial(_window, planes, question, ASKED_WHOLE, look)
    return interleaved(asked)


def _only_path(slug: str, fields: Mapping[str, str]) -> Mapping[str, str]:
    return {name: fields[name] for name in Planes.path_fields(slug)}


def _look_whole(whole: _Whole, count: int, answer: Any) -> None:
    rows = answer[whole.member]
    # What every new game has is on it too.
    if not count <= len(rows) <= count + 2:
        raise WrongAnswer(f"{whole.slug}: {len(rows)} rows of {count}")


def _window(planes: Planes, question: Question, count: int, look: Callable[[Any], None]) -> Run:
    asked = loaded(lambda: ask_all(planes.address, [question] * count, 1, is_kept=True))
    for body in {asked.bodies[0], asked.bodies[-1]}:
        look(json.loads(body))
    return asked.run


# What is on them ----------------------------------------------------------------------------------


def _history_row(place: _Place, number: int) -> Mapping[str, Any]:
    return {
        "entry_id": place.planes.ids.new(),
        "namespace_id": place.namespace_id,
        "version_id": place.version_id,
        "deploy_ms": FIRST_MS + number,
    }


def _lobby_row(place: _Place, number: int) -> Mapping[str, Any]:
    """One that is over, and not yet forgotten."""
    columns = {column.name for column in tables.lobbies.columns}
    row = {
        "lobby_id": place.planes.ids.new(),
        "namespace_id": place.namespace_id,
        "version_id": place.version_id,
        "game_mode": "hall",
        "region_id": "local",
        "create_ms": FIRST_MS + number,
        "ready_ms": FIRST_MS + number,
        "stop_ms": FIRST_MS * 2,
        "stop_reason": "exited",
        "exit_code": 0,
        "publicity": "public",
        "is_closed": False,
        "is_stopping": False,
        "peak_players": 1,
        "player_ms": 1_000,
        "is_dynamic": False,
        "max_players": 4,
    }
    return {name: value for name, value in row.items() if name in columns}


def _version_rows(place: _Place, count: int) -> tuple[Table, Rows]:
    empty = encode(versions_pb2.CloudConfig())
    return tables.versions, (
        {
            "version_id": place.planes.ids.new(),
            "game_id": place.game_id,
            "display_name": f"1.0.{number}",
            "create_ms": FIRST_MS + number,
            "config": empty,
            "config_json": b"{}",
        }
        for number in range(count)
    )


def _namespace_rows(place: _Place, count: int) -> tuple[Table, Rows]:
    return tables.namespaces, (
        {
            "namespace_id": place.planes.ids.new(),
            "game_id": place.game_id,
            "name_id": f"n{number}",
            "display_name": "Bench",
            "create_ms": FIRST_MS + number,
            "version_id": place.version_id,
            "lobby_count_max": 512,
            "max_players": 256,
            "enable_domain_public_auth": True,
            "cdn_auth_type": "none",
            "revision": 1,
        }
        for number in range(count)
    )


def _token_rows(place: _Place, count: int) -> tuple[Table, Rows]:
    return tables.namespace_tokens, (
        {
            "token_id": place.planes.ids.new(),
            "namespace_id": place.namespace_id,
            "kind": "pub",
            "create_ms": FIRST_MS + number,
        }
        for number in range(count)
    )


_PAGED: Final = (
    _Paged("version_history", "versions", "anchor", 64, tables.version_history, _history_row),
    _Paged("list_lobby_records", "lobbies", "before_create_ts", 64, tables.lobbies, _lobby_row),
)
_WHOLE: Final = (
    _Whole("list_versions", "versions", _version_rows),
    _Whole("list_namespaces", "namespaces", _namespace_rows),
    _Whole("list_namespace_tokens", "tokens", _token_rows),
)


# Figures ------------------------------------------------------------------------------------------


def _paged_figures(runs: Runs) -> list[Figure]:
    figures = []
    for paged in _PAGED:
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
    for whole in _WHOLE:
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
