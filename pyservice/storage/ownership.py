"""Owner of a database: the one service that may change its records.

On PostgreSQL, a writing transaction holds the owner's lock in shared mode and then reads the owner
epoch (`postgres.PostgresDatabase`). A new owner takes the lock exclusively and raises the epoch. So
a change of an earlier owner is committed before the epoch changes, or never. SQLite has only the
row: the lock of the data directory excludes other owners.

The row also has a position, which the owner raises every 10 s and notes in its data directory. So
a database that was restored to an earlier time is refused, until an operator accepts it by a
takeover. A running owner also knows its newest transaction id on PostgreSQL, which only an earlier
state assigns again.

A takeover of an earlier state can assign an epoch again. So each claim also has a random id. The
owner notes it in its data directory, so that a copy of the directory is not taken for its owner.
Times in the row are of the clock of the database, because clocks of two machines differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn
from uuid import uuid4

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from pyservice.durable_files import write_file
from pyservice.process.child_process import NO_RESTART
from pyservice.storage.database import CRASH_MARK_TABLE, OWNER_LOCK, Database
from pyservice.storage.database_errors import DatabaseUnusable, sqlstate
from pyservice.timestamps import rfc3339

INSTANCE_FILE: Final = "instance.json"
OWNER_TABLE: Final = "service_owner"

_HOLD_MAX_MS: Final = 1_000
"""A new owner ends sessions that hold the lock for longer."""
_LOCK_TIMEOUT: Final = "55P03"
_NOT_PERMITTED: Final = "42501"
_COPY_RENEWED_MS: Final = 60_000
"""The owner renews its row every 10 s. A row of a copy that is younger than this has a running owner."""
_NOW_MS: Final = {
    "postgresql": text("CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"),
    "sqlite": text("CAST(strftime('%s', 'now') AS INTEGER) * 1000"),
}
"""Time of the database, in Unix ms."""

_owners: Final = Table(
    OWNER_TABLE,
    # The migrations do not know this table, because the owner is checked before them.
    MetaData(),
    Column("only_row", Integer, primary_key=True, autoincrement=False),
    Column("instance_id", String(36), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("claim_id", String(36), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("host_name", Text, nullable=False),
    Column("data_dir", Text, nullable=False),
    Column("renewed_ms", BigInteger, nullable=False),
)
_crash_marks: Final = Table(
    CRASH_MARK_TABLE,
    MetaData(),
    Column("mark", String(36), nullable=False),
    prefixes=["UNLOGGED"],
)
_RENEW: Final = {
    name: update(_owners).values(renewed_ms=now_ms, position=bindparam("next_position"))
    for name, now_ms in _NOW_MS.items()
}
_REMEDY: Final = "restore its newest state, or run pyservice takeover to go on with this one"


class Instance(NamedTuple):
    """The service of one data directory."""

    instance_id: str
    host_name: str
    data_dir: str
    file: Path
    seen: tuple[int, int] = (0, 0)
    """Newest epoch and position that the instance has noted in its file."""
    claims: Sequence[str] | None = None
    """Ids of the last claim, and of one that may be committed. None: the file is of an earlier version."""

    @classmethod
    def of_folder(cls, data_dir: Path) -> Instance:
        """Returns the instance of a data directory, and creates its file at the first start.

        Raises OSError and DatabaseUnusable.
        """
        file = data_dir / "control" / INSTANCE_FILE
        identity = socket.gethostname(), str(data_dir.absolute()), file
        try:
            noted = json.loads(file.read_bytes())
            seen = int(noted["epoch"]), int(noted["position"])
            return cls(str(noted["instance_id"]), *identity, seen, noted.get("claims"))
        except FileNotFoundError:
            instance = cls(str(uuid4()), *identity, claims=[])
            instance.note(*instance.seen)
            return instance
        except (ValueError, KeyError, TypeError):
            raise OSError(f"{file} is damaged: restore it from a backup") from None

    def note(self, epoch: int, position: int, *claims: str) -> None:
        """Makes the epoch, position and claims durable. Raises DatabaseUnusable."""
        noted = {"instance_id": self.instance_id, "epoch": epoch, "position": position}
        try:
            write_file(self.file, json.dumps({**noted, "claims": claims}).encode() + b"\n")
        except OSError as error:
            raise DatabaseUnusable(f"{self.file} cannot be written: {error.strerror}") from error


class Owner(NamedTuple):
    instance_id: str
    epoch: int
    claim_id: str
    position: int
    host_name: str
    data_dir: str
    renewed_ms: int

    def __str__(self) -> str:
        return f"the service on {self.host_name} with the data directory {self.data_dir}, last seen at {self.renewed}"

    @property
    def renewed(self) -> str:
        return rfc3339(self.renewed_ms)


class OwnedByAnother(DatabaseUnusable):
    """Another service owns the database."""

    exit_status: Final = NO_RESTART


class EarlierState(DatabaseUnusable):
    """The database lacks changes that this service has made."""


class Claim(NamedTuple):
    owner: Owner
    before: Owner | None


class Ownership:
    """The database of this service, until another service takes it over."""

    def __init__(
        self,
        database: Database,
        instance: Instance,
        claimed: Claim,
        on_loss: Callable[[], NoReturn],
    ) -> None:
        self.epoch = claimed.owner.epoch
        self.before = claimed.before
        self._database = database
        self._instance = instance
        self._claim_id = claimed.owner.claim_id
        self._on_loss = on_loss
        self._position = claimed.owner.position
        self._is_noted = True
        self._require_position()

    async def renew(self) -> None:
        """Writes the time and the next position into the owner's row.

        Raises DatabaseUnusable if the position cannot be noted.
        """
        # A row that is further ahead of the note has another owner, with a copy of the directory.
        position = self._position + self._is_noted
        async with self._database.write() as tx:
            await tx.run(_RENEW[self._database.name], {"next_position": position})
        self._position = position
        self._require_position()
        self._is_noted = False
        await asyncio.to_thread(self._instance.note, self.epoch, position, self._claim_id)
        self._is_noted = True

    def _require_position(self) -> None:
        self._database.fence(self._claim_id, self._position, self._lose)

    def _lose(self) -> NoReturn:
        # The next claim of an earlier state is refused, even if its position is the last one.
        with contextlib.suppress(DatabaseUnusable):
            self._instance.note(self.epoch, self._position + 1, self._claim_id)
        self._on_loss()


async def claim(
    database: Database, instance: Instance, on_loss: Callable[[], NoReturn]
) -> Ownership:
    """Makes the instance the owner. Afterwards, the database calls `on_loss` before a transaction of a lost owner.

    Raises OwnedByAnother, EarlierState, DatabaseUnusable, or ServiceError if the database is unavailable.
    """
    claimed = await database.run_sync(
        lambda connection: _claim(connection, database.location, instance)
    )
    _note_owner(instance, claimed.owner)
    return Ownership(database, instance, claimed, on_loss)


async def take_over(database: Database, instance: Instance) -> Claim:
    """Makes the instance the owner of the database, in any state and of any owner.

    An earlier owner exits at its next change. Raises DatabaseUnusable and ServiceError.
    """

    def work(connection: Connection) -> Claim:
        return _take(connection, instance)

    claimed = await database.run_sync(work)
    _note_owner(instance, claimed.owner)
    return claimed


def _note_owner(instance: Instance, owner: Owner) -> None:
    instance.note(owner.epoch, owner.position, owner.claim_id)


def read_owner(connection: Connection) -> Owner | None:
    if not inspect(connection).has_table(_owners.name):
        return None
    row = connection.execute(select(*list(_owners.c)[1:])).first()
    return None if row is None else Owner(*row)


def mark_unused(connection: Connection) -> None:
    """Notes that no service has owned the database since its tables were created."""
    _owners.create(connection, checkfirst=True)


def is_unused(connection: Connection) -> bool:
    """Returns whether the database is marked with `mark_unused`, and has had no owner since then."""
    return inspect(connection).has_table(_owners.name) and read_owner(connection) is None


def _claim(connection: Connection, location: str, instance: Instance) -> Claim:
    def require(before: Owner | None) -> None:
        _require_own(connection, before, location, instance)

    # A refusal needs no lock, and then ends no session of the owner.
    require(read_owner(connection))
    return _take(connection, instance, require)


def require_state(before: Owner | None, location: str, instance: Instance) -> None:
    """Refuses a database of another service, and an earlier state. `before` is its owner.

    Raises OwnedByAnother and EarlierState.
    """
    if before is None:
        if instance.seen > (0, 0):
            raise EarlierState(f"the database {location} has no records of this service: {_REMEDY}")
        return
    if before.instance_id != instance.instance_id:
        raise OwnedByAnother(
            f"the database {location} belongs to {before}: give this service another database, or "
            "run pyservice takeover if the other service is lost"
        )
    if (before.epoch, before.position) < instance.seen:
        raise EarlierState(
            f"the database {location} was restored to an earlier time, {before.renewed}, and lacks "
            f"later changes of this service: {_REMEDY}"
        )


def _is_of_copy(owner: Owner, instance: Instance) -> bool:
    """Returns whether the row may be of a service with a copy of this instance's data directory."""
    if owner.host_name != instance.host_name:
        return True
    # A process that was killed may have renewed the row once more than it noted.
    return instance.claims is not None and (
        owner.claim_id not in instance.claims or owner.position > instance.seen[1] + 1
    )


