"""Services for recorded requests: one without rate limits, and one with low limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from pyservice.settings.sections import RateLimits
from tests.compatibility.request_player import RequestPlayer
from tests.support.command_line import output
from tests.support.full_service import Developer, FullService, HttpClient, eventually
from tests.support.service_process import wait_ready_file
from tests.support.twin_namespaces import MODES as TWIN_MODES

GAME: Final = "arena"
TRUSTED_PEER: Final = "127.0.0.2"
LIMITED_PEER: Final = "127.0.0.3"
_HOUR_MS: Final = 3_600_000
PORTS: Final = {
    "game": {"address": "2001:db8::7", "port": 12_000},
    "web": {"address": "game.example.com", "port": 443},
}
_PORTS: Final = {"game": {"protocol": "tcp"}, "web": {"protocol": "https"}}
_MADE: Final = {"create": {"enabled": True, "enable_private": True}}
_CAPTCHA: Final = {
    "captcha_a": {"site_key": "site", "secret_key": "secret"},
    "requests_before_reverify": 0,
    "verification_ttl": 0,
}
_LIMITS: Final[dict[str, dict[str, Any]]] = {
    "prod": {"lobby_count_max": 512, "max_players_per_client": 100_000},
    "far": {"lobby_count_max": 2, "max_players_per_client": 3},
}
_UNREACHABLE: Final = {"verification": {"url": "http://127.0.0.1:1/may", "headers": {}}}
MODES: Final[dict[str, dict[str, Any]]] = {
    **TWIN_MODES,
    "small": {"max_players": 2, "max_players_party": 3},
    "tagged": {"taggable": True},
    "sized": {"allow_dynamic_max_players": True, "taggable": True, "actions": _MADE},
    "made": {"max_players": 3, "actions": _MADE},
    "hidden": {"listable": False},
    "swept": {"max_players": 64, "heartbeat_grace_ms": 0},
    "brief": {"max_players": 64, "player_token_ttl": 5_000},
}
_VERIFIED: Final = {
    "actions": {name: {"enabled": True, **_UNREACHABLE} for name in ("find", "join")}
}
_SETTINGS: Final[dict[str, Any]] = {
    "player_limit_max": 65_535,
    "trusted_proxies": [TRUSTED_PEER],
    "find_wait_ms": 100,
    "http_limits": {"slow_client_ms": 5_000},
    "verification_allowed_networks": ["127.0.0.0/8"],
    "captcha": {"captcha_a_url": "http://127.0.0.1:1/"},
    "regions": [
        {"name_id": "local", "region_display_name": "Local", "latitude": 50.1, "longitude": 8.7},
        {"name_id": "west", "region_display_name": "West", "latitude": 40.7, "longitude": -74.0},
        {"name_id": "east", "region_display_name": "East", "latitude": 35.7, "longitude": 139.7},
    ],
}
_LOW: Final = {"per_second": 0.0001}
LIMITED: Final = {
    "client": {**_LOW, "burst": 4},
    "client_group": {**_LOW, "burst": 10},
    "failed_authentication": {**_LOW, "burst": 3},
    "address": {**_LOW, "burst": 100},
}
"""A token of these limits returns after hours. Without it the service has no limit."""


@contextmanager
def recorded_service(folder: Path, *, has_limited: bool = True) -> Iterator[RequestPlayer]:
    """Starts both services, or one. The player has the names of their tokens."""
    unlimited = {name: {"per_second": 0, "burst": 1} for name in RateLimits.model_fields}
    services = {"main": FullService(folder / "m", **_SETTINGS)}
    if has_limited:
        limits = unlimited | LIMITED
        services["limited"] = FullService(folder / "l", **_SETTINGS, rate_limits=limits)
    with ExitStack() as stack:
        for service in services.values():
            stack.callback(service.close)
            service.spawn()
        for service in services.values():
            assert service.process is not None
            service.ready = wait_ready_file(service.process, service.ready_file, service.log)
        player = RequestPlayer({name: service.ready for name, service in services.items()})
        stack.callback(player.close)
        for name, service in services.items():
            asyncio.run(_set_up(service, player, "" if name == "main" else f"{name}-"))
        yield player


async def _set_up(service: FullService, player: RequestPlayer, prefix: str) -> None:
    """Creates a game with namespaces. `far` is small, `checked` has a verification, and `guarded` needs captchas."""
    async with service.open_client("http") as client:
        assert isinstance(client, HttpClient)
        owner = Developer(service, client)
        player.names.put(f"{prefix}cloud", owner.token)
        game = await owner.game(name_id=GAME)
        versions = {
            "prod": {"game_modes": _modes()},
            "next": {"game_modes": _modes()},
            "far": {"game_modes": _modes()},
            "checked": {"game_modes": _modes(verified=_VERIFIED)},
            "guarded": {"game_modes": _modes(), "captcha": _CAPTCHA},
        }
        for number, (name_id, matchmaker) in enumerate(versions.items()):
            config = {"matchmaker": matchmaker}
            version = await owner.version(game, config, f"1.0.{number}")
            player.names.put(f"{prefix}{name_id}.version", version)
            names = {"display_name": "Namespace", "game_id": game, "name_id": name_id}
            if name_id == "prod":
                where = {"game_id": game, "namespace_id": "prod"}
                await owner.good("set_version", **where, version_id=version)
            elif name_id != "next":
                await owner.good("create_namespace", **names, version_id=version)
        for name_id, limits in _LIMITS.items():
            await owner.good("patch_mm_config", game_id=game, namespace_id=name_id, **limits)
        # The limited service refuses more of the revoked tokens that the setup waits for.
        for name_id in ("prod", "far") if prefix else ("prod", "far", "checked", "guarded"):
            name = "own" if name_id == "prod" else name_id
            access = await _access(owner, game, name_id, domain=f"{prefix}{name}.example.com")
            for kind, value in access.items():
                player.names.put(f"{prefix}{name}.{kind}", value)
        if not prefix:
            words = ("--kind", "environment", "--namespace", f"{GAME}/prod", "--expires-in", "1s")
            expired = await output(service.data_dir, "token", "create", *words)
            player.names.put("own.expired", expired)
            await _until_refused(client, expired, "TOKEN_EXPIRED")


def _modes(**more: Any) -> dict[str, Any]:
    times = ("player_token_ttl", "heartbeat_timeout", "heartbeat_grace_ms")
    usual = {**dict.fromkeys(times, _HOUR_MS), "docker": {"ports": _PORTS}}
    return {name: usual | mode for name, mode in (MODES | more).items()}


async def _access(owner: Developer, game: str, name_id: str, domain: str) -> dict[str, str]:
    """Returns the tokens and the domain of a namespace."""
    where = {"game_id": game, "namespace_id": name_id}
    await owner.good("add_domain", **where, domain=domain)
    development = await owner.good("create_development_token", **where)
    revoked = await owner.good("create_public_token", **where)
    await owner.good("revoke_namespace_token", **where, token_id=revoked["token_id"])
    assert isinstance(owner.client, HttpClient)
    await _until_refused(owner.client, revoked["token"], "TOKEN_REVOKED")
    return {
        "domain": domain,
        "pub": await owner.public_token(game, name_id),
        "env": await owner.service_token(game, name_id),
        "dev": development["token"],
        "revoked": revoked["token"],
    }


async def _until_refused(client: HttpClient, token: str, code: str) -> None:
    async def has_code() -> bool:
        return (await client.call("list", token=token)).code == code

    await eventually(has_code)
