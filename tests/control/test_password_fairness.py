"""Fair hashing and checking of passwords between groups."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator

import bcrypt
import pytest

from pyservice.cdn.site_passwords import PasswordChecksBusy, SitePasswords, Source
from pyservice.control.namespace_access import PasswordThreadPool, TooManyWaiting
from tests.control.new_developers import new_developer
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

FLOOD = 60
SITES = 60


@pytest.mark.full
async def test_setting_passwords_does_not_block_other_groups(
    developer: Developer, records: Records
) -> None:
    flooder, group_id = await new_developer(developer, records)
    many = {"game_id": await flooder.game(developer_group_id=group_id), "namespace_id": "prod"}
    own = {"game_id": await developer.game(), "namespace_id": "prod"}
    names = (f"u{number}" for number in range(FLOOD))
    requests = (flooder.call("set_auth_user", **many, user=n, password="x") for n in names)
    flood = asyncio.gather(*requests)
    finished = []
    while not flood.done():
        answer = await developer.call("set_auth_user", **own, user="me", password="x")
        finished.append(answer.code)
    assert set(finished) == {"OK"}
    assert len(finished) >= 3
    codes = Counter(answer.code for answer in await flood)
    assert codes.keys() <= {"OK", "OVERLOADED"}


def basic(user: str, password: str) -> bytes:
    return b"Basic " + b64encode(f"{user}:{password}".encode())


USERS = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(4))}


class BlockedComparisons:
    """Replaces password comparisons by fast ones, and blocks them until the test opens it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.compared: list[bytes] = []
        monkeypatch.setattr(bcrypt, "checkpw", self._wait)

    def _wait(self, password: bytes, expected: bytes) -> bool:
        if password not in self.compared:
            self.compared.append(password)
        assert self.open.wait(PATIENCE_S)
        return password == b"right"


class Guessers:
    def __init__(self, checker: SitePasswords, comparisons: BlockedComparisons) -> None:
        self._checker = checker
        self.comparisons = comparisons
        self.outcomes = Counter[str]()

    async def guess(self, source: Source, number: int) -> None:
        try:
            assert not await self._checker.are_valid(basic("ann", f"no {number}"), USERS, source)
            self.outcomes["wrong"] += 1
        except PasswordChecksBusy:
            self.outcomes["busy"] += 1

    async def begin(self, *sources: Source) -> list[asyncio.Task[None]]:
        guesses = [self.guess(source, number) for source in sources for number in range(10)]
        tasks = [asyncio.ensure_future(one) for one in guesses]
        for _ in range(10):
            await asyncio.sleep(0)
        return tasks


@pytest.fixture
async def checker() -> AsyncIterator[SitePasswords]:
    checker = SitePasswords(clock_s=lambda: 0.0)
    yield checker
    checker.close()


@pytest.fixture
def guessers(checker: SitePasswords, monkeypatch: pytest.MonkeyPatch) -> Guessers:
    return Guessers(checker, BlockedComparisons(monkeypatch))


def sites_of(group: str, address: bytes) -> list[Source]:
    return [Source(group, b"%d" % number, address) for number in range(SITES)]


async def is_let_in(checker: SitePasswords, source: Source) -> bool:
    return await checker.are_valid(basic("ann", "right"), USERS, source)


async def test_guesses_do_not_block_other_groups(
    checker: SitePasswords, guessers: Guessers
) -> None:
    tasks = await guessers.begin(*sites_of("theirs", b"1"))
    own = asyncio.ensure_future(is_let_in(checker, Source("mine", b"mine", b"2")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    guessers.comparisons.open.set()
    assert await own
    # A group has at most one password comparison at a time, so the second one is the other group's.
    assert guessers.comparisons.compared.index(b"right") == 1
    assert await is_let_in(checker, Source("mine", b"mine", b"1"))
    await asyncio.gather(*tasks)


async def test_address_uses_part_of_the_slots_of_a_group(
    checker: SitePasswords, guessers: Guessers
) -> None:
    tasks = await guessers.begin(*sites_of("mine", b"1"))
    assert guessers.outcomes["busy"] == SITES * 10 - 32
    guessers.comparisons.open.set()
    assert await is_let_in(checker, Source("mine", b"mine", b"2"))
    await asyncio.gather(*tasks)
    assert guessers.outcomes == {"busy": SITES * 10 - 32, "wrong": 32}


async def test_many_addresses_fill_one_group_only(
    checker: SitePasswords, guessers: Guessers
) -> None:
    everywhere = [Source("theirs", b"%d" % number, b"%d" % number) for number in range(SITES)]
    tasks = await guessers.begin(*everywhere)
    assert guessers.outcomes["busy"] == SITES * 10 - 64
    with pytest.raises(PasswordChecksBusy):
        await is_let_in(checker, Source("theirs", b"mine", b"me"))
    guessers.comparisons.open.set()
    assert await is_let_in(checker, Source("mine", b"mine", b"me"))
    await asyncio.gather(*tasks)


async def test_slots_are_freed_after_failure_or_cancellation() -> None:
    threads = PasswordThreadPool(1)

    def fails() -> None:
        raise LookupError

    for _ in range(100):
        with pytest.raises(LookupError):
            await threads.run("group", b"address", fails)
    for _ in range(5):
        steps = [threads.run("group", b"address", lambda: None) for _ in range(32)]
        waiting_tasks = [asyncio.ensure_future(one) for one in steps]
        await asyncio.sleep(0)
        with pytest.raises(TooManyWaiting):
            await threads.run("group", b"address", lambda: None)
        for one in waiting_tasks:
            one.cancel()
        await asyncio.gather(*waiting_tasks, return_exceptions=True)
    assert await threads.run("group", b"address", lambda: 1) == 1
    assert not len(threads)
    threads.close()
