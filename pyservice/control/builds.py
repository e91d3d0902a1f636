from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.deletions import Deletions, require_unused
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.name_rules import display_name_problems, require_valid
from pyservice.control.upload_validation import content_type_problems, path_problems
from pyservice.control.uploads import (
    Find,
    ResponseT,
    UploadLifecycle,
    UploadPlan,
    object_key,
    part_bytes,
)
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.network.image_references import has_digest, is_image_reference
from pyservice.pb.hosting.v1 import builds_pb2 as pb
from pyservice.pb.hosting.v1 import uploads_pb2
from pyservice.runtime import decompression
from pyservice.runtime.build_unpacking import ARCHIVE
from pyservice.runtime.unpacked_builds import BuildSource, BuildUnusable
from pyservice.storage import builds, games, uploads
from pyservice.storage import deletions as stored_deletions
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.storage.objects import Objects
from pyservice.storage.uploads import NewFile
from pyservice.timestamps import rfc3339

BUILD_MAX_BYTES: Final = 8 << 30
COMPRESSIONS: Final = ("none", *decompression.COMPRESSIONS)

LOCAL_REFUSAL: Final = (
    "only a service on Kubernetes fetches images from a registry: upload the image "
    "with the kind docker_image"
)
_EXAMPLE: Final = "registry.example.com/team/game@sha256:… with the 64 digits of its digest"

BuildRequest = pb.PrepareBuildRequest | pb.CreateGameBuildRequest


