"""Authorization table: one row for each operation.

A row needs a slug, the admitted callers, the fields of a valid request, and the effect that proves admission.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from tests.support.authorization_results import OK, Callers, Fields, Row
from tests.support.namespace_scenario import PAID_TS, NamespaceScenario
from tests.support.upload_files import png, put, tar

_Fields = Callable[[NamespaceScenario], Awaitable[Fields]]

# Fields of a good call ----------------------------------------------------------------------------


def _given(make: Callable[[NamespaceScenario], Fields]) -> _Fields:
    async def fields(scenario: NamespaceScenario) -> Fields:
        return make(scenario)

    return fields


def _of_game(**more: Any) -> _Fields:
    """Returns the fields of a request for the game. `NEW` in a value becomes a new unique name."""
    return _given(lambda scenario: {"game_id": scenario.game_id, **_named(more)})


def _of_namespace(**more: Any) -> _Fields:
    return _of_game(namespace_id="prod", **more)


def _of_environment(**more: Any) -> _Fields:
    return _given(lambda scenario: {**_environment(scenario), **more})


def _of_group(**more: Any) -> _Fields:
    return _given(lambda scenario: {"group_id": scenario.group_id, **_named(more)})


def _named(more: Fields) -> Fields:
    return {name: _new() if value == "NEW" else value for name, value in more.items()}


def _new() -> str:
    return f"n{uuid4().hex[:18]}"


async def _new_version(scenario: NamespaceScenario) -> Fields:
    version_id = await scenario.owner.version(scenario.game_id, {}, name=_new())
    return {"game_id": scenario.game_id, "namespace_id": "staging", "version_id": version_id}


async def _unused_version(scenario: NamespaceScenario) -> Fields:
    fields = await _new_version(scenario)
    del fields["namespace_id"]
    return fields


async def _unused_namespace(scenario: NamespaceScenario) -> Fields:
    target = {"game_id": scenario.game_id, "name_id": _new(), "display_name": "x"}
    response = await scenario.owner.good(
        "create_namespace", **target, version_id=scenario.version_id
    )
    return {"game_id": scenario.game_id, "namespace_id": response["namespace_id"]}


async def _unused_game(scenario: NamespaceScenario) -> Fields:
    fields = {"developer_group_id": scenario.group_id, "display_name": _new()}
    return dict(await scenario.owner.good("create_game", **fields))


_limits = iter(range(1000, 1_000_000))


async def _new_limits(scenario: NamespaceScenario) -> Fields:
    target = {"game_id": scenario.game_id, "namespace_id": "staging"}
    return {**target, "lobby_count_max": next(_limits), "max_players": 2}


async def _one_new_limit(scenario: NamespaceScenario) -> Fields:
    target = {"game_id": scenario.game_id, "namespace_id": "staging"}
    return {**target, "max_players_per_client": next(_limits)}


async def _cdn(scenario: NamespaceScenario, target: Fields) -> Any:
    return (await scenario.owner.good("get_namespace", **target))["namespace"]["config"]["cdn"]


async def _other_public_auth(scenario: NamespaceScenario) -> Fields:
    target = {"game_id": scenario.game_id, "namespace_id": "staging"}
    cdn = await _cdn(scenario, target)
    return {**target, "enabled": not cdn["enable_domain_public_auth"]}


async def _other_cdn_auth(scenario: NamespaceScenario) -> Fields:
    target = {"game_id": scenario.game_id, "namespace_id": "staging"}
    cdn = await _cdn(scenario, target)
    return {**target, "auth_type": "basic" if cdn["auth_type"] == "none" else "none"}


async def _some_domain(scenario: NamespaceScenario) -> Fields:
    fields = {"game_id": scenario.game_id, "namespace_id": "prod", "domain": f"{_new()}.example"}
    await scenario.owner.good("add_domain", **fields)
    return fields


async def _some_user(scenario: NamespaceScenario) -> Fields:
    user = _new()
    await scenario.records.site_user(scenario.namespace_id, user)
    return {"game_id": scenario.game_id, "namespace_id": "prod", "user": user}


async def _some_token(scenario: NamespaceScenario) -> Fields:
    target = {"game_id": scenario.game_id, "namespace_id": "prod"}
    response = await scenario.owner.good("create_public_token", **target)
    return {**target, "token_id": response["token_id"]}


async def _some_group_token(scenario: NamespaceScenario) -> Fields:
    _, token_id = await scenario.records.cloud_token(scenario.identity_id, scenario.group_id)
    return {"group_id": scenario.group_id, "token_id": token_id}


async def _reserved(scenario: NamespaceScenario) -> Fields:
    return {"player_token": await scenario.player_token()}


async def _of_lobby(scenario: NamespaceScenario, slug: str, fields: Fields) -> Fields:
    """Calls an operation as the lobby, and returns the fields."""
    answer = await scenario.client.call(slug, fields, token=scenario.lobby["lobby_token"])
    assert answer.code == OK, answer
    return fields


async def _connected(scenario: NamespaceScenario) -> Fields:
    return await _of_lobby(scenario, "connected", await _reserved(scenario))


async def _heartbeat_without_player(scenario: NamespaceScenario) -> Fields:
    """Returns a heartbeat that omits a player of the previous heartbeat, which frees the slot."""
    await _connected(scenario)
    fields = await _of_lobby(scenario, "heartbeat", {"player_tokens": []})
    await _connected(scenario)
    return fields


async def _open(scenario: NamespaceScenario) -> None:
    await _of_lobby(scenario, "closed", {"is_closed": False})


async def _with_state(scenario: NamespaceScenario) -> Fields:
    scenario.lobby_state = _new()
    await _of_lobby(scenario, "set_state", {"state": scenario.lobby_state})
    return {"lobby_id": scenario.lobby["lobby_id"]}


async def _starting(scenario: NamespaceScenario) -> Fields:
    await scenario.starts()
    return {}


async def _attached(scenario: NamespaceScenario) -> Fields:
    lobby = await scenario.owner.lobby(scenario.game_id, scenario.service_token)
    return {"game_id": scenario.game_id, "lobby_id": lobby["lobby_id"]}


async def _some_link(scenario: NamespaceScenario) -> Fields:
    response = await scenario.client.call("prepare_device_link", {})
    assert response.code == OK, response
    return {"device_link_token": response.body["device_link_token"]}


async def _some_link_of_game(scenario: NamespaceScenario) -> Fields:
    return {**await _some_link(scenario), "game_id": scenario.game_id}


async def _new_server(scenario: NamespaceScenario) -> Fields:
    return scenario.hosted.server_fields(play="exit:0")


async def _some_server(scenario: NamespaceScenario) -> Fields:
    server_id = await scenario.hosted.server()
    return {**_environment(scenario), "server_id": server_id, "override_kill_timeout": 0}


def _environment(scenario: NamespaceScenario) -> Fields:
    return {"game_id": scenario.game_id, "environment_id": "prod"}


def _of_server(**more: Any) -> _Fields:
    return _given(
        lambda scenario: {**_environment(scenario), "server_id": scenario.hosted.server_id, **more}
    )


_of_hosted_lobby = _given(
    lambda scenario: {
        "game_id": scenario.game_id,
        "lobby_id": scenario.hosted.lobby_id,
        "stream": "std_out",
    }
)
PORTS: Final = {"game": {"address": "127.0.0.1", "port": 4000}}
MODES: Final = {"game_modes": ["arena"]}


def _image(content: bytes) -> Fields:
    return {"path": "server.tar", "content_length": len(content)}


_PICTURE: Final[Fields] = {"path": "a.png", "content_length": len(png())}
_FILES: Final[Fields] = {
    "display_name": "x",
    "files": [{"path": "index.html", "content_length": 1}],
}


async def _uploaded(scenario: NamespaceScenario) -> Any:
    content = tar()
    fields: Fields = {"display_name": "x", "image_file": _image(content)}
    response = await scenario.owner.good("create_game_build", game_id=scenario.game_id, **fields)
    assert (await put(response["image_presigned_request"], content)).status_code == 200
    return response


async def _upload(scenario: NamespaceScenario) -> Fields:
    return {"upload_id": (await _uploaded(scenario))["upload_id"]}


async def _build(scenario: NamespaceScenario) -> Fields:
    return {"game_id": scenario.game_id, "build_id": (await _uploaded(scenario))["build_id"]}


async def _build_of_environment(scenario: NamespaceScenario) -> Fields:
    return {"environment_id": "prod", **await _build(scenario)}


async def _old_build(scenario: NamespaceScenario) -> Fields:
    return {**_environment(scenario), "build_id": scenario.build_id}


async def _build_to_tag(scenario: NamespaceScenario) -> Fields:
    return {**await _build_of_environment(scenario), "tags": {"name": uuid4().hex}}


def _completed(slug: str) -> _Fields:
    async def fields(scenario: NamespaceScenario) -> Fields:
        response = await scenario.owner.good(slug, game_id=scenario.game_id, **_PICTURE)
        assert (await put(response["presigned_request"], png())).status_code == 200
        return {"game_id": scenario.game_id, "upload_id": response["upload_id"]}

    return fields


async def _unused_site(scenario: NamespaceScenario) -> Fields:
    site = await scenario.owner.good("create_site", game_id=scenario.game_id, **_FILES)
    return {"game_id": scenario.game_id, "site_id": site["site_id"]}


def _with_picture(kind: str) -> _Fields:
    async def fields(scenario: NamespaceScenario) -> Fields:
        picture = await _completed(f"prepare_{kind}")(scenario)
        await scenario.owner.good(f"complete_{kind}", **picture)
        return {"game_id": scenario.game_id}

    return fields


_UPLOADED: Final = frozenset({"uploads", "upload_files"})
_PREPARED: Final = frozenset({*_UPLOADED, "builds"})

# The table ----------------------------------------------------------------------------------------

_GAMES = (
    Row("validate_game", Callers.ANY_CLOUD, _given(lambda _: {"display_name": ""}),
        shows=lambda _: "too-short", is_private=False),
    Row("create_game", Callers.GROUP,
        _given(lambda scenario: {"developer_group_id": scenario.group_id, "display_name": _new()}),
        changes=frozenset({"groups", "games", "versions", "namespaces", "version_history"})),
    Row("get_games", Callers.ANY_CLOUD, _given(lambda _: {}), shows=lambda scenario: scenario.game_id),
    Row("get_game", Callers.GAME, _of_game(), shows=lambda scenario: scenario.game_id),
    Row("delete_game", Callers.GROUP, _unused_game,
        changes=frozenset({"groups", "games", "versions", "namespaces", "version_history"})),
)  # fmt: skip
_GROUPS = (
    Row("create_group", Callers.IDENTITY, _given(lambda _: {"display_name": _new()}),
        changes=frozenset({"groups", "members"})),
    Row("get_group", Callers.GROUP, _of_group(), shows=lambda scenario: scenario.group_id),
    Row("get_quotas", Callers.GROUP, _of_group(), shows=lambda _: "picture_bytes"),
    Row("get_audit", Callers.GROUP, _of_group(), shows=lambda scenario: scenario.group_id),
    Row("get_billing", Callers.GROUP, _of_group(), shows=lambda _: PAID_TS),
)  # fmt: skip
_VERSIONS = (
    Row("create_version", Callers.GAME, _of_game(display_name="NEW", config={}),
        changes=frozenset({"groups", "versions"})),
    Row("validate_version", Callers.GAME, _of_game(display_name="", config={}),
        shows=lambda _: "too-short"),
    Row("reserve_version_name", Callers.GAME, _of_game(), changes=frozenset({"games"})),
    Row("get_version", Callers.GAME,
        _given(lambda scenario: {"game_id": scenario.game_id, "version_id": scenario.version_id}),
        shows=lambda scenario: scenario.version_id),
    Row("start_trial", Callers.GAME,
        _given(lambda scenario: {"game_id": scenario.game_id, "version_id": scenario.version_id,
                                 "namespace_id": "prod", "game_mode": "hosted", "timeout_ms": 1000}),
        shows=lambda _: "lobby_id"),
    Row("list_versions", Callers.GAME, _of_game(), shows=lambda scenario: scenario.version_id),
    Row("delete_version", Callers.GAME, _unused_version, changes=frozenset({"groups", "versions"})),
)  # fmt: skip
_FED = frozenset({"namespaces"})
_NAMESPACES = (
    Row("validate_namespace", Callers.GAME, _of_game(display_name="x", name_id=""),
        shows=lambda _: "too-short"),
    Row("create_namespace", Callers.GAME,
        _given(lambda scenario: {"game_id": scenario.game_id, "display_name": "x", "name_id": _new(),
                              "version_id": scenario.version_id}),
        changes=frozenset({"namespaces", "version_history"})),
    Row("delete_namespace", Callers.GAME, _unused_namespace,
        changes=frozenset({"namespaces", "version_history"})),
    Row("list_namespaces", Callers.GAME, _of_game(), shows=lambda scenario: scenario.namespace_id),
    Row("get_namespace", Callers.GAME, _of_namespace(), shows=lambda scenario: scenario.domain),
    Row("set_version", Callers.GAME, _new_version,
        changes=frozenset({"namespaces", "version_history"})),
    Row("version_history", Callers.GAME, _of_namespace(), shows=lambda scenario: scenario.version_id),
    Row("set_mm_config", Callers.GAME, _new_limits, changes=_FED),
    Row("patch_mm_config", Callers.GAME, _one_new_limit, changes=_FED),
    Row("validate_mm_config", Callers.GAME, _of_namespace(lobby_count_max=0, max_players=1),
        shows=lambda _: "too-low"),
    Row("set_domain_public_auth", Callers.GAME, _other_public_auth, changes=_FED),
    Row("add_domain", Callers.GAME,
        _given(lambda scenario: {"game_id": scenario.game_id, "namespace_id": "staging",
                              "domain": f"{_new()}.example"}),
        changes=frozenset({"domains", "namespaces"})),
    Row("remove_domain", Callers.GAME, _some_domain, changes=frozenset({"domains", "namespaces"})),
    Row("set_cdn_auth", Callers.GAME, _other_cdn_auth, changes=_FED),
    Row("set_auth_user", Callers.GAME, _of_namespace(user="NEW", password="x"),
        changes=frozenset({"auth_users"})),
    Row("remove_auth_user", Callers.GAME, _some_user, changes=frozenset({"auth_users"})),
)  # fmt: skip
_TOKENS = (
    Row("create_service_token", Callers.GAME, _of_game(environment_id="prod"),
        changes=frozenset({"namespace_tokens", "namespaces"})),
    Row("create_public_token", Callers.GAME, _of_namespace(),
        changes=frozenset({"namespace_tokens"})),
    Row("create_development_token", Callers.GAME, _of_namespace(),
        changes=frozenset({"namespace_tokens", "namespaces"})),
    Row("list_namespace_tokens", Callers.GAME, _of_namespace(), shows=lambda _: "'env'"),
    Row("revoke_namespace_token", Callers.GAME, _some_token,
        changes=frozenset({"namespace_tokens", "namespaces"})),
    Row("create_game_token", Callers.GAME, _of_game(), changes=frozenset({"cloud_tokens"})),
    Row("list_group_tokens", Callers.GROUP, _of_group(), shows=lambda scenario: scenario.other_game_id),
    Row("revoke_group_token", Callers.GROUP, _some_group_token,
        changes=frozenset({"cloud_tokens"})),
    Row("inspect_token", Callers.ANY_CLOUD, _given(lambda _: {}),
        shows=lambda _: "token_id", is_private=False),
)  # fmt: skip
_LOBBY_GONE = "MATCHMAKER_LOBBY_NOT_FOUND"
_MATCHMAKER = (
    Row("find", Callers.CLIENT, _given(lambda _: MODES), moves=True,
        elsewhere="MATCHMAKER_GAME_MODE_NOT_FOUND"),
    Row("create", Callers.CLIENT, _given(lambda _: {"game_mode": "hosted"}), moves=True,
        elsewhere="MATCHMAKER_GAME_MODE_NOT_FOUND"),
    Row("join", Callers.CLIENT, _given(lambda scenario: {"lobby_id": scenario.lobby["lobby_id"]}),
        moves=True, elsewhere=_LOBBY_GONE),
    Row("list", Callers.CLIENT, _given(lambda _: {}), shows=lambda scenario: scenario.lobby["lobby_id"]),
    Row("regions", Callers.CLIENT, _given(lambda _: {}), shows=lambda _: "Self-hosted",
        is_private=False),
    Row("statistics", Callers.CLIENT, _given(lambda _: {}), shows=lambda _: "arena"),
    Row("connected", Callers.LOBBY, _reserved, moves=True, elsewhere="PLAYER_TOKEN_WRONG_LOBBY",
        mock="PLAYER_TOKEN_INVALID"),
    Row("disconnected", Callers.LOBBY, _connected, moves=True,
        elsewhere="PLAYER_TOKEN_WRONG_LOBBY"),
    Row("ready", Callers.LOBBY, _starting, moves=True,
        lobby_token=lambda scenario: str(scenario.starting["lobby_token"])),
    Row("closed", Callers.LOBBY, _given(lambda _: {"is_closed": True}), moves=True, undo=_open),
    Row("set_state", Callers.LOBBY, _given(lambda _: {"state": _new()}), moves=True),
    Row("get_state", Callers.LOBBY_STATE, _with_state, shows=lambda scenario: scenario.lobby_state,
        elsewhere=_LOBBY_GONE),
    Row("heartbeat", Callers.LOBBY, _heartbeat_without_player, moves=True),
    Row("live_events", Callers.CHANNEL, _given(lambda _: {}), shows=lambda _: "lobby_join"),
    Row("attach", Callers.ENVIRONMENT,
        _of_namespace(game_mode="arena", ports=PORTS), moves=True,
        elsewhere="NAMESPACE_NOT_FOUND"),
    Row("detach", Callers.ENVIRONMENT, _attached, moves=True, elsewhere=_LOBBY_GONE),
)  # fmt: skip

_PLATFORM = (
    Row("bootstrap", Callers.ANYBODY, _given(lambda _: {}), shows=lambda _: "login_methods"),
    Row("region_tiers", Callers.ANYBODY, _given(lambda _: {}), shows=lambda _: "basic-1d16"),
    Row("datacenters", Callers.ENVIRONMENT, _of_game(environment_id="prod"),
        shows=lambda _: "slug", elsewhere="NAMESPACE_NOT_FOUND"),
    Row("prepare_device_link", Callers.ANYBODY, _given(lambda _: {}),
        changes=frozenset({"device_links"})),
    Row("get_device_link", Callers.ANYBODY, _some_link, shows=lambda _: "watch"),
    Row("complete_device_link", Callers.GAME, _some_link_of_game,
        changes=frozenset({"device_links", "cloud_tokens"})),
    Row("list_lobby_records", Callers.GAME, _of_namespace(),
        shows=lambda scenario: scenario.past_lobby_id),
    Row("get_lobby_record", Callers.GAME,
        _given(lambda scenario: {"game_id": scenario.game_id, "namespace_id": "prod",
                              "lobby_id": scenario.past_lobby_id}),
        shows=lambda scenario: scenario.past_lobby_id),
    Row("get_lobby_logs", Callers.GAME,
        _of_hosted_lobby,
        shows=lambda _: "begins"),
    Row("export_lobby_logs", Callers.GAME,
        _of_hosted_lobby,
        changes=frozenset({"exports"})),
    Row("export_lobby_history", Callers.GAME, _of_game(query_start=0, query_end=1),
        changes=frozenset({"exports"})),
    Row("get_ray_perf", Callers.ANY_CLOUD, _given(lambda scenario: {"ray_id": scenario.ray_id}),
        shows=lambda scenario: scenario.ray_id),
)  # fmt: skip

_ELSEWHERE = "NAMESPACE_NOT_FOUND"
_SERVERS = (
    Row("create_server", Callers.ENVIRONMENT, _new_server,
        changes=frozenset({"servers", "server_tags"}), elsewhere=_ELSEWHERE),
    Row("get_server", Callers.ENVIRONMENT, _of_server(),
        shows=lambda scenario: scenario.hosted.server_id, elsewhere=_ELSEWHERE),
    Row("list_servers", Callers.ENVIRONMENT,
        _given(lambda scenario: {**_environment(scenario), "include_destroyed": True}),
        shows=lambda scenario: scenario.hosted.server_id, elsewhere=_ELSEWHERE),
    Row("destroy_server", Callers.ENVIRONMENT, _some_server, changes=frozenset({"servers"}),
        elsewhere=_ELSEWHERE),
    Row("get_server_logs", Callers.ENVIRONMENT, _of_server(stream="std_out"),
        shows=lambda scenario: scenario.hosted.server_line, elsewhere=_ELSEWHERE),
)  # fmt: skip

_UPLOADS = (
    Row("list_builds", Callers.ENVIRONMENT, _of_environment(),
        shows=lambda scenario: scenario.build_id, elsewhere=_ELSEWHERE),
    Row("prepare_build", Callers.ENVIRONMENT,
        _of_environment(name="x", image_file=_image(tar())),
        changes=_PREPARED, elsewhere=_ELSEWHERE),
    Row("complete_build", Callers.ENVIRONMENT, _build_of_environment,
        changes=_UPLOADED, elsewhere=_ELSEWHERE),
    Row("get_build", Callers.ENVIRONMENT, _old_build,
        shows=lambda scenario: scenario.build_id, elsewhere=_ELSEWHERE),
    Row("patch_build_tags", Callers.ENVIRONMENT, _build_to_tag,
        changes=frozenset({"build_tags"}), elsewhere=_ELSEWHERE),
    Row("list_game_builds", Callers.GAME, _of_game(), shows=lambda scenario: scenario.build_id),
    Row("create_game_build", Callers.GAME,
        _of_game(display_name="x", image_file=_image(tar())),
        changes=_PREPARED),
    Row("delete_build", Callers.GAME, _build, changes=_PREPARED),
    Row("delete_site", Callers.GAME, _unused_site, changes=frozenset({*_UPLOADED, "sites"})),
    Row("delete_avatar", Callers.GAME, _completed("prepare_avatar"), changes=_UPLOADED),
    Row("delete_banner", Callers.GAME, _with_picture("banner"),
        changes=frozenset({*_UPLOADED, "games"})),
    Row("delete_logo", Callers.GAME, _with_picture("logo"),
        changes=frozenset({*_UPLOADED, "games"})),
    Row("complete_upload", Callers.GAME, _upload, changes=_UPLOADED, missing="UPLOAD_NOT_FOUND"),
    Row("create_site", Callers.GAME, _of_game(**_FILES), changes=frozenset({*_UPLOADED, "sites"})),
    Row("list_sites", Callers.GAME, _of_game(), shows=lambda scenario: scenario.site_id),
    Row("prepare_avatar", Callers.GAME, _of_game(**_PICTURE), changes=_UPLOADED),
    Row("complete_avatar", Callers.GAME, _completed("prepare_avatar"),
        changes=frozenset({"uploads"})),
    Row("list_avatars", Callers.GAME, _of_game(), shows=lambda scenario: scenario.avatar_id),
    Row("prepare_banner", Callers.GAME, _of_game(**_PICTURE), changes=_UPLOADED),
    Row("complete_banner", Callers.GAME, _completed("prepare_banner"),
        changes=frozenset({"uploads", "games"})),
    Row("prepare_logo", Callers.GAME, _of_game(**_PICTURE), changes=_UPLOADED),
    Row("complete_logo", Callers.GAME, _completed("prepare_logo"),
        changes=frozenset({"uploads", "games"})),
)  # fmt: skip

ROWS: Final = (
    *(*_GAMES, *_GROUPS, *_VERSIONS, *_NAMESPACES, *_TOKENS),
    *(*_MATCHMAKER, *_PLATFORM, *_SERVERS, *_UPLOADS),
)
