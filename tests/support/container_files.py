"""Files of a container's log, as the node of a cluster writes them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path


class ContainerFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._time_us = time.time_ns() // 1_000

    def write(self, *texts: str, stream: str = "stdout", time_us: int | None = None) -> None:
        """Appends lines. Each has a time of its own, unless it is given."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for text in texts:
            self._time_us += 1
            moment = datetime.fromtimestamp((time_us or self._time_us) / 1_000_000, UTC)
            lines.append(f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z {stream} F {text}\n")
        with (self.folder / "0.log").open("a") as file:
            file.write("".join(lines))

    def rotate(self, time: str) -> Path:
        """Renames the file, as a node does when the file is full."""
        return (self.folder / "0.log").rename(self.folder / f"0.log.{time}")
