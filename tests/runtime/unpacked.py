"""Builds that tests unpack without a service around."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

from pyservice.runtime.unpacking import unpack


def unpacked(place: Path, content: bytes, kind: str = "docker_image", **more: Any) -> Path:
    """The root of what was uploaded."""
    (place / "root").mkdir(parents=True)
    compression = more.pop("compression", "none")
    unpack(io.BytesIO(content), place, kind, compression, len(content), **more)
    return place / "root"


def told(place: Path) -> Any:
    return json.loads((place / "program.json").read_bytes())


def tree(root: Path) -> dict[str, str]:
    """Files with their content, links with their target, folders with nothing."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = "/" if path.is_dir() else path.read_text()
    return found
