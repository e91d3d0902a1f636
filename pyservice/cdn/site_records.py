"""Sites of deployed versions, read from the database and cached.

The current version of a namespace is cached for 0.5 s, or until it changes. Files and routes of a
version never change, so they are cached for longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from pyservice.cdn.site_routes import Route, SiteRoutes
from pyservice.cdn.sites import Site, SiteFile
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.control.games import site_topic
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.storage import namespaces, uploads
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.objects import file_key
from pyservice.watch import Topics

_CACHE_TTL_S: Final = 0.5
_NAMES_MAX: Final = 10_000
_FILES_MAX: Final = 200_000
_ROUTES_MAX: Final = 2_000

Files = dict[str, SiteFile]


@dataclass(frozen=True, slots=True)
class _CachedSite:
    """Cached site of a namespace. The site may have changed if the watch index of `topic` is no
    longer `index`.
    """

    site: Site | None
    found_at_s: float
    topic: str | None
    index: str


class SiteRecords:
    def __init__(
        self, database: Database, topics: Topics, clock_s: Callable[[], float] = monotonic
    ) -> None:
        self._database = database
        self._topics = topics
        self._now_s = clock_s
        self._sites: OrderedDict[tuple[str, str], _CachedSite] = OrderedDict()
        self._lookups: SingleFlight[tuple[str, str], Site | None] = SingleFlight(is_kept=True)
        self._files: OrderedDict[tuple[str, int], Files] = OrderedDict()
        self._files_count = 0
        self._routes: OrderedDict[str, SiteRoutes] = OrderedDict()

    async def find(self, game: str, namespace: str) -> Site | None:
        """Returns the current site of a namespace, at most 1 s old, or None for an unknown
        namespace.

        Raises CONTROL_PLANE_UNAVAILABLE if the database is unavailable.
        """
        name = (game, namespace)
        cached = self._sites.get(name)
        if cached is not None and self._is_good(cached):
            return cached.site
        return await self._lookups.run(name, lambda: self._look_up(name))

    def _is_good(self, cached: _CachedSite) -> bool:
        if self._now_s() - cached.found_at_s > _CACHE_TTL_S:
            return False
        return cached.topic is None or self._topics.index_of(cached.topic) == cached.index

    async def _look_up(self, name: tuple[str, str]) -> Site | None:
        found_at_s = self._now_s()
        sequence = self._topics.sequence
        async with self._database.read() as tx:
            row = await uploads.namespace_site(tx, *name)
            site = None
            if row is not None:
                is_guarded = row.cdn_auth_type == "basic"
                users = await uploads.site_users(tx, row.namespace_id) if is_guarded else None
                site_files = await self._files_of(tx, row)
                routes = await self._routes_of(tx, row)
                namespace_id = parse_uuid(row.namespace_id) or b""
                site = Site(site_files, routes, users, namespace_id, row.group_id)
        topic = None if row is None else site_topic(row.namespace_id)
        index = self._topics.index_of(topic) if topic else ""
        if topic and (self._topics.parse(index) or 0) > sequence:
            return site
        self._sites[name] = _CachedSite(site, found_at_s, topic, index)
        self._sites.move_to_end(name)
        if len(self._sites) > _NAMES_MAX:
            self._sites.popitem(last=False)
        return site

    async def _files_of(self, tx: Transaction, row: Record) -> Files:
        if row.site_id is None:
            return {}
        # An upload is new to this site when it is deployed, even if the upload itself is old.
        deployed = await namespaces.history(tx, row.namespace_id, None, 1)
        since_ms = deployed[0].deploy_ms if deployed else 0
        key = (row.site_id, since_ms)
        files = self._files.get(key)
        if files is None:
            files = {
                file.path: SiteFile(
                    file_key(file.upload_id, file.path),
                    file.content_length,
                    max(file.complete_ms, since_ms) / 1000,
                    file.content_type,
                )
                for file in await uploads.site_files(tx, row.site_id)
            }
            self._files[key] = files
            self._files_count += len(files)
            while self._files_count > _FILES_MAX and len(self._files) > 1:
                self._files_count -= len(self._files.popitem(last=False)[1])
        self._files.move_to_end(key)
        return files

    async def _routes_of(self, tx: Transaction, row: Record) -> SiteRoutes:
        routes = self._routes.get(row.version_id)
        if routes is None:
            routes = _routes(await uploads.version_config(tx, row.version_id))
            self._routes[row.version_id] = routes
            if len(self._routes) > _ROUTES_MAX:
                self._routes.popitem(last=False)
        self._routes.move_to_end(row.version_id)
        return routes


def _routes(config: bytes) -> SiteRoutes:
    entries = versions_pb2.CloudConfig.FromString(config).cdn.routes.entries
    return SiteRoutes(
        [
            Route(
                route.glob,
                route.priority,
                [
                    (header.name, header.value)
                    for middleware in route.middlewares.entries
                    for header in middleware.kind.custom_headers.headers.entries
                ],
            )
            for route in entries
        ]
    )
