"""Sections of the changelog, and the changes of the interface that it announces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.compatibility.interface_list import subject

CHANGELOG: Final = Path(__file__).parents[2] / "CHANGELOG.md"


def sections(changelog: str) -> dict[str, str]:
    """Returns the text of each section by its version, the newest first."""
    parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)[1:]
    return {title.split()[0]: text for title, text in zip(parts[::2], parts[1::2], strict=True)}


def missing_release_parts(changelog: str, folder: Path) -> list[str]:
    """Returns the parts that sections lack: the stored data directory, and the line `Rollback:`."""
    *later, first = sections(changelog).items()
    missing = [
        f"{version}: add a line that begins with `Rollback:` to its section in CHANGELOG.md"
        for version, text in later
        if not any(line.strip().startswith("Rollback:") for line in text.splitlines())
    ]
    for version, _ in (*later, first):
        path = folder / f"directory-{version}.tar.xz"
        if version != "Unreleased" and not path.exists():
            missing.append(f"{version}: store {path.name}, as docs/how-to/release.md describes")
    return missing


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
