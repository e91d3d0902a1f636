"""Avatars that players of a game can choose (contract games.avatars; decisions 8.8)."""

from __future__ import annotations

from pyservice.calls import Caller
from pyservice.control import access
from pyservice.control.links import Links
from pyservice.control.pictures import complete_picture, prepare_picture
from pyservice.control.timestamps import rfc3339
from pyservice.control.uploading import Uploading
from pyservice.pb.hosting.v1 import uploads_pb2 as pb
from pyservice.storage import uploads
from pyservice.storage.database import Database
from pyservice.storage.images import kind_of_name


class Avatars:
    """The operations on avatars."""

    def __init__(self, database: Database, uploading: Uploading, links: Links) -> None:
        self._database = database
        self._uploading = uploading
        self._links = links

    async def prepare(
        self, request: pb.PrepareCustomAvatarUploadRequest, caller: Caller
    ) -> pb.PrepareCustomAvatarUploadResponse:
        """Contract games.avatars.prepareCustomAvatarUpload. Raises GAME_NOT_FOUND, VALIDATION_FAILED,
        UPLOAD_TOO_LARGE.
        """
        return await prepare_picture(
            self._uploading, "avatar", request, caller, pb.PrepareCustomAvatarUploadResponse
        )

    async def complete(
        self, request: pb.CompleteCustomAvatarUploadRequest, caller: Caller
    ) -> pb.CompleteCustomAvatarUploadResponse:
        """Raises GAME_NOT_FOUND, UPLOAD_NOT_FOUND, UPLOAD_INCOMPLETE, UPLOAD_ALREADY_COMPLETE, VALIDATION_FAILED."""
        return await complete_picture(
            self._uploading, "avatar", request, caller, pb.CompleteCustomAvatarUploadResponse
        )

    async def list_(
        self, request: pb.ListCustomAvatarsRequest, caller: Caller
    ) -> pb.ListCustomAvatarsResponse:
        """Decisions 8.8. Raises GAME_NOT_FOUND."""
        async with self._database.read() as tx:
            game = await access.game(tx, caller, request.game_id)
            rows = await uploads.of_kind(tx, game.game_id, "avatar")
        answer = pb.ListCustomAvatarsResponse()
        for row in rows:
            # What is complete has the content that its name says.
            kind = kind_of_name(row.path) if row.complete_ms is not None else None
            # Made in its place: a list of messages would be copied into the answer.
            answer.custom_avatars.add(
                upload_id=row.upload_id,
                display_name=row.display_name,
                create_ts=rfc3339(row.create_ms),
                url=self._links.shown(row.upload_id, kind) if kind else None,
                content_length=row.content_length,
                complete=row.complete_ms is not None,
            )
        return answer
