"""Owner of a database: its claim, a takeover, and changes of an earlier owner."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import Connection, text

from pyservice.storage.database import Database, DatabaseUnusable, open_database
from pyservice.storage.ownership import (
    EarlierState,
    Instance,
    OwnedByAnother,
    Ownership,
    claim,
    take_over,
)
from tests.support.databases import KINDS, Databases
from tests.support.notes_table import code_of, count_up, look_once, prepare, write_once
from tests.support.postgres_proxy import PostgresProxy, open_postgres_proxy

pytestmark = [pytest.mark.anyio]

HERE = Instance("one", "host-a", "/srv/a", Path("one.json"))
THERE = Instance("other", "host-b", "/srv/b", Path("other.json"))
NOW_MS = 1_800_000_000_000


class OwnerLost(Exception):
    pass


def lose() -> NoReturn:
    raise OwnerLost


@pytest.fixture(autouse=True)
def folder_of_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def proxy(databases: Databases) -> AsyncIterator[PostgresProxy]:
    async with open_postgres_proxy(str(databases.url("postgresql"))) as proxy:
        yield proxy


@pytest.fixture
async def database(proxy: PostgresProxy, tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(proxy.url, tmp_path)
    await prepare(database)
    yield database
    await database.close()


@pytest.fixture
async def other(proxy: PostgresProxy, tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(proxy.url, tmp_path)
    yield database
    await database.close()


async def own(database: Database, instance: Instance = HERE, now_ms: int = NOW_MS) -> int:
    return (await claim(database, instance, now_ms, lose)).epoch


@pytest.mark.parametrize("kind", KINDS)
async def test_same_instance_gets_the_database_back(
    kind: str, databases: Databases, tmp_path: Path
) -> None:
    database = open_database(databases.url(kind), tmp_path)
    await prepare(database)
    for epoch in (1, 2, 3):
        assert await own(database) == epoch
        await write_once(database)
    assert await look_once(database) == 3
    owned = await claim(database, HERE, NOW_MS, lose)
    await owned.renew(NOW_MS + 5_000)
    before = (await claim(database, HERE, NOW_MS, lose)).before
    assert before is not None
    assert (before.renewed_ms, before.position) == (NOW_MS + 5_000, 5)
    await database.close()


def test_instance_of_a_data_directory_stays_the_same(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    first = Instance.of_folder(tmp_path)
    assert first == Instance.of_folder(tmp_path)
    assert (first.host_name, first.data_dir) == (socket.gethostname(), str(tmp_path))
    file = tmp_path / "control/instance.json"
    noted = {"instance_id": first.instance_id, "epoch": 2, "position": 7}
    first.note(2, 7)
    assert json.loads(file.read_text()) == noted
    assert Instance.of_folder(tmp_path).seen == (2, 7)
    file.write_text("{}")
    with pytest.raises(OSError, match="is damaged: restore it from a backup"):
        Instance.of_folder(tmp_path)


async def test_other_instance_is_refused_with_the_name_of_the_owner(
    database: Database, other: Database
) -> None:
    assert await own(database) == 1
    with pytest.raises(OwnedByAnother) as caught:
        await own(other, THERE, NOW_MS + 86_400_000)
    assert str(caught.value) == (
        f"the database {other.location} belongs to the service on host-a with the data directory /srv/a, last seen "
        "at 2027-01-15T08:00:00.000Z: give this service another database, or run pyservice takeover if the other "
        "service is lost"
    )
    await write_once(database)
    assert await own(database) == 2


async def test_copy_of_a_data_directory_is_refused_while_the_owner_runs(
    database: Database, other: Database
) -> None:
    await own(database)
    copy = HERE._replace(host_name="host-b")
    with pytest.raises(OwnedByAnother, match="this data directory is a copy of it: stop the other"):
        await own(other, copy, NOW_MS + 59_999)
    assert await own(other, copy, NOW_MS + 60_000) == 2, "the same directory on a new machine"


async def test_first_claims_at_once_have_one_winner(database: Database, other: Database) -> None:
    epochs = await asyncio.gather(own(database), own(other, THERE), return_exceptions=True)
    assert sorted(map(str, map(type, epochs))) == sorted(map(str, (int, OwnedByAnother)))


async def test_lost_owner_changes_nothing(database: Database, other: Database) -> None:
    await own(database)
    await write_once(database)
    claimed = await take_over(other, THERE, NOW_MS)
    assert claimed.before is not None
    assert (claimed.before.instance_id, claimed.owner.epoch) == ("one", 2)
    with pytest.raises(OwnerLost):
        await write_once(database)
    with pytest.raises(OwnerLost):
        await database.run_sync(database.check)
    assert await look_once(database) == 1, "it may still read"
    with pytest.raises(OwnedByAnother, match="host-b"):
        await own(database)


async def test_takeover_waits_for_a_transaction_that_commits(
    database: Database, other: Database
) -> None:
    await own(database)
    async with database.write() as tx:
        await count_up(tx)
        taking = asyncio.create_task(take_over(other, THERE, NOW_MS))
        await asyncio.wait({taking}, timeout=0.1)
        assert not taking.done()
    await taking
    assert await look_once(other) == 1


async def test_takeover_ends_a_transaction_that_stays_open(
    database: Database, other: Database
) -> None:
    """Like that of a process that is stopped in the middle of a change."""
    await own(database)

    async def change() -> None:
        async with database.write() as tx:
            await count_up(tx)
            await take_over(other, THERE, NOW_MS)

    with pytest.raises(OwnerLost):
        await change()
    assert await look_once(other) == 0


async def test_last_of_two_takeovers_owns_the_database(database: Database, other: Database) -> None:
    claims = await asyncio.gather(
        take_over(database, HERE, NOW_MS), take_over(other, THERE, NOW_MS)
    )
    assert sorted(claim.owner.epoch for claim in claims) == [1, 2]
    last = max(claims, key=lambda one: one.owner.epoch).owner.instance_id
    for one, instance in ((database, HERE), (other, THERE)):
        if instance.instance_id == last:
            assert await own(one, instance) == 3
        else:
            with pytest.raises(OwnedByAnother):
                await own(one, instance)


async def test_commit_without_an_answer_is_found_out(
    database: Database, proxy: PostgresProxy
) -> None:
    await own(database)
    called: list[str] = []
    async with database.write() as tx:
        await count_up(tx)
        tx.after_commit(lambda: called.append("afterwards"))
        proxy.cut_at = b"COMMIT\0"
        proxy.cuts_max = 1
    assert (proxy.cuts, called) == (1, ["afterwards"])
    assert await look_once(database) == 1


async def test_commit_that_did_not_arrive_is_no_success(
    database: Database, proxy: PostgresProxy
) -> None:
    await own(database)

    async def change() -> None:
        async with database.write() as tx:
            await count_up(tx)
            proxy.lose()

    assert await code_of(change) == "CONTROL_PLANE_UNAVAILABLE"
    assert await look_once(database) == 0


class State:
    """A database that can be restored to an earlier time, and the instance in its data directory."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self._folder = folder
        (folder / "control").mkdir()

    @property
    def instance(self) -> Instance:
        return Instance.of_folder(self._folder)

    async def own(self) -> Ownership:
        return await claim(self.database, self.instance, NOW_MS, lose)

    async def row(self) -> str:
        async with self.database.read() as tx:
            found = await tx.first(text("SELECT epoch, position FROM service_owner"))
        assert found is not None
        return f"epoch = {found.epoch}, position = {found.position}"

    async def restore(self, row: str) -> None:
        def work(connection: Connection) -> None:
            connection.execute(text(f"UPDATE service_owner SET {row}"))

        await self.database.run_sync(work)


