"""Log of a full disk: at once, and then with growing pauses."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from pyservice.errors import ServiceError
from pyservice.storage.database_errors import DatabaseErrorTranslation
from tests.support.captured_logs import logged


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_full_database_is_logged_with_growing_pauses(tmp_path: Path) -> None:
    clock = Clock()
    translation = DatabaseErrorTranslation("records.db", clock)
    connection = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    connection.execute("CREATE TABLE notes (text)")
    connection.execute("PRAGMA max_page_count = 2")

    def write_for(seconds: float) -> list[tuple[float, int]]:
        """Four jobs retry their writes each second, and reads succeed between them."""
        began_s, times = clock.now_s, []
        for _ in range(int(4 * seconds)):
            with logged() as log:
                with pytest.raises(ServiceError) as caught, translation:
                    connection.execute("INSERT INTO notes VALUES (zeroblob(100000))")
                with translation:
                    connection.execute("SELECT count(*) FROM notes")
            assert caught.value.code == "STORAGE_FULL"
            for event in map(json.loads, log.getvalue().splitlines()):
                assert (event["event"], event["database"]) == ("database full", "records.db")
                times.append((clock.now_s - began_s, event.get("repeats", 1)))
            clock.now_s += 0.25
        return times

    assert write_for(60) == [(0, 1), (1, 5), (3, 13), (7, 29), (15, 61), (31, 125)]
    clock.now_s += 60
    assert write_for(2) == [(0, 1), (1, 5)], "a new event is logged at once"
    connection.close()
