"""Running services and clients for the control plane tests.

A test of a service runs on each kind of database over each transport.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.storage.database import Database, open_database
from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, FullService, ServiceClient
from tests.support.namespace_scenario import NamespaceScenario, Records

# The limit is so high that every request of a test has a ray.
full_service = service_fixture(
    "session", rays={"per_second": 10_000}, runtime=game_programs.SETTINGS
)


@pytest.fixture(params=["http", "grpc"])
async def client(
    request: pytest.FixtureRequest, full_service: FullService
) -> AsyncIterator[ServiceClient]:
    async with full_service.open_client(request.param) as client:
        yield client


@pytest.fixture
def developer(full_service: FullService, client: ServiceClient) -> Developer:
    return Developer(full_service, client)


@pytest.fixture
async def owner(full_service: FullService) -> AsyncIterator[Developer]:
    """Returns the service owner over HTTP, for tests of what only HTTP shows."""
    async with full_service.open_client("http") as client:
        yield Developer(full_service, client)


@contextlib.asynccontextmanager
async def opened_records(full_service: FullService) -> AsyncIterator[Records]:
    database = open_database(full_service.database_url, full_service.data_dir / "control")
    try:
        yield Records(database)
    finally:
        await database.close()


@pytest.fixture
async def records(full_service: FullService) -> AsyncIterator[Records]:
    async with opened_records(full_service) as records:
        yield records


@pytest.fixture(scope="session")
async def scenario(full_service: FullService) -> AsyncIterator[NamespaceScenario]:
    async with opened_records(full_service) as records, full_service.open_client("http") as client:
        created = NamespaceScenario(full_service, records, client)
        try:
            yield await created.build()
        finally:
            await created.close()


@pytest.fixture
def kind() -> str:
    """Returns the kind of `database`. A test of SQL has the marker `each_database`."""
    return KINDS[0]


@pytest.fixture
async def database(kind: str, databases: Databases, tmp_path: Path) -> AsyncIterator[Database]:
    """Returns a new database with the tables of the service."""
    database = await databases.migrated(kind, tmp_path)
    try:
        yield database
    finally:
        await database.close()
