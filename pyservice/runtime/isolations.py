"""Which way of keeping game servers apart works on this machine (decisions 6.6): found by trying, because kernels,
containers and rights differ, and a promise that nobody checked is none.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from pyservice.observability.logging import get_logger
from pyservice.runtime.contained import Contained, owner
from pyservice.runtime.containers import (
    PATH,
    RUNTIMES,
    SCRATCHES,
    Containers,
    failure,
    place_beside,
)
from pyservice.runtime.keeper import Folder, Isolation, KeeperFailed, Spec
from pyservice.runtime.removal import remove_tree

Wanted = Literal["auto", "user", "namespace", "landlock", "none"]

_TRIAL_UID: Final = 1_999_999
_TRIAL: Final = Contained((), (), {}, "/", 0, 0, (), "/", is_readonly=False)
_PROGRAMS: Final = ("/usr", "/bin", "/lib", "/lib64")
_SIGNALS: Final = (
    "game servers can signal all processes of this user, the service's too: that takes Linux 6.12"
)
_REACHED: Final = 3
"""Exit status of a trial that could signal us."""
_PASS: Final = 0o011
_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.002

_log = get_logger("runtime")


async def choose(
    wanted: Wanted, keeper: Path, folder: Path, shared_paths: Sequence[Path]
) -> Isolation | None:
    """The strongest that works; None: none does, or the one that is wanted does not. One that keeps not all off is
    for who wants it by its name: see `unkept`. Raises OSError.
    """
    if wanted == "none":
        return "none"
    candidates: tuple[Isolation, ...] = ("namespace", "landlock")
    if os.geteuid() == 0:
        candidates = ("user", *candidates)
    for isolation in candidates if wanted == "auto" else (wanted,):
        trial = Folder(folder / f".trial-{isolation}")
        opened = _opened(folder) if has_to_pass(isolation) else {}
        problem = await asyncio.to_thread(_problem, trial, isolation, keeper, shared_paths)
        if problem is None or (problem == _SIGNALS and wanted == isolation):
            return isolation
        for path, mode in opened.items():
            path.chmod(mode)
        _log.warning("isolation does not work", isolation=isolation, problem=problem)
    return None


def has_to_pass(isolation: Isolation) -> bool:
    """Whether game servers are other users and reach what they may by the machine's own paths."""
    return isolation == "landlock" and os.geteuid() == 0


def let_pass(*folders: Path) -> dict[Path, int]:
    """Others may go through, and not look around: whatever in them is nobody's business has a mode of its own. Tells
    modes as they were, of those that are changed. Raises OSError, also where there is no such folder.
    """
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folders}
    closed = {path: mode for path, mode in modes.items() if mode & _PASS != _PASS}
    for path, mode in closed.items():
        path.chmod(mode | _PASS)
    return closed


def _opened(folder: Path) -> dict[Path, int]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return let_pass(folder.parent, folder)


async def unkept(
    isolation: Isolation | None, keeper: Path, folder: Path, shared_paths: Sequence[Path]
) -> list[str]:
    """What the way that was chosen does not keep off on this machine, in words for operators. Raises OSError."""
    if isolation != "landlock":
        return []
    trial = Folder(folder / f".trial-{isolation}")
    problem = await asyncio.to_thread(_problem, trial, isolation, keeper, shared_paths)
    return [problem] if problem == _SIGNALS else []


async def choose_containers(
    wanted: Path | None, keeper: Path, folder: Path
) -> tuple[Containers | None, str]:
    """The first OCI runtime that works, with what it can keep on the disk of `folder`; None: none does, and why.
    `wanted`: the one that has to; None: any that is there. Raises OSError.
    """
    there = [wanted] if wanted is not None else _runtimes()
    problem = "neither crun nor runc is installed"
    for runtime in there:
        place = place_beside(folder, runtime)
        if place is None:
            return None, "there is no folder to mount over that has neither it nor the data"
        for scratch in SCRATCHES:
            containers = Containers(runtime, scratch, place)
            trial = Folder(folder / f".trial-{runtime.name}-{scratch}")
            found = await asyncio.to_thread(_problem_of, trial, containers, keeper)
            if found is None:
                return containers, ""
            problem = f"{runtime}: {found}"
            _log.warning("OCI runtime does not work", scratch=scratch, problem=problem)
    return None, problem


def _runtimes() -> list[Path]:
    found = (shutil.which(name, path=PATH) for name in RUNTIMES)
    return [Path(path) for path in found if path is not None]


def _problem_of(trial: Folder, containers: Containers, keeper: Path) -> str | None:
    """Runs a program of this machine over a root that is empty."""
    shutil.rmtree(trial.path, ignore_errors=True)
    root = trial.path / "root"
    spec = Spec(
        "trial",
        containers.command(root, trial.path, trial.scratch),
        Path("/"),
        {"PATH": PATH},
        "processes",
    )
    trial.prepare(spec)
    root.mkdir(mode=0o755)
    of_root = owner()
    if of_root is not None:
        os.chown(root, of_root, of_root)
    shared = [path for path in _PROGRAMS if os.path.isdir(path)]
    containers.write_bundle(trial.path, _TRIAL, ["/bin/true"], {}, shared)
    return _run(trial, keeper, lambda: failure(trial))


def _problem(
    trial: Folder, isolation: Isolation, keeper: Path, shared_paths: Sequence[Path]
) -> str | None:
    """Runs a program that does nothing, or tries what this way may not keep off; why it could not be run, or what
    it could do.
    """
    shutil.rmtree(trial.path, ignore_errors=True)
    command: tuple[str, ...] = ("/bin/true",)
    if isolation == "landlock":
        # Others have process ids of their own.
        command = ("/bin/sh", "-c", f"! kill -0 {os.getpid()} || exit {_REACHED}")
    trial.prepare(
        Spec(
            "trial",
            command,
            trial.scratch,
            isolation=isolation,
            uid=_TRIAL_UID,
            gid=_TRIAL_UID,
            read=shared_paths,
            write=(trial.scratch,),
        )
    )
    return _run(trial, keeper, lambda: _reached(trial))


def _reached(trial: Folder) -> str | None:
    state = trial.state()
    return _SIGNALS if state is not None and state.exit_code == _REACHED else None


def _run(trial: Folder, keeper: Path, more: Callable[[], str | None]) -> str | None:
    """Why it did not end well; `more`: what else may be known of that."""
    try:
        trial.start(keeper)
        until_s = time.monotonic() + _PATIENCE_S
        while trial.is_kept() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        state = trial.state()
        if state is None or state.status != "ended":
            return "the trial did not end"
        if state.exit_code != 0:
            return more() or state.message or f"the trial ended with {state.exit_code}"
    except (KeeperFailed, OSError) as error:
        return str(error)
    finally:
        remove_tree(trial.path)
    return None
