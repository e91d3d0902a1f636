"""Test tiers: tests that run in `make test-full` and not in `make test`.

The fast tier skips tests with the marker `full`, `timing`, `proof` or `cluster`. The marker `fast` on a test of such a
module makes it the smoke test that stays. Of a test over one of databases and transports it runs
the first value. A test over both runs with two combinations: SQLite with HTTP, and PostgreSQL with
gRPC. The fast tier runs one of them, by the name of the test. Hypothesis tries fewer examples in
the fast tier, always the same ones.

With the environment variable CI_NO_SKIP, a test fails if it lacks a program that CI can install.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Generator, Iterable
from typing import Any, Final

import pytest
from hypothesis import settings

_DATABASES: Final = ("sqlite", "postgresql")
_TRANSPORTS: Final = ("http", "grpc")
INSTALLABLE: Final = re.compile(r"apt-get install \S|`make \S")
"""The reason of a skip for a missing program. It says how to install the program."""

_TIERS: Final = {"fast": True, "full": False, "timing": False, "proof": False, "cluster": False}


def one_of(count: int, values: Iterable[Any]) -> list[Any]:
    """Returns parameters of a slow test. The fast tier runs one of each `count` values."""
    return [
        pytest.param(value, marks=() if number % count == 0 else pytest.mark.full)
        for number, value in enumerate(values)
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("fast", "full"),
        default="full",
        help="fast: without tests marked `full`, and one of database and transport",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "fast", max_examples=50, derandomize=True, deadline=None, database=None
    )
    settings.register_profile("full", max_examples=200, deadline=None)
    settings.load_profile(config.getoption("--tier"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_selected = _is_fast if config.getoption("--tier") == "fast" else _is_full
    config.hook.pytest_deselected(items=[item for item in items if not is_selected(item)])
    items[:] = filter(is_selected, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and "CI_NO_SKIP" in os.environ and INSTALLABLE.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{reason} (CI must not skip this test)"
    return report


def _is_full(item: pytest.Item) -> bool:
    database, transport = _combination(item)
    return database is None or transport is None or database == transport


def _is_fast(item: pytest.Item) -> bool:
    # The closest marker comes first: the test's own before its module's.
    tier = next((mark.name for mark in item.iter_markers() if mark.name in _TIERS), "fast")
    database, transport = _combination(item)
    if database is None or transport is None:
        return _TIERS[tier] and not (database or transport)
    chosen = zlib.crc32(item.nodeid.partition("[")[0].encode()) % len(_DATABASES)
    return _TIERS[tier] and database == transport == chosen


def _combination(item: pytest.Item) -> tuple[int | None, int | None]:
    """Returns the numbers of a test's database and transport."""
    call = getattr(item, "callspec", None)
    values = [] if call is None else [v for v in call.params.values() if isinstance(v, str)]
    database = next((_DATABASES.index(v) for v in values if v in _DATABASES), None)
    transport = next((_TRANSPORTS.index(v) for v in values if v in _TRANSPORTS), None)
    return database, transport
