"""One running service per kind of database, and the door that a test goes through: every test of this folder that takes
`developer` runs on both databases and through both doors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pyservice.storage.database import open_database
from tests import programs
from tests.control.world import Records, World
from tests.databases import KINDS, Databases
from tests.household import Developer, Door, House


@pytest.fixture(scope="session", params=KINDS)
def house(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    databases: Databases,
) -> Iterator[House]:
    """A running service that the tests of a run share; each makes games of its own in it."""
    # What one test asks for leaves the rays of another.
    rays = {"per_second": 10_000}
    made = House(
        tmp_path_factory.mktemp("house"),
        databases.url(request.param),
        rays=rays,
        runtime=programs.SETTINGS,
    )
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture(params=["http", "grpc"])
async def door(request: pytest.FixtureRequest, house: House) -> AsyncIterator[Door]:
    made = house.door(request.param)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def developer(house: House, door: Door) -> Developer:
    """The owner of the service."""
    return Developer(house, door)


@pytest.fixture(scope="session")
async def records(house: House) -> AsyncIterator[Records]:
    """The records of the running service: for what only the command line makes, and to see what changed."""
    database = open_database(house.database_url, house.data_dir / "control")
    try:
        yield Records(database)
    finally:
        await database.close()


@pytest.fixture(scope="session")
async def world(house: House, records: Records) -> AsyncIterator[World]:
    """A game, and everybody who may call."""
    door = house.door("http")
    made = World(house, records, door)
    try:
        yield await made.build()
    finally:
        await made.close()
        await door.close()


@pytest.fixture
async def owner(house: House) -> AsyncIterator[Developer]:
    """The owner of the service at the HTTP door alone, where the door makes no difference."""
    door = house.door("http")
    try:
        yield Developer(house, door)
    finally:
        await door.close()
