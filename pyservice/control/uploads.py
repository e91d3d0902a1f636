"""Lifecycle of uploads: prepare signed URLs, validate and complete, delete abandoned ones."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

from google.protobuf.message import Message

from pyservice.calls import Caller, Subject
from pyservice.concurrency.fair_queue import FairQueue
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.control import authorization
from pyservice.control.audit_log import changed_object
from pyservice.control.authorization import scope_of
from pyservice.control.deletions import UploadBusy
from pyservice.control.fair_thread_pool import FairThreadPool
from pyservice.control.games import game_topic, group_topic
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.retrying_job import RetryingJob
from pyservice.control.upload_validation import CheckedContents, check_contents
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import remembered_pb2
from pyservice.pb.hosting.v1 import uploads_pb2 as pb
from pyservice.storage import builds, games, uploads
from pyservice.storage.database import Record, Transaction
from pyservice.storage.objects import (
    MULTIPART_FROM_BYTES,
    PART_BYTES,
    PART_EXPIRES_S,
    PUT_EXPIRES_S,
    Objects,
    Part,
    PendingObject,
    file_key,
    plan_parts,
)
from pyservice.storage.uploads import NewFile

ResponseT = TypeVar("ResponseT", bound=Message)
Find = Callable[[Transaction], Awaitable[Record]]

PICTURES: Final = frozenset({"avatar", "banner", "logo"})
_SHOWN_ON_GAME: Final = frozenset({"banner", "logo"})
_QUOTAS_OF_KIND: Final = {
    "build": ("builds", "build_bytes"),
    "site": ("sites", "site_bytes"),
    **dict.fromkeys(PICTURES, ("pictures", "picture_bytes")),
}
"""Quotas of the number and the bytes of uploads of a kind."""
ABANDONED_AFTER_MS: Final = 24 * 3_600_000
CLEANUP_INTERVAL_S: Final = 3_600.0
SWEEP_INTERVAL_S: Final = 600.0
"""Interval of the removal of parts that a bucket accepted for a completed or deleted upload."""
_RETRIES_S: Final = (60.0, CLEANUP_INTERVAL_S)
_BATCH_ROWS: Final = 100
_SIGNED_AT_ONCE: Final = 100
_DIGESTS_AT_ONCE: Final = 500
_REMEMBERED_MAX: Final = 1024
_CHECKS_AT_ONCE: Final = 4
"""Limit of build checks in progress. Decompression holds up to 128 MiB for each."""

_log = get_logger("control")


def object_key(kind: str, upload_id: str, path: str) -> str:
    """Returns the object key of an uploaded file. The key of a picture does not depend on the file
    name, so its URL needs no name.
    """
    return file_key(upload_id, "picture" if kind in PICTURES else path)


def part_bytes(content_length: int, is_multipart: bool) -> int | None:
    """Returns the size of each part, or None if a single PUT uploads the whole file."""
    return PART_BYTES if is_multipart and content_length >= MULTIPART_FROM_BYTES else None


@dataclass(frozen=True, slots=True)
class UploadPlan(Generic[ResponseT]):
    kind: str
    display_name: str
    find_game: Find
    files: Sequence[NewFile]
    check_request: Callable[[], None]
    """Raises problems of the request. Not called for a repeated request."""
    add_records: Callable[[Transaction, str, str, int], Awaitable[ResponseT]]
    """Receives the game id, the upload id and the time."""
    response_type: type[ResponseT]
    set_urls: Callable[[ResponseT, list[pb.PresignedRequest]], None]


def _parts(files: Sequence[NewFile]) -> Iterator[tuple[NewFile, Part]]:
    for file in files:
        for part in plan_parts(file.content_length, file.part_bytes is not None):
            yield file, part


class UploadLifecycle:
    def __init__(self, context: RecordContext, objects: Objects) -> None:
        self._database = context.database
        self._changes = context.changes
        self._topics = context.topics
        self._objects = objects
        self._now_ms = context.now_ms
        self._quotas = context.quotas
        self._checks: SingleFlight[str, CheckedContents | None] = SingleFlight(is_kept=True)
        self._checked_contents: dict[str, CheckedContents] = {}
        self._threads = FairThreadPool()
        self._permits = FairQueue(_CHECKS_AT_ONCE, 1)
        self.job = RetryingJob(
            "uploads", "abandoned upload not removed", pauses_s=_RETRIES_S, is_worth_a_warning=True
        )

    async def prepare(self, caller: Caller, request: Any, plan: UploadPlan[ResponseT]) -> ResponseT:
        """Stores an upload and returns a response with signed URLs.

        A repeated request gets new URLs, after a new check of access to the game. Raises
        UPLOAD_NOT_FOUND if the upload was deleted.
        """

        async def change(tx: Transaction) -> remembered_pb2.PreparedUpload:
            game = await plan.find_game(tx)
            plan.check_request()
            for _, part in _parts(plan.files):
                self._objects.refuse_too_long(part.content_length)
            counted, bytes_ = _QUOTAS_OF_KIND[plan.kind]
            content_length = sum(file.content_length for file in plan.files)
            await self._quotas.require(
                tx, game.group_id, {counted: 1, bytes_: content_length}, game_id=game.game_id
            )
            upload_id, now = str(uuid4()), self._now_ms()
            new = uploads.NewUpload(
                upload_id, game.game_id, plan.kind, plan.display_name, now, plan.files
            )
            await uploads.add(tx, new)
            response = await plan.add_records(tx, game.game_id, upload_id, now)
            authorization.name_object(caller, *changed_object(response))
            return remembered_pb2.PreparedUpload(
                upload_id=upload_id, answer=response.SerializeToString()
            )

        async def check_replay(tx: Transaction, kept: remembered_pb2.PreparedUpload) -> bool:
            await plan.find_game(tx)
            row = await uploads.find(tx, kept.upload_id)
            if row is None or _is_abandoned(row):
                raise ServiceError(
                    "UPLOAD_NOT_FOUND", "The upload of this key was removed. Use another key."
                )
            return True

        stored = await self._changes.apply(
            caller, request, remembered_pb2.PreparedUpload, change, check_replay
        )
        response = plan.response_type.FromString(stored.answer)
        copied = await self._copy_known_files(plan, stored.upload_id)
        missing = [file for file in plan.files if file.path not in copied]
        plan.set_urls(response, await self._requests(plan.kind, stored.upload_id, missing))
        return response

    async def _copy_known_files(self, plan: UploadPlan[ResponseT], upload_id: str) -> set[str]:
        """Copies the files of a site that an earlier site of the game has, and returns their paths."""
        digests = sorted({file.sha256 for file in plan.files if file.sha256 is not None})
        if plan.kind != "site" or not digests:
            return set()
        known: dict[tuple[bytes, int], str] = {}
        async with self._database.read() as tx:
            row = await uploads.find(tx, upload_id)
            if row is None or row.complete_ms is not None or _is_abandoned(row):
                return set()
            for first in range(0, len(digests), _DIGESTS_AT_ONCE):
                batch = digests[first : first + _DIGESTS_AT_ONCE]
                for file in await uploads.site_files_with_digests(tx, row.game_id, batch):
                    key = object_key("site", file.upload_id, file.path)
                    known[file.sha256, file.content_length] = key
        copies: list[tuple[str, str]] = []
        paths: list[str] = []
        for new in plan.files:
            source = known.get((new.sha256 or b"", new.content_length))
            if source is not None:
                copies.append((source, object_key("site", upload_id, new.path)))
                paths.append(new.path)
        is_copied = await self._objects.copy(copies)
        return {path for path, is_there in zip(paths, is_copied, strict=True) if is_there}

    async def _requests(
        self, kind: str, upload_id: str, files: Sequence[NewFile]
    ) -> list[pb.PresignedRequest]:
        requests = []
        for file, part in _parts(files):
            key = object_key(kind, upload_id, file.path)
            is_whole = part.content_length == file.content_length
            expires_s = PUT_EXPIRES_S if is_whole else PART_EXPIRES_S
            url = await self._objects.presign_put(
                key, part.content_length, expires_s, part.byte_offset
            )
            requests.append(
                pb.PresignedRequest(
                    byte_offset=part.byte_offset,
                    content_length=part.content_length,
                    path=file.path,
                    url=url,
                )
            )
            if not len(requests) % _SIGNED_AT_ONCE:
                await asyncio.sleep(0)
        return requests

    async def complete(
        self, caller: Caller, request: Any, response_type: type[ResponseT], find: Find
    ) -> ResponseT:
        async with self._database.read() as tx:
            row = await find(tx)
        contents = await self._contents_of(row) if row.complete_ms is None else None

        async def change(tx: Transaction) -> None:
            now = self._now_ms()
            if contents is None or not await uploads.complete(tx, row.upload_id, row.kind, now):
                await find(tx)
                raise ServiceError("UPLOAD_ALREADY_COMPLETE")
            for path, digest in contents.digests.items():
                await uploads.set_digest(tx, row.upload_id, path, digest)
            if contents.scratch_mb:
                await builds.set_scratch_mb(tx, row.upload_id, contents.scratch_mb)
            if row.kind in _SHOWN_ON_GAME and contents.picture is not None:
                await games.set_picture(tx, row.game_id, row.kind, row.upload_id, contents.picture)
                tx.after_commit(
                    lambda: self._topics.bump(game_topic(row.game_id), group_topic(row.group_id))
                )
            tx.after_commit(lambda: self._forget(row.upload_id))

        return await self._changes.apply(caller, request, response_type, change)

    async def _contents_of(self, row: Record) -> CheckedContents | None:
        """Returns the checked contents of an upload, or None if it is complete or removed.

        Concurrent requests share one check.

        The check continues if the requests are cancelled, because a large build's check can outlast
        a request.
        """
        contents = self._checked_contents.get(row.upload_id)
        return contents or await self._checks.run(row.upload_id, lambda: self._check_and_store(row))

    async def _check_and_store(self, row: Record) -> CheckedContents | None:
        contents = await self._check(row)
        if contents is None:
            return None
        if len(self._checked_contents) >= _REMEMBERED_MAX:
            self._checked_contents.clear()
        self._checked_contents[row.upload_id] = contents
        return contents

    def _forget(self, upload_id: str) -> None:
        self._checked_contents.pop(upload_id, None)

    async def _check(self, row: Record) -> CheckedContents | None:
        async with self._database.read() as tx:
            # Another request may have completed the upload since the caller read its row.
            current = await uploads.find(tx, row.upload_id)
            if current is None or current.complete_ms is not None or _is_abandoned(current):
                return None
            files = await uploads.files_of(tx, row.upload_id)
            build = await uploads.build_format(tx, row.upload_id)
        keys = {file.path: object_key(row.kind, row.upload_id, file.path) for file in files}
        pending = [
            PendingObject(
                keys[file.path],
                plan_parts(file.content_length, file.part_bytes is not None),
                file.path,
            )
            for file in files
        ]
        try:
            await self._objects.complete(pending)
            run = functools.partial(self._threads.run, row.group_id)
            permit = self._permits.permit(None, row.group_id) if build else contextlib.nullcontext()
            async with permit:
                return await check_contents(self._objects, run, row.kind, build, files, keys)
        except ServiceError as error:
            if error.code == "VALIDATION_FAILED":
                await self._objects.delete_prefix(row.upload_id)
            raise
        except FileNotFoundError:
            raise ServiceError(
                "UPLOAD_INCOMPLETE", "The uploaded content was removed. Upload it again."
            ) from None

    async def remove(self, upload_id: str) -> None:
        """Removes an incomplete or abandoned upload with its objects.

        Raises UploadBusy while a check of the upload is running.
        """
        self._require_no_check(upload_id)
        async with self._database.write() as tx:
            if not await uploads.abandon_incomplete(tx, upload_id):
                return
        # A check can have begun before the commit, and none begins after it.
        await self.remove_objects(upload_id)
        async with self._database.write() as tx:
            await uploads.remove(tx, upload_id)

    async def remove_objects(self, upload_id: str) -> None:
        """Removes the objects of an abandoned upload, or of one without a record. Raises UploadBusy."""
        self._require_no_check(upload_id)
        self._forget(upload_id)
        await self._objects.delete_upload(upload_id)

    async def refuse_puts(self, upload_id: str) -> None:
        """Refuses PUTs to the URLs of a deleted upload. Raises UploadBusy."""
        self._require_no_check(upload_id)
        await self._objects.refuse_puts(upload_id)

    def _require_no_check(self, upload_id: str) -> None:
        if upload_id in self._checks:
            raise UploadBusy(f"upload {upload_id} is being checked")

    async def remove_abandoned(self) -> int:
        before_ms, count, last_id = self._now_ms() - ABANDONED_AFTER_MS, 0, ""
        while True:
            async with self._database.read() as tx:
                upload_ids = await uploads.find_abandoned(tx, before_ms, last_id, _BATCH_ROWS)
            for upload_id in upload_ids:
                if upload_id in self._checks:
                    continue
                removal = functools.partial(self.remove, upload_id)
                if await self.job.attempt(removal, upload_id=upload_id) is None:
                    count += 1
            if len(upload_ids) < _BATCH_ROWS:
                return count
            last_id = upload_ids[-1]

    async def run_cleanup(self) -> None:
        async def remove() -> None:
            _log_removed(await self.remove_abandoned())

        async def drop_folders() -> None:
            await self._objects.drop_empty_folders(ABANDONED_AFTER_MS / 1000)

        async with asyncio.TaskGroup() as group:
            for step, interval_s in (
                (remove, CLEANUP_INTERVAL_S),
                (self.sweep, SWEEP_INTERVAL_S),
                (drop_folders, CLEANUP_INTERVAL_S),
            ):
                group.create_task(self.job.repeat_forever(step, every_s=interval_s))

    async def sweep(self) -> None:
        """Removes parts of completed and deleted uploads."""

        async def find_incomplete(upload_ids: Collection[str]) -> set[str]:
            async with self._database.read() as tx:
                return await uploads.incomplete_among(tx, upload_ids)

        _log_removed(await self._objects.sweep(find_incomplete))

    async def stop(self) -> None:
        await self._checks.stop()
        await asyncio.to_thread(self._threads.close)


def _is_abandoned(row: Record) -> bool:
    return bool(row.kind == uploads.ABANDONED)


def _log_removed(count: int) -> None:
    if count:
        _log.info("abandoned uploads removed", count=count)


def picture_url(objects: Objects, name: str) -> str:
    """Returns the signed URL of a picture. `name` is its upload id, followed by `.png` or `.jpeg`."""
    upload_id, _, kind = name.partition(".")
    key = object_key("avatar", upload_id, name)
    return objects.presign_get(key, None, content_type=f"image/{kind}")


@dataclass(frozen=True, slots=True)
class UploadOperations:
    uploading: UploadLifecycle

    async def complete(
        self, request: pb.CompleteUploadRequest, caller: Caller
    ) -> pb.CompleteUploadResponse:
        async def find(tx: Transaction) -> Record:
            row = await uploads.find(tx, request.upload_id)
            if (
                row is None
                or _is_abandoned(row)
                or not authorization.scope_covers(scope_of(caller), row.game_id, row.group_id)
            ):
                raise ServiceError("UPLOAD_NOT_FOUND")
            caller.subject = Subject(row.group_id, row.game_id)
            return row

        return await self.uploading.complete(caller, request, pb.CompleteUploadResponse, find)
