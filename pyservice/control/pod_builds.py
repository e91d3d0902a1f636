"""Builds as Pods get them: by the digest of their archive, or by the reference of their image."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from pyservice.control.uploads import object_key
from pyservice.errors import ServiceError
from pyservice.kubernetes.pod_manifest import ArchiveBuild, ImageBuild, PodBuild
from pyservice.pb.hosting.internal.v1 import archives_pb2 as pb
from pyservice.runtime.build_unpacking import ARCHIVE
from pyservice.runtime.unpacked_builds import BuildUnusable
from pyservice.storage import builds, uploads
from pyservice.storage.database import Database
from pyservice.storage.objects import Objects

_KNOWN_MAX: Final = 10_000
KIND_REFUSAL: Final = (
    "game servers run on Kubernetes, which takes images only from a registry: "
    "push the image to one and create a build with its reference in the field image, "
    "or upload the program as an archive"
)


class PodBuildLookup:
    """Complete builds by their id. While the database is away, those that were found before."""

    def __init__(self, database: Database) -> None:
        self.database: Final = database
        self._known: OrderedDict[str, PodBuild] = OrderedDict()

    async def __call__(self, game_id: str, build_id: str) -> PodBuild:
        """Returns a complete build, which never changes. Raises BuildUnusable."""
        try:
            found = await self._read(game_id, build_id)
        except BuildUnusable:
            self._known.pop(build_id, None)
            raise
        except ServiceError:
            if build_id not in self._known:
                raise
            return self._known[build_id]
        self._known[build_id] = found
        self._known.move_to_end(build_id)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return found

    async def _read(self, game_id: str, build_id: str) -> PodBuild:
        async with self.database.read() as tx:
            row = await builds.find(tx, game_id, build_id)
            if row is None:
                raise BuildUnusable("the build was deleted")
            group_id = await builds.group_of(tx, build_id) or ""
            if row.kind == builds.IMAGE:
                return ImageBuild(row.image_tag, group_id)
            if row.kind != ARCHIVE:
                raise BuildUnusable(f"the build has the kind {row.kind}, and {KIND_REFUSAL}")
            if row.complete_ms is None:
                raise BuildUnusable("the build is not completely uploaded")
            [file] = await uploads.files_of(tx, row.upload_id)
        if file.sha256 is None:
            raise BuildUnusable("the build has no digest: upload it again")
        return ArchiveBuild(
            file.sha256.hex(),
            row.compression,
            file.content_length,
            group_id,
            row.scratch_mb or 0,
        )


@dataclass(frozen=True, slots=True)
class ArchiveReader:
    """Archives of builds by their digests, for the parts of the service on nodes."""

    database: Database
    objects: Objects

    async def get(self, request: pb.GetRequest) -> AsyncIterator[pb.GetResponse]:
        """Yields the archive in pieces. Raises BUILD_NOT_FOUND."""
        async with self.database.read() as tx:
            file = await builds.archive_with_digest(tx, request.sha256)
        if file is None:
            raise ServiceError("BUILD_NOT_FOUND", "No complete build has this digest.")
        length = file.content_length
        try:
            async for content in self.objects.read(object_key("build", file.upload_id, file.path)):
                yield pb.GetResponse(content_length=length, content=content)
                length = 0
        except FileNotFoundError:
            raise ServiceError("BUILD_NOT_FOUND", "The archive of this build is missing.") from None
