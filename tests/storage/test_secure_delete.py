"""Deleted rows are gone from the SQLite file. Many builds of SQLite keep them until the page is
reused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final

import pytest
from sqlalchemy import bindparam, update

from pyservice.storage import service_state, stored_responses, tokens
from pyservice.storage.database import Database, open_database
from pyservice.storage.migrations import migrate
from pyservice.storage.tables import device_links

pytestmark = pytest.mark.anyio

KEYS: Final = tuple(b"%064d" % number for number in range(1_000))
LOG_BYTES: Final = 16 << 20
_HAS_SECRET: Final = (
    update(device_links)
    .where(device_links.c.device_link_id == bindparam("link"))
    .values(token_secret=bindparam("secret"))
)


@pytest.fixture
async def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """Some builds of SQLite enable secure_delete by default. Here it is off."""
    connect = sqlite3.connect

    def leaves_it(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.execute("PRAGMA secure_delete=OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", leaves_it)
    database = open_database(None, tmp_path)
    await migrate(database, is_allowed=True)
    yield database
    await database.close()


def written_back(folder: Path) -> int:
    """Writes the whole log back to the file and returns the number of free pages."""
    other = sqlite3.connect(folder / "records.db", isolation_level=None)
    try:
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0
        (free,) = other.execute("PRAGMA freelist_count").fetchone()
        return int(free)
    finally:
        other.close()


def count_markers(folder: Path, markers: list[bytes]) -> int:
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("records.db*")))
    return sum(marker in content for marker in markers)


async def remember(database: Database, answers: list[bytes]) -> None:
    async with database.write() as tx:
        for key, answer in zip(KEYS, answers, strict=True):
            await stored_responses.add(tx, key, token_bytes(32), answer, 1)


async def test_deleted_rows_are_overwritten_in_free_pages(
    database: Database, tmp_path: Path
) -> None:
    answers = [token_bytes(200) for _ in KEYS]
    await remember(database, answers)
    written_back(tmp_path)
    assert count_markers(tmp_path, answers) == len(answers)
    assert await stored_responses.remove_before(database, 2) == len(answers)
    assert written_back(tmp_path) > 10
    assert count_markers(tmp_path, answers) == 0


async def test_removed_secrets_are_overwritten(database: Database, tmp_path: Path) -> None:
    secrets = [token_bytes(32) for _ in range(100)]
    async with database.write() as tx:
        for number, secret in enumerate(secrets):
            link = f"01920000-0000-7000-8000-{number:012}"
            await tokens.add_device_link(tx, link, 1, 2, 1)
            await tx.run(_HAS_SECRET, {"link": link, "secret": secret})
    written_back(tmp_path)
    assert count_markers(tmp_path, secrets) == len(secrets)
    assert await tokens.erase_device_link_secrets(database, 3) == len(secrets)
    written_back(tmp_path)
    assert count_markers(tmp_path, secrets) == 0


async def test_log_keeps_deleted_data_until_the_checkpoint_at_shutdown(
    database: Database, tmp_path: Path
) -> None:
    answers = [token_bytes(200) for _ in KEYS]
    await remember(database, answers)
    await stored_responses.remove_before(database, 2)
    assert count_markers(tmp_path, answers) == len(answers)
    await database.close()
    assert [path.name for path in tmp_path.glob("records.db*")] == ["records.db"]
    assert count_markers(tmp_path, answers) == 0


async def test_long_log_is_truncated(database: Database, tmp_path: Path) -> None:
    log = tmp_path / "records.db-wal"
    async with database.write() as tx:
        for key in KEYS:
            await stored_responses.add(tx, key, b"", bytes(40_000), 1)
    assert log.stat().st_size > 2 * LOG_BYTES
    # The first commit writes the long log back, and the second restarts the log.
    async with database.write() as tx:
        await service_state.put_int(tx, service_state.FACTS_LSN, 1)
    assert log.stat().st_size <= LOG_BYTES
