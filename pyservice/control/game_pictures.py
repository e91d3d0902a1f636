from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from pyservice.calls import Caller, Run
from pyservice.control import authorization
from pyservice.control.deletions import Deletions
from pyservice.control.games import game_topic, group_topic
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.name_rules import require_valid
from pyservice.control.resource_summaries import PublicUrls
from pyservice.control.upload_validation import path_problems
from pyservice.control.uploads import UploadLifecycle, UploadPlan
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.pb.hosting.v1 import uploads_pb2 as pb
from pyservice.storage import deletions, uploads
from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.storage.picture_validation import kind_of_name
from pyservice.storage.uploads import NewFile
from pyservice.timestamps import rfc3339

PICTURE_MAX_BYTES: Final = 2 << 20
_ANSWERS: Final[Mapping[str, tuple[Any, Any]]] = {
    "avatar": (pb.PrepareCustomAvatarUploadResponse, pb.CompleteCustomAvatarUploadResponse),
    "banner": (pb.PrepareGameBannerUploadResponse, pb.CompleteGameBannerUploadResponse),
    "logo": (pb.PrepareGameLogoUploadResponse, pb.CompleteGameLogoUploadResponse),
}
_DELETION_ANSWERS: Final[Mapping[str, Any]] = {
    "banner": pb.DeleteGameBannerResponse,
    "logo": pb.DeleteGameLogoResponse,
}
_MIME: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg"}


@dataclass(frozen=True, slots=True)
class GamePictureOperations:
    records: RecordContext
    uploading: UploadLifecycle
    deletions: Deletions
    links: PublicUrls

    def prepare(self, kind: str) -> Run:
        """Returns the operation that begins a picture upload. `kind` is `avatar`, `banner` or
        `logo`.
        """
        response_type, _ = _ANSWERS[kind]

        async def run(request: Any, caller: Caller) -> Message:
            async def find(tx: Transaction) -> Record:
                return await authorization.find_game(tx, caller, request.game_id)

            async def add_records(
                tx: Transaction, game_id: str, upload_id: str, now: int
            ) -> Message:
                response: Message = response_type(upload_id=upload_id)
                return response

            def set_urls(response: Any, requests: list[pb.PresignedRequest]) -> None:
                response.presigned_request.CopyFrom(requests[0])

            plan: UploadPlan[Message] = UploadPlan(
                kind=kind,
                display_name=request.path,
                find_game=find,
                files=[NewFile(request.path, request.content_length)],
                check_request=lambda: _check_request(request),
                add_records=add_records,
                response_type=response_type,
                set_urls=set_urls,
            )
            return await self.uploading.prepare(caller, request, plan)

        return run

    def complete(self, kind: str) -> Run:
        """Returns the operation that completes a picture upload. `kind` is `avatar`, `banner` or
        `logo`.
        """
        _, response_type = _ANSWERS[kind]

        async def run(request: Any, caller: Caller) -> Message:
            async def find(tx: Transaction) -> Record:
                game = await authorization.find_game(tx, caller, request.game_id)
                row = await uploads.find(tx, request.upload_id)
                if row is None or row.kind != kind or row.game_id != game.game_id:
                    raise ServiceError("UPLOAD_NOT_FOUND")
                return row

            response: Message = await self.uploading.complete(caller, request, response_type, find)
            return response

        return run

    async def delete_avatar(
        self, request: pb.DeleteCustomAvatarRequest, caller: Caller
    ) -> pb.DeleteCustomAvatarResponse:
        deleted: list[str] = []

        async def change(tx: Transaction) -> None:
            game = await authorization.find_game(tx, caller, request.game_id)
            row = await uploads.find(tx, request.upload_id)
            if row is None or row.kind != "avatar" or row.game_id != game.game_id:
                raise ServiceError("UPLOAD_NOT_FOUND")
            await uploads.abandon(tx, row.upload_id)
            tx.after_commit(self.deletions.start_removal)
            deleted[:] = [row.upload_id]

        response = await self.records.changes.apply(
            caller, request, pb.DeleteCustomAvatarResponse, change
        )
        await self.deletions.refuse_puts(deleted)
        return response

    def delete_shown(self, kind: str) -> Run:
        """Returns the operation that deletes the `banner` or `logo` of a game."""
        response_type = _DELETION_ANSWERS[kind]

        async def run(request: Any, caller: Caller) -> Message:
            async def change(tx: Transaction) -> None:
                game = await authorization.find_game(tx, caller, request.game_id)
                if not await deletions.abandon_pictures(tx, game.game_id, kind):
                    raise ServiceError("UPLOAD_NOT_FOUND", f"The game has no {kind}.")
                topics = game_topic(game.game_id), group_topic(game.group_id)
                tx.after_commit(lambda: self.records.topics.bump(*topics))
                tx.after_commit(self.deletions.start_removal)

            response: Message = await self.records.changes.apply(
                caller, request, response_type, change
            )
            return response

        return run

    async def list_avatars(
        self, request: pb.ListCustomAvatarsRequest, caller: Caller
    ) -> pb.ListCustomAvatarsResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            page = await uploads.of_kind(tx, game.game_id, "avatar", PageBounds.of(request))
        response = pb.ListCustomAvatarsResponse(cursor=page.cursor)
        for row in page.rows:
            kind = kind_of_name(row.path) if row.complete_ms is not None else None
            response.custom_avatars.add(
                upload_id=row.upload_id,
                display_name=row.display_name,
                create_ts=rfc3339(row.create_ms),
                url=self.links.picture_url(row.upload_id, kind) if kind else None,
                content_length=row.content_length,
                complete=row.complete_ms is not None,
            )
        return response


def _check_request(request: Any) -> None:
    problems: list[FieldProblem] = list(path_problems(request.path, "path"))
    kind = kind_of_name(request.path)
    if not problems and kind is None:
        problems.append(field_problem(["path"], "invalid", "must end in .png, .jpg or .jpeg"))
    if request.HasField("mime") and (
        request.mime.lower() not in _MIME or kind not in (None, _MIME[request.mime.lower()])
    ):
        reason = "must be image/png or image/jpeg, as the name of the file says"
        problems.append(field_problem(["mime"], "not-allowed", reason))
    require_valid(problems)
    if request.content_length > PICTURE_MAX_BYTES:
        raise ServiceError("UPLOAD_TOO_LARGE", "A picture has at most 2 MiB.")
