"""Deadlocks between two writers: the aborted operation is retried."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import delete, insert, select, text

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.device_links import DeviceLinkKeys, DeviceLinkOperations
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.signing_keys import SigningKeyFile
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import devices_pb2 as pb
from pyservice.storage import games, groups, quotas
from pyservice.storage import tokens as links
from pyservice.storage.database import Database
from pyservice.storage.database_errors import Conflict
from pyservice.storage.tables import device_links, identities, members
from pyservice.timestamps import now_ms
from pyservice.watch import Topics
from tests.control.feeder_setup import LINKS
from tests.control.site_files import complete_site
from tests.support.command_line import output
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

_TRIES: Final = 10
_WAITING = text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


async def wait_for_lock_wait(database: Database) -> None:
    """Waits until a transaction waits for a lock. SQLite serialises writers and needs no wait."""

    async def is_waiting() -> bool:
        async with database.query() as tx:
            lock = await tx.first(_WAITING)
        return lock is not None and lock[0] > 0

    if database.name == "postgresql":
        await eventually(is_waiting)


async def repeat_until_other_is_aborted(
    deadlock: Callable[[], Awaitable[None]], others: list[asyncio.Task[Any]]
) -> None:
    """Repeats a deadlock until PostgreSQL aborts the other transaction and not the test's own."""
    for _ in range(_TRIES):
        try:
            await deadlock()
        except Conflict:
            await others[-1]
        else:
            return
    pytest.fail("PostgreSQL always aborted the transaction of the test")


on_postgresql = pytest.mark.parametrize("kind", ["postgresql"])


@on_postgresql
async def test_device_link_survives_a_deadlock(database: Database, tmp_path: Path) -> None:
    old = [f"01920000-0000-7000-8000-{number:012}" for number in range(20)]
    call = Call(ray_id="0" * 32, address=b"\x7f\0\0\1")
    caller = Caller(TokenKind.TOKENLESS, b"", b"", call.address, call)
    locking = select(device_links).with_for_update()
    requests: list[asyncio.Task[pb.PrepareDeviceLinkResponse]] = []

    async def deadlock() -> None:
        # A new `DeviceLinkOperations` deletes old links when it creates its first link.
        created = DeviceLinkOperations(
            RecordContext(database, IdempotentChanges(database), RecordIds(), Topics()),
            DeviceLinkKeys(SigningKeyFile.load_or_create(tmp_path)),
            LINKS,
        )
        async with database.write() as tx:
            await tx.run(delete(device_links))
            for number, device_link_id in enumerate(old):
                await links.add_device_link(tx, device_link_id, number, number, 1)
        async with database.write() as tx:
            await tx.run(locking.where(device_links.c.device_link_id == old[-1]))
            preparing = created.prepare(pb.PrepareDeviceLinkRequest(), caller)
            requests.append(asyncio.create_task(preparing))
            await wait_for_lock_wait(database)
            await tx.run(locking.where(device_links.c.device_link_id == old[0]))

    await repeat_until_other_is_aborted(deadlock, requests)
    answer = await requests[-1]
    async with database.read() as tx:
        link_ids = {row.device_link_id for row in await tx.all(select(device_links))}
    assert link_ids == {answer.device_link_id}


async def test_member_change_survives_a_deadlock(owner: Developer, records: Records) -> None:
    database, data_dir = records.database, owner.full_service.data_dir
    _, [group_id] = await records.identity("Riders")
    person = await output(data_dir, "identity", "create", "--display-name", "Somebody")
    values = {"group_id": group_id, "identity_id": person, "create_ms": now_ms()}
    words = ("group", "add-member", "--group", group_id, "--identity", person)
    adding: list[asyncio.Task[str]] = []

    async def add_and_take_back() -> None:
        async with database.write() as tx:
            await tx.run(delete(members).where(members.c.identity_id == person))
        with contextlib.suppress(LookupError):
            async with database.write() as tx:
                own_identity = select(identities).where(identities.c.identity_id == person)
                await tx.run(own_identity.with_for_update())
                adding.append(asyncio.create_task(output(data_dir, *words)))
                await wait_for_lock_wait(database)
                await tx.run(insert(members), values)
                raise LookupError

    await repeat_until_other_is_aborted(add_and_take_back, adding)
    assert await adding[-1] == ""
    async with database.read() as tx:
        assert await groups.is_member(tx, group_id, person)


async def test_version_with_a_site_locks_the_group_before_the_game(
    owner: Developer, records: Records
) -> None:
    database, game_id = records.database, await owner.game()
    if database.name == "sqlite":
        return  # SQLite has one writer at a time.
    group_id = (await owner.good("get_game", game_id=game_id))["game"]["developer_group_id"]
    config = {"cdn": {"site_id": await complete_site(owner, game_id)}}
    async with database.write() as tx:
        await quotas.lock_group(tx, group_id)
        fields: dict[str, Any] = {"game_id": game_id, "display_name": "x", "config": config}
        creating = asyncio.create_task(owner.call("create_version", **fields))
        await wait_for_lock_wait(database)
        await tx.run(text("SET LOCAL lock_timeout = 1"))
        # CreateServer locks the group and then the game.
        await games.lock(tx, game_id)
    assert (await creating).code == "OK"
