"""Copies of the records: only those of the service, and none of an earlier state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest

from pyservice.storage.database import Database, open_database
from pyservice.storage.database_errors import DatabaseUnusable
from pyservice.storage.migrations import migrate
from pyservice.storage.ownership import EarlierState, Instance, OwnedByAnother, claim
from pyservice.storage.record_copy import copy_records
from tests.support.databases import KINDS, Databases

pytestmark = pytest.mark.anyio


def lose() -> NoReturn:
    raise AssertionError


def discard(_: int) -> None:
    pass


@pytest.fixture(params=KINDS)
async def database(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> AsyncIterator[Database]:
    database = open_database(databases.url(request.param), tmp_path)
    yield database
    await database.close()


async def test_records_of_another_service_or_an_earlier_time_are_refused(
    database: Database, tmp_path: Path
) -> None:
    async def copy(owner: Instance) -> str:
        (file := tmp_path / "copy").unlink(missing_ok=True)
        return await copy_records(database, tmp_path, file, discard, owner)

    instance = Instance("one", "host", "/srv/one", tmp_path / "instance.json")
    await migrate(database, is_allowed=True)
    assert await copy(instance), "a restored service has not started yet"
    with pytest.raises(EarlierState, match="has no records of this service"):
        await copy(instance._replace(seen=(1, 1)))
    await claim(database, instance, lose)
    assert await copy(instance._replace(seen=(1, 1)))
    with pytest.raises(EarlierState, match="was restored to an earlier time"):
        await copy(instance._replace(seen=(1, 2)))
    with pytest.raises(OwnedByAnother, match="belongs to the service on host"):
        await copy(instance._replace(instance_id="other"))
    # A container of its own can make the backups.
    assert await copy(instance._replace(host_name="other"))


async def test_empty_database_is_refused(database: Database, tmp_path: Path) -> None:
    instance = Instance("one", "host", "/srv/one", tmp_path / "instance.json")
    if database.name == "sqlite":
        (tmp_path / "records.db").touch()
    with pytest.raises(DatabaseUnusable, match="the database is empty: start the service first"):
        await copy_records(database, tmp_path, tmp_path / "copy", discard, instance)
