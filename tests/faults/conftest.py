"""Fixtures of the proofs: the compiled shim, and services that tests of this folder may kill."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.faults.doors import Doors
from tests.faults.plane import Plane
from tests.faults.shim import Shim, compile_library
from tests.faults.stage import Stage, open_stage


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("faults"))


class MakePlane(Protocol):
    """Makes a plane that is not started yet. Keywords are fields of `Plane`."""

    def __call__(self, **fields: Any) -> Plane: ...


@pytest.fixture
def make_plane(shim_library: Path, tmp_path: Path) -> Iterator[MakePlane]:
    made: list[Plane] = []

    def make(**fields: Any) -> Plane:
        folder = tmp_path / f"plane-{len(made)}"
        folder.mkdir()
        shim = Shim(shim_library, folder / "control", folder / "data" / "journal")
        made.append(Plane(folder, **{"shim": shim, **fields}))
        return made[-1]

    yield make
    for plane in made:
        plane.end()


class OpenDoors(Protocol):
    """Opens clients of both doors of a running plane."""

    def __call__(self, plane: Plane) -> Doors: ...


@pytest.fixture
async def open_doors() -> AsyncIterator[OpenDoors]:
    async with AsyncExitStack() as stack:

        def open_both(plane: Plane) -> Doors:
            doors = Doors(plane.http_door(), plane.grpc_door())
            for door in doors:
                stack.push_async_callback(door.close)
            return doors

        yield open_both


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("stage")) as opened:
        yield opened
