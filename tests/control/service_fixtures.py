"""Choice of the database, and services with settings of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pytest

from tests.support.databases import KINDS, KINDS_OF_OWN_SERVICES, Databases
from tests.support.full_service import FullService, running

each_database = pytest.mark.parametrize("kind", KINDS)


def service_fixture(
    scope: Literal["session", "module", "function"],
    *words: str,
    kinds: Sequence[Any] | None = None,
    **settings: Any,
) -> Any:
    """Returns a fixture that runs one service for each scope and kind of database.

    `words` are more arguments of `serve`. Assign it to `full_service` in a test module, so that
    the clients of `conftest` use this service.
    """

    if kinds is None:
        kinds = KINDS if scope == "session" else KINDS_OF_OWN_SERVICES

    @pytest.fixture(scope=scope, params=kinds)
    def full_service(
        request: pytest.FixtureRequest,
        tmp_path_factory: pytest.TempPathFactory,
        databases: Databases,
    ) -> Iterator[FullService]:
        folder = tmp_path_factory.mktemp("s")
        service = FullService(folder, databases.url(request.param), **settings)
        with running(service, *words):
            yield service

    return full_service
