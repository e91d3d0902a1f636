"""Takeovers to and fro between two owners. Each earlier owner is stopped at a known point and continues afterwards."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]
import pytest

from pyservice.storage.database import open_database
from pyservice.storage.ownership import mark_unused
from tests.storage.database_owner import LOST
from tests.support.databases import Databases
from tests.support.waiting import PATIENCE_S, until_met

ROOT: Final = Path(__file__).parents[2]
POINTS: Final = ("locked", "inserted", "answered", "any")
"""Inside a transaction before and after its insert, between two transactions, and at any time."""
WRITERS: Final = 4
ROWS_MAX: Final = 50
TABLE: Final = """
    CREATE TABLE changes (owner bigint NOT NULL, number bigint NOT NULL, next_epoch bigint);
    CREATE FUNCTION see_changes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE changes SET next_epoch = NEW.epoch WHERE next_epoch IS NULL;
        RETURN NULL;
    END $$;
    CREATE TRIGGER see_changes AFTER INSERT ON service_owner
        FOR EACH ROW EXECUTE FUNCTION see_changes();
"""
"""A claim or takeover writes its epoch into the rows that its transaction sees. The first one counts."""
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]


class Owner:
    """Process of `tests/storage/database_owner.py`, and the point at which the test stops it."""

    def __init__(self, process: Process, point: str) -> None:
        self.point = point
        self.epoch = 0
        self.answered: list[int] = []
        self.process = process
        self._points: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, url: str, data_dir: Path, point: str) -> Owner:
        writers = WRITERS if point == "any" else 1
        words = ("-m", "tests.storage.database_owner", url, str(data_dir), str(writers))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, cwd=ROOT, stdin=PIPE, stdout=PIPE
        )
        return cls(process, point)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            point, number = line.decode().split()
            if point == "owner":
                self.epoch = int(number)
                continue
            if point == "answered":
                self.answered.append(int(number))
            self._points.put_nowait((point, int(number)))

    def go_on(self, points: int = 1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n" * points)

    async def reach(self, point: str) -> int:
        """Goes on to the next point of this name. Returns the number of its row."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reached, number = await self._points.get()
                if reached == point:
                    return number
                self.go_on()

    async def take_over(self) -> None:
        self.go_on()
        await self.reach("answered")

    async def stop_at_point(self, random_rows: int) -> int | None:
        """Stops all threads of the process. Returns the number of the row in its transaction, if known."""
        number = None
        if self.point == "any":
            count = len(self.answered) + random_rows
            await until_met(lambda: len(self.answered) >= count)
        else:
            self.go_on()
            number = await self.reach(self.point)
        self.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        await until_met(lambda: stat.read_text().rpartition(") ")[2].startswith("T"))
        return None if self.point == "answered" else number

    async def continue_until_end(self) -> None:
        """Kills the process if it answers many more rows."""
        count = len(self.answered) + ROWS_MAX
        self.process.send_signal(signal.SIGCONT)
        self.go_on(3 * (ROWS_MAX + 1))
        await until_met(lambda: self.process.returncode is not None or len(self.answered) >= count)
        await self.end()

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await self._reading


class Owners:
    """Two data directories with one database, which they own in turn."""

    def __init__(self, url: str, folder: Path, connection: Any) -> None:
        self._url = url
        self._connection = connection
        self._folders = [folder / name for name in ("a", "b")]
        for data_dir in self._folders:
            (data_dir / "control").mkdir(parents=True)
        self._started: list[Owner] = []

    async def start(self, point: str) -> Owner:
        data_dir = self._folders[len(self._started) % 2]
        owner = await Owner.start(self._url, data_dir, point)
        self._started.append(owner)
        return owner

    async def require_exact(self, owner: Owner, open_number: int | None) -> None:
        """The takeover saw each row of the earlier owner. Each answered row exists once."""
        query = "SELECT number, next_epoch FROM changes WHERE owner = $1"
        rows = [tuple(row) for row in await self._connection.fetch(query, owner.epoch)]
        stored = [number for number, _ in rows]
        late = {number for number, next_epoch in rows if next_epoch != owner.epoch + 1}
        assert not late, (owner.point, late, "committed after the takeover")
        assert len(set(stored)) == len(stored), (owner.point, "doubled")
        assert set(owner.answered) <= set(stored), (owner.point, "lost")
        assert open_number not in stored, owner.point
        if owner.point != "any":
            assert sorted(stored) == owner.answered, owner.point
        assert owner.process.returncode == LOST, owner.point

    async def end(self) -> None:
        for owner in self._started:
            await owner.end()


@asynccontextmanager
async def open_owners(url: str, folder: Path) -> AsyncIterator[Owners]:
    database = open_database(url, folder)
    await database.run_sync(mark_unused)
    await database.close()
    connection = await asyncpg.connect(f"postgresql://{url.partition('://')[2]}")
    await connection.execute(TABLE)
    owners = Owners(url, folder, connection)
    try:
        yield owners
    finally:
        await owners.end()
        await connection.close()


@pytest.mark.parametrize(
    "runs",
    [pytest.param(20, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.proof)],
)
async def test_stopped_owner_commits_and_answers_nothing_after_a_takeover(
    runs: int, databases: Databases, tmp_path: Path
) -> None:
    chance = random.Random(runs)
    points = list(POINTS) * (runs // len(POINTS))
    chance.shuffle(points)
    async with open_owners(str(databases.url("postgresql")), tmp_path) as owners:
        owner, following = [await owners.start(point) for point in points[:2]]
        await owner.take_over()
        for point in [*points[2:], "any", "any"]:
            # The next process starts while the takeover waits for the lock.
            spare = await owners.start(point)
            open_number = await owner.stop_at_point(chance.randrange(1, 20))
            await following.take_over()
            await owner.continue_until_end()
            await owners.require_exact(owner, open_number)
            owner, following = following, spare
