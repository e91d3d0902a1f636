"""Each release has a stored data directory, and a line of the changelog about its rollback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compatibility.changelog import CHANGELOG, missing_release_parts
from tests.compatibility.interface_list import FOLDER

SECTIONS = """# Changelog

## Unreleased

{unreleased}

## 0.2.0 - 2027-01-15

{second}

## 0.1.0 - 2026-11-22

The first version.
"""
NOTE = "- Something.\n  Rollback: 0.1.0 reads the formats of this version."


def test_no_release_lacks_a_part() -> None:
    assert missing_release_parts(CHANGELOG.read_text(), FOLDER) == []


@pytest.mark.parametrize(
    ("unreleased", "second", "stored", "missing"),
    [
        (NOTE, NOTE, ["0.1.0", "0.2.0"], []),
        ("", NOTE, ["0.1.0", "0.2.0"], ["Unreleased: add a line"]),
        (NOTE, "No Rollback: here.", ["0.1.0", "0.2.0"], ["0.2.0: add a line"]),
        (NOTE, NOTE, ["0.1.0"], ["0.2.0: store directory-0.2.0.tar.xz"]),
        (NOTE, NOTE, ["0.2.0"], ["0.1.0: store directory-0.1.0.tar.xz"]),
    ],
)
def test_missing_part_is_named(
    tmp_path: Path, unreleased: str, second: str, stored: list[str], missing: list[str]
) -> None:
    for version in stored:
        (tmp_path / f"directory-{version}.tar.xz").touch()
    found = missing_release_parts(SECTIONS.format(unreleased=unreleased, second=second), tmp_path)
    assert len(found) == len(missing)
    assert all(line.startswith(start) for line, start in zip(found, missing, strict=True))
