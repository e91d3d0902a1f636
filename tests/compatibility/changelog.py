"""Changes of the interface that the changelog announces."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.compatibility.interface_list import subject

CHANGELOG: Final = Path(__file__).parents[2] / "CHANGELOG.md"


def is_announced(line: str, changelog: str) -> bool:
    """Returns whether the changelog names the subject of the line as not yet released."""
    unreleased = changelog.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    return f"`{subject(line)}`" in unreleased
