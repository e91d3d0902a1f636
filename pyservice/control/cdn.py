"""Sites: prepare and list (contract games.cdn.createGameCdnSite; decisions 8.8). `cdn` serves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyservice.calls import Caller
from pyservice.control import access
from pyservice.control.file_names import content_type_problems, path_problems
from pyservice.control.names import display_name_problems, refuse
from pyservice.control.timestamps import rfc3339
from pyservice.control.uploading import Preparation, Uploading
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import cdn_pb2 as pb
from pyservice.pb.hosting.v1 import uploads_pb2
from pyservice.storage import sites
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.uploads import NewFile

SITE_MAX_BYTES: Final = 1 << 30
FILES_MAX: Final = 10_000
_PROBLEMS_MAX: Final = 1_000


class Sites:
    """The operations on sites."""

    def __init__(self, database: Database, ids: RecordIds, uploading: Uploading) -> None:
        self._database = database
        self._ids = ids
        self._uploading = uploading

    async def create(
        self, request: pb.CreateGameCdnSiteRequest, caller: Caller
    ) -> pb.CreateGameCdnSiteResponse:
        """Contract games.cdn.createGameCdnSite. Raises GAME_NOT_FOUND, VALIDATION_FAILED, UPLOAD_TOO_LARGE."""
        name = request.display_name

        async def find(tx: Transaction) -> Record:
            return await access.game(tx, caller, request.game_id)

        async def make(
            tx: Transaction, game_id: str, upload_id: str, now: int
        ) -> pb.CreateGameCdnSiteResponse:
            site_id = self._ids.new()
            await sites.add(tx, site_id, game_id, upload_id, name, now)
            return pb.CreateGameCdnSiteResponse(site_id=site_id, upload_id=upload_id)

        preparation = Preparation(
            kind="site",
            display_name=name,
            find_game=find,
            files=_files(request),
            judge=lambda: _judge(request),
            make=make,
            answer_type=pb.CreateGameCdnSiteResponse,
            address=_address,
        )
        return await self._uploading.prepare(caller, request, preparation)

    async def list_(self, request: pb.ListSitesRequest, caller: Caller) -> pb.ListSitesResponse:
        """Decisions 8.8. Raises GAME_NOT_FOUND."""
        async with self._database.read() as tx:
            game = await access.game(tx, caller, request.game_id)
            rows = await sites.of_game(tx, game.game_id)
        return pb.ListSitesResponse(sites=[_site(row) for row in rows])


def _judge(request: pb.CreateGameCdnSiteRequest) -> None:
    problems = list(_problems(request))
    refuse(problems[:_PROBLEMS_MAX])
    if sum(file.content_length for file in request.files) > SITE_MAX_BYTES:
        raise ServiceError("UPLOAD_TOO_LARGE", "The files of a site have at most 1 GiB together.")


def _files(request: pb.CreateGameCdnSiteRequest) -> list[NewFile]:
    return [
        NewFile(
            file.path,
            file.content_length,
            file.content_type if file.HasField("content_type") else None,
        )
        for file in request.files
    ]


def _address(
    answer: pb.CreateGameCdnSiteResponse, requests: list[uploads_pb2.PresignedRequest]
) -> None:
    answer.presigned_requests.extend(requests)


def _problems(request: pb.CreateGameCdnSiteRequest) -> Iterator[FieldProblem]:
    yield from display_name_problems(request.display_name, "display_name")
    seen: set[str] = set()
    for index, file in enumerate(request.files):
        where = ("files", str(index))
        yield from path_problems(file.path, *where, "path")
        if file.path in seen:
            yield field_problem([*where, "path"], "not-unique")
        seen.add(file.path)
        if file.HasField("content_type"):
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
