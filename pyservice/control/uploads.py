"""Completion of any upload by its id (decisions 8.8). Builds and pictures have operations of their own as well."""

from __future__ import annotations

from pyservice.calls import Caller
from pyservice.control import access
from pyservice.control.access import scope_of
from pyservice.control.uploading import Uploading
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import uploads_pb2 as pb
from pyservice.storage import uploads
from pyservice.storage.database import Record, Transaction


class Uploads:
    """The operations on uploads."""

    def __init__(self, uploading: Uploading) -> None:
        self._uploading = uploading

    async def complete(
        self, request: pb.CompleteUploadRequest, caller: Caller
    ) -> pb.CompleteUploadResponse:
        """Raises UPLOAD_NOT_FOUND, UPLOAD_INCOMPLETE, UPLOAD_ALREADY_COMPLETE, VALIDATION_FAILED."""

        async def find(tx: Transaction) -> Record:
            row = await uploads.find(tx, request.upload_id)
            if (
                row is None
                or row.kind == uploads.GONE
                or not access.covers(scope_of(caller), row.game_id, row.group_id)
            ):
                raise ServiceError("UPLOAD_NOT_FOUND")
            return row

        return await self._uploading.complete(caller, request, pb.CompleteUploadResponse, find)
