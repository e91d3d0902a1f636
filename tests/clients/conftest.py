"""A running service that the tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import game_programs
from tests.support.full_service import FullService, running


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    with running(
        FullService(tmp_path_factory.mktemp("s"), runtime=game_programs.SETTINGS)
    ) as service:
        yield service
