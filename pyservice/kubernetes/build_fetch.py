"""The build that the init container of a Pod fetches, and the files that it leaves.

The Pod has a `BuildFetch` as an argument of the command `pyservice.node.fetch_build`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

BUILD: Final = PurePosixPath("/hosting/build")
"""Volume with the unpacked build and the start script."""
BUILD_ROOT: Final = BUILD / "root"
START: Final = BUILD / "start"
"""Script that starts the program of the build."""
KEEPER: Final = BUILD / "keeper"
"""Static program that starts the program of the build, and passes SIGTERM on to its processes."""
SCRATCH: Final = PurePosixPath("/hosting/scratch")
"""Volume in which the game server may write. It is `HOME` and `TMPDIR`."""
TERMINATION_LOG: Final = PurePosixPath("/dev/termination-log")
"""File from which the node reads the last words of a container."""
MODULE: Final = "pyservice.node.fetch_build"
START_PROBLEM: Final = "hosting-start-problem"
"""First word of the last words of a start script. The kind of the problem follows, then a sentence."""


@dataclass(frozen=True, slots=True)
class BuildFetch:
    sha256: str
    compression: str
    length: int
    port: int
    """Port of the node at which it serves archives."""
    args: Sequence[str] = ()
    """Arguments of the program after those of the build."""
    variables: Sequence[str] = ()
    """Names of the variables that the Pod sets. They override those of the build."""

    def encode(self) -> str:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def decode(cls, text: str) -> BuildFetch:
        """Raises ValueError, TypeError."""
        return cls(**json.loads(text))
