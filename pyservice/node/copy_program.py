"""Command of an init container: copies a static program of the service, which then runs in any image.

Usage: `python3 -m pyservice.node.copy_program <target>`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pyservice.runtime.keeper_binary import KEEPER_BINARY


def copy_keeper(target: Path) -> None:
    shutil.copy(KEEPER_BINARY, target)


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    [target] = arguments
    copy_keeper(Path(target))


if __name__ == "__main__":
    main()
