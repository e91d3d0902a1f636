"""Limits that the operator set for groups, and the use of quotas.

Most uses are counted from the existing records. The uses in `STORED` are stored with the group,
because counting would read all of its games or versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from pyservice.settings.quotas import LOBBY_QUOTAS, QUOTAS
from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import (
    cloud_tokens,
    domains,
    exports,
    games,
    group_quotas,
    groups,
    lobbies,
    namespace_tokens,
    namespaces,
    servers,
    uploads,
    versions,
)

CONFIGURATION_BYTES: Final = "configuration_bytes"
"""A quota that the data plane checks. Only the data plane knows its use."""
LOG_BYTES: Final = "log_bytes"
"""A quota with a use that is measured on the disk."""
OF_DATA_PLANE: Final = (*LOBBY_QUOTAS, CONFIGURATION_BYTES)
"""Quotas that the data plane checks. The use of lobbies here is that of the records, which follow."""
STORED: Final = {"games": groups.c.game_count, "version_bytes": groups.c.version_bytes}
"""Quotas with a use that is stored with the group. `deletions` subtracts from it."""
_NOW_MS: Any = bindparam("now_ms")
_COUNT: Final = func.count()
_PICTURES: Final = ("avatar", "banner", "logo")


class _Source(NamedTuple):
    """Rows that count for a quota.

    `key` is the id of their group, game or namespace. `of_group` are the same rows, joined up to
    the column `group_id`.
    """

    rows: FromClause
    key: Column[Any]
    of_group: FromClause
    group_id: Column[Any] = games.c.group_id
    amount: ColumnElement[int] = _COUNT
    condition: ColumnElement[bool] | None = None


def _below_game(table: Any) -> FromClause:
    rows: FromClause = table.join(games, games.c.game_id == table.c.game_id)
    return rows


def _below_namespace(table: Any) -> FromClause:
    of_namespace = namespaces.c.namespace_id == table.c.namespace_id
    rows: FromClause = table.join(namespaces, of_namespace).join(
        games, games.c.game_id == namespaces.c.game_id
    )
    return rows


def _sum(amount: ColumnElement[Any]) -> ColumnElement[int]:
    return func.coalesce(func.sum(amount), 0)


def _of_group(amount: Column[Any]) -> _Source:
    return _Source(groups, groups.c.group_id, groups, groups.c.group_id, _sum(amount))


def _upload_count(*kinds: str) -> _Source:
    condition = uploads.c.kind.in_(kinds)
    return _Source(uploads, uploads.c.game_id, _below_game(uploads), condition=condition)


def _upload_bytes(*kinds: str) -> _Source:
    return _Source(
        _below_game(uploads),
        games.c.group_id,
        _below_game(uploads),
        amount=_sum(uploads.c.content_length),
        condition=uploads.c.kind.in_(kinds),
    )


def _live_lobbies(amount: ColumnElement[int]) -> _Source:
    rows = _below_namespace(lobbies)
    return _Source(
        rows, games.c.group_id, rows, amount=amount, condition=lobbies.c.stop_ms.is_(None)
    )


def _live_servers(amount: ColumnElement[int]) -> _Source:
    rows = _below_namespace(servers)
    return _Source(
        rows, games.c.group_id, rows, amount=amount, condition=servers.c.destroy_ms.is_(None)
    )


def _is_valid(table: Any) -> ColumnElement[bool]:
    expires_ms = table.c.expires_ms
    return and_(table.c.revoke_ms.is_(None), or_(expires_ms.is_(None), expires_ms > _NOW_MS))


_SOURCES: Final[Mapping[str, _Source]] = {
    **{name: _of_group(use) for name, use in STORED.items()},
    "groups": _Source(groups, groups.c.owner_identity_id, groups, groups.c.group_id),
    "cloud_tokens": _Source(
        cloud_tokens,
        cloud_tokens.c.group_id,
        cloud_tokens,
        cloud_tokens.c.group_id,
        condition=_is_valid(cloud_tokens),
    ),
    "namespaces": _Source(namespaces, namespaces.c.game_id, _below_game(namespaces)),
    "versions": _Source(versions, versions.c.game_id, _below_game(versions)),
    "builds": _upload_count("build"),
    "build_bytes": _upload_bytes("build"),
    "sites": _upload_count("site"),
    "site_bytes": _upload_bytes("site"),
    "pictures": _upload_count(*_PICTURES),
    "picture_bytes": _upload_bytes(*_PICTURES),
    "namespace_tokens": _Source(
        namespace_tokens,
        namespace_tokens.c.namespace_id,
        _below_namespace(namespace_tokens),
        condition=_is_valid(namespace_tokens),
    ),
    "domains": _Source(domains, domains.c.namespace_id, _below_namespace(domains)),
    # The data plane checks the quotas of lobbies. The use here is that of the records, which follow.
    "lobbies": _live_lobbies(_COUNT),
    "lobby_cpu_millicores": _live_lobbies(_sum(lobbies.c.cpu_millicores)),
    "lobby_memory_mb": _live_lobbies(_sum(lobbies.c.memory_mb)),
    "export_bytes": _Source(
        exports,
        exports.c.group_id,
        exports,
        exports.c.group_id,
        amount=_sum(exports.c.content_length),
    ),
    "servers": _live_servers(_COUNT),
    "server_cpu_millicores": _live_servers(_sum(servers.c.cpu_millicores)),
    "server_memory_mb": _live_servers(_sum(servers.c.memory_mb)),
}


def _use_of(source: _Source) -> Select[Any]:
    statement = select(source.amount.label("amount")).select_from(source.rows)
    statement = statement.where(source.key == bindparam("key"))
    return statement if source.condition is None else statement.where(source.condition)


def _largest_use_of(source: _Source) -> Select[Any]:
    statement = (
        select(source.key.label("key"), source.amount.label("amount"))
        .select_from(source.of_group)
        .where(source.group_id == bindparam("key"))
    )
    if source.condition is not None:
        statement = statement.where(source.condition)
    return statement.group_by(source.key).order_by(source.amount.desc(), source.key).limit(1)


_USES: Final = {name: _use_of(source) for name, source in _SOURCES.items()}
_LARGEST_USES: Final = {name: _largest_use_of(source) for name, source in _SOURCES.items()}
_LIMITS = select(group_quotas.c.name, group_quotas.c.quota_limit).where(
    group_quotas.c.group_id == bindparam("group_id")
)
_LIMITS_OF_GROUPS = select(group_quotas).where(
    group_quotas.c.name.in_(bindparam("names", expanding=True)),
    group_quotas.c.group_id.in_(bindparam("group_ids", expanding=True)),
)
_GROUPS_OF_RUNS = [
    select(run_id.label("id"), games.c.group_id)
    .select_from(_below_namespace(table))
    .where(run_id.in_(bindparam("ids", expanding=True)))
    for table, run_id in ((lobbies, lobbies.c.lobby_id), (servers, servers.c.server_id))
]
_LOCK = (
    select(groups.c.group_id)
    .where(groups.c.group_id == bindparam("group_id"))
    .with_for_update(key_share=True)
)
_ADD_USE = (
    update(groups)
    .where(groups.c.group_id == bindparam("id"))
    .values({column: column + bindparam(name) for name, column in STORED.items()})
    .returning(*(column.label(name) for name, column in STORED.items()))
)
_ONE_LIMIT = (group_quotas.c.group_id == bindparam("id")) & (
    group_quotas.c.name == bindparam("quota")
)
_LIMIT = select(group_quotas.c.quota_limit).where(_ONE_LIMIT)
_SET = update(group_quotas).where(_ONE_LIMIT).values(quota_limit=bindparam("most"))
_RESET = delete(group_quotas).where(_ONE_LIMIT)


async def lock_group(tx: Transaction, group_id: str) -> None:
    """Makes other transactions that check quotas of the group wait until this one ends."""
    await tx.first(_LOCK, {"group_id": group_id})


async def add_use(tx: Transaction, group_id: str, added: Mapping[str, int]) -> dict[str, int]:
    """Adds amounts to stored uses, and returns the uses from before. Locks the group."""
    amounts = {name: added.get(name, 0) for name in STORED}
    row = await tx.first(_ADD_USE, {"id": group_id, **amounts})
    if row is None:
        raise LookupError(group_id)
    return {name: getattr(row, name) - amount for name, amount in amounts.items()}


async def limits_of_group(tx: Transaction, group_id: str) -> dict[str, int]:
    """Returns the limits that the operator set for the group, by name."""
    return {row.name: row.quota_limit for row in await tx.all(_LIMITS, {"group_id": group_id})}


async def limits_of_groups(
    tx: Transaction, names: Iterable[str], group_ids: Iterable[str]
) -> dict[str, dict[str, int]]:
    """Returns the limits of some quotas that the operator set, by group and quota."""
    limits: dict[str, dict[str, int]] = {}
    values = {"names": list(names), "group_ids": list(group_ids)}
    for row in await tx.all(_LIMITS_OF_GROUPS, values):
        limits.setdefault(row.group_id, {})[row.name] = row.quota_limit
    return limits


async def groups_of_runs(tx: Transaction, run_ids: Sequence[str]) -> dict[str, str]:
    """Returns the groups of lobbies and servers that have a record, by their ids."""
    return {
        row.id: row.group_id
        for statement in _GROUPS_OF_RUNS
        for row in await tx.all(statement, {"ids": list(run_ids)})
    }


async def set_limit(tx: Transaction, group_id: str, name: str, limit: int) -> bool:
    """Sets the group's own limit. Returns whether it had another one, or none."""
    before = await tx.first(_LIMIT, {"id": group_id, "quota": name})
    if before is not None and before.quota_limit == limit:
        return False
    if before is None:
        values = {"group_id": group_id, "name": name, "quota_limit": limit}
        await tx.run(insert(group_quotas), values)
    else:
        await tx.run(_SET, {"id": group_id, "quota": name, "most": limit})
    return True


