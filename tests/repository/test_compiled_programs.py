from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.compiled_programs import compiled_program

NAMES = ("faults.so", "udp-server")
TARGET = "run `make test-programs`"


@pytest.mark.parametrize("name", NAMES)
def test_missing_program_names_the_make_target(name: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"is missing: {TARGET}"):
        compiled_program(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_program_older_than_its_source_names_the_make_target(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert compiled_program(name, tmp_path) == tmp_path / name
    os.utime(tmp_path / name, (0, 0))
    with pytest.raises(AssertionError, match=f"is older than .*: {TARGET}"):
        compiled_program(name, tmp_path)