@pytest.fixture(params=KINDS)
async def state(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> AsyncIterator[State]:
    database = open_database(databases.url(request.param), tmp_path)
    await prepare(database)
    yield State(database, tmp_path)
    await database.close()


async def test_earlier_state_is_refused_until_a_takeover(state: State) -> None:
    owned = await state.own()
    states = [await state.row()]
    await owned.renew(NOW_MS)
    states.append(await state.row())
    await state.own()
    for earlier in states:
        await state.restore(earlier)
        with pytest.raises(EarlierState) as caught:
            await state.own()
        assert str(caught.value) == (
            f"the database {state.database.location} was restored to an earlier time, "
            "2027-01-15T08:00:00.000Z, and lacks later changes of this service: restore its newest "
            "state, or run pyservice takeover to go on with this one"
        )
    await take_over(state.database, state.instance, NOW_MS)
    await state.own()


async def test_database_without_records_is_refused_until_a_takeover(state: State) -> None:
    await state.own()
    await state.database.run_sync(
        lambda connection: connection.execute(text("DROP TABLE service_owner"))
    )
    with pytest.raises(
        EarlierState, match="has no records of this service: restore its newest state"
    ):
        await state.own()
    await take_over(state.database, state.instance, NOW_MS)
    await state.own()


async def test_running_service_changes_nothing_in_an_earlier_state(
    database: Database, other: Database
) -> None:
    owned = await claim(database, HERE, NOW_MS, lose)
    await owned.renew(NOW_MS)
    await write_once(database)

    def restore(connection: Connection) -> None:
        connection.execute(text("UPDATE service_owner SET position = position - 1"))

    await other.run_sync(restore)
    with pytest.raises(OwnerLost):
        await write_once(database)
    assert await look_once(database) == 1


async def test_position_that_cannot_be_noted_is_named(database: Database, tmp_path: Path) -> None:
    owned = await claim(database, HERE, NOW_MS, lose)
    folder = tmp_path / "away"
    owned._instance = HERE._replace(file=folder / "one.json")
    with pytest.raises(DatabaseUnusable, match=r"one.json cannot be written: No such file"):
        await owned.renew(NOW_MS)
    folder.mkdir()
    await owned.renew(NOW_MS)
