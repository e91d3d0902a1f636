"""Random calls of operations of the control plane, from usual to refused, for HTTP and gRPC.

The calls have names of `tests/support/twin.py` in place of ids and tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.support.full_service import ARENA_MODES
from tests.support.generated_messages import METHOD_OF, GeneratedCall
from tests.support.generated_requests import UNKNOWN_ID

# The audit log and the use of quotas follow a change with a delay.
READS: Final = (
    *("get_game", "get_games", "validate_game", "get_group", "get_billing"),
    *("list_namespaces", "get_namespace", "validate_namespace", "version_history"),
    *("validate_mm_config", "get_version", "list_versions", "validate_version"),
    *("list_namespace_tokens", "list_group_tokens", "inspect_token", "bootstrap", "region_tiers"),
    *("list_builds", "get_build", "list_game_builds", "list_sites", "list_avatars"),
    *("list_lobby_records", "get_lobby_record", "get_lobby_logs", "list_servers", "get_server"),
    "datacenters",
)
WRITES: Final = (
    *("create_game", "create_group", "create_namespace", "create_version", "delete_version"),
    *("delete_namespace", "reserve_version_name", "set_version", "set_mm_config"),
    *("patch_mm_config", "set_domain_public_auth", "add_domain", "remove_domain"),
    *("set_cdn_auth", "remove_auth_user", "create_service_token", "create_public_token"),
    *("create_development_token", "create_game_token", "revoke_namespace_token"),
    *("revoke_group_token", "delete_build", "delete_site", "delete_avatar", "delete_banner"),
    *("delete_logo", "destroy_server", "export_lobby_logs"),
)
_TOKENS: Final = ("owner.token", "game.token", "service.token", "public.token", "revoked.token")
_GAMES: Final = ("own", "own", "own", "<<own.game>>", "other")
_NAMESPACES: Final = ("prod", "staging", "trial", "<<own.namespace>>")
_ODD_IDS: Final = (UNKNOWN_ID, "missing", "OWN", "a b", "x" * 41, "\u00e9", "a/b", "%2f")
_ODD_TEXTS: Final = ("", " ", "a", "a" * 300, "\u00e9", "Name", "a\nb", "name-1", "-a")
_CONFIGS: Final[tuple[dict[str, Any], ...]] = (
    {"matchmaker": {"game_modes": ARENA_MODES}},
    {},
    {"matchmaker": {"game_modes": {"Not a name": {}}}},
    {"matchmaker": {"game_modes": {"arena": {"max_players": 0}}}},
)
_USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "game_id": _GAMES,
    "namespace_id": _NAMESPACES,
    "environment_id": _NAMESPACES,
    "version_id": ("<<own.version>>", "<<own.other-version>>"),
    "group_id": ("<<owner.group>>",),
    "developer_group_id": ("<<owner.group>>",),
    "token_id": ("<<public.id>>", "<<revoked.id>>"),
    "limit": (1, 2, 3, 100),
    "lobby_count_max": (1, 10, 1_000),
    "max_players": (1, 8, 1_000),
    "max_players_per_client": (1, 8),
    "domain": ("play.example.com", "www.example.com"),
    "enabled": (True, False),
    "auth_type": ("none", "basic"),
    "hostname": ("127.0.0.1", "localhost"),
    "config": _CONFIGS[:1],
    "stream": ("std_out", "std_err", "service"),
    "name_id": ("own", "prod"),
    "anchor": ("2030-01-01T00:00:00Z",),
    "before_create_ts": ("2030-01-01T00:00:00Z",),
    "force": (False,),
    "cascade": (True,),
    "reuse": (True, False),
    "include_destroyed": (True,),
    "tags_json": ('{"a": "b"}',),
}
_ODD: Final[dict[str, tuple[Any, ...]]] = {
    "limit": (0, 101, 2**32 - 1),
    "lobby_count_max": (0, 2**32 - 1),
    "max_players": (0, 2**32 - 1),
    "max_players_per_client": (0, 2**32 - 1),
    "config": _CONFIGS,
    "user": ("a b", "a:b", "a" * 300),
    "domain": ("a", "A.example.com", "*.example.com", "a" * 300),
}
_NOTED: Final = ("namespace_id", "version_id", "token_id")
_LEFT_OUT: Final = ("watch_index", "format", "ports", "lobby_ports", "override_kill_timeout")


class ControlCallGenerator:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._count = 0
        self._created: defaultdict[str, list[str]] = defaultdict(list)

    def draw(self) -> GeneratedCall:
        self._count += 1
        operation = self._random.choice(READS if self._is(60) else WRITES)
        token = "owner.token" if self._is(75) else self._random.choice(_TOKENS)
        spelling = "|tampered" if self._is(2) else ""
        metadata = [("authorization", f"Bearer <<{token}{spelling}>>")]
        if self._is(2):
            metadata.clear()
        if self._is(10):
            key = self._random.choice(("key-1", f"key-{self._count}", "a b"))
            metadata.append(("idempotency-key", key))
        return GeneratedCall(operation, self._fields(operation), tuple(metadata))

    def note(self, call: GeneratedCall, response: Any, name_of: Callable[[str], str]) -> None:
        """Uses the ids of what the call has created in further calls."""
        if call.operation.startswith("create_"):
            for field in _NOTED:
                if field in response:
                    self._created[field].append(name_of(response[field]))

    def _is(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def _fields(self, operation: str) -> dict[str, Any]:
        method, is_odd = METHOD_OF[operation], self._is(30)
        optional = [
            field.name
            for field in method.request.DESCRIPTOR.fields
            if field.name not in (*method.path_fields, *_LEFT_OUT)
            and self._is(60 if is_odd or method.http_method == "GET" else 95)
        ]
        return {name: self._value(name, is_odd) for name in (*method.path_fields, *optional)}

    def _value(self, name: str, is_odd: bool) -> Any:
        is_id = name.endswith("_id") and name != "name_id"
        usual = _USUAL.get(name, (UNKNOWN_ID if is_id else "name",))
        if is_odd and self._is(40):
            odd = _ODD_IDS if is_id else _ODD_TEXTS
            return self._random.choice(_ODD.get(name, odd if isinstance(usual[0], str) else usual))
        if self._created[name] and self._is(40):
            return f"<<{self._random.choice(self._created[name])}>>"
        if name in ("display_name", "name_id") and self._is(80):
            return f"name-{self._count}"
        return self._random.choice(usual)
