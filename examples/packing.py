"""Build archive and page of the arena."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from pathlib import Path
from typing import Final

from pyservice_cli.packing import Entry, files_of, pack

ARENA: Final = Path(__file__).parent / "arena"
COMMAND: Final = ("python3", "-m", "examples.arena.server")
LIBRARY: Final = "websockets"
_OMITTED: Final = ("*.md", "*.c", "*.so", "*.pyi")
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def arena_archive() -> bytes:
    entries = [Entry("examples/__init__.py", ARENA.parent / "__init__.py")]
    entries += _entries(ARENA, "examples/arena") + _entries(_library(), LIBRARY)
    packed = io.BytesIO()
    pack(entries, {"command": COMMAND}, packed)
    return packed.getvalue()


def arena_page() -> dict[str, tuple[bytes, str]]:
    return {
        entry.name: (entry.path.read_bytes(), _TYPES[entry.path.suffix])
        for entry in files_of(ARENA / "page")
    }


def page_digest(page: dict[str, tuple[bytes, str]]) -> str:
    return digest(repr(sorted(page.items())).encode())


def _library() -> Path:
    spec = importlib.util.find_spec(LIBRARY)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{LIBRARY} is not installed here, and the arena needs it")
    return Path(spec.origin).parent


def _entries(folder: Path, prefix: str) -> list[Entry]:
    return [
        Entry(f"{prefix}/{entry.name}", entry.path)
        for entry in files_of(folder, _OMITTED)
        if entry.target is None
    ]
