from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import Integer, and_, bindparam, delete, exists, func, insert, select, update

from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.storage.list_pages import Page, PageBounds, PagedList
from pyservice.storage.lobbies import storable_text
from pyservice.storage.tables import namespaces, server_host_ports, server_tags, servers

_ADD = insert(servers)
_ADD_TAGS = insert(server_tags)
_ADD_HOST_PORTS = insert(server_host_ports)
_ONE = select(servers).where(
    servers.c.namespace_id == bindparam("namespace_id"),
    servers.c.server_id == bindparam("server_id"),
)
_OF_NAMESPACE = PagedList(
    select(servers).where(servers.c.namespace_id == bindparam("namespace_id")),
    servers.c.server_id,
    rows_at_once=16,
)
_LIVE = (
    select(servers, namespaces.c.game_id)
    .join(namespaces, namespaces.c.namespace_id == servers.c.namespace_id)
    .where(servers.c.destroy_ms.is_(None))
    # The order matches the index, so that destroyed servers are not read.
    .order_by(servers.c.namespace_id, servers.c.server_id)
)
_ENDS = (
    select(servers.c.destroy_ms)
    .where(servers.c.namespace_id == namespaces.c.namespace_id, servers.c.destroy_ms.is_not(None))
    .correlate(namespaces)
)
_ENDS_OF_NAMESPACES = PagedList(
    select(
        namespaces.c.namespace_id,
        _ENDS.order_by(servers.c.destroy_ms).limit(1).scalar_subquery().label("first_ms"),
        _ENDS.order_by(servers.c.destroy_ms.desc())
        .offset(bindparam("kept_count", type_=Integer))
        .limit(1)
        .scalar_subquery()
        .label("surplus_ms"),
    ),
    namespaces.c.namespace_id,
    is_descending=False,
)
_DESTROYED = PagedList(
    select(
        servers.c.destroy_ms,
        servers.c.server_id,
        func.length(servers.c.record).label("record_bytes"),
    ).where(
        servers.c.namespace_id == bindparam("namespace_id"),
        servers.c.destroy_ms <= bindparam("last_ms"),
    ),
    servers.c.destroy_ms,
    servers.c.server_id,
    is_descending=False,
)
_REMOVE_TAGS = delete(server_tags).where(
    server_tags.c.server_id.in_(bindparam("ids", expanding=True))
)
_REMOVE_DESTROYED = delete(servers).where(
    servers.c.server_id.in_(bindparam("ids", expanding=True)), servers.c.destroy_ms.is_not(None)
)

REMOVAL_BYTES: Final = 1 << 20
"""Bytes of the records that one transaction removes. SQLite overwrites them on the event loop."""


async def add(
    tx: Transaction,
    row: Mapping[str, object],
    tags: Mapping[str, str],
    host_ports: Iterable[tuple[bool, int]],
) -> None:
    """Adds a server. `row` has all columns. Raises Conflict if another server has a host port."""
    await tx.run(_ADD, row)
    server_id = row["server_id"]
    rows = [{"server_id": server_id, "name": name, "value": value} for name, value in tags.items()]
    if rows:
        await tx.run(_ADD_TAGS, rows)
    ports = [
        {"is_datagram": is_datagram, "port": port, "server_id": server_id}
        for is_datagram, port in host_ports
    ]
    if ports:
        await tx.run(_ADD_HOST_PORTS, ports)


async def find(tx: Transaction, namespace_id: str, server_id: str) -> Record | None:
    return await tx.first(_ONE, {"namespace_id": namespace_id, "server_id": server_id})


async def page(
    tx: Transaction,
    namespace_id: str,
    tags: Mapping[str, str],
    bounds: PageBounds,
    *,
    with_destroyed: bool,
) -> Page:
    """Returns a page of the namespace's servers that have all of `tags`, newest first."""
    found = _OF_NAMESPACE
    if not with_destroyed:
        found = found.where(servers.c.destroy_ms.is_(None))
    for name, value in tags.items():
        condition = and_(
            server_tags.c.server_id == servers.c.server_id,
            server_tags.c.name == name,
            server_tags.c.value == value,
        )
        found = found.where(exists().where(condition))
    return await found.read(tx, {"namespace_id": namespace_id}, bounds)


async def live(tx: Transaction) -> Sequence[Record]:
    """Returns the servers without a recorded end, with their `game_id`."""
    return await tx.all(_LIVE)


