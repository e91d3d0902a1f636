from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

from pyservice.runtime.build_unpacking import unpack
from pyservice.runtime.root_filesystem import container_root_uid
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS


def unpacked(host: Path, content: bytes, kind: str = "docker_image", **more: Any) -> Path:
    (host / "root").mkdir(parents=True)
    compression = more.pop("compression", "none")
    build = (host, kind, compression, len(content))
    unpack(
        io.BytesIO(content),
        *build,
        root_uid=container_root_uid(DEFAULT_CONTAINER_USER_IDS.numbers),
        **more,
    )
    return host / "root"


def tree(root: Path) -> dict[str, str]:
    """Returns each path with its file content, its link target after `->`, or `/` for a folder."""
    entries = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            entries[name] = f"-> {os.readlink(path)}"
        else:
            entries[name] = "/" if path.is_dir() else path.read_text()
    return entries


def program_json(host: Path) -> Any:
    return json.loads((host / "program.json").read_bytes())
