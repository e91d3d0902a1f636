"""Sites of deployed versions, read from the database and cached.

The current version of a namespace is cached for 0.5 s. Files and routes of a version never change,
so they are cached for longer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

from pyservice.cdn.byte_cache import ByteCache
from pyservice.cdn.site_routes import Route, SiteRoutes
from pyservice.cdn.sites import Site, SiteFile
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.storage import namespaces, uploads
from pyservice.storage.database import Record, RecordReader, Transaction
from pyservice.storage.objects import file_key

CACHE_MAX_BYTES: Final = 64 << 20
_CACHE_TTL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _SiteFiles:
    by_path: dict[str, SiteFile]
    size_bytes: int


class _FilesKey(NamedTuple):
    """A site, and the time since which a namespace shows it."""

    site_id: str
    since_ms: int


class _RoutesKey(NamedTuple):
    version_id: str


class _NameKey(NamedTuple):
    game: str
    namespace: str


@dataclass(frozen=True, slots=True)
class _NamespaceSite:
    """Site of a namespace, without the files and routes, which namespaces share."""

    files: _FilesKey | None
    routes: _RoutesKey
    users: dict[str, bytes] | None
    namespace_id: bytes
    group_id: str


@dataclass(frozen=True, slots=True)
class _CachedName:
    site: _NamespaceSite | None
    found_at_s: float
    size_bytes: int


_Key = _NameKey | _FilesKey | _RoutesKey
_Value = _CachedName | _SiteFiles | SiteRoutes


def _size_of(key: _Key, value: _Value) -> int:
    return sum(map(sys.getsizeof, key)) + value.size_bytes


class SiteRecords:
    """Cached sites. One limit in bytes holds for everything in the cache."""

    def __init__(
        self,
        database: RecordReader,
        clock_s: Callable[[], float] = monotonic,
        cache_max_bytes: int = CACHE_MAX_BYTES,
    ) -> None:
        self._database = database
        self._now_s = clock_s
        self._cache: ByteCache[_Key, _Value] = ByteCache(cache_max_bytes, _size_of)
        self._lookups: SingleFlight[_NameKey, Site | None] = SingleFlight(is_kept=True)

    @property
    def cache_bytes(self) -> int:
        return self._cache.size_bytes

    async def find(self, game: str, namespace: str) -> Site | None:
        """Returns the current site of a namespace, at most 1 s old, or None for an unknown
        namespace.

        Raises CONTROL_PLANE_UNAVAILABLE if the database is unavailable.
        """
        name = _NameKey(game, namespace)
        cached = self._cache.get(name)
        if isinstance(cached, _CachedName) and self._now_s() - cached.found_at_s <= _CACHE_TTL_S:
            if cached.site is None:
                return None
            files = self._cached_files(cached.site.files)
            routes = self._cached_routes(cached.site.routes)
            if files is not None and routes is not None:
                return _site(cached.site, files, routes)
        return await self._lookups.run(name, lambda: self._look_up(name))

    async def _look_up(self, name: _NameKey) -> Site | None:
        found_at_s = self._now_s()
        async with self._database.read() as tx:
            row = await uploads.namespace_site(tx, *name)
            found, site = None, None
            if row is not None:
                found = await _namespace_site(tx, row)
                files = await self._files_of(tx, found.files)
                routes = await self._routes_of(tx, found.routes)
                site = _site(found, files, routes)
        self._cache.put(name, _CachedName(found, found_at_s, _name_bytes(found)))
        return site

    def _cached_files(self, key: _FilesKey | None) -> _SiteFiles | None:
        if key is None:
            return _SiteFiles({}, 0)
        files = self._cache.get(key)
        return files if isinstance(files, _SiteFiles) else None

    def _cached_routes(self, key: _RoutesKey) -> SiteRoutes | None:
        routes = self._cache.get(key)
        return routes if isinstance(routes, SiteRoutes) else None

    async def _files_of(self, tx: Transaction, key: _FilesKey | None) -> _SiteFiles:
        files = self._cached_files(key)
        if files is None:
            assert key is not None
            rows = await uploads.site_files(tx, key.site_id)
            # A site has up to 10,000 files. On the event loop they would delay other requests.
            files = await asyncio.to_thread(_site_files, rows, key.since_ms)
            self._cache.put(key, files)
        return files

    async def _routes_of(self, tx: Transaction, key: _RoutesKey) -> SiteRoutes:
        routes = self._cached_routes(key)
        if routes is None:
            routes = _routes(await uploads.version_config(tx, key.version_id))
            self._cache.put(key, routes)
        return routes


async def _namespace_site(tx: Transaction, row: Record) -> _NamespaceSite:
    files = None
    if row.site_id is not None:
        # An upload is new to this site when it is deployed, even if the upload itself is old.
        deployed = await namespaces.newest_history(tx, row.namespace_id, 1)
        files = _FilesKey(row.site_id, deployed[0].deploy_ms if deployed else 0)
    is_guarded = row.cdn_auth_type == "basic"
    users = await uploads.site_users(tx, row.namespace_id) if is_guarded else None
    namespace_id = parse_uuid(row.namespace_id) or b""
    return _NamespaceSite(files, _RoutesKey(row.version_id), users, namespace_id, row.group_id)


def _site(found: _NamespaceSite, files: _SiteFiles, routes: SiteRoutes) -> Site:
    return Site(files.by_path, routes, found.users, found.namespace_id, found.group_id)


def _name_bytes(found: _NamespaceSite | None) -> int:
    users = (found.users if found is not None else None) or {}
    return 1_000 + sum(
        sys.getsizeof(user) + sys.getsizeof(password) for user, password in users.items()
    )


def _site_files(rows: Sequence[Record], since_ms: int) -> _SiteFiles:
    by_path = {
        row.path: SiteFile(
            file_key(row.upload_id, row.path),
            row.content_length,
            max(row.complete_ms, since_ms) / 1000,
            row.content_type,
        )
        for row in rows
    }
    size_bytes = sys.getsizeof(by_path) + sum(map(_file_bytes, by_path, by_path.values()))
    return _SiteFiles(by_path, size_bytes)


def _file_bytes(path: str, file: SiteFile) -> int:
    fields = (file.key, file.length, file.modified_s, file.content_type)
    return sys.getsizeof(path) + sys.getsizeof(file) + sum(map(sys.getsizeof, fields))


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
