"""Owner of a database: its claim, a takeover, and changes of an earlier owner."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit
from uuid import uuid4

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
from pyservice.storage.postgres import is_closed
from tests.support.databases import KINDS, Databases
from tests.support.notes_table import code_of, count_up, look_once, prepare, write_once
from tests.support.postgres_proxy import PostgresProxy, open_postgres_proxy
from tests.support.waiting import eventually, until_met

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


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data/control").mkdir(parents=True)
    return tmp_path / "data"


async def start(database: Database, data_dir: Path) -> Ownership:
    return await claim(database, Instance.of_folder(data_dir), lose)


async def own(database: Database, instance: Instance = HERE) -> int:
    return (await claim(database, instance, lose)).epoch


async def set_owner(database: Database, row: str) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text(f"UPDATE service_owner SET {row}"))

    await database.run_sync(work)


async def renewed_before(database: Database, milliseconds: int) -> None:
    now = "extract(epoch FROM clock_timestamp()) * 1000"
    await set_owner(database, f"renewed_ms = {now} - {milliseconds}")


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
    owned = await claim(database, HERE, lose)
    await set_owner(database, f"renewed_ms = {NOW_MS}")
    await owned.renew()
    before = (await claim(database, HERE, lose)).before
    assert before is not None
    assert before.position == 5
    assert before.renewed_ms != NOW_MS, "the time is that of the database"
    await database.close()


def test_instance_of_a_data_directory_stays_the_same(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    first = Instance.of_folder(tmp_path)
    assert first == Instance.of_folder(tmp_path)
    assert (first.host_name, first.data_dir) == (socket.gethostname(), str(tmp_path))
    file = tmp_path / "control/instance.json"
    noted = {"instance_id": first.instance_id, "epoch": 2, "position": 7, "claims": ["c"]}
    first.note(2, 7, "c")
    assert json.loads(file.read_text()) == noted
    assert Instance.of_folder(tmp_path) == first._replace(seen=(2, 7), claims=["c"])
    file.write_text("{}")
    with pytest.raises(OSError, match="is damaged: restore it from a backup"):
        Instance.of_folder(tmp_path)


async def test_other_instance_is_refused_with_the_name_of_the_owner(
    database: Database, other: Database
) -> None:
    assert await own(database) == 1
    await set_owner(database, f"renewed_ms = {NOW_MS}")
    with pytest.raises(OwnedByAnother) as caught:
        await own(other, THERE)
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
    with pytest.raises(OwnedByAnother, match="and that service has a copy of this data directory"):
        await own(other, copy)
    await renewed_before(database, 60_000)
    assert await own(other, copy) == 2, "the same directory on a new machine"


@pytest.mark.parametrize("is_claimed_later", [True, False])
async def test_copy_on_a_host_of_the_same_name_is_refused_while_the_owner_runs(
    is_claimed_later: bool, database: Database, other: Database, data_dir: Path, tmp_path: Path
) -> None:
    """The copy is of before the last claim, or of a running service."""
    owned = await start(database, data_dir)
    copy = shutil.copytree(data_dir, tmp_path / "copy")
    if is_claimed_later:
        owned = await start(database, data_dir)
    for _ in range(2):
        await owned.renew()
    with pytest.raises(OwnedByAnother) as caught:
        await start(other, copy)
    assert str(caught.value).endswith(
        "and that service has a copy of this data directory: stop it, or run pyservice takeover if it is lost"
    )
    await write_once(database)
    await start(database, data_dir)
    await write_once(database)
    await renewed_before(database, 60_000)
    await start(other, copy)
    with pytest.raises(OwnedByAnother, match="has a copy of this data directory"):
        await start(database, data_dir)


class Killed(Exception):
    pass


@pytest.mark.parametrize("killed_at", ["before the commit", "after the commit"])
async def test_claim_that_was_killed_is_repeated_at_once(
    killed_at: str, database: Database, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await start(database, data_dir)).renew()
    note, is_noted = Instance.note, False

    def note_until_killed(*words: Any) -> None:
        nonlocal is_noted
        if is_noted:
            raise Killed
        note(*words)
        is_noted = True
        if killed_at == "before the commit":
            raise Killed

    for _ in range(2):
        is_noted = False
        with monkeypatch.context() as patch:
            patch.setattr(Instance, "note", note_until_killed)
            with pytest.raises(Killed):
                await start(database, data_dir)
    await start(database, data_dir)


async def test_owner_that_could_not_note_its_renewals_starts_again_at_once(
    database: Database, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = await start(database, data_dir)
    with monkeypatch.context() as patch:
        patch.setattr(owned, "_instance", HERE._replace(file=data_dir / "away/one.json"))
        for _ in range(2):
            with pytest.raises(DatabaseUnusable):
                await owned.renew()
    await start(database, data_dir)


async def test_data_directory_moves_to_another_machine_whatever_its_clock_says(
    database: Database, other: Database
) -> None:
    """The row has the time of the database. That clock may be set back, too."""
    await own(database)
    for milliseconds, host_name in ((60_000, "host-b"), (-3_600_000, "host-c")):
        await renewed_before(database, milliseconds)
        await own(other, HERE._replace(host_name=host_name))


async def test_sqlite_follows_its_data_directory_to_another_host_at_once(tmp_path: Path) -> None:
    """The lock of the directory excludes its owner. A new container has a new host name."""
    database = open_database(None, tmp_path)
    assert await own(database) == 1
    assert await own(database, HERE._replace(host_name="host-b")) == 2
    await database.close()


async def test_first_claims_at_once_have_one_winner(database: Database, other: Database) -> None:
    epochs = await asyncio.gather(own(database), own(other, THERE), return_exceptions=True)
    assert sorted(map(str, map(type, epochs))) == sorted(map(str, (int, OwnedByAnother)))


async def test_lost_owner_changes_nothing(database: Database, other: Database) -> None:
    await own(database)
    await write_once(database)
    claimed = await take_over(other, THERE)
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
        taking = asyncio.create_task(take_over(other, THERE))
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
            await take_over(other, THERE)

    with pytest.raises(OwnerLost):
        await change()
    assert await look_once(other) == 0


@pytest.mark.full
async def test_takeover_ends_no_later_transaction(database: Database, other: Database) -> None:
    """Only the first one holds the lock for more than a second."""
    await own(database)
    first_began, second_waits = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with database.write() as tx:
            await count_up(tx)
            first_began.set()
            await second_waits.wait()
            await until_met(lambda: is_closed(tx.connection))  # type: ignore[attr-defined]
            second_may_commit.set()
            await taking

    async def second() -> None:
        async with database.write() as tx:
            await count_up(tx, "b")
            await second_may_commit.wait()

    second_may_commit = asyncio.Event()
    running = asyncio.create_task(first())
    await first_began.wait()
    taking = asyncio.create_task(take_over(other, THERE))
    await waits_for_the_lock(database, 1)
    later = asyncio.create_task(second())
    await waits_for_the_lock(database, 2)
    second_waits.set()
    await later
    with pytest.raises(OwnerLost):
        await running
    assert (await look_once(other), await look_once(other, "b")) == (0, 1)


async def waits_for_the_lock(database: Database, count: int) -> None:
    query = text("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")

    async def is_waiting() -> bool:
        async with database.query() as tx:
            return len(await tx.all(query)) == count

    assert await eventually(is_waiting)


@pytest.mark.full
async def test_takeover_needs_the_rights_of_the_earlier_owner(
    databases: Databases, tmp_path: Path
) -> None:
    url, [first, second] = str(databases.url("postgresql")), [f"r{uuid4().hex}" for _ in "ab"]
    name = urlsplit(url).path.removeprefix("/")
    psql = databases.server.psql
    psql(f"CREATE ROLE {first} LOGIN; CREATE ROLE {second} LOGIN;")
    psql(f"ALTER DATABASE {name} OWNER TO {first};")
    database, other = (
        open_database(url.replace("//postgres:", f"//{role}:"), tmp_path)
        for role in (first, second)
    )
    await prepare(database)
    await own(database)
    await database.run_sync(
        lambda connection: connection.execute(
            text(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {second}")
        )
    )

    async def change() -> None:
        async with database.write() as tx:
            await count_up(tx)
            with pytest.raises(DatabaseUnusable) as caught:
                await take_over(other, THERE)
            assert str(caught.value) == (
                "a session of the earlier owner stays in a transaction, and the user of database_url "
                "must not end it: use the user of the earlier owner, or let this user be a member of "
                "it (GRANT)"
            )
            psql(f"GRANT {first} TO {second};")
            await take_over(other, THERE)

    with pytest.raises(OwnerLost):
        await change()
    await database.close()
    await other.close()


async def test_last_of_two_takeovers_owns_the_database(database: Database, other: Database) -> None:
    claims = await asyncio.gather(take_over(database, HERE), take_over(other, THERE))
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
        return await claim(self.database, self.instance, lose)

    async def row(self) -> str:
        async with self.database.read() as tx:
            found = await tx.first(text("SELECT epoch, position FROM service_owner"))
        assert found is not None
        return f"epoch = {found.epoch}, position = {found.position}"

    async def restore(self, row: str) -> None:
        await set_owner(self.database, f"{row}, renewed_ms = {NOW_MS}")


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
    await owned.renew()
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
    await take_over(state.database, state.instance)
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
    await take_over(state.database, state.instance)
    await state.own()


async def test_running_service_changes_nothing_in_an_earlier_state(
    database: Database, other: Database
) -> None:
    owned = await claim(database, HERE, lose)
    await owned.renew()
    await write_once(database)

    await set_owner(other, "position = position - 1")
    with pytest.raises(OwnerLost):
        await write_once(database)
    assert await look_once(database) == 1


@pytest.mark.full
async def test_owner_of_an_earlier_state_is_no_owner_of_a_later_claim_of_its_epoch(
    database: Database, other: Database
) -> None:
    """The new service has another data directory, so it does not know the epoch of the lost state."""
    await own(database)
    await own(database)
    await set_owner(database, "epoch = 1, position = 1")
    owned = (await take_over(other, THERE)).owner
    assert owned.epoch == 2
    await set_owner(database, "position = 1000")
    with pytest.raises(OwnerLost):
        await write_once(database)


async def test_position_that_cannot_be_noted_is_named(database: Database, tmp_path: Path) -> None:
    owned = await claim(database, HERE, lose)
    folder = tmp_path / "away"
    owned._instance = HERE._replace(file=folder / "one.json")
    with pytest.raises(DatabaseUnusable, match=r"one.json cannot be written: No such file"):
        await owned.renew()
    folder.mkdir()
    await owned.renew()
