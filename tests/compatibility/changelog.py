"""Changes of the interface that the changelog announces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.compatibility.interface_list import subject

CHANGELOG: Final = Path(__file__).parents[2] / "CHANGELOG.md"


def unreleased(changelog: str) -> str:
    return changelog.partition("\n## Unreleased\n")[2].partition("\n## ")[0]


def is_announced(line: str, changelog: str) -> bool:
    """Returns whether the changelog names the subject of the line as not yet released.

    A name such as `hosting.v1.GroupQuota.*` names everything that begins with the part before `*`.
    """
    text = unreleased(changelog)
    name = subject(line)
    return f"`{name}`" in text or any(
        name.startswith(prefix) for prefix in re.findall(r"`([^`*]+[. ])[*]`", text)
    )
