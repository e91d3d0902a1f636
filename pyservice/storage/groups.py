from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import bindparam, func, insert, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import groups, identities, members

BILLING_TIMES: Final = (
    "payment_failed_ms",
    "payment_method_attached_ms",
    "payment_method_valid_ms",
    "payment_succeeded_ms",
)

_MEMBER_COUNT = (
    select(func.count())
    .select_from(members)
    .where(members.c.group_id == groups.c.group_id)
    .correlate(groups)
    .scalar_subquery()
    .label("member_count")
)
_BY_ID = select(groups, _MEMBER_COUNT).where(groups.c.group_id == bindparam("group_id"))
_OF_IDENTITY = (
    select(groups, _MEMBER_COUNT)
    .join(members, members.c.group_id == groups.c.group_id)
    .where(members.c.identity_id == bindparam("identity_id"))
    .order_by(groups.c.group_id)
)
_IDS_OF_IDENTITY = (
    select(members.c.group_id)
    .where(members.c.identity_id == bindparam("identity_id"))
    .order_by(members.c.group_id)
)
_IDS_OF_IDENTITIES = (
    select(members.c.identity_id, members.c.group_id)
    .where(members.c.identity_id.in_(bindparam("identity_ids", expanding=True)))
    .order_by(members.c.group_id)
)
_LOCK_IDENTITY = (
    select(identities.c.identity_id)
    .where(identities.c.identity_id == bindparam("identity_id"))
    .with_for_update(key_share=True)
)
_MEMBER = select(members.c.create_ms).where(
    members.c.group_id == bindparam("group_id"), members.c.identity_id == bindparam("identity_id")
)


async def add_identity(tx: Transaction, identity_id: str, display_name: str, now_ms: int) -> None:
    await tx.run(
        insert(identities),
        {"identity_id": identity_id, "display_name": display_name, "create_ms": now_ms},
    )


async def add(
    tx: Transaction, group_id: str, display_name: str, owner_identity_id: str, now_ms: int
) -> None:
    await tx.run(
        insert(groups),
        {
            "group_id": group_id,
            "display_name": display_name,
            "bio": "",
            "publicity": "closed",
            "owner_identity_id": owner_identity_id,
            "create_ms": now_ms,
        },
    )
    await add_member(tx, group_id, owner_identity_id, now_ms)


async def add_member(tx: Transaction, group_id: str, identity_id: str, now_ms: int) -> None:
    """Adds an identity to a group.

    Raises Conflict for an existing member, an unknown group or an unknown identity.
    """
    await tx.run(
        insert(members), {"group_id": group_id, "identity_id": identity_id, "create_ms": now_ms}
    )


async def remove_member(tx: Transaction, group_id: str, identity_id: str) -> bool:
    statement = members.delete().where(
        members.c.group_id == group_id, members.c.identity_id == identity_id
    )
    return await tx.run(statement) > 0


async def find(tx: Transaction, group_id: str) -> Record | None:
    """Returns the group's columns with `member_count`, or None."""
    return await tx.first(_BY_ID, {"group_id": group_id})


async def of_identity(tx: Transaction, identity_id: str) -> Sequence[Record]:
    return await tx.all(_OF_IDENTITY, {"identity_id": identity_id})


async def ids_of_identity(tx: Transaction, identity_id: str) -> list[str]:
    return [row.group_id for row in await tx.all(_IDS_OF_IDENTITY, {"identity_id": identity_id})]


async def ids_of_identities(tx: Transaction, identity_ids: Collection[str]) -> dict[str, list[str]]:
    group_ids: dict[str, list[str]] = {identity_id: [] for identity_id in identity_ids}
    for row in await tx.all(_IDS_OF_IDENTITIES, {"identity_ids": list(group_ids)}):
        group_ids[row.identity_id].append(row.group_id)
    return group_ids


async def is_member(tx: Transaction, group_id: str, identity_id: str) -> bool:
    found = await tx.first(_MEMBER, {"group_id": group_id, "identity_id": identity_id})
    return found is not None


async def change(tx: Transaction, group_id: str, values: Mapping[str, str]) -> None:
    await tx.run(update(groups).where(groups.c.group_id == group_id).values(**values))


async def record_billing(tx: Transaction, group_id: str, times: Mapping[str, int]) -> bool:
    """Sets billing times of a group. The keys of `times` are columns in BILLING_TIMES.

    Returns whether the group exists.
    """
    statement = update(groups).where(groups.c.group_id == group_id).values(**times)
    return await tx.run(statement) > 0


async def first(tx: Transaction) -> Record | None:
    return await tx.first(select(groups).order_by(groups.c.group_id).limit(1))


async def lock_identity(tx: Transaction, identity_id: str) -> None:
    await tx.first(_LOCK_IDENTITY, {"identity_id": identity_id})


async def find_identity(tx: Transaction, identity_id: str) -> Record | None:
    return await tx.first(select(identities).where(identities.c.identity_id == identity_id))


async def set_disabled(tx: Transaction, identity_id: str, disable_ms: int | None) -> None:
    """Sets the time since when the identity's tokens are refused, or None to accept them."""
    statement = update(identities).where(identities.c.identity_id == identity_id)
    await tx.run(statement.values(disable_ms=disable_ms))


async def all_identities(tx: Transaction) -> Sequence[Record]:
    return await tx.all(select(identities).order_by(identities.c.identity_id))


async def all_groups(tx: Transaction) -> Sequence[Record]:
    return await tx.all(select(groups).order_by(groups.c.group_id))


async def all_members(tx: Transaction) -> Sequence[Record]:
    return await tx.all(
        select(members.c.group_id, members.c.identity_id).order_by(
            members.c.group_id, members.c.identity_id
        )
    )
