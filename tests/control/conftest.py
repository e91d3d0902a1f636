"""Running services and clients for the control plane tests.

Tests with the fixture `developer` run on each kind of database and over both transports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pyservice.storage.database import open_database
from tests import programs
from tests.control.namespace_scenario import NamespaceScenario, Records
from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, Door, FullService


@pytest.fixture(scope="session", params=KINDS)
def full_service(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    databases: Databases,
) -> Iterator[FullService]:
    # The limit is so high that every request of a test has a ray.
    rays = {"per_second": 10_000}
    created = FullService(
        tmp_path_factory.mktemp("s"),
        databases.url(request.param),
        rays=rays,
        runtime=programs.SETTINGS,
    )
    try:
        yield created.start()
    finally:
        created.close()


@pytest.fixture(params=["http", "grpc"])
async def client(request: pytest.FixtureRequest, full_service: FullService) -> AsyncIterator[Door]:
    created = full_service.door(request.param)
    try:
        yield created
    finally:
        await created.close()


@pytest.fixture
def developer(full_service: FullService, client: Door) -> Developer:
    return Developer(full_service, client)


@pytest.fixture(scope="session")
async def records(full_service: FullService) -> AsyncIterator[Records]:
    database = open_database(full_service.database_url, full_service.data_dir / "control")
    try:
        yield Records(database)
    finally:
        await database.close()


@pytest.fixture(scope="session")
async def scenario(full_service: FullService, records: Records) -> AsyncIterator[NamespaceScenario]:
    client = full_service.door("http")
    created = NamespaceScenario(full_service, records, client)
    try:
        yield await created.build()
    finally:
        await created.close()
        await client.close()


@pytest.fixture
async def owner(full_service: FullService) -> AsyncIterator[Developer]:
    """Returns the service owner over HTTP, for tests that do not depend on the transport."""
    client = full_service.door("http")
    try:
        yield Developer(full_service, client)
    finally:
        await client.close()
