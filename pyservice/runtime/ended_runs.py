"""For how long folders of ended runs stay, for their logs (decisions 6.4): seven days, unless there are too many of
them or the disk is short. Then the oldest go before their time: logs give way to whatever players need.

Owns which ones go. That a run is over and its end is known is told by its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.observability.logging import get_logger
from pyservice.runtime.places import REST_S
from pyservice.runtime.process import TOLD
from pyservice.runtime.removal import remove_tree

LOGS_KEPT_S: Final = 7 * 24 * 3600.0
"""For so long after its end a run's folder is there."""

FOLDERS_MAX: Final = 20_000
"""So many are kept, and those of the last minute, however short the runs were: each is eight or nine files and folders
beside the log.
"""

_AT_ONCE: Final = 64

_log = get_logger("runtime")


class _Ended(NamedTuple):
    told_s: float
    path: Path


class EndedRuns:
    """Folders of runs that are over and told."""

    def __init__(
        self, folder: Path, is_short: Callable[[], bool], folders_max: int = FOLDERS_MAX
    ) -> None:
        self._folder = folder
        self._is_short = is_short
        self._folders_max = folders_max
        self._is_told = False

    async def tidy(self) -> None:
        """Removes what need not stay. Says once that logs go before their time, until none has to. Raises OSError."""
        ended = await asyncio.to_thread(self._oldest_first)
        count = len(ended)
        surplus = count - self._folders_max
        is_short = self._is_short()
        now_s = time.time()
        kept_from_s = now_s - LOGS_KEPT_S
        # Ports of those that ended just now still rest, over a restart too, and for that the folder is there.
        ended = [one for one in ended if one.told_s < now_s - REST_S]
        early = removed = 0
        for begin in range(0, len(ended), _AT_ONCE):
            portion = ended[begin : begin + _AT_ONCE]
            gone = await asyncio.to_thread(self._remove_some, portion, surplus, kept_from_s)
            surplus -= gone
            removed += gone
            early += sum(one.told_s >= kept_from_s for one in portion[:gone])
            if gone < len(portion):
                break
        if early and not self._is_told:
            _log.warning(
                "logs of ended game servers are removed before their 7 days",
                reason="free space or inodes are short" if is_short else "there are too many",
                count=early,
                kept=count - removed,
            )
        self._is_told = bool(early) or (self._is_told and is_short)

    def _oldest_first(self) -> list[_Ended]:
        ended = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    told_s = os.stat(f"{entry.path}/{TOLD}").st_mtime
                    ended.append(_Ended(told_s, Path(entry.path)))
        return sorted(ended)

    def _remove_some(self, ended: Sequence[_Ended], surplus: int, kept_from_s: float) -> int:
        """How many of them had to go: the first that may stay ends it."""
        for gone, one in enumerate(ended):
            if one.told_s >= kept_from_s and gone >= surplus and not self._is_short():
                return gone
            try:
                _remove(one.path)
            except OSError as error:
                # The others go all the same.
                _log.warning("not tidied", id=one.path.name, error=str(error))
        return len(ended)


def _remove(path: Path) -> None:
    """What says that it is over goes last: if we are killed meanwhile, the next pass finds it."""
    with os.scandir(path) as entries:
        inside = [entry for entry in entries if entry.name != TOLD]
    for entry in inside:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)
    remove_tree(path)
