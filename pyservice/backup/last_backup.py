"""Note of the last backup in the data directory, for metrics and `pyservice status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyservice.durable_files import write_file

FILE: Final = "control/last-backup.json"


def write_last_backup(data_dir: Path, name: str, created_ms: int, place: str) -> None:
    """Raises OSError."""
    content = {"backup": name, "created_ms": created_ms, "target": place}
    write_file(data_dir / FILE, json.dumps(content).encode() + b"\n")


def last_backup_ms(data_dir: Path) -> int | None:
    """Returns when the last backup began, in ms since 1970, or None if there is none."""
    try:
        return int(json.loads((data_dir / FILE).read_bytes())["created_ms"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
