"""Generated from proto/examples: one request per operation, by slug. The tests execute them."""

from __future__ import annotations

from typing import Final, NamedTuple


class Example(NamedTuple):
    """A request; ``{name}`` in a value is a placeholder, ``body`` is JSON text."""

    token: str | None = None
    path: dict[str, str] = {}
    query: dict[str, str] = {}
    body: str | None = None


EXAMPLES: Final[dict[str, Example]] = {
    "validate_game": Example(token='cloud', body='{"display_name": "Arena"}'),
    "create_game": Example(token='cloud', body='{"developer_group_id": "{group_id}", "display_name": "Arena"}'),
    "get_games": Example(token='cloud'),
    "get_game": Example(token='cloud'),
    "create_group": Example(token='cloud', body='{"display_name": "Arena Makers"}'),
    "get_group": Example(token='cloud'),
    "get_billing": Example(token='cloud'),
    "find": Example(token='pub', body='{"game_modes": ["duel"]}'),
    "join": Example(token='pub', body='{"lobby_id": "{lobby_id}", "party_size": 1}'),
    "list": Example(token='pub', query={'include_state': 'true'}),
    "regions": Example(token='origin'),
    "statistics": Example(token='pub'),
    "connected": Example(token='lobby', body='{"player_token": "{player_token}"}'),
    "disconnected": Example(token='lobby', body='{"player_token": "{player_token}", "hold_ms": 30000}'),
    "ready": Example(token='lobby', body='{}'),
    "closed": Example(token='lobby', body='{"is_closed": true}'),
    "set_state": Example(token='lobby', body='{"map": "hill", "seed": 12345678901234567890}'),
    "get_state": Example(token='lobby'),
    "heartbeat": Example(token='lobby', body='{"player_tokens": ["{player_token}"]}'),
    "attach": Example(token='env', body='{"game_mode": "duel", "ports": {"game": {"address": "127.0.0.1", "port": 7777}}}'),
    "detach": Example(token='env'),
    "validate_namespace": Example(token='cloud', body='{"display_name": "Blue", "name_id": "{new_name_id}"}'),
    "create_namespace": Example(token='cloud', body='{"display_name": "Blue", "name_id": "{new_name_id}", "version_id": "{version_id}"}'),
    "list_namespaces": Example(token='cloud'),
    "get_namespace": Example(token='cloud'),
    "set_version": Example(token='cloud', body='{"version_id": "{version_id}"}'),
    "version_history": Example(token='cloud', query={'limit': '16'}),
    "set_mm_config": Example(token='cloud', body='{"lobby_count_max": 512, "max_players": 256}'),
    "validate_mm_config": Example(token='cloud', body='{"lobby_count_max": 512, "max_players": 256}'),
    "set_domain_public_auth": Example(token='cloud', body='{"enabled": true}'),
    "add_domain": Example(token='cloud', body='{"domain": "{domain}"}'),
    "remove_domain": Example(token='cloud'),
    "set_cdn_auth": Example(token='cloud', body='{"auth_type": "basic"}'),
    "set_auth_user": Example(token='cloud', body='{"user": "{user}", "password": "a long password"}'),
    "remove_auth_user": Example(token='cloud'),
    "create_service_token": Example(token='cloud', body='{}'),
    "create_public_token": Example(token='cloud', body='{}'),
    "create_development_token": Example(token='cloud', body='{"hostname": "127.0.0.1", "ports": {"game": {"port": 7777, "protocol": "tcp"}}}'),
    "list_namespace_tokens": Example(token='cloud'),
    "revoke_namespace_token": Example(token='cloud'),
    "create_game_token": Example(token='cloud', body='{}'),
    "list_group_tokens": Example(token='cloud'),
    "revoke_group_token": Example(token='cloud', path={'token_id': '{cloud_token_id}'}),
    "inspect_token": Example(token='cloud'),
    "create_version": Example(token='cloud', body='{\n  "display_name": "1.0.0",\n  "config": {\n    "kv": {},\n    "matchmaker": {\n      "max_players": 16,\n      "game_modes": {\n        "duel": {\n          "max_players": 2,\n          "taggable": true,\n          "actions": {"join": {"enabled": true}},\n          "docker": {"ports": {"game": {"protocol": "tcp"}}}\n        }\n      }\n    },\n    "cdn": {\n      "routes": [\n        {\n          "glob": "**/*.js",\n          "priority": 10,\n          "middlewares": [\n            {"kind": {"custom_headers": {"headers": [{"name": "x-made-by", "value": "us"}]}}}\n          ]\n        }\n      ]\n    }\n  }\n}\n'),
    "validate_version": Example(token='cloud', body='{"display_name": "1.0.0", "config": {"matchmaker": {"game_modes": {"duel": {}}}}}'),
    "reserve_version_name": Example(token='cloud', body='{}'),
    "get_version": Example(token='cloud'),
    "list_versions": Example(token='cloud'),
}

SAMPLES: Final[dict[str, str]] = {
    "game_id": "arena",
    "namespace_id": "prod",
    "environment_id": "prod",
    "version_id": "0192f000-0000-7000-8000-0000000000b1",
    "group_id": "0192f000-0000-7000-8000-0000000000c1",
    "lobby_id": "00010000-0000-4000-8000-0000000000a1",
    "player_token": "player_AbCdEf",
    "new_name_id": "blue",
    "token_id": "0192f000-0000-7000-8000-0000000000d1",
    "cloud_token_id": "0192f000-0000-7000-8000-0000000000d2",
    "domain": "play.example.com",
    "user": "tester",
}
