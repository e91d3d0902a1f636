"""Runs that began and whose folder does not tell any more whose they are: a disk lost it or does not give it, or
another version noted it in its own way. Whoever wants one has it as it is; what nobody wants is ended, as nobody else
could.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pyservice.observability.logging import get_logger
from pyservice.runtime import remnants
from pyservice.runtime.home import Home
from pyservice.runtime.process import ProcessRun
from pyservice.runtime.runs import DEAF_S

WANTED_S: Final = 60.0
"""Whoever wants one has said so by then."""

_PAUSE_S: Final = 0.1
_REPAIR_S: Final = 1.0

_log = get_logger("runtime")


async def end(found: ProcessRun, home: Home) -> None:
    """Ends it at once; its log stays for as long as logs do. Tries until the disk lets it."""
    _log.warning("a run is nobody's and is ended", id=found.id)
    is_told = False
    while True:
        try:
            return await _end(found, home)
        except OSError as error:
            if not is_told:
                _log.warning("tried again", id=found.id, error=str(error))
            is_told = True
        await asyncio.sleep(_REPAIR_S)


async def _end(found: ProcessRun, home: Home) -> None:
    folder, groups = found.folder, home.node.groups
    loop = asyncio.get_running_loop()
    until_s = loop.time() + DEAF_S
    folder.withdraw()
    while folder.is_kept():
        folder.stop(0)
        if loop.time() >= until_s:
            await home.in_thread(lambda: remnants.end_keeper(folder))
        await asyncio.sleep(_PAUSE_S)
    await home.in_thread(lambda: remnants.end(folder, groups))
    await home.in_thread(lambda: found.note_told(groups))
