"""Every change of the records by an operation or a command, with its own kill steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import uuid4

from pyservice.pb.hosting.internal.v1 import admin_pb2, control_admin_pb2
from tests.faults.control.change import Change, by_command, by_operation
from tests.faults.control.game_fixture import BUILD, CURRENT, PAGE, Fields, GameFixture
from tests.faults.control.server_changes import SERVER_CHANGES
from tests.support.full_service import ARENA_MODES
from tests.support.killed_service import (
    CONTENTS_REMOVED,
    FED,
    KEPT,
    ONE_PAGE,
    RECORDS,
    REMOVAL_RECORDS,
    REMOVED,
    SERVER_REMOVED,
)
from tests.support.upload_files import png

_MOMENTS_OF_PAYMENT: Final = itertools.count(1_000_000_000_000)


def _new_game(fixture: GameFixture, _: Fields) -> Fields:
    fixture.next_game = f"g{uuid4().hex[:20]}"
    group_id = fixture.full_service.group_id
    return {"developer_group_id": group_id, "display_name": "G", "name_id": fixture.next_game}


def _new_version(fixture: GameFixture, _: Fields) -> Fields:
    config = {"matchmaker": {"game_modes": ARENA_MODES}}
    return {**fixture.game, "display_name": uuid4().hex, "config": config}


def _new_namespace(fixture: GameFixture, _: Fields) -> Fields:
    name = f"n{uuid4().hex[:12]}"
    named = {"display_name": name, "name_id": name}
    return {**fixture.game, **named, "version_id": fixture.versions[0]}


def _other_version(fixture: GameFixture, responses: Fields) -> Fields:
    running = responses["get_namespace"]["namespace"]["version_id"]
    return {
        **fixture.namespace_fields,
        "version_id": next(one for one in fixture.versions if one != running),
    }


def _other_limit(fixture: GameFixture, responses: Fields) -> Fields:
    before = responses["get_namespace"]["namespace"]["config"]["matchmaker"]["lobby_count_max"]
    return {**fixture.namespace_fields, "lobby_count_max": before + 1, "max_players": before + 2}


def _one_other_limit(fixture: GameFixture, responses: Fields) -> Fields:
    before = responses["get_namespace"]["namespace"]["config"]["matchmaker"]["lobby_count_max"]
    return {**fixture.namespace_fields, "lobby_count_max": before + 1}


def _other_public_auth(fixture: GameFixture, responses: Fields) -> Fields:
    cdn = responses["get_namespace"]["namespace"]["config"]["cdn"]
    return {**fixture.namespace_fields, "enabled": not cdn["enable_domain_public_auth"]}


def _of_domain(fixture: GameFixture, _: Fields) -> Fields:
    return {
        **fixture.namespace_fields,
        "domain": fixture.spare_domain or f"{uuid4().hex}.example.com",
    }


def _only_namespace(fixture: GameFixture, _: Fields) -> Fields:
    return fixture.namespace_fields


def _of_environment(fixture: GameFixture, _: Fields) -> Fields:
    return fixture.environment


def _of_game(fixture: GameFixture, _: Fields) -> Fields:
    return fixture.game


def _new_development_token(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.namespace_fields, "hostname": "127.0.0.1", "ports": {}}


def _a_public_token(fixture: GameFixture, responses: Fields) -> Fields:
    good = [one for one in responses["list_namespace_tokens"]["tokens"] if "revoke_ts" not in one]
    return {
        **fixture.namespace_fields,
        "token_id": next(one["token_id"] for one in good if one["kind"] == "pub"),
    }


def _the_version(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "version_id": fixture.unused_version}


def _the_namespace(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "namespace_id": fixture.unused_namespace}


def _the_game(fixture: GameFixture, _: Fields) -> Fields:
    return {"game_id": fixture.unused_game}


def _the_live_namespace(fixture: GameFixture, responses: Fields) -> Fields:
    return {**_the_namespace(fixture, responses), "force": True}


def _the_full_game(fixture: GameFixture, responses: Fields) -> Fields:
    return {**_the_game(fixture, responses), "force": True}


OF_GAMES: Final = (
    by_operation("create_game", _new_game, steps=FED),
    by_operation("create_version", _new_version),
    by_operation("reserve_version_name", _of_game),
    by_operation(
        "delete_namespace", _the_namespace, steps=FED, prepare=GameFixture.new_unused_namespace
    ),
    by_operation("delete_game", _the_game, steps=FED, prepare=GameFixture.new_unused_game),
    by_operation(
        "delete_namespace",
        _the_live_namespace,
        name="delete a namespace with a lobby",
        steps=(*FED, *CONTENTS_REMOVED[:2]),
        prepare=GameFixture.new_live_namespace,
    ),
    by_operation(
        "delete_game",
        _the_full_game,
        name="delete a game with contents",
        steps=(*FED, *CONTENTS_REMOVED, *SERVER_REMOVED),
        in_records=(*RECORDS, *REMOVAL_RECORDS),
        prepare=GameFixture.new_full_game,
    ),
    by_operation("delete_version", _the_version, prepare=GameFixture.new_unused_version),
    by_operation("create_namespace", _new_namespace, steps=FED),
    by_operation("set_version", _other_version, steps=FED),
    by_operation("set_mm_config", _other_limit, steps=FED),
    by_operation("patch_mm_config", _one_other_limit, steps=FED),
    by_operation("set_domain_public_auth", _other_public_auth, steps=FED),
    by_operation("add_domain", _of_domain, steps=FED),
    by_operation("remove_domain", _of_domain, steps=FED, prepare=GameFixture.new_domain),
    by_operation("create_public_token", _only_namespace),
    by_operation("create_development_token", _new_development_token, steps=FED),
    by_operation("create_service_token", _of_environment, steps=FED, is_repeatable=False),
    by_operation(
        "revoke_namespace_token", _a_public_token, steps=FED, prepare=GameFixture.new_public_token
    ),
)


def _other_cdn_auth(fixture: GameFixture, responses: Fields) -> Fields:
    before = responses["get_namespace"]["namespace"]["config"]["cdn"]["auth_type"]
    return {**fixture.namespace_fields, "auth_type": "none" if before == "basic" else "basic"}


def _new_user(fixture: GameFixture, _: Fields) -> Fields:
    user = uuid4().hex
    fixture.passwords[user] = [uuid4().hex]
    return {**fixture.namespace_fields, "user": user, "password": fixture.passwords[user][0]}


def _other_password(fixture: GameFixture, _: Fields) -> Fields:
    user, passwords = list(fixture.passwords.items())[-1]
    passwords.append(uuid4().hex)
    return {**fixture.namespace_fields, "user": user, "password": passwords[-1]}


def _a_user(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.namespace_fields, "user": list(fixture.passwords)[-1]}


SET_CDN_AUTH: Final = by_operation("set_cdn_auth", _other_cdn_auth, prepare=GameFixture.new_user)
OF_SITES: Final = (
    by_operation("set_auth_user", _new_user, prepare=GameFixture.new_user, name="add a user"),
    by_operation(
        "set_auth_user", _other_password, prepare=GameFixture.new_user, name="change a password"
    ),
    by_operation("remove_auth_user", _a_user, prepare=GameFixture.new_user),
)


def _new_build(fixture: GameFixture, _: Fields) -> Fields:
    image = {"path": "server.tar", "content_length": len(BUILD)}
    return {**fixture.game, "display_name": uuid4().hex, "image_file": image}


def _new_environment_build(fixture: GameFixture, _: Fields) -> Fields:
    image = {"path": "server.tar", "content_length": len(BUILD)}
    return {**fixture.environment, "name": uuid4().hex, "image_file": image}


def _new_site(fixture: GameFixture, _: Fields) -> Fields:
    files = [{"path": "index.html", "content_length": len(PAGE)}]
    return {**fixture.game, "display_name": uuid4().hex, "files": files}


def _new_picture(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "path": "a.png", "content_length": len(png())}


def _the_upload(fixture: GameFixture, _: Fields) -> Fields:
    return {"upload_id": fixture.upload_id}


def _the_picture(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "upload_id": fixture.upload_id}


def _the_build(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "build_id": fixture.build_id}


def _the_environment_build(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.environment, "build_id": fixture.build_id}


def _tags(fixture: GameFixture, _: Fields) -> Fields:
    tags = {**CURRENT, "branch": uuid4().hex, "old": None}
    fields = {"build_id": fixture.build_id, "tags": tags, "exclusive_tags": list(CURRENT)}
    return {**fixture.environment, **fields}


def _the_site(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "site_id": fixture.unused_site}


def _deleted(kind: str, fields: Callable[[GameFixture, Fields], Fields]) -> Change:
    return by_operation(
        f"delete_{kind}",
        fields,
        steps=REMOVED,
        prepare=lambda fixture: fixture.new_complete_picture(kind),
    )


def _completed(kind: str) -> Change:
    return by_operation(
        f"complete_{kind}",
        _the_picture,
        steps=KEPT,
        prepare=lambda fixture: fixture.new_picture(kind),
    )


OF_FILES: Final = (
    by_operation("create_game_build", _new_build),
    by_operation("prepare_build", _new_environment_build),
    by_operation(
        "complete_build", _the_environment_build, steps=KEPT, prepare=GameFixture.new_build
    ),
    by_operation("create_site", _new_site),
    *(by_operation(f"prepare_{kind}", _new_picture) for kind in ("avatar", "banner", "logo")),
    *(
        by_operation("complete_upload", _the_upload, steps=KEPT, prepare=prepare, name=name)
        for name, prepare in (
            ("complete a build", GameFixture.new_build),
            ("complete a site", GameFixture.new_site),
        )
    ),
    *map(_completed, ("banner", "logo", "avatar")),
    by_operation("patch_build_tags", _tags, prepare=GameFixture.new_tagged_builds),
    by_operation("delete_build", _the_build, steps=REMOVED, prepare=GameFixture.new_complete_build),
    by_operation("delete_site", _the_site, steps=REMOVED, prepare=GameFixture.new_unused_site),
    _deleted("avatar", _the_picture),
    _deleted("banner", _of_game),
    _deleted("logo", _of_game),
)


def _the_lobby(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "lobby_id": fixture.lobby_id, "stream": "std_out"}


def _all_time(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.game, "query_start": 0, "query_end": 1}


OF_EXPORTS: Final = (
    by_operation(
        "export_lobby_logs", _the_lobby, prepare=GameFixture.recorded_lobby, is_repeatable=False
    ),
    by_operation("export_lobby_history", _all_time, is_repeatable=False),
)


def _named(_: GameFixture, __: Fields) -> Fields:
    return {"display_name": uuid4().hex}


def _nothing(_: GameFixture, __: Fields) -> Fields:
    return {}


def _of_group(fixture: GameFixture, _: Fields) -> Fields:
    return fixture.group


def _the_token(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.group, "token_id": fixture.token_id}


def _the_link(fixture: GameFixture, _: Fields) -> Fields:
    return {"device_link_token": fixture.link_token, "game_id": fixture.game_id}


def _the_person(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.group, "identity_id": fixture.people[-1].identity_id}


def _identity(fixture: GameFixture, _: Fields) -> Fields:
    return {"identity_id": fixture.people[-1].identity_id}


def _the_cloud_token(fixture: GameFixture, _: Fields) -> Fields:
    return {"token_ids": [fixture.token_id], "cascade": True}


def _the_public_token(fixture: GameFixture, responses: Fields) -> Fields:
    return {"token_ids": [_a_public_token(fixture, responses)["token_id"]]}


def _other_bio(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.group, "bio": uuid4().hex}


def _paid(fixture: GameFixture, _: Fields) -> Fields:
    event = control_admin_pb2.BILLING_EVENT_PAYMENT_SUCCEEDED
    return {**fixture.group, "event": event, "ts_ms": next(_MOMENTS_OF_PAYMENT)}


def _other_quota(fixture: GameFixture, _: Fields) -> Fields:
    return {**fixture.group, "limits": {"builds": 1_000}}


def _of_namespace(token_kind: int) -> Callable[[GameFixture, Fields], Fields]:
    def fields(_: GameFixture, responses: Fields) -> Fields:
        namespace = f"{responses['games'][0]['name_id']}/prod"
        return {"kind": token_kind, "namespace": namespace}

    return fields


def _token_commands() -> Iterator[Change]:
    once_more: dict[str, Any] = {"is_repeatable": False}
    for owner, fields in (
        ("--group", _of_group),
        ("--game", _of_game),
        ("--identity", lambda *_: {"all_groups": True}),
    ):
        yield by_command(f"token create {owner}", "CreateCloudToken", fields, **once_more)
    for owner, kind, steps in (
        ("--kind public", admin_pb2.TOKEN_KIND_PUBLIC, ()),
        ("--kind environment", admin_pb2.TOKEN_KIND_ENVIRONMENT, FED),
    ):
        fields = _of_namespace(kind)
        method = "CreateNamespaceToken"
        yield by_command(f"token create {owner}", method, fields, steps=steps, **once_more)


OF_PEOPLE: Final = (
    by_operation("create_group", _named),
    by_operation("create_game_token", _of_game, is_repeatable=False),
    by_operation("revoke_group_token", _the_token, prepare=GameFixture.new_cloud_token),
    by_operation("prepare_device_link", _nothing),
    by_operation("complete_device_link", _the_link, prepare=GameFixture.new_link),
)
COMMANDS: Final = (
    by_command("identity create", "CreateIdentity", _named, is_repeatable=False),
    by_command("group create", "AdminCreateGroup", _named, is_repeatable=False),
    by_command("group update", "UpdateGroup", _other_bio, in_records=ONE_PAGE),
    by_command("group add-member", "AddMember", _the_person, prepare=GameFixture.new_person),
    by_command("group remove-member", "RemoveMember", _the_person, prepare=GameFixture.new_member),
    by_command("identity disable", "DisableIdentity", _identity, prepare=GameFixture.new_member),
    by_command("identity enable", "EnableIdentity", _identity, prepare=GameFixture.disabled_member),
    by_command(
        "token revoke", "RevokeTokens", _the_cloud_token, prepare=GameFixture.new_cloud_token
    ),
    by_command(
        "token revoke of a namespace",
        "RevokeTokens",
        _the_public_token,
        steps=FED,
        prepare=GameFixture.new_public_token,
    ),
    by_command("billing record", "RecordBilling", _paid, in_records=ONE_PAGE),
    by_command("quota set", "SetQuotas", _other_quota, prepare=GameFixture.reset_quotas),
    by_command("quota reset", "ResetQuotas", _of_group, prepare=GameFixture.set_quota),
    *_token_commands(),
)
CHANGES: Final = (
    *OF_GAMES,
    SET_CDN_AUTH,
    *OF_SITES,
    *OF_FILES,
    *SERVER_CHANGES,
    *OF_EXPORTS,
    *OF_PEOPLE,
    *COMMANDS,
)
BY_NAME: Final = {str(change): change for change in CHANGES}
