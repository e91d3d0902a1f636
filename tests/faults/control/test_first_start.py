"""A first start that is killed between any two steps. The next start creates one owner, with the
token in its file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import func, select

from pyservice.control.groups import ensure_owner
from pyservice.ids import RecordIds
from pyservice.storage.database import Database, open_database
from pyservice.storage.migrations import migrate
from pyservice.storage.tables import cloud_tokens, groups, identities
from tests.support.databases import Databases
from tests.support.killed_service import LOG, KilledService, Step

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

TOKEN: Final = "control/owner.token"
OF_TOKEN: Final = (
    Step("the token is not synced", "control", "fsync", "control/.owner.token*"),
    Step("the token has not its name", "control", "rename", TOKEN),
    Step("the token is in its file", "control", "rename", TOKEN, after=True),
)
STEPS: Final = (
    Step("the tables are half written", "control", "pwrite", LOG, at=20),
    Step("the tables are not synced", "control", "fdatasync fsync", LOG),
    Step("the tables are there", "control", "fdatasync fsync", LOG, after=True),
    *OF_TOKEN,
    Step("the owner is not synced", "control", "fdatasync fsync", LOG, at=2),
    Step("the owner is there", "control", "fdatasync fsync", LOG, at=2, after=True),
)
FEW: Final = (STEPS[1], STEPS[5], STEPS[7])


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param(
            kind,
            step,
            marks=() if step in FEW else pytest.mark.proof,
            id=f"{kind}-{step.name.replace(' ', '-')}",
        )
        for kind, steps in (("sqlite", STEPS), ("postgresql", OF_TOKEN))
        for step in steps
    ],
)
async def test_killed_first_start_is_completed_by_the_next(
    kind: str, step: Step, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    full_service = KilledService(tmp_path / "s", shim_library, databases.url(kind))
    rule = full_service.arm(step)
    try:
        await asyncio.to_thread(full_service.start)
        assert rule.hits == 1
        async with full_service.open_client("http") as client:
            answer = await client.call("get_games", {}, token=full_service.cloud_token)
            assert answer.code == "OK", answer
            assert Path(full_service.ready["cloud_token_file"]).stat().st_mode & 0o777 == 0o600
            assert [one["group_id"] for one in answer.body["groups"]] == [full_service.group_id]
        assert full_service.stop() == 0
        database = open_database(full_service.database_url, full_service.data_dir / "control")
        assert await counts(database) == (1, 1, 1)
        await database.close()
    finally:
        rule.forget()
        full_service.close()


async def counts(database: Database) -> tuple[int, ...]:
    table_counts = []
    async with database.read() as tx:
        for table in (identities, groups, cloud_tokens):
            row = await tx.first(select(func.count()).select_from(table))
            assert row is not None
            table_counts.append(int(row[0]))
    return tuple(table_counts)


async def test_concurrent_first_starts_create_one_owner(
    tmp_path: Path, databases: Databases
) -> None:
    """PostgreSQL only: a database file belongs to one service."""
    url = databases.url("postgresql")
    folders = [tmp_path / name for name in ("one", "other")]
    databases_of_folders = [open_database(url, folder) for folder in folders]
    for folder in folders:
        folder.mkdir()
    await migrate(databases_of_folders[0], is_allowed=True)
    owners = await asyncio.gather(
        *(
            ensure_owner(database, RecordIds(), folder)
            for database, folder in zip(databases_of_folders, folders, strict=True)
        )
    )
    assert owners[0].group_id == owners[1].group_id
    assert owners[0].source_epoch == owners[1].source_epoch
    assert sum(owner.token_file.exists() for owner in owners) == 1
    for database in databases_of_folders:
        await database.close()
