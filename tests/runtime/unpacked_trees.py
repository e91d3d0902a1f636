from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyservice.runtime.build_unpacking import unpack


def unpacked(host: Path, content: bytes, kind: str = "docker_image", **more: Any) -> Path:
    (host / "root").mkdir(parents=True)
    compression = more.pop("compression", "none")
    unpack(io.BytesIO(content), host, kind, compression, len(content), **more)
    return host / "root"


def unpacked_apart(
    folder: Path, kind: str, content: bytes, *, asking: int | None = None, reserve_bytes: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Unpacks in a separate process, as the service does. `asking` is the process that the
    unpacker belongs to, by default this one.
    """
    words = [str(asking or os.getpid()), str(folder), kind, "none", str(len(content))]
    return subprocess.run(
        [sys.executable, "-m", "pyservice.runtime.build_unpacking", *words, str(reserve_bytes)],
        input=content,
        capture_output=True,
        check=False,
    )


def told(host: Path) -> Any:
    return json.loads((host / "program.json").read_bytes())


def tree(root: Path) -> dict[str, str]:
    """Returns each path with its file content, its link target after `->`, or `/` for a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = "/" if path.is_dir() else path.read_text()
    return found
