"""A service with a defect that the test chooses and triggers with a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.full_service import FullService

DIES = '''"""The feeder of a control plane that is started here dies when a file says so, once."""
import asyncio, os, sys

if "--role=control" in sys.orig_argv:
    from pyservice.control.feeder import Feeder

    run = Feeder.run

    async def until_ordered(self):
        async def strike():
            while not os.path.exists({order_file!r}):
                await asyncio.sleep(0.01)
            os.unlink({order_file!r})
            raise ZeroDivisionError("unforeseen")

        await asyncio.gather(run(self), strike())

    Feeder.run = until_ordered
'''


class BreakableService(FullService):
    def __init__(self, folder: Path, defect: str = DIES, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.order_file = folder / "die"
        self.code = folder / "code"
        self.code.mkdir(parents=True)
        (self.code / "sitecustomize.py").write_text(defect.format(order_file=str(self.order_file)))
