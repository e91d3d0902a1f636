"""Database rows for the list benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Table

from bench.service import Service
from pyservice.control.configuration_encoding import encode
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.storage import tables

FIRST_MS: Final = 1_700_000_000_000
Rows = Iterator[Mapping[str, Any]]
Tables = Sequence[tuple[Table, Rows]]


@dataclass(frozen=True, slots=True)
class ListedGame:
    service: Service
    game_id: str
    namespace_id: str
    version_id: str

    @classmethod
    def make(cls, service: Service, name: str) -> ListedGame:
        game_id = service.game(name)
        version_id = service.call("list_versions", {"game_id": game_id})["versions"][0][
            "version_id"
        ]
        return cls(service, game_id, service.namespace_id(game_id), version_id)

    @property
    def fields(self) -> Mapping[str, str]:
        return {
            "game_id": self.game_id,
            "namespace_id": self.namespace_id,
            "environment_id": self.namespace_id,
            "group_id": self.service.group_id,
        }


@dataclass(frozen=True, slots=True)
class Paged:
    """List with pages. `anchor` is the time parameter of the first row on a page."""

    slug: str
    member: str
    anchor: str
    page: int
    table: Table
    row: Callable[[ListedGame, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Whole:
    slug: str
    member: str
    rows: Callable[[ListedGame, int], Tables]
    is_of_group: bool = False
    """True for lists of a group, false for lists of a game."""


def _history_row(game: ListedGame, number: int) -> Mapping[str, Any]:
    return {
        "entry_id": game.service.ids.new(),
        "namespace_id": game.namespace_id,
        "version_id": game.version_id,
        "deploy_ms": FIRST_MS + number,
    }


def _lobby_row(game: ListedGame, number: int) -> Mapping[str, Any]:
    columns = {column.name for column in tables.lobbies.columns}
    row = {
        "lobby_id": game.service.ids.new(),
        "namespace_id": game.namespace_id,
        "version_id": game.version_id,
        "game_mode": "hall",
        "region_id": "local",
        "create_ms": FIRST_MS + number,
        "ready_ms": FIRST_MS + number,
        "stop_ms": FIRST_MS * 2,
        "stop_reason": "exited",
        "exit_code": 0,
        "publicity": "public",
        "is_closed": False,
        "is_stopping": False,
        "peak_players": 1,
        "player_ms": 1_000,
        "is_dynamic": False,
        "max_players": 4,
    }
    return {name: value for name, value in row.items() if name in columns}


def _version_rows(game: ListedGame, count: int) -> Tables:
    empty = encode(versions_pb2.CloudConfig())
    return [
        (
            tables.versions,
            (
                {
                    "version_id": game.service.ids.new(),
                    "game_id": game.game_id,
                    "display_name": f"1.0.{number}",
                    "create_ms": FIRST_MS + number,
                    "config": empty,
                    "config_json": b"{}",
                }
                for number in range(count)
            ),
        )
    ]


def _namespace_rows(game: ListedGame, count: int) -> Tables:
    return [
        (
            tables.namespaces,
            (
                {
                    "namespace_id": game.service.ids.new(),
                    "game_id": game.game_id,
                    "name_id": f"n{number}",
                    "display_name": "Bench",
                    "create_ms": FIRST_MS + number,
                    "version_id": game.version_id,
                    "lobby_count_max": 512,
                    "max_players": 256,
                    "enable_domain_public_auth": True,
                    "cdn_auth_type": "none",
                    "revision": 1,
                }
                for number in range(count)
            ),
        )
    ]


def _token_rows(game: ListedGame, count: int) -> Tables:
    return [
        (
            tables.namespace_tokens,
            (
                {
                    "token_id": game.service.ids.new(),
                    "namespace_id": game.namespace_id,
                    "kind": "pub",
                    "create_ms": FIRST_MS + number,
                }
                for number in range(count)
            ),
        )
    ]


def _upload_rows(game: ListedGame, kind: str, ids: Sequence[str]) -> tuple[Table, Rows]:
    return tables.uploads, (
        {
            "upload_id": upload_id,
            "game_id": game.game_id,
            "kind": kind,
            "display_name": "Bench",
            "content_length": 1_000,
            "create_ms": FIRST_MS + number,
            "complete_ms": FIRST_MS + number,
        }
        for number, upload_id in enumerate(ids)
    )


def _build_rows(game: ListedGame, count: int) -> Tables:
    uploads = [game.service.ids.new() for _ in range(count)]
    rows = (
        {
            "build_id": game.service.ids.new(),
            "game_id": game.game_id,
            "upload_id": upload_id,
            "display_name": "Bench",
            "kind": "archive",
            "compression": "none",
            "create_ms": FIRST_MS + number,
        }
        for number, upload_id in enumerate(uploads)
    )
    return [_upload_rows(game, "build", uploads), (tables.builds, rows)]


def _site_rows(game: ListedGame, count: int) -> Tables:
    uploads = [game.service.ids.new() for _ in range(count)]
    rows = (
        {
            "site_id": game.service.ids.new(),
            "game_id": game.game_id,
            "upload_id": upload_id,
            "display_name": "Bench",
            "create_ms": FIRST_MS + number,
        }
        for number, upload_id in enumerate(uploads)
    )
    return [_upload_rows(game, "site", uploads), (tables.sites, rows)]


def _avatar_rows(game: ListedGame, count: int) -> Tables:
    uploads = [game.service.ids.new() for _ in range(count)]
    rows = (
        {
            "upload_id": upload_id,
            "path": "a.png",
            "content_length": 1_000,
            "content_type": "image/png",
        }
        for upload_id in uploads
    )
    return [_upload_rows(game, "avatar", uploads), (tables.upload_files, rows)]


def _group_token_rows(game: ListedGame, count: int) -> Tables:
    """Returns tokens of the group, and as many tokens of a member for all groups."""
    identity_id = game.service.identity_id()
    rows = (
        {
            "token_id": game.service.ids.new(),
            "sha256": sha256(str(number).encode()).digest(),
            "identity_id": identity_id,
            "group_id": game.service.group_id if number % 2 else None,
            "create_ms": FIRST_MS + number,
        }
        for number in range(count)
    )
    return [(tables.cloud_tokens, rows)]


def _game_rows(game: ListedGame, count: int) -> Tables:
    rows = (
        {
            "game_id": game.service.ids.new(),
            "name_id": f"rest-{number}",
            "display_name": "At rest",
            "group_id": game.service.group_id,
            "create_ms": FIRST_MS + number,
        }
        for number in range(count)
    )
    return [(tables.games, rows)]


PAGED: Final = (
    Paged("version_history", "versions", "anchor", 64, tables.version_history, _history_row),
    Paged("list_lobby_records", "lobbies", "before_create_ts", 64, tables.lobbies, _lobby_row),
)
WHOLE_LISTS: Final = (
    Whole("list_versions", "versions", _version_rows),
    Whole("list_namespaces", "namespaces", _namespace_rows),
    Whole("list_namespace_tokens", "tokens", _token_rows),
    Whole("list_builds", "builds", _build_rows),
    Whole("list_game_builds", "builds", _build_rows),
    Whole("list_sites", "sites", _site_rows),
    Whole("list_avatars", "custom_avatars", _avatar_rows),
    Whole("list_group_tokens", "tokens", _group_token_rows, is_of_group=True),
    Whole("get_games", "games", _game_rows, is_of_group=True),
)
