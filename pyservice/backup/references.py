"""References from records to objects."""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterator
from contextlib import closing
from pathlib import Path

from pyservice.storage.objects import file_key

_FILES = """
    SELECT uploads.upload_id, path FROM upload_files JOIN uploads USING (upload_id)
    WHERE complete_ms IS NOT NULL AND kind <> 'gone'
"""


def referenced_files(records: Path) -> Iterator[tuple[str, str]]:
    """Yields upload id and path of each file of a complete upload."""
    with closing(sqlite3.connect(f"{records.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        yield from connection.execute(_FILES)


def missing_objects(records: Path, objects: Container[str]) -> list[tuple[str, str]]:
    """Returns the referenced files without an object in `objects`."""
    missing = []
    for upload_id, path in referenced_files(records):
        name = f"kept/{file_key(upload_id, path)}"
        if name not in objects and f"{name}.parts" not in objects:
            missing.append((upload_id, path))
    return missing
