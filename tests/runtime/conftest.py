from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.runtime_host import RuntimeHost, open_host


@pytest.fixture(scope="session")
def unpacked_builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unpacked") / "builds"


@pytest.fixture
async def host(tmp_path: Path, unpacked_builds: Path) -> AsyncIterator[RuntimeHost]:
    async with open_host(tmp_path, unpacked_builds) as host:
        yield host
