"""Takeovers to and fro between two services under load. The earlier owner is paused and continues afterwards.

Each change of a client is carried out once, whichever of the two answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]
import httpx
import pytest

from pyservice.cli.admin_requests import running_pids
from pyservice.process.child_process import NO_RESTART
from tests.support.command_line import run
from tests.support.databases import Databases
from tests.support.full_service import Developer, FullService
from tests.support.waiting import PATIENCE_S, eventually, until_met

ROUNDS = 4
CALLERS = 6
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]


class Changes:
    """Creations of games and versions. Each has a name and an idempotency key."""

    def __init__(self, url: str) -> None:
        self._url = f"postgresql://{url.partition('://')[2]}"
        self.game_id = ""
        self.requests: dict[str, dict[str, Any]] = {}

    async def send(self, developer: Developer, name: str) -> str:
        """Sends a new change, or repeats one. Returns the code of the answer."""
        fields = self.requests.setdefault(name, self._fields(developer, name))
        slug = "create_game" if name.startswith("g") else "create_version"
        return (await developer.call(slug, f"key-{name}", **fields)).code

    def _fields(self, developer: Developer, name: str) -> dict[str, Any]:
        if name.startswith("v"):
            return {"game_id": self.game_id, "display_name": name, "config": {}}
        group_id = developer.full_service.group_id
        return {"developer_group_id": group_id, "display_name": name, "name_id": name}

    async def stored(self) -> Counter[str]:
        """Returns how often the records have each name."""
        connection = await asyncpg.connect(self._url)
        try:
            rows = await connection.fetch(
                "SELECT display_name FROM games UNION ALL SELECT display_name FROM versions"
            )
        finally:
            await connection.close()
        return Counter(name for (name,) in rows if name in self.requests)


class Load:
    """Callers with open connections. Each sends changes until one is not answered with success."""

    def __init__(self, service: FullService, token: str, changes: Changes) -> None:
        self._service = service
        self._token = token
        self._changes = changes
        self.answered: set[str] = set()
        self.codes: Counter[str] = Counter()
        self.unanswered: set[str] = set()
        self._is_over = False
        self._callers = [asyncio.create_task(self._call()) for _ in range(CALLERS)]

    async def _call(self) -> None:
        async with self._service.open_client("http") as client:
            developer = Developer(self._service, client, self._token)
            while not self._is_over:
                name = f"{random.choice('gv')}{uuid4().hex[:20]}"
                try:
                    code = await self._changes.send(developer, name)
                except httpx.TransportError as error:
                    code = type(error).__name__
                self.codes[code] += 1
                if code != "OK":
                    self.unanswered.add(name)
                    return
                self.answered.add(name)

    async def until_answered(self, count: int) -> None:
        await until_met(lambda: len(self.answered) >= count)

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._callers)


class Pair:
    """Two services with one database. One of them runs."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.owner, self.other = (FullService(folder / name, url) for name in "ab")
        self.changes = Changes(url)
        self.token = ""

    async def start(self) -> None:
        await asyncio.to_thread(self.owner.start)
        self.token = self.owner.cloud_token
        # The keys recognize repeated changes.
        self.other.take_keys_of(self.owner)
        async with self.developer() as developer:
            self.changes.game_id = await developer.game()

    @asynccontextmanager
    async def developer(self) -> AsyncIterator[Developer]:
        async with self.owner.open_client("http") as client:
            yield Developer(self.owner, client, self.token)

    def load(self) -> Load:
        return Load(self.owner, self.token, self.changes)

    def signal(self, service: FullService, number: signal.Signals) -> None:
        for pid in running_pids(service.data_dir).values():
            os.kill(pid, number)

    async def take_over(self) -> None:
        self.owner, self.other = self.other, self.owner
        environment = {"PYSERVICE_DATABASE_URL": self.url}
        ended = await asyncio.to_thread(run, self.owner.data_dir, "takeover", **environment)
        assert (ended.returncode, ended.stderr) == (0, "")

    async def repeat(self, names: set[str]) -> None:
        """Repeats changes at the new owner until each is answered."""
        async with self.developer() as developer:
            for name in names:

                async def is_done(name: str = name) -> bool:
                    code = await self.changes.send(developer, name)
                    assert code in ("OK", "CONTROL_PLANE_UNAVAILABLE")
                    return code == "OK"

                await eventually(is_done)

    async def require_lost(self) -> None:
        """The earlier owner ends for good, and its log says why."""
        process = self.other.process
        assert process is not None
        assert await asyncio.to_thread(process.wait, 2 * PATIENCE_S) == NO_RESTART
        events = map(json.loads, (self.other.folder / "log").read_text().splitlines())
        errors = [event["error"] for event in events if event["event"] == "fatal error"]
        lost, refused = errors[-2:]
        assert lost.endswith("has another owner or an earlier state")
        assert f"with the data directory {self.owner.data_dir}, last seen at" in refused

    def close(self) -> None:
        for service in (self.owner, self.other):
            self.signal(service, signal.SIGCONT)
            service.close()


@pytest.fixture
def pair(databases: Databases, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, str(databases.url("postgresql")))
    yield pair
    pair.close()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.full),
        *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(1, 26)),
    ],
)
async def test_paused_owner_changes_nothing_after_a_takeover(pair: Pair, seed: int) -> None:
    point = random.Random(seed)
    await pair.start()
    load = pair.load()
    for _ in range(ROUNDS):
        count = point.randrange(5, 30)
        await load.until_answered(count)
        await asyncio.sleep(point.uniform(0, 0.05))
        pair.signal(pair.owner, signal.SIGSTOP)
        await pair.take_over()
        before, earlier = await pair.changes.stored(), load
        await asyncio.to_thread(pair.owner.start)
        load = pair.load()
        await load.until_answered(1)
        pair.signal(pair.other, signal.SIGCONT)
        await pair.require_lost()
        await earlier.end()
        sent = earlier.answered | earlier.unanswered
        after = await pair.changes.stored()
        assert {name: after[name] for name in sent} == {name: before[name] for name in sent}
        assert earlier.answered <= set(before), "each success is committed"
        assert earlier.unanswered, (earlier.codes, "the takeover interrupted no change")
        await pair.repeat(earlier.unanswered)
    await load.end()
    assert not load.unanswered, load.codes
    assert await pair.changes.stored() == dict.fromkeys(pair.changes.requests, 1)
    assert pair.owner.stop() == 0