async def taken_host_ports(
    tx: Transaction, requested: Collection[tuple[bool, int]]
) -> set[tuple[bool, int]]:
    if not requested:
        return set()
    ports = select(server_host_ports).where(
        server_host_ports.c.port.in_([port for _, port in requested])
    )
    rows = await tx.all(ports)
    return {(row.is_datagram, row.port) for row in rows} & set(requested)


async def request_stop(tx: Transaction, server_id: str, now_ms: int, timeout_ms: int) -> None:
    """Records a request to stop a server. Of several requests, the one with the earliest deadline
    stays.
    """
    row = await tx.first(select(servers).where(servers.c.server_id == server_id))
    if row is None or row.destroy_ms is not None:
        return
    if row.stop_ms is not None and row.stop_ms + row.stop_timeout_ms <= now_ms + timeout_ms:
        return
    values = {"stop_ms": now_ms, "stop_timeout_ms": timeout_ms}
    await tx.run(update(servers).where(servers.c.server_id == server_id).values(values))


async def record_placed(tx: Transaction, server_id: str) -> None:
    await tx.run(
        update(servers).where(servers.c.server_id == server_id).values({"is_placed": True})
    )


async def record_of(tx: Transaction, server_id: str) -> bytes | None:
    """Returns the stored `hosting.v1.Server` of a server, or None if it does not exist."""
    row = await tx.first(select(servers.c.record).where(servers.c.server_id == server_id))
    if row is None:
        return None
    content: bytes = row.record
    return content


async def replace_record(tx: Transaction, server_id: str, content: bytes) -> None:
    await tx.run(
        update(servers).where(servers.c.server_id == server_id).values({"record": content})
    )


async def record_started(tx: Transaction, server_id: str, now_ms: int) -> None:
    """Records the start time of a server, unless one is already recorded."""
    condition = and_(servers.c.server_id == server_id, servers.c.start_ms.is_(None))
    await tx.run(update(servers).where(condition).values({"start_ms": now_ms}))


async def record_destroyed(
    tx: Transaction,
    server_id: str,
    now_ms: int,
    exit_code: int | None,
    failure: str | None,
    message: str | None,
    started_ms: int | None = None,
    node: str | None = None,
) -> None:
    """Records the end of a server, unless it is already recorded. Frees its host ports.

    If no start time is recorded, `started_ms` is stored as the start time. `message` is the message
    of the failure, or without a failure the problem of an ended server.
    """
    condition = and_(servers.c.server_id == server_id, servers.c.destroy_ms.is_(None))
    values = {
        "destroy_ms": now_ms,
        "exit_code": exit_code,
        "failure": failure,
        "failure_message": None if message is None else storable_text(message),
        "start_ms": func.coalesce(servers.c.start_ms, started_ms),
        "node": node,
    }
    await tx.run(update(servers).where(condition).values(values))
    await tx.run(delete(server_host_ports).where(server_host_ports.c.server_id == server_id))


async def ends_of_namespaces(tx: Transaction, kept_count: int, bounds: PageBounds) -> Page:
    """Returns a page of all namespaces, with the times of the ends of their servers.

    `first_ms` is the time of the first end. `surplus_ms` is the time of the last end before the
    latest `kept_count` ends. Both are None if there is no such end.
    """
    return await _ENDS_OF_NAMESPACES.read(tx, {"kept_count": kept_count}, bounds)


async def destroyed_page(
    tx: Transaction, namespace_id: str, last_ms: int, bounds: PageBounds
) -> Page:
    """Returns a page of the servers that were destroyed until `last_ms`, in the order of their
    ends.

    The rows have `server_id`, `destroy_ms` and `record_bytes`.
    """
    return await _DESTROYED.read(tx, {"namespace_id": namespace_id, "last_ms": last_ms}, bounds)


async def remove_destroyed(database: Database, rows: Sequence[Record]) -> None:
    """Removes servers, given as rows of `destroyed_page`.

    Each transaction removes about REMOVAL_BYTES, so that other changes do not wait long. Raises
    OVERLOADED after too many conflicts.
    """
    for server_ids in _removal_batches(rows):
        await _remove(database, server_ids)


def _removal_batches(rows: Sequence[Record]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for row in rows:
        if batch and size + row.record_bytes > REMOVAL_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row.server_id)
        size += row.record_bytes
    if batch:
        yield batch


async def _remove(database: Database, server_ids: Sequence[str]) -> None:
    async def once() -> None:
        async with database.write() as tx:
            for statement in (_REMOVE_TAGS, _REMOVE_DESTROYED):
                await tx.run(statement, {"ids": server_ids})

    await retry_on_conflict(once)
