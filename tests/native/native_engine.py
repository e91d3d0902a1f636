"""An engine of the native module, with fixed keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyservice import _native

NAMESPACE, VERSION = b"n" * 16, b"v" * 16


def open_engine(journal_dir: Path | None, **options: Any) -> _native.Engine:
    return _native.Engine.open(
        None if journal_dir is None else str(journal_dir),
        mac_keys=[(1, b"k" * 32)],
        current_key=1,
        hash_key=b"h" * 32,
        **options,
    )
