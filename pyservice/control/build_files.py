"""Builds as files, for whoever runs them: found in the records, read from the objects (decisions 6.5)."""

from __future__ import annotations

from pyservice.control.uploading import object_key
from pyservice.runtime.builds import BuildUnusable, Source
from pyservice.storage import builds, uploads
from pyservice.storage.database import Database
from pyservice.storage.objects import Objects


class BuildFiles:
    """`runtime.builds.Fetch` over records and objects."""

    def __init__(self, database: Database, objects: Objects) -> None:
        self._database = database
        self._objects = objects

    async def __call__(self, game_id: str, build_id: str) -> Source:
        """Raises BuildUnusable, CONTROL_PLANE_UNAVAILABLE."""
        async with self._database.read() as tx:
            row = await builds.find(tx, game_id, build_id)
            if row is None:
                raise BuildUnusable("the build was deleted")
            if row.complete_ms is None:
                raise BuildUnusable("the build is not completely uploaded")
            (file,) = await uploads.files_of(tx, row.upload_id)
        key = object_key("build", row.upload_id, file.path)
        sha256 = None if file.sha256 is None else file.sha256.hex()
        content = self._objects.read(key)
        return Source(
            row.kind, row.compression, sha256, content, file.content_length, row.image_tag
        )
