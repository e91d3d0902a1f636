"""The way of every upload (decisions 8.8): prepared, PUT by the client, checked and completed, or left behind.

Owns what is the same for all kinds: URLs, completion, and the end of what was never completed. What may be asked for is
each noun's; what may be in a file is `contents`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar
from uuid import uuid4

from google.protobuf.message import Message

from pyservice.calls import Caller
from pyservice.control.changes import Changes, now_ms
from pyservice.control.contents import Found, check_contents
from pyservice.control.games import game_topic, group_topic
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.v1 import uploads_pb2 as pb
from pyservice.storage import games, uploads
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.objects import (
    MULTIPART_FROM_BYTES,
    PART_BYTES,
    PART_EXPIRES_S,
    PUT_EXPIRES_S,
    Objects,
    Prepared,
    file_key,
    plan_parts,
)
from pyservice.storage.uploads import NewFile
from pyservice.watch import Topics

Answer = TypeVar("Answer", bound=Message)
Find = Callable[[Transaction], Awaitable[Record]]

PICTURES: Final = frozenset({"avatar", "banner", "logo"})
_SHOWN_ON_GAME: Final = frozenset({"banner", "logo"})
LEFT_AFTER_MS: Final = 24 * 3_600_000
TIDY_EVERY_S: Final = 3_600.0
_PORTION: Final = 100
_REMEMBERED_MAX: Final = 1024

_log = get_logger("control")


def object_key(kind: str, upload_id: str, path: str) -> str:
    """Where a file's bytes are. A picture has one place, whatever its name: addresses need nothing else."""
    return file_key(upload_id, "picture" if kind in PICTURES else path)


def part_bytes(content_length: int, is_multipart: bool) -> int | None:
    """Size of the parts of a file, None when it comes whole."""
    return PART_BYTES if is_multipart and content_length >= MULTIPART_FROM_BYTES else None


