"""Build archive and page of the arena."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ARENA: Final = Path(__file__).parent / "arena"
COMMAND: Final = ("python3", "-m", "examples.arena.server")
LIBRARY: Final = "websockets"
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def arena_archive() -> bytes:
    files = {"server.json": json.dumps({"command": COMMAND}).encode()}
    files["examples/__init__.py"] = (ARENA.parent / "__init__.py").read_bytes()
    files |= dict(_files(ARENA, "examples/arena"))
    files |= dict(_files(_library(), LIBRARY))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def arena_page() -> dict[str, tuple[bytes, str]]:
    return {
        path: (content, _TYPES[Path(path).suffix])
        for path, content in sorted(_files(ARENA / "page", ""))
    }


def page_digest(page: dict[str, tuple[bytes, str]]) -> str:
    return digest(repr(sorted(page.items())).encode())


def _library() -> Path:
    spec = importlib.util.find_spec(LIBRARY)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{LIBRARY} is not installed here, and the arena needs it")
    return Path(spec.origin).parent


def _files(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".html", ".js", ".css"):
            yield str(Path(name) / path.relative_to(folder)), path.read_bytes()
