"""Test tiers: the tier of CI runs every test, and a part of the variants of a slow one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.tiers import VARIANTS_OF_ONE_IN_CI

ROOT: Final = Path(__file__).resolve().parents[2]
SUITE: Final = """
from tests.support.tiers import (
    pytest_addoption, pytest_collection_modifyitems, pytest_configure
)
"""
TESTS: Final = """
import pytest
from tests.support.tiers import one_of

@pytest.mark.parametrize("number", range(8))
def test_quick(number): ...

@pytest.mark.full
@pytest.mark.parametrize("number", range(9))
def test_slow(number): ...

@pytest.mark.full
@pytest.mark.parametrize("number", range(2))
def test_slow_with_two_variants(number): ...

@pytest.mark.full
def test_slow_alone(): ...

@pytest.mark.parametrize("number", one_of(4, range(8)))
def test_mostly_slow(number): ...

@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_both(database, transport): ...
"""
MARKERS: Final = "markers =\n    full: slow\n"
FULL: Final = {
    "test_quick": 8,
    "test_slow": 9,
    "test_slow_with_two_variants": 2,
    "test_slow_alone": 1,
    "test_mostly_slow": 8,
    "test_both": 2,
}


@pytest.mark.parametrize(
    ("tier", "counts"),
    [
        ("fast", {"test_quick": 8, "test_mostly_slow": 2, "test_both": 1}),
        ("full", FULL),
    ],
)
def test_tier_runs_these_variants(tmp_path: Path, tier: str, counts: dict[str, int]) -> None:
    assert Counter(collected(tmp_path, tier).values()) == counts


@pytest.mark.full
def test_tier_of_ci_runs_every_test_and_a_part_of_slow_variants(tmp_path: Path) -> None:
    ran = collected(tmp_path, "ci")
    counts = Counter(ran.values())
    assert counts.keys() == FULL.keys()
    assert counts["test_quick"] == FULL["test_quick"]
    assert 9 // VARIANTS_OF_ONE_IN_CI <= counts["test_slow"] <= 9 // VARIANTS_OF_ONE_IN_CI + 1
    assert counts["test_slow_with_two_variants"] == 1
    assert counts["test_slow_alone"] == 1
    fast = {name for name, test in collected(tmp_path, "fast").items() if test != "test_both"}
    assert fast <= ran.keys()
    assert collected(tmp_path, "ci") == ran


def collected(folder: Path, tier: str) -> dict[str, str]:
    """Returns each selected variant with the name of its test."""
    (folder / "conftest.py").write_text(SUITE)
    (folder / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(f"[pytest]\n{MARKERS}")
    options = ["-q", "-p", "no:cacheprovider", "--collect-only", "--tier", tier]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_some.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
    )
    names = [line.partition("::")[2] for line in result.stdout.splitlines() if "::" in line]
    return {name: name.partition("[")[0] for name in names}
