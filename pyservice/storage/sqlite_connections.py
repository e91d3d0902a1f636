"""The open connections to a SQLite file. Each is used by one transaction at a time; those that are idle are kept."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import Final

from pyservice.observability.logging import get_logger
from pyservice.storage.failures import away, told
from pyservice.storage.sqlite_statements import OF_HEX

_IDLE_MAX: Final = 16
_MODE: Final = 0o600
_LOCKED_S: Final = 0.05
"""How long a statement waits, and everybody with it, for another process that has the file. Who begins to write comes
again (`Locked`).
"""
_STATEMENTS_PREPARED: Final = 400
_PRIMARY: Final = 0xFF
"""Of an error code: what kind it is."""
_AGAIN_S: Final = 0.005
_PRAGMAS: Final = (
    "synchronous=FULL",
    "foreign_keys=ON",
    # What was deleted is not left in the file, whatever this build of SQLite does by itself: hashes of tokens and
    # passwords, secrets of devices. FAST would leave it in pages that became free.
    "secure_delete=ON",
    "cache_size=-16384",
    "wal_autocheckpoint=4000",
    # That much is written before it goes round. What it has beyond would keep deleted content for ever.
    f"journal_size_limit={16 << 20}",
)
_log = get_logger("storage")


class Locked(Exception):
    """Another process writes."""


def connect(path: Path, locked_s: float = _LOCKED_S) -> sqlite3.Connection:
    """A connection that begins and ends transactions when it is told to."""
    _keep_private(path)
    connection = sqlite3.connect(
        path,
        timeout=locked_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS_PREPARED,
    )
    try:
        _use_log(connection, time.monotonic() + locked_s)
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.create_function(OF_HEX, 1, bytes.fromhex, deterministic=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_private(path: Path) -> None:
    """There are secrets of games in it. What SQLite makes beside it has its mode; where none can be made, SQLite says
    why.
    """
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
        return
    # Made by an earlier service.
    for one in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(OSError):
            if stat.S_IMODE(one.stat().st_mode) != _MODE:
                one.chmod(_MODE)


def _use_log(connection: sqlite3.Connection, until_s: float) -> None:
    """The first of a new file changes how it is written. SQLite does not wait with others who want the same: it says
    at once that the file is locked.
    """
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            is_locked = error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY
            if not is_locked or time.monotonic() >= until_s:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


class Connections:
    """Connections to one file, which has to stay where it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that is open."""
        self._idle: list[sqlite3.Connection] = []
        self.in_use = 0
        self.turns = 0
        """Transactions that are over."""

    def begun(self, begin: str | None) -> sqlite3.Connection:
        """A connection on which this statement was run, if any. Raises Locked, and what `told` makes of the driver's
        errors.
        """
        # A file that was removed or replaced could be written to as before, and nobody would ever find it again.
        if self._file is not None and self._file != _identity(self._path):
            _log.error(
                "database file gone", path=str(self._path), remedy="stop, put it back, start"
            )
            raise away()
        with told:
            connection = self._idle.pop() if self._idle else connect(self._path)
            try:
                if begin is not None:
                    connection.execute(begin)
            except sqlite3.OperationalError as error:
                connection.close()
                if error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_BUSY:
                    raise Locked from None
                raise
            except BaseException:
                connection.close()
                raise
        self._file = self._file or _identity(self._path)
        self.in_use += 1
        return connection

    def give_back(self, connection: sqlite3.Connection) -> None:
        """What is not committed is taken back."""
        self.in_use -= 1
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
            return
        self.turns += 1
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def give_up(self, connection: sqlite3.Connection) -> None:
        """Whether its transaction is open still, nobody knows: it is not used again."""
        self.in_use -= 1
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def close(self) -> None:
        """Those that are idle."""
        while self._idle:
            self._idle.pop().close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