def _require_own(
    connection: Connection, before: Owner | None, location: str, instance: Instance
) -> None:
    require_state(before, location, instance)
    if before and _is_of_copy(before, instance) and _is_renewed(connection, before):
        raise OwnedByAnother(
            f"the database {location} belongs to {before}, and that service has a copy of this data "
            "directory: stop it, or run pyservice takeover if it is lost"
        )


def _is_renewed(connection: Connection, owner: Owner) -> bool:
    """Returns whether another process may renew the row now."""
    if connection.dialect.name != "postgresql":
        # This process has the lock of the owner's directory.
        return False
    # A negative age means that the clock of the database was set back, and no owner has renewed its row since.
    return 0 <= _now_ms(connection) - owner.renewed_ms < _COPY_RENEWED_MS


def _now_ms(connection: Connection) -> int:
    return int(connection.execute(select(_NOW_MS[connection.dialect.name])).scalar_one())


def _take(
    connection: Connection,
    instance: Instance,
    require: Callable[[Owner | None], None] = lambda _: None,
) -> Claim:
    if connection.dialect.name == "postgresql":
        _lock_exclusively(connection)
    _owners.create(connection, checkfirst=True)
    before = read_owner(connection)
    require(before)
    found = (0, 0) if before is None else (before.epoch, before.position)
    epochs, positions = zip(instance.seen, found, strict=True)
    owner = Owner(
        instance.instance_id,
        max(epochs) + 1,
        str(uuid4()),
        max(positions) + 1,
        instance.host_name,
        instance.data_dir,
        _now_ms(connection),
    )
    connection.execute(delete(_owners))
    connection.execute(insert(_owners), {"only_row": 1, **owner._asdict()})
    if connection.dialect.name == "postgresql":
        _crash_marks.create(connection, checkfirst=True)
        connection.execute(delete(_crash_marks))
        connection.execute(insert(_crash_marks), {"mark": owner.claim_id})
        # If the process is killed around the commit, the row has one of these claims. So the next
        # start takes the row back at once.
        claims = [owner.claim_id] if before is None else [owner.claim_id, before.claim_id]
        instance.note(*max(instance.seen, found), *claims)
    return Claim(owner, before)


