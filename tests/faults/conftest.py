"""Fixtures of the fault tests: the shim library, and data planes that a test may kill."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.faults.shared_plane import SharedPlane, open_shared_plane
from tests.support.data_plane_clients import PlaneClients
from tests.support.fault_shim import Shim, compiled_library
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def shim_library() -> Path:
    return compiled_library()


class MakePlane(Protocol):
    """Creates a plane without starting it. Keyword arguments are fields of `Plane`."""

    def __call__(self, **fields: Any) -> Plane: ...


@pytest.fixture
def make_plane(shim_library: Path, tmp_path: Path) -> Iterator[MakePlane]:
    created: list[Plane] = []

    def make(**fields: Any) -> Plane:
        folder = tmp_path / f"plane-{len(created)}"
        folder.mkdir()
        shim = Shim(shim_library, folder / "control", folder / "data" / "journal")
        created.append(Plane(folder, **{"shim": shim, **fields}))
        return created[-1]

    yield make
    for plane in created:
        plane.end()


class OpenClients(Protocol):
    def __call__(self, plane: Plane) -> PlaneClients: ...


@pytest.fixture
async def open_clients() -> AsyncIterator[OpenClients]:
    async with AsyncExitStack() as stack:

        def open_both(plane: Plane) -> PlaneClients:
            clients = PlaneClients(plane.http_client(), plane.grpc_client())
            for client in clients:
                stack.push_async_callback(client.close)
            return clients

        yield open_both


@pytest.fixture
async def plane(make_plane: MakePlane) -> Plane:
    plane = make_plane(shim=None)
    await plane.start()
    return plane


@pytest.fixture
async def clients(plane: Plane, open_clients: OpenClients) -> PlaneClients:
    return open_clients(plane)


@pytest.fixture
async def session(plane: Plane, clients: PlaneClients) -> ApiSession:
    return ApiSession(plane, clients.http, await plane.public_token())


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedPlane]:
    async with open_shared_plane(tmp_path_factory.mktemp("shared")) as shared:
        yield shared
