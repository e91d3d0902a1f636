"""Record of the write transactions of a database."""

from __future__ import annotations

from typing import Any

import pytest

from pyservice.storage.database import Database


def noted_writes(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Returns a list that gets an item for each write transaction from now on."""
    writes: list[None] = []
    begin = database.write

    def noted() -> Any:
        writes.append(None)
        return begin()

    monkeypatch.setattr(database, "write", noted)
    return writes
