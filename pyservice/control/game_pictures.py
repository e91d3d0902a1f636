"""Operations on pictures of a game: banner, logo and avatars."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.name_rules import require_valid
from pyservice.control.resource_summaries import PublicUrls
from pyservice.control.timestamps import rfc3339
from pyservice.control.upload_validation import path_problems
from pyservice.control.uploads import UploadLifecycle, UploadPlan
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.pb.hosting.v1 import uploads_pb2 as pb
from pyservice.storage import uploads
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.image_validation import kind_of_name
from pyservice.storage.uploads import NewFile

PICTURE_MAX_BYTES: Final = 2 << 20
_MIME: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg"}

Answer = TypeVar("Answer", bound=Message)


class GamePictureOperations:
    def __init__(self, uploading: UploadLifecycle) -> None:
        self._uploading = uploading

    async def prepare_banner(
        self, request: pb.PrepareGameBannerUploadRequest, caller: Caller
    ) -> pb.PrepareGameBannerUploadResponse:
        return await prepare_picture(
            self._uploading, "banner", request, caller, pb.PrepareGameBannerUploadResponse
        )

    async def complete_banner(
        self, request: pb.CompleteGameBannerUploadRequest, caller: Caller
    ) -> pb.CompleteGameBannerUploadResponse:
        return await complete_picture(
            self._uploading, "banner", request, caller, pb.CompleteGameBannerUploadResponse
        )

    async def prepare_logo(
        self, request: pb.PrepareGameLogoUploadRequest, caller: Caller
    ) -> pb.PrepareGameLogoUploadResponse:
        return await prepare_picture(
            self._uploading, "logo", request, caller, pb.PrepareGameLogoUploadResponse
        )

    async def complete_logo(
        self, request: pb.CompleteGameLogoUploadRequest, caller: Caller
    ) -> pb.CompleteGameLogoUploadResponse:
        return await complete_picture(
            self._uploading, "logo", request, caller, pb.CompleteGameLogoUploadResponse
        )


async def prepare_picture(
    uploading: UploadLifecycle, kind: str, request: Any, caller: Caller, answer_type: type[Answer]
) -> Answer:

    async def find(tx: Transaction) -> Record:
        return await authorization.find_game(tx, caller, request.game_id)

    async def make(tx: Transaction, game_id: str, upload_id: str, now: int) -> Answer:
        made: Any = answer_type
        answer: Answer = made(upload_id=upload_id)
        return answer

    def address(answer: Any, requests: list[pb.PresignedRequest]) -> None:
        answer.presigned_request.CopyFrom(requests[0])

    preparation = UploadPlan(
        kind=kind,
        display_name=request.path,
        find_game=find,
        files=[NewFile(request.path, request.content_length)],
        check_request=lambda: _check_request(request),
        make=make,
        answer_type=answer_type,
        set_urls=address,
    )
    return await uploading.prepare(caller, request, preparation)


async def complete_picture(
    uploading: UploadLifecycle, kind: str, request: Any, caller: Caller, answer_type: type[Answer]
) -> Answer:

    async def find(tx: Transaction) -> Record:
        game = await authorization.find_game(tx, caller, request.game_id)
        row = await uploads.find(tx, request.upload_id)
        if row is None or row.kind != kind or row.game_id != game.game_id:
            raise ServiceError("UPLOAD_NOT_FOUND")
        return row

    return await uploading.complete(caller, request, answer_type, find)


def _check_request(request: Any) -> None:
    problems: list[FieldProblem] = list(path_problems(request.path, "path"))
    claimed = kind_of_name(request.path)
    if not problems and claimed is None:
        problems.append(field_problem(["path"], "invalid", "must end in .png, .jpg or .jpeg"))
    if request.HasField("mime") and (
        request.mime.lower() not in _MIME or claimed not in (None, _MIME[request.mime.lower()])
    ):
        reason = "must be image/png or image/jpeg, as the name of the file says"
        problems.append(field_problem(["mime"], "not-allowed", reason))
    require_valid(problems)
    if request.content_length > PICTURE_MAX_BYTES:
        raise ServiceError("UPLOAD_TOO_LARGE", "A picture has at most 2 MiB.")


class AvatarOperations:
    def __init__(self, database: Database, uploading: UploadLifecycle, links: PublicUrls) -> None:
        self._database = database
        self._uploading = uploading
        self._links = links

    async def prepare(
        self, request: pb.PrepareCustomAvatarUploadRequest, caller: Caller
    ) -> pb.PrepareCustomAvatarUploadResponse:
        return await prepare_picture(
            self._uploading, "avatar", request, caller, pb.PrepareCustomAvatarUploadResponse
        )

    async def complete(
        self, request: pb.CompleteCustomAvatarUploadRequest, caller: Caller
    ) -> pb.CompleteCustomAvatarUploadResponse:
        return await complete_picture(
            self._uploading, "avatar", request, caller, pb.CompleteCustomAvatarUploadResponse
        )

    async def list_(
        self, request: pb.ListCustomAvatarsRequest, caller: Caller
    ) -> pb.ListCustomAvatarsResponse:
        async with self._database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            rows = await uploads.of_kind(tx, game.game_id, "avatar")
        answer = pb.ListCustomAvatarsResponse()
        for row in rows:
            kind = kind_of_name(row.path) if row.complete_ms is not None else None
            answer.custom_avatars.add(
                upload_id=row.upload_id,
                display_name=row.display_name,
                create_ts=rfc3339(row.create_ms),
                url=self._links.picture_url(row.upload_id, kind) if kind else None,
                content_length=row.content_length,
                complete=row.complete_ms is not None,
            )
        return answer
