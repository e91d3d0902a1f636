"""Data directory of a service that has published a game, without its journal. Backups need no more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.databases import Databases
from tests.support.published_game import Machines


@pytest.fixture(scope="session")
def published(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    machines = Machines(folder, databases, "sqlite")
    machine = machines.new()
    try:
        asyncio.run(machine.publish())
        assert machine.service.stop() == 0
        data_dir = machine.service.data_dir
        for name in ("keys.json", "formats.json"):
            shutil.copy(data_dir / name, folder)
        for name in ("control", "feed"):
            # A socket cannot be copied.
            ignored = shutil.ignore_patterns("*.sock")
            shutil.copytree(data_dir / name, folder / "data" / name, ignore=ignored)
        for name in ("keys.json", "formats.json"):
            (folder / name).rename(folder / "data" / name)
    finally:
        machines.close()
    return folder / "data"


@pytest.fixture
def new_service(published: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Returns a function that copies the data directory to a folder of the test."""
    return lambda name: Path(shutil.copytree(published, tmp_path / name))
