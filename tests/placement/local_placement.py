"""A service that runs game servers as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support import game_programs
from tests.support.full_service import FullService
from tests.support.game_placement import SETTINGS
from tests.support.killed_service import LOCKS
from tests.support.waiting import PATIENCE_S

_CPU_MILLICORES: Final = 16_000


class LocalPlacement:
    name: Final = "local"

    def __init__(self, folder: Path) -> None:
        runtime = {**game_programs.SETTINGS, "cpu_millicores": _CPU_MILLICORES}
        self.service = FullService(folder, runtime=runtime, **SETTINGS)

    @property
    def url(self) -> str:
        return f"http://{self.service.ready['http']}"

    @property
    def owner_token(self) -> str:
        return self.service.cloud_token

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        yield

    def pause(self) -> None:
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        with contextlib.ExitStack() as stack:
            ends = [os.pidfd_open(pid) for pid in self._processes()]
            for end in ends:
                stack.callback(os.close, end)
                signal.pidfd_send_signal(end, signal.SIGKILL)
            for end in ends:
                assert select.select([end], [], [], PATIENCE_S)[0], "a plane does not end"
        assert self.service.process is not None
        self.service.process.wait()
        self.service.start_again()

    def _processes(self) -> list[int]:
        """Returns the supervisor and both planes. The first one would start the others again."""
        assert self.service.process is not None
        folder = self.service.data_dir
        planes = [int((folder / lock).read_text().split()[0]) for lock in LOCKS.values()]
        return [self.service.process.pid, *planes]
