"""Namespace configurations for tests. Each call returns a new message."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from pyservice.dataplane.held_versions import HeldVersions
from pyservice.dataplane.namespace_index import prepare_namespace
from pyservice.dataplane.resolved_namespace import ResolvedNamespace
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb

NAMESPACE_ID = "0192f000-0000-7000-8000-000000000001"
OTHER_NAMESPACE_ID = "0192f000-0000-7000-8000-000000000002"
GAME_ID = "0192f000-0000-7000-8000-0000000000a1"
VERSION_ID = "0192f000-0000-7000-8000-0000000000b1"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "namespace_id": NAMESPACE_ID,
        "revision": 1,
        "game": {"game_id": GAME_ID, "name_id": "arena", "display_name": "Arena"},
        "name_id": "prod",
        "display_name": "Production",
        "current_version_id": VERSION_ID,
        "versions": [version(duel={})],
        "matchmaker": {"lobby_count_max": 512, "max_players": 256},
        **changes,
    }


def version(
    version_id: str = VERSION_ID, level: dict[str, Any] | None = None, **modes: Any
) -> dict[str, Any]:
    return {
        "version_id": version_id,
        "display_name": "0.0.1",
        "matchmaker": {**(level or {}), "game_modes": modes},
    }


def configuration(**changes: Any) -> pb.NamespaceConfiguration:
    return json_format.ParseDict(document(**changes), pb.NamespaceConfiguration())


def resolved_namespace(configuration: pb.NamespaceConfiguration) -> ResolvedNamespace:
    return prepare_namespace(configuration, HeldVersions()).resolved
