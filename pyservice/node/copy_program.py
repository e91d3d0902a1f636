"""Command of an init container: copies a static program of the service, which then runs in any image.

Usage: `python3 -m pyservice.node.copy_program <target>`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from pyservice.runtime.build_sandbox import KEEPER_BINARY


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    [target] = arguments
    shutil.copy(KEEPER_BINARY, target)


if __name__ == "__main__":
    main()
