"""Which way of keeping game servers apart works on this machine (decisions 6.6): found by trying, because kernels,
containers and rights differ, and a promise that nobody checked is none.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pyservice.observability.logging import get_logger
from pyservice.runtime.keeper import Folder, Isolation, KeeperFailed, Spec

Wanted = Literal["auto", "user", "namespace", "landlock", "none"]

_TRIAL_UID: Final = 1_999_999
_PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.002

_log = get_logger("runtime")


async def choose(
    wanted: Wanted, keeper: Path, folder: Path, shared_paths: Sequence[Path]
) -> Isolation | None:
    """The strongest that works; None: none does, or the one that is wanted does not. Raises OSError."""
    if wanted == "none":
        return "none"
    candidates: tuple[Isolation, ...] = ("namespace", "landlock")
    if os.geteuid() == 0:
        candidates = ("user", *candidates)
    for isolation in candidates if wanted == "auto" else (wanted,):
        trial = Folder(folder / f".trial-{isolation}")
        problem = await asyncio.to_thread(_problem, trial, isolation, keeper, shared_paths)
        if problem is None:
            return isolation
        _log.warning("isolation does not work", isolation=isolation, problem=problem)
    return None


def _problem(
    trial: Folder, isolation: Isolation, keeper: Path, shared_paths: Sequence[Path]
) -> str | None:
    """Runs a program that does nothing; why it could not be run."""
    shutil.rmtree(trial.path, ignore_errors=True)
    trial.prepare(
        Spec(
            "trial",
            ("/bin/true",),
            trial.scratch,
            isolation=isolation,
            uid=_TRIAL_UID,
            gid=_TRIAL_UID,
            read=shared_paths,
            write=(trial.scratch,),
        )
    )
    try:
        trial.start(keeper)
        until_s = time.monotonic() + _PATIENCE_S
        while trial.is_kept() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        state = trial.state()
        if state is None or state.status != "ended" or state.exit_code != 0:
            return "the trial did not end well" if state is None else state.message or state.reason
    except (KeeperFailed, OSError) as error:
        return str(error)
    finally:
        shutil.rmtree(trial.path, ignore_errors=True)
    return None
