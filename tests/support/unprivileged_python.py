"""A Python that runs as an ordinary user where tests run as root, with what comes with it, wherever that is, and with
another keeper in the place of ours when that is wanted.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from pyservice.app.game_runtime import KEEPER_BINARY

USER: Final = 61_235
_PROJECT: Final = Path(__file__).parents[2]
_NEEDED: Final = tuple(Path(one).resolve() for one in (sys.base_prefix, sys.prefix, _PROJECT))


def interpreter(folder: Path, keeper: Path | None = None) -> Sequence[str]:
    """Words before the arguments of Python; `folder` becomes the user's. Skips where it cannot be had.

    Python and what is tested may be in a home that only root is let into. The user sees it with nothing else in it: in
    mounts of its own, which end with its processes. `keeper`: what is found there in the place of ours.
    """
    if os.geteuid() != 0:
        if keeper is not None:
            pytest.skip("only root puts another keeper in the place of ours")
        return [sys.executable]
    os.chown(folder, USER, USER)
    mounts = list(_mounts(folder / "mounts"))
    if keeper is not None:
        mounts.append(shlex.join(["mount", "--bind", str(keeper), str(KEEPER_BINARY)]))
    script = "\n".join(["set -e", *mounts, 'exec "$@"'])
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    words = ["unshare", "--mount", "sh", "-c", script, "sh", *user, sys.executable]
    tried = subprocess.run(
        [*words, "-c", "import pyservice.app"],
        cwd=_PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"no ordinary user can be had here: {tried.stderr.strip()}")
    return words


def _mounts(place: Path) -> Iterator[str]:
    """Commands; what is needed and closed is set aside, and put back where nothing closes it."""
    closed = {path: wall for path in _NEEDED if (wall := _wall(path)) is not None}
    kept = {path: place / str(number) for number, path in enumerate(closed)}
    for path, aside in kept.items():
        yield shlex.join(["mkdir", "-p", str(aside)])
        yield shlex.join(["mount", "--rbind", str(path), str(aside)])
    for wall in set(closed.values()):
        yield shlex.join(["mount", "-t", "tmpfs", "-o", "mode=755", "home", str(wall)])
    for path, aside in kept.items():
        yield shlex.join(["mkdir", "-p", str(path)])
        yield shlex.join(["mount", "--rbind", str(aside), str(path)])


def _wall(path: Path) -> Path | None:
    """The outermost folder above that others may not go through."""
    above = (one for one in reversed(path.parents) if not one.stat().st_mode & 0o001)
    return next(above, None)