def _lock_exclusively(connection: Connection) -> None:
    """Takes the owner's lock. Ends transactions that hold it for more than a second.

    Later transactions wait in the queue of the lock, behind this one.
    """
    while True:
        holders = list(connection.execute(_HOLDERS).scalars())
        try:
            with connection.begin_nested():
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_HOLD_MAX_MS}")
                connection.execute(select(func.pg_advisory_xact_lock(OWNER_LOCK)))
        except DBAPIError as error:
            if sqlstate(error) != _LOCK_TIMEOUT:
                raise
            _end_sessions(connection, holders)
        else:
            return


def _end_sessions(connection: Connection, transactions: Sequence[str]) -> None:
    """Ends the sessions that still hold the lock in one of the transactions."""
    try:
        connection.execute(_END_HOLDERS, {"transactions": transactions})
    except DBAPIError as error:
        if sqlstate(error) != _NOT_PERMITTED:
            raise
        raise DatabaseUnusable(
            "a session of the earlier owner stays in a transaction, and the user of database_url must not end "
            "it: use the user of the earlier owner, or let this user be a member of it (GRANT)"
        ) from error


_HELD: Final = f"""
    FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid() AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = {OWNER_LOCK >> 32} AND objid::bigint = {OWNER_LOCK & 0xFFFFFFFF}
"""
_HOLDERS: Final = text(f"SELECT virtualtransaction {_HELD}")
_END_HOLDERS: Final = text(
    f"SELECT pg_terminate_backend(pid) {_HELD} AND virtualtransaction = ANY(:transactions)"
).bindparams(bindparam("transactions", type_=ARRAY(Text)))
