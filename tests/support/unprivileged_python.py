"""Python that runs as an ordinary user although the tests run as root."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.keeper_binary import KEEPER_BINARY

USER: Final = 61_235
_PROJECT: Final = Path(__file__).parents[2]
_NEEDED: Final = tuple(Path(one).resolve() for one in (sys.base_prefix, sys.prefix, _PROJECT))


def interpreter(folder: Path, keeper: Path | None = None) -> Sequence[str]:
    """Returns the command before the arguments of Python. Gives `folder` to the user, and makes it
    reachable, because pytest's folders are private. Skips the test if no ordinary user is available.

    Python and the project may be in a home folder that only root can read. The process then gets
    mounts of its own that show only these folders. `keeper` replaces the keeper program.
    """
    if os.geteuid() != 0:
        if keeper is not None:
            pytest.skip("only root can replace the keeper of the service")
        return [sys.executable]
    os.chown(folder, USER, USER)
    for parent in folder.parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(mode | stat.S_IXOTH)
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
        pytest.skip(f"no unprivileged user works here: {tried.stderr.strip()}")
    return words


def _mounts(place: Path) -> Iterator[str]:
    """Yields mount commands. They show the needed folders and nothing else of a closed parent
    folder.
    """
    closed = {path: wall for path in _NEEDED if (wall := _wall(path)) is not None}
    mounts = {path: place / str(number) for number, path in enumerate(closed)}
    for path, aside in mounts.items():
        yield shlex.join(["mkdir", "-p", str(aside)])
        yield shlex.join(["mount", "--rbind", str(path), str(aside)])
    for wall in set(closed.values()):
        yield shlex.join(["mount", "-t", "tmpfs", "-o", "mode=755", "home", str(wall)])
    for path, aside in mounts.items():
        yield shlex.join(["mkdir", "-p", str(path)])
        yield shlex.join(["mount", "--rbind", str(aside), str(path)])


def _wall(path: Path) -> Path | None:
    """Returns the outermost parent folder that other users cannot enter."""
    above = (one for one in reversed(path.parents) if not one.stat().st_mode & 0o001)
    return next(above, None)
