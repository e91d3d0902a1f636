"""A whole service whose planes are killed at a named step of a change, or at a moment; and what has to be true of it
whenever both are up: the data plane holds exactly what the records say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from pyservice.control.feeding import Composer
from pyservice.control.links import Links
from pyservice.dataplane.feed_files import _read
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.rpc import InternalClient, Unreachable
from pyservice.storage import numbers
from pyservice.storage.database import Database, open_database
from tests.faults.shim import Rule, Shim
from tests.household import Answer, Door, House

AGREE_S: Final = 1.0
UP_S: Final = 30.0
LOCKS: Final = {"data": "LOCK", "control": "control/LOCK"}


@dataclass(frozen=True, slots=True)
class Step:
    """Where a plane dies: at a call that it makes on a file of the data directory, before it or right after; without
    a call, so long after the change was asked for.
    """

    name: str
    role: str
    calls: str = ""
    files: str = ""
    at: int = 1
    after: bool = False
    delay_ms: float = 0.0

    def __str__(self) -> str:
        return f"{self.role}: {self.name}"


LOG: Final = "control/records.db-wal"
RECORDS: Final = (
    Step("nothing is written yet", "control", "pwrite", LOG),
    Step("the first page is half of it", "control", "pwrite", LOG, at=3),
    Step("written and not synced", "control", "fdatasync fsync", LOG),
    Step("committed and told to nobody", "control", "fdatasync fsync", LOG, after=True),
)
FED: Final = (
    Step("the new file is not synced", "data", "fsync", "feed/.*.tmp"),
    Step("the new file is beside the old one", "data", "fsync", "feed/.*.tmp", after=True),
    Step("the old file is there", "data", "rename", "feed/*.cfg"),
    Step("the new file is in its place", "data", "rename", "feed/*.cfg", after=True),
    Step("the folder is not synced", "data", "fsync", "feed"),
    Step("held and not acknowledged", "data", "fsync", "feed", after=True),
)
MOMENTS: Final = tuple(
    Step(f"after {delay_ms} ms", role, delay_ms=delay_ms)
    for role in LOCKS
    for delay_ms in (1, 3, 6, 10, 20)
)


class StruckHouse(House):
    """A service under the shim, over all restarts of its planes."""

    def __init__(self, folder: Path, library: Path, database_url: str | None, **more: Any) -> None:
        super().__init__(folder, database_url, **more)
        folder.mkdir(parents=True, exist_ok=True)
        self.shim = Shim(library, folder / "shim", self.data_dir)
        self.kills = 0

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        before = dict(os.environ)
        os.environ.update(self.shim.environment())
        try:
            return super().spawn(*words)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def pid(self, role: str) -> int:
        """Of the plane's process; it may be gone."""
        return int((self.data_dir / LOCKS[role]).read_text().split()[0])

    def kill(self, role: str) -> None:
        """`kill -9`."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(role), signal.SIGKILL)

    async def refresh(self) -> None:
        """After some deaths the parent waits long before it starts a plane again: then a new parent is faster."""
        if self.kills % 4 == 3:
            await asyncio.to_thread(self.stop)
            await asyncio.to_thread(self.start)
        self.kills += 1

    def arm(self, step: Step) -> Rule:
        return self.shim.kill(
            step.calls, step.files, at=step.at, after=step.after, with_service=False
        )


async def answer_of(call: Awaitable[Answer]) -> Answer | None:
    """What was answered, None when nothing was: the door died, or the plane behind it."""
    try:
        answer = await call
    except (httpx.TransportError, ValueError):
        return None
    return None if answer.code == "CONTROL_PLANE_UNAVAILABLE" else answer


async def struck(
    house: StruckHouse, step: Step, ask: Callable[[], Awaitable[Answer]]
) -> Answer | None:
    """Asks for something, and the plane dies at the step. What was answered."""
    pid = house.pid(step.role)
    if not step.calls:
        asking = asyncio.ensure_future(answer_of(ask()))
        await asyncio.sleep(step.delay_ms / 1000)
        house.kill(step.role)
        answer = await asking
    else:
        rule = house.arm(step)
        try:
            answer = await answer_of(ask())
            async with asyncio.timeout(10):
                while not rule.struck:
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{step} was never reached: {answer}") from None
        finally:
            rule.forget()
    async with asyncio.timeout(UP_S):
        while house.pid(step.role) == pid:
            await asyncio.sleep(0.005)
    return answer


class Witness:
    """Looks at both planes from outside."""

    def __init__(self, house: StruckHouse, door: Door, token: str, game_id: str) -> None:
        self._house = house
        self._door = door
        self._token = token
        self._game_id = game_id
        self._database: Database = open_database(house.database_url, house.data_dir / "control")
        self._client = InternalClient(house.data_dir / "admin.sock")

    async def close(self) -> None:
        await self._client.close()
        await self._database.close()

    async def both_up(self) -> None:
        """Returns when both planes answer."""
        end = time.monotonic() + UP_S
        while True:
            fields = {"game_id": self._game_id}
            with contextlib.suppress(httpx.TransportError, Unreachable):
                await self._client.call("hosting.internal.v1.Feed.Held", feed_pb2.HeldRequest())
                if (await self._door.call("get_game", fields, token=self._token)).code == "OK":
                    return
            assert time.monotonic() < end, self._house.log()
            await asyncio.sleep(0.005)

    async def agree(self) -> None:
        """Returns when the data plane holds what the records say, to the last field, of every namespace. It has to
        within a second of both being up.
        """
        await self.both_up()
        began_s = time.monotonic()
        while found := await self._differences():
            assert time.monotonic() - began_s < AGREE_S, (found, self._house.log())
            await asyncio.sleep(0.01)

    async def _differences(self) -> list[Any]:
        links = Links("http://cdn.invalid", None, "http://hub.invalid", None, lambda upload: upload)
        async with self._database.read() as tx:
            epoch = await numbers.get(tx, numbers.SOURCE_EPOCH)
            assert epoch is not None
            composer = Composer(epoch, links)
            ids = await _all_namespaces(tx)
            wanted = {one: await composer.compose(tx, one) for one in ids}
        answer = await self._client.call("hosting.internal.v1.Feed.Held", feed_pb2.HeldRequest())
        held = {one.namespace_id: one for one in answer.configurations}
        found: list[Any] = []
        for namespace_id, message in wanted.items():
            assert message is not None
            path = self._house.data_dir / "feed" / f"{namespace_id}.cfg"
            one = held.get(namespace_id)
            if one is None or (one.revision, one.current_version_id) != (
                message.revision,
                message.current_version_id,
            ):
                found.append((namespace_id, message.revision, one))
            elif (kept := _fed(path)) != message:
                found.append((message, kept))
        return found


def _fed(path: Path) -> Any:
    """What a file holds of what was fed: what is retained is the data plane's own."""
    kept = _read(path).configuration
    if kept is not None:
        kept.ClearField("retained_versions")
    return kept


async def _all_namespaces(tx: Any) -> list[str]:
    from pyservice.storage import namespaces

    return [row.namespace_id for row in await namespaces.revisions(tx)]
