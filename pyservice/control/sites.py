from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.deletions import Deletions, require_unused
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.name_rules import display_name_problems, require_valid
from pyservice.control.upload_validation import content_type_problems, path_problems
from pyservice.control.uploads import UploadLifecycle, UploadPlan
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.pb.hosting.v1 import cdn_pb2 as pb
from pyservice.storage import deletions as stored_deletions
from pyservice.storage import games, uploads
from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.storage.uploads import NewFile
from pyservice.timestamps import rfc3339

SITE_MAX_BYTES: Final = 1 << 30
FILES_MAX: Final = 10_000
_PROBLEMS_MAX: Final = 1_000
_READ_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class SiteOperations:
    records: RecordContext
    uploading: UploadLifecycle
    deletions: Deletions

    async def create(
        self, request: pb.CreateGameCdnSiteRequest, caller: Caller
    ) -> pb.CreateGameCdnSiteResponse:
        name = request.display_name
        files, problems = await _read_files(request)

        async def find(tx: Transaction) -> Record:
            return await authorization.find_game(tx, caller, request.game_id)

        async def add_records(
            tx: Transaction, game_id: str, upload_id: str, now: int
        ) -> pb.CreateGameCdnSiteResponse:
            site_id = self.records.ids.new()
            await uploads.add_site(tx, site_id, game_id, upload_id, name, now)
            return pb.CreateGameCdnSiteResponse(site_id=site_id, upload_id=upload_id)

        plan = UploadPlan(
            kind="site",
            display_name=name,
            find_game=find,
            files=files,
            check_request=lambda: _check_request(files, problems),
            add_records=add_records,
            response_type=pb.CreateGameCdnSiteResponse,
            set_urls=lambda answer, requests: answer.presigned_requests.extend(requests),
        )
        response = await self.uploading.prepare(caller, request, plan)
        # Yields to the event loop before the large response is written.
        await asyncio.sleep(0)
        return response

    async def list_(self, request: pb.ListSitesRequest, caller: Caller) -> pb.ListSitesResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            page = await uploads.sites_of_game(tx, game.game_id, PageBounds.of(request))
        return pb.ListSitesResponse(sites=map(_site, page.rows), cursor=page.cursor)

    async def delete(self, request: pb.DeleteSiteRequest, caller: Caller) -> pb.DeleteSiteResponse:
        deleted: list[str] = []

        async def change(tx: Transaction) -> None:
            game = await authorization.find_game(tx, caller, request.game_id)
            await games.lock(tx, game.game_id)
            upload_id = await uploads.upload_of_site(tx, game.game_id, request.site_id)
            if upload_id is None:
                raise ServiceError("SITE_NOT_FOUND")
            users = await stored_deletions.versions_of_site(tx, game.game_id, request.site_id)
            require_unused("A version names this site. Delete the versions first.", version=users)
            await uploads.remove_site(tx, request.site_id)
            await uploads.abandon(tx, upload_id)
            tx.after_commit(self.deletions.start_removal)
            deleted[:] = [upload_id]

        response = await self.records.changes.apply(caller, request, pb.DeleteSiteResponse, change)
        await self.deletions.refuse_puts(deleted)
        return response


def _check_request(files: Sequence[NewFile], problems: list[FieldProblem]) -> None:
    require_valid(problems)
    if sum(file.content_length for file in files) > SITE_MAX_BYTES:
        raise ServiceError("UPLOAD_TOO_LARGE", "The files of a site have at most 1 GiB together.")


async def _read_files(
    request: pb.CreateGameCdnSiteRequest,
) -> tuple[list[NewFile], list[FieldProblem]]:
    files: list[NewFile] = []
    problems = list(display_name_problems(request.display_name, "display_name"))
    paths: set[str] = set()
    for index, file in enumerate(request.files):
        if index and not index % _READ_AT_ONCE:
            await asyncio.sleep(0)
        content_type = file.content_type if file.HasField("content_type") else None
        digest = bytes.fromhex(file.sha256) if file.HasField("sha256") else None
        new = NewFile(file.path, file.content_length, content_type, digest)
        files.append(new)
        if len(problems) < _PROBLEMS_MAX:
            problems += _problems(index, new, paths)
            paths.add(new.path)
    return files, problems


def _problems(index: int, file: NewFile, paths: Collection[str]) -> Iterator[FieldProblem]:
    where = ("files", str(index))
    yield from path_problems(file.path, *where, "path")
    if file.path in paths:
        yield field_problem([*where, "path"], "not-unique")
    if file.content_type is not None:
        yield from content_type_problems(file.content_type, *where, "content_type")


def _site(row: Record) -> pb.Site:
    return pb.Site(
        site_id=row.site_id,
        upload_id=row.upload_id,
        display_name=row.display_name,
        create_ts=rfc3339(row.create_ms),
        content_length=row.content_length,
        complete=row.complete_ms is not None,
    )
