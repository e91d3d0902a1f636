"""Test tiers: which tests run in `make test`, in `make test-ci` and in `make test-full`.

The fast tier skips tests with the marker `full`, `timing`, `proof` or `cluster`. The marker `fast` on a test of such a
module makes it the smoke test that stays. Of a test over one of databases and transports it runs
the first value. A test over both runs with two combinations: SQLite with HTTP, and PostgreSQL with
gRPC. The fast tier runs one of them, by the name of the test.

The tier of CI runs the tests of the full tier. Of a test with the marker `full` that has several
variants, it runs one of each `VARIANTS_OF_ONE_IN_CI`, always the same ones. In this tier and the
fast one, Hypothesis tries fewer examples, always the same ones.

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

VARIANTS_OF_ONE_IN_CI: Final = 4

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
        choices=("fast", "ci", "full"),
        default="full",
        help="fast: without tests marked `full`, and one of database and transport; "
        "ci: every test, and of those marked `full` a part of the variants",
    )


def pytest_configure(config: pytest.Config) -> None:
    for tier in ("fast", "ci"):
        settings.register_profile(
            tier, max_examples=50, derandomize=True, deadline=None, database=None
        )
    settings.register_profile("full", max_examples=200, deadline=None)
    settings.load_profile(config.getoption("--tier"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    is_selected = {"fast": _is_fast, "ci": _CiTier(items).runs, "full": _is_full}[tier]
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
    database, transport = _combination(item)
    if database is None or transport is None:
        return _TIERS[_tier(item)] and not (database or transport)
    return _TIERS[_tier(item)] and database == transport == _number(item) % len(_DATABASES)


class _CiTier:
    def __init__(self, items: list[pytest.Item]) -> None:
        slow: dict[str, list[pytest.Item]] = {}
        for item in items:
            if _tier(item) == "full" and _is_full(item):
                slow.setdefault(_name(item), []).append(item)
        self._left_out: set[pytest.Item] = set()
        for variants in slow.values():
            step = min(VARIANTS_OF_ONE_IN_CI, len(variants))
            self._left_out.update(variants)
            self._left_out.difference_update(variants[_number(variants[0]) % step :: step])

    def runs(self, item: pytest.Item) -> bool:
        return item not in self._left_out and _is_full(item)


def _tier(item: pytest.Item) -> str:
    # The closest marker comes first: the test's own before its module's.
    return next((mark.name for mark in item.iter_markers() if mark.name in _TIERS), "fast")


def _name(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _number(item: pytest.Item) -> int:
    """Returns a number that differs from test to test and is the same for all variants of one."""
    return zlib.crc32(_name(item).encode())


def _combination(item: pytest.Item) -> tuple[int | None, int | None]:
    """Returns the numbers of a test's database and transport."""
    call = getattr(item, "callspec", None)
    values = [] if call is None else [v for v in call.params.values() if isinstance(v, str)]
    database = next((_DATABASES.index(v) for v in values if v in _DATABASES), None)
    transport = next((_TRANSPORTS.index(v) for v in values if v in _TRANSPORTS), None)
    return database, transport