class BuildRuntime(Protocol):
    def kinds(self) -> Sequence[str]: ...
    def refusal_reason(self, kind: str) -> str | None: ...
    def build_problem(self, build_id: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class BuildOperations:
    records: RecordContext
    uploading: UploadLifecycle
    deletions: Deletions
    runtime: BuildRuntime

    async def list_(self, request: pb.ListBuildsRequest, caller: Caller) -> pb.ListBuildsResponse:
        tag_filter = parse_tag_filter(request.tags_json)
        async with self.records.database.read() as tx:
            game = await authorization.find_namespace(tx, caller, request)
            page, tags = await builds.of_game(tx, game.game_id, tag_filter, PageBounds.of(request))
        return pb.ListBuildsResponse(
            builds=[self._build(row, tags.get(row.build_id, {})) for row in page.rows],
            cursor=page.cursor,
        )

    async def get(self, request: pb.GetBuildRequest, caller: Caller) -> pb.GetBuildResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_namespace(tx, caller, request)
            row = await _find_build(tx, game.game_id, request.build_id)
            tags = await builds.tags_of(tx, row.build_id)
        return pb.GetBuildResponse(build=self._build(row, tags))

    async def prepare(
        self, request: pb.PrepareBuildRequest, caller: Caller
    ) -> pb.PrepareBuildResponse:
        async def find(tx: Transaction) -> Record:
            return await authorization.find_namespace(tx, caller, request)

        def answer(row: Record) -> pb.PrepareBuildResponse:
            return pb.PrepareBuildResponse(build=self._build(row, {}))

        plan = self._plan(request, "name", find, pb.PrepareBuildResponse, answer)
        return await self.uploading.prepare(caller, request, plan)

    def _plan(
        self,
        request: BuildRequest,
        name_field: str,
        find_game: Find,
        response_type: type[ResponseT],
        make_response: Callable[[Record], ResponseT],
    ) -> UploadPlan[ResponseT]:
        name = getattr(request, name_field)

        async def add_records(tx: Transaction, game_id: str, upload_id: str, now: int) -> ResponseT:
            build_id = self.records.ids.new()
            await builds.add(tx, build_id, game_id, upload_id, name, _form(request), now)
            if request.HasField("image"):
                await uploads.complete(tx, upload_id, "build", now)
            return make_response(await _find_build(tx, game_id, build_id))

        return UploadPlan(
            kind="build",
            display_name=name,
            find_game=find_game,
            files=[] if request.HasField("image") else [_file(request)],
            check_request=lambda: self._check_request(request, name_field),
            add_records=add_records,
            response_type=response_type,
            set_urls=_set_urls,
        )

    async def complete(
        self, request: pb.CompleteBuildRequest, caller: Caller
    ) -> pb.CompleteBuildResponse:
        async def find(tx: Transaction) -> Record:
            game = await authorization.find_namespace(tx, caller, request)
            row = await _find_build(tx, game.game_id, request.build_id)
            upload = await uploads.find(tx, row.upload_id)
            if upload is None or upload.kind == uploads.ABANDONED:
                raise ServiceError("BUILD_NOT_FOUND")
            return upload

        return await self.uploading.complete(caller, request, pb.CompleteBuildResponse, find)

    async def patch_tags(
        self, request: pb.PatchBuildTagsRequest, caller: Caller
    ) -> pb.PatchBuildTagsResponse:
        async def change(tx: Transaction) -> None:
            game = await authorization.find_namespace(tx, caller, request)
            await games.lock(tx, game.game_id)
            row = await _find_build(tx, game.game_id, request.build_id)
            set_, removed_names = parse_tag_change(request.tags)
            tags = {**await builds.tags_of(tx, row.build_id), **set_}
            require_tag_limit({name: tags[name] for name in tags if name not in removed_names})
            await builds.change_tags(tx, row.build_id, set_, removed_names)
            exclusive = [name for name in request.exclusive_tags if "\0" not in name]
            await builds.remove_tags_from_other_builds(tx, game.game_id, row.build_id, exclusive)

        return await self.records.changes.apply(caller, request, pb.PatchBuildTagsResponse, change)

    async def list_of_game(
        self, request: pb.ListGameBuildsRequest, caller: Caller
    ) -> pb.ListGameBuildsResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            page, tags = await builds.of_game(tx, game.game_id, {}, PageBounds.of(request))
        return pb.ListGameBuildsResponse(
            builds=[self._summary(row, tags.get(row.build_id, {})) for row in page.rows],
            cursor=page.cursor,
        )

    async def create(
        self, request: pb.CreateGameBuildRequest, caller: Caller
    ) -> pb.CreateGameBuildResponse:
        async def find(tx: Transaction) -> Record:
            return await authorization.find_game(tx, caller, request.game_id)

        def answer(row: Record) -> pb.CreateGameBuildResponse:
            return pb.CreateGameBuildResponse(build_id=row.build_id, upload_id=row.upload_id)

        plan = self._plan(request, "display_name", find, pb.CreateGameBuildResponse, answer)
        return await self.uploading.prepare(caller, request, plan)

    async def delete(
        self, request: pb.DeleteGameBuildRequest, caller: Caller
    ) -> pb.DeleteGameBuildResponse:
        deleted: list[str] = []

        async def change(tx: Transaction) -> None:
            game = await authorization.find_game(tx, caller, request.game_id)
            await games.lock(tx, game.game_id)
            row = await _find_build(tx, game.game_id, request.build_id)
            require_unused(
                "A version names this build, or a server runs it. Delete the versions, and "
                "destroy the servers.",
                version=await stored_deletions.versions_of_build(tx, row.build_id),
                server=await stored_deletions.servers_of_build(tx, row.build_id),
            )
            await builds.remove(tx, row.build_id)
            await uploads.abandon(tx, row.upload_id)
            tx.after_commit(self.deletions.start_removal)
            deleted[:] = [row.upload_id]

        response = await self.records.changes.apply(
            caller, request, pb.DeleteGameBuildResponse, change
        )
        await self.deletions.refuse_puts(deleted)
        return response

    def _check_request(self, request: BuildRequest, name_field: str) -> None:
        require_valid(self._problems(request, name_field))
        if request.image_file.content_length > BUILD_MAX_BYTES:
            raise ServiceError("UPLOAD_TOO_LARGE", "A build has at most 8 GiB.")

    def _problems(self, request: BuildRequest, name_field: str) -> Iterator[FieldProblem]:
        yield from display_name_problems(getattr(request, name_field), name_field)
        if any(character < " " or character == "\x7f" for character in request.image_tag):
            yield field_problem(["image_tag"], "invalid", "must not have control characters")
        if request.HasField("image_file"):
            image = request.image_file
            yield from path_problems(image.path, "image_file", "path")
            if image.HasField("content_type"):
                yield from content_type_problems(image.content_type, "image_file", "content_type")
        kind, compression, _ = _form(request)
        reason = self.runtime.refusal_reason(kind)
        if reason is not None:
            kinds = ", ".join(self.runtime.kinds()) or "none"
            reason_text = f"must be a kind that this service runs ({kinds}): {reason}"
            yield field_problem(["kind"], "not-allowed", reason_text)
        yield from _reference_problems(request, kind)
        if compression not in COMPRESSIONS:
            accepted = ", ".join(COMPRESSIONS)
            yield field_problem(["compression"], "not-allowed", f"must be one of {accepted}")

    def _build(self, row: Record, tags: dict[str, str]) -> pb.Build:
        return pb.Build(
            id=row.build_id,
            name=row.display_name,
            content_length=row.content_length,
            created_at=rfc3339(row.create_ms),
            tags=tags,
            complete=row.complete_ms is not None,
            image=row.image_tag if row.kind == builds.IMAGE else None,
            problem=self.runtime.build_problem(row.build_id),
        )

    def _summary(self, row: Record, tags: dict[str, str]) -> pb.BuildSummary:
        return pb.BuildSummary(
            build_id=row.build_id,
            upload_id=row.upload_id,
            display_name=row.display_name,
            create_ts=rfc3339(row.create_ms),
            content_length=row.content_length,
            complete=row.complete_ms is not None,
            tags=tags,
            image=row.image_tag if row.kind == builds.IMAGE else None,
            problem=self.runtime.build_problem(row.build_id),
        )


def _reference_problems(request: BuildRequest, kind: str) -> Iterator[FieldProblem]:
    """Yields the problems of the field `image`, which builds of the kind `image` have."""
    if not request.HasField("image"):
        if kind == builds.IMAGE:
            yield field_problem(["image"], "required", f"is required for this kind: {_EXAMPLE}")
        return
    if kind != builds.IMAGE:
        yield field_problem(["kind"], "not-allowed", "must be image, because image is set")
    if not is_image_reference(request.image):
        reason = f"must be the reference of an image in a registry: {_EXAMPLE}"
        yield field_problem(["image"], "invalid", reason)
    elif not has_digest(request.image):
        reason = (
            "must have a digest, because a tag can be moved: add the @sha256:… that the registry "
            "returned when the image was pushed"
        )
        yield field_problem(["image"], "invalid", reason)


def _form(request: BuildRequest) -> tuple[str, str, str | None]:
    """Returns the kind, the compression, and the tag or reference of an image."""
    is_reference = request.HasField("image")
    usual_kind = builds.IMAGE if is_reference else ARCHIVE
    tag = request.image_tag if request.HasField("image_tag") else None
    return (
        request.kind if request.HasField("kind") else usual_kind,
        request.compression if request.HasField("compression") else COMPRESSIONS[0],
        request.image if is_reference else tag,
    )


async def _find_build(tx: Transaction, game_id: str, build_id: str) -> Record:
    row = await builds.find(tx, game_id, build_id)
    if row is None:
        raise ServiceError("BUILD_NOT_FOUND")
    return row


def _file(request: BuildRequest) -> NewFile:
    image = request.image_file
    return NewFile(
        image.path,
        image.content_length,
        image.content_type if image.HasField("content_type") else None,
        bytes.fromhex(image.sha256) if image.HasField("sha256") else None,
        part_bytes(image.content_length, request.multipart_upload),
    )


def _set_urls(response: Any, requests: list[uploads_pb2.PresignedRequest]) -> None:
    if len(requests) == 1:
        response.image_presigned_request.CopyFrom(requests[0])
    else:
        response.image_presigned_requests.extend(requests)


TAGS_MAX: Final = 32
NAME_MAX_BYTES: Final = 64
VALUE_MAX_BYTES: Final = 1024
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def parse_tag_filter(text: str) -> dict[str, str]:
    if not text:
        return {}
    problems: list[FieldProblem] = []
    tags = _object(text.encode())
    if tags is None:
        problems.append(field_problem(["tags_json"], "not-json", "must be a JSON object"))
        tags = {}
    for name, value in tags.items():
        problems += tag_problems("tags_json", name, value)
    if len(tags) > TAGS_MAX:
        problems.append(_too_many("tags_json"))
    if problems:
        raise ServiceError("QUERY_INVALID", errors=problems)
    return tags


def parse_tag_change(content: bytes) -> tuple[dict[str, str], list[str]]:
    """Parses a JSON object of tags. Returns the tags to set, and the names of tags to remove.

    A tag with the value null is removed.
    """
    tags = _object(content)
    if tags is None:
        require_valid([field_problem(["tags"], "wrong-type", "must be a JSON object")])
        raise AssertionError
    problems = [
        problem
        for name, value in tags.items()
        for problem in tag_problems("tags", name, "x" if value is None else value)
    ]
    require_valid(problems)
    return (
        {name: value for name, value in tags.items() if value is not None},
        [name for name, value in tags.items() if value is None],
    )


def require_tag_limit(tags: dict[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        require_valid([_too_many("tags")])


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


def _too_many(where: str) -> FieldProblem:
    return field_problem([where], "too-many", f"must have at most {TAGS_MAX} entries")


def tag_problems(where: str, name: str, value: Any) -> Iterator[FieldProblem]:
    path = (where, name)
    if not 1 <= len(name.encode()) <= NAME_MAX_BYTES:
        word = "too-long" if name else "too-short"
        yield field_problem(path, word, f"must have a name of 1 to {NAME_MAX_BYTES} bytes")
    if type(value) is not str:
        yield field_problem(path, "wrong-type", "must be a string")
        return
    if not 1 <= len(value.encode()) <= VALUE_MAX_BYTES:
        word = "too-long" if value else "too-short"
        yield field_problem(path, word, f"must have 1 to {VALUE_MAX_BYTES} bytes")
    if _CONTROL.search(name) or _CONTROL.search(value):
        yield field_problem(path, "invalid", "must not have control characters")


@dataclass(frozen=True, slots=True)
class BuildFetcher:
    """Implements the protocol `FetchBuild` of `unpacked_builds`: finds a complete build and reads
    its file.
    """

    database: Database
    objects: Objects

    async def __call__(self, game_id: str, build_id: str) -> BuildSource:
        async with self.database.read() as tx:
            row = await builds.find(tx, game_id, build_id)
            if row is None:
                raise BuildUnusable("the build was deleted")
            if row.kind == builds.IMAGE:
                raise BuildUnusable(f"the build has the kind {row.kind}, and {LOCAL_REFUSAL}")
            if row.complete_ms is None:
                raise BuildUnusable("the build is not completely uploaded")
            (file,) = await uploads.files_of(tx, row.upload_id)
        key = object_key("build", row.upload_id, file.path)
        sha256 = None if file.sha256 is None else file.sha256.hex()
        content = self.objects.read(key)
        return BuildSource(
            row.kind, row.compression, sha256, content, file.content_length, row.image_tag
        )