class Uploading:
    """Prepares, completes and removes uploads."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        topics: Topics,
        objects: Objects,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._database = database
        self._changes = changes
        self._topics = topics
        self._objects = objects
        self._now_ms = clock_ms
        self._checks: dict[str, asyncio.Task[Found]] = {}

    # Prepare

    async def prepare(
        self,
        caller: Caller,
        request: Any,
        kind: str,
        display_name: str,
        find_game: Find,
        judge: Callable[[], Sequence[NewFile]],
        make: Callable[[Transaction, str, str, int, list[pb.PresignedRequest]], Awaitable[Answer]],
        answer_type: type[Answer],
    ) -> Answer:
        """Adds an upload of the files that `judge` lets through, and what `make` adds to it; the answer is `make`'s.

        `make` gets the game's id, the upload's, the time, and where to PUT the files.
        """
        async with self._database.read() as tx:
            await find_game(tx)
        files = judge()
        upload_id = str(uuid4())
        requests = [one for file in files for one in await self._requests(kind, upload_id, file)]

        async def change(tx: Transaction) -> Answer:
            game = await find_game(tx)
            now = self._now_ms()
            await uploads.add(tx, upload_id, game.game_id, kind, display_name, files, now)
            return await make(tx, game.game_id, upload_id, now, requests)

        return await self._changes.make(caller, request, answer_type, change)

    async def _requests(
        self, kind: str, upload_id: str, file: NewFile
    ) -> list[pb.PresignedRequest]:
        key = object_key(kind, upload_id, file.path)
        parts = plan_parts(file.content_length, file.part_bytes is not None)
        expires_s = PART_EXPIRES_S if len(parts) > 1 else PUT_EXPIRES_S
        return [
            pb.PresignedRequest(
                byte_offset=part.byte_offset,
                content_length=part.content_length,
                path=file.path,
                url=await self._objects.presign_put(
                    key, part.content_length, expires_s, part.byte_offset
                ),
            )
            for part in parts
        ]

    # Complete

    async def complete(
        self, caller: Caller, request: Any, answer_type: type[Answer], find: Find
    ) -> Answer:
        """Checks what was uploaded and completes it. `find` finds the upload and its game's group.

        Raises what `find` raises, UPLOAD_INCOMPLETE, UPLOAD_ALREADY_COMPLETE, VALIDATION_FAILED.
        """
        async with self._database.read() as tx:
            row = await find(tx)
        found = await self._checked(row) if row.complete_ms is None else None

        async def change(tx: Transaction) -> Answer:
            # A repetition under its key does not come here.
            now = self._now_ms()
            if found is None or not await uploads.complete(tx, row.upload_id, row.kind, now):
                await find(tx)
                raise ServiceError("UPLOAD_ALREADY_COMPLETE")
            for path, digest in found.digests.items():
                await uploads.set_digest(tx, row.upload_id, path, digest)
            if row.kind in _SHOWN_ON_GAME and found.picture is not None:
                await games.set_picture(tx, row.game_id, row.kind, row.upload_id, found.picture)
            return answer_type()

        answer = await self._changes.make(caller, request, answer_type, change)
        self._checks.pop(row.upload_id, None)
        if row.kind in _SHOWN_ON_GAME:
            self._topics.bump(game_topic(row.game_id), group_topic(row.group_id))
        return answer

    async def _checked(self, row: Record) -> Found:
        """One check of an upload at a time. It goes on when nobody waits any more, and is remembered for a repetition:
        the largest builds take longer than a request may.
        """
        task = self._checks.get(row.upload_id)
        if task is None:
            if len(self._checks) >= _REMEMBERED_MAX:
                self._checks = {id_: one for id_, one in self._checks.items() if not one.done()}
            task = asyncio.create_task(self._check(row), name="check of an upload")
            self._checks[row.upload_id] = task
            task.add_done_callback(lambda done: self._forget_failed(row.upload_id, done))
        return await asyncio.shield(task)

    def _forget_failed(self, upload_id: str, task: asyncio.Task[Found]) -> None:
        if (task.cancelled() or task.exception() is not None) and (
            self._checks.get(upload_id) is task
        ):
            del self._checks[upload_id]

    async def _check(self, row: Record) -> Found:
        async with self._database.read() as tx:
            files = await uploads.files_of(tx, row.upload_id)
            build = await uploads.build_form(tx, row.upload_id)
        keys = {file.path: object_key(row.kind, row.upload_id, file.path) for file in files}
        prepared = [
            Prepared(keys[file.path], plan_parts(file.content_length, file.part_bytes is not None))
            for file in files
        ]
        await self._objects.complete(prepared)
        try:
            return await check_contents(self._objects, row.kind, build, files, keys)
        except ServiceError as error:
            if error.code == "VALIDATION_FAILED":
                # Nothing of it is kept; its URLs take another try while they last.
                await self._objects.delete_prefix(row.upload_id)
            raise

    # What is left behind

    async def remove(self, upload_id: str) -> None:
        """Removes the objects and then the records of an upload that was given up or never completed."""
        async with self._database.write() as tx:
            if not await uploads.give_up_incomplete(tx, upload_id):
                return
        await self._objects.delete_prefix(upload_id)
        async with self._database.write() as tx:
            await uploads.remove(tx, upload_id)

    async def tidy(self) -> int:
        """Removes what was left behind for a day; how many uploads."""
        before_ms, count, passed = self._now_ms() - LEFT_AFTER_MS, 0, ""
        while True:
            async with self._database.read() as tx:
                left = await uploads.left_behind(tx, before_ms, passed, _PORTION)
            for upload_id in left:
                check = self._checks.get(upload_id)
                if check is None or check.done():
                    self._checks.pop(upload_id, None)
                    await self.remove(upload_id)
                    count += 1
            if len(left) < _PORTION:
                return count
            passed = left[-1]

    async def keep_tidy(self) -> None:
        """Tidies up for ever."""
        while True:
            try:
                count = await self.tidy()
                count += await self._objects.sweep(LEFT_AFTER_MS / 1000)
                if count:
                    _log.info("uploads left behind removed", count=count)
            except ServiceError as error:
                _log.warning("uploads left behind not removed", error=str(error))
            await asyncio.sleep(TIDY_EVERY_S)

    async def stop(self) -> None:
        """Ends the checks that are running; whoever completes again begins anew."""
        tasks = list(self._checks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