async def reset_limit(tx: Transaction, group_id: str, name: str) -> bool:
    """Removes the group's own limit. Returns whether there was one."""
    return bool(await tx.run(_RESET, {"id": group_id, "quota": name}))


async def use(tx: Transaction, name: str, key: str, now_ms: int) -> int:
    """Returns the use of a quota. `key` is the id of the identity, group, game or namespace."""
    return _amount(await tx.first(_USES[name], _values(name, key, now_ms)))


class Use(NamedTuple):
    amount: int
    object_id: str | None
    """The game or namespace with the largest use. None for a quota of the group, or without use."""


async def largest_use(tx: Transaction, name: str, group_id: str, now_ms: int) -> Use:
    """Returns the use of a quota by the group, or by the game or namespace with the largest use."""
    row = await tx.first(_LARGEST_USES[name], _values(name, group_id, now_ms))
    is_below_group = QUOTAS[name].scope in ("game", "namespace")
    return Use(_amount(row), row.key if row is not None and is_below_group else None)


def _values(name: str, key: str, now_ms: int) -> dict[str, Any]:
    condition = _SOURCES[name].condition
    needs_time = condition is not None and "now_ms" in condition.compile().params
    return {"key": key, "now_ms": now_ms} if needs_time else {"key": key}


def _amount(row: Record | None) -> int:
    # The sum of a PostgreSQL bigint column is a Decimal.
    return 0 if row is None else int(row.amount)
