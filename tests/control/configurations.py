"""Configurations for tests: `EVERYTHING` sets each field, and a strategy generates valid ones."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import strategies as st

from pyservice.control.configuration_validation import ValidationContext
from pyservice.edge import http_json_codec
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.methods import METHODS
from pyservice.schema.validation import refuse_invalid

BUILD_ID = "0192f000-0000-7000-8000-0000000000d1"
INCOMPLETE_BUILD_ID = "0192f000-0000-7000-8000-0000000000d2"
SITE_ID = "0192f000-0000-7000-8000-0000000000e1"
CREATE = METHODS["hosting.v1.Versions.CreateVersion"]
PATH = {"game_id": "arena"}

CONTEXT = ValidationContext(
    player_limit_max=256,
    regions=("local", "eu-1", "us-1"),
    tiers=("basic-1d1", "basic-4d1"),
    builds={BUILD_ID: "complete", INCOMPLETE_BUILD_ID: "incomplete"},
    sites={SITE_ID: "complete", INCOMPLETE_BUILD_ID: "incomplete"},
    captcha_providers=("captcha_a", "captcha_b"),
)

VERIFICATION: dict[str, Any] = {
    "url": "https://auth.example.com:8443/ask?game=1",
    "headers": {"Authorization": "Bearer abc", "X-Game": ""},
}
DOCKER: dict[str, Any] = {
    "args": ["--map", "", "é"],
    "build_args": {"A": "1"},
    "dockerfile": "Dockerfile",
    "env": {"MODE": "duel", "EMPTY": ""},
    "image": "arena:latest",
    "image_id": BUILD_ID,
    "network_mode": "host",
    "ports": {
        "game": {
            "proxy": "none",
            "protocol": "udp",
            "port_range": {"min": 20000, "max": 25999},
            "dev_port_range": {"min": 1, "max": 65535},
        },
        "ws": {"port": 7777, "dev_port": 7777, "dev_protocol": "http"},
        "voice-2": {"protocol": "tcp_tls", "proxy": "edge-guard"},
    },
}
CACHED: dict[str, Any] = {
    "kind": {"custom_headers": {"headers": [{"name": "Cache-Control", "value": "max-age=60"}]}}
}
DUEL: dict[str, Any] = {
    "actions": {
        "create": {
            "enabled": True,
            "enable_private": True,
            "enable_public": False,
            "verification": VERIFICATION,
        },
        "find": {"enabled": False},
        "join": {"enabled": True, "verification": VERIFICATION},
    },
    "docker": DOCKER,
    "idle_lobbies": {"min": 0, "max": 32},
    "regions": {"local": {"idle_lobbies": {"min": 1, "max": 1}, "tier": "basic-4d1"}},
    "tier": "basic-1d1",
    "listable": True,
    "taggable": False,
    "allow_dynamic_max_players": False,
    "max_players": 1,
    "max_players_direct": 256,
    "max_players_party": 2,
    "player_token_ttl": 5_000,
    "heartbeat_timeout": 1_000,
    "heartbeat_grace_ms": 0,
    "max_drain_ms": 0,
}
EVERYTHING: dict[str, Any] = {
    "cdn": {
        "build_command": "npm run build",
        "build_env": {"NODE_ENV": "production"},
        "build_output": "dist",
        "routes": [
            {"glob": "assets/**/*.{js,css}", "priority": 100, "middlewares": [CACHED]},
            {"glob": "*", "priority": 0, "middlewares": []},
        ],
        "site_id": SITE_ID,
    },
    "engine": {
        "custom": {},
        "godot": {"export": [1, None, {"a": 1.5}]},
        "html5": {"x": "é"},
        "unity": {"y": False},
        "unreal": {"game_module": "Arena"},
    },
    "kv": {"anything": {"goes": [True]}},
    "matchmaker": {
        "captcha": {
            "captcha_a": {"secret_key": "s-a", "site_key": "k-a"},
            "captcha_b": {"secret_key": "s-b", "site_key": "k-b"},
            "requests_before_reverify": 600,
            "verification_ttl": 43_200_000,
        },
        "dev_hostname": "127.0.0.1",
        "docker": DOCKER,
        "game_modes": {"duel": DUEL, "Team_2-b": {}},
        "idle_lobbies": {"min": 0, "max": 0},
        "max_players": 256,
        "max_players_direct": 3,
        "max_players_party": 4,
        "regions": {"eu-1": {}, "us-1": {"tier": "basic-1d1"}},
        "tier": "basic-1d1",
    },
    "scripts": {"dev": "npm start", "": "é"},
}


def everything() -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(orjson.dumps(EVERYTHING))
    return document


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document = everything()
    below: Any = document
    for name in path[:-1]:
        below = below[name]
    below[path[-1]] = value
    return document


_decode = http_json_codec.decoder(CREATE)


def read(document: Any) -> pb.CloudConfig:
    """Parses a configuration as the HTTP server does. Raises `ServiceError` if the form is wrong."""
    return read_text(orjson.dumps(document))


def read_text(text: bytes) -> pb.CloudConfig:
    body = b'{"display_name":"1.0.0","config":' + text + b"}"
    message, unread = _decode(body, b"", PATH)
    refuse_invalid(CREATE, message, unread)
    assert isinstance(message, pb.CreateVersionRequest)
    return message.config


# Any good configuration ---------------------------------------------------------------------------


def _some(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=members)


def _texts(limit_bytes: int) -> st.SearchStrategy[str]:
    printed = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    return printed.filter(lambda text: len(text.encode()) <= limit_bytes)


_any_texts = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
_any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
_raw = st.dictionaries(st.text(max_size=3), _any_json, max_size=3)
_names = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True).filter(
    lambda name: len(name) <= 26
)
_tiers = st.sampled_from(["basic-1d1", "basic-4d1"])
_protocols = st.sampled_from(["http", "https", "tcp", "tcp_tls", "udp", "tcp_udp"])
_ports = st.integers(1, 65_535)


def _ranges(low: int, high: int) -> st.SearchStrategy[dict[str, int]]:
    ends = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    return ends.map(lambda pair: {"min": pair[0], "max": pair[1]})


_dev = {"dev_port": _ports, "dev_port_range": _ranges(1, 65_535), "dev_protocol": _protocols}
_proxied = _some(port=_ports, protocol=_protocols, proxy=st.just("edge-guard"), **_dev)
_bare = st.fixed_dictionaries(
    {
        "proxy": st.just("none"),
        "protocol": st.sampled_from(["tcp", "udp", "tcp_udp"]),
        "port_range": _ranges(20_000, 25_999),
    },
    optional={"port": _ports, **_dev},
)
_env_names = _texts(128).filter(
    lambda name: (
        bool(name)
        and "=" not in name
        and name != "PORT"
        and not name.startswith(("PORT_", "HOSTING_"))
    )
)


def _dockers(ports: st.SearchStrategy[Any], mode: st.SearchStrategy[str]) -> Any:
    return _some(
        args=st.lists(_texts(1024), max_size=4),
        build_args=_any_texts,
        dockerfile=st.text(max_size=5),
        env=st.dictionaries(_env_names, _texts(64), max_size=4),
        image=st.text(max_size=5),
        image_id=st.just(BUILD_ID),
        ports=st.dictionaries(_names, ports, max_size=4),
    ).flatmap(lambda docker: _with_network(docker, mode))


def _with_network(docker: dict[str, Any], mode: st.SearchStrategy[str]) -> Any:
    is_bare = any(port.get("proxy") == "none" for port in docker.get("ports", {}).values())
    if is_bare:
        return st.just({**docker, "network_mode": "host"})
    return st.just(docker) | mode.map(lambda value: {**docker, "network_mode": value})


_docker = _dockers(_proxied | _bare, st.sampled_from(["bridge", "host"]))
_idle = _ranges(0, 32)
_regions = st.dictionaries(
    st.sampled_from(sorted(CONTEXT.regions)), _some(idle_lobbies=_idle, tier=_tiers), max_size=3
)
_players = st.integers(1, 256)
_level = {
    "docker": _docker,
    "idle_lobbies": _idle,
    "max_players": _players,
    "max_players_direct": _players,
    "max_players_party": _players,
    "regions": _regions,
    "tier": _tiers,
}
_header_names = st.from_regex(r"X-[A-Za-z0-9!#$%&'*+.^_`|~-]{1,10}", fullmatch=True)
_header_values = st.from_regex(r"[!-~]([\t -~]{0,20}[!-~])?", fullmatch=True) | st.just("")
_verification = st.fixed_dictionaries(
    {
        "url": st.from_regex(
            r"https?://([a-z]{1,8}\.){1,3}example(:[1-9][0-9]{0,3})?(/[!-~]{0,20})?".replace(
                "!-~", "!$-~"
            ),
            fullmatch=True,
        )
        | st.sampled_from(["http://8.8.8.8/", "https://[2606:4700::1111]:8443"]),
        "headers": st.dictionaries(_header_names.map(str.lower), _header_values, max_size=3),
    }
)


def _action(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"enabled": st.booleans()}, optional={"verification": _verification, **more}
    )


_mode = _some(
    actions=_some(
        create=_action(enable_private=st.booleans(), enable_public=st.booleans()),
        find=_action(),
        join=_action(),
    ),
    allow_dynamic_max_players=st.booleans(),
    listable=st.booleans(),
    taggable=st.booleans(),
    player_token_ttl=st.integers(5_000, 3_600_000),
    heartbeat_timeout=st.integers(1_000, 3_600_000),
    heartbeat_grace_ms=st.integers(0, 3_600_000),
    max_drain_ms=st.integers(0, 2**32 - 1),
    **_level,
)
_key = st.text(min_size=1, max_size=8)
_provider = st.fixed_dictionaries({"secret_key": _key, "site_key": _key})
_captcha = st.fixed_dictionaries(
    {
        "requests_before_reverify": st.integers(0, 600),
        "verification_ttl": st.integers(0, 43_200_000),
    },
    optional={"captcha_a": _provider, "captcha_b": _provider},
)
_mode_names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
_header = st.fixed_dictionaries({"name": _header_names, "value": _header_values})
_middleware = st.lists(_header, max_size=2).map(
    lambda headers: {"kind": {"custom_headers": {"headers": headers}}}
)
_route = st.fixed_dictionaries(
    {
        "glob": st.sampled_from(["*", "**", "a/?.js", "[a-z]/{b,c*}", "]x", "é", "[!]-a]"])
        | st.from_regex(r"[a-z/*?]{1,12}", fullmatch=True),
        "middlewares": st.lists(_middleware, max_size=2),
        "priority": st.integers(0, 100),
    }
)

good_configurations: st.SearchStrategy[dict[str, Any]] = _some(
    cdn=_some(
        build_command=st.text(max_size=5),
        build_env=_any_texts,
        build_output=st.text(max_size=5),
        routes=st.lists(_route, max_size=3, unique_by=lambda route: route["glob"]),
        site_id=st.just(SITE_ID),
    ),
    engine=_some(
        custom=_raw,
        godot=_raw,
        html5=_raw,
        unity=_raw,
        unreal=st.fixed_dictionaries({"game_module": st.text(max_size=5)}),
    ),
    kv=_raw,
    matchmaker=_some(
        captcha=_captcha,
        dev_hostname=_texts(253),
        game_modes=st.dictionaries(_mode_names, _mode, max_size=3),
        **_level,
    ),
    scripts=_any_texts,
)
