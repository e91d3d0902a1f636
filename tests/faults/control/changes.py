"""Every change of the records that somebody may ask for, at a door or by a command, and the steps of its own at which a
plane may die.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import uuid4

from pyservice.pb.hosting.internal.v1 import admin_pb2, control_admin_pb2
from tests.control.files import png
from tests.faults.control.change import Change, asked, commanded
from tests.faults.control.scene import BUILD, CURRENT, PAGE, Fields, Scene
from tests.faults.control.server_changes import OF_SERVERS
from tests.faults.control.struck import FED, KEPT, ONE_PAGE, REMOVED
from tests.support.full_service import ARENA_MODES

_MOMENTS_OF_PAYMENT: Final = itertools.count(1_000_000_000_000)


# Games and their namespaces -----------------------------------------------------------------------


def _new_game(scene: Scene, _: Fields) -> Fields:
    scene.wanted_game = f"g{uuid4().hex[:20]}"
    group_id = scene.full_service.group_id
    return {"developer_group_id": group_id, "display_name": "G", "name_id": scene.wanted_game}


def _new_version(scene: Scene, _: Fields) -> Fields:
    config = {"matchmaker": {"game_modes": ARENA_MODES}}
    return {**scene.game, "display_name": uuid4().hex, "config": config}


def _new_namespace(scene: Scene, _: Fields) -> Fields:
    name = f"n{uuid4().hex[:12]}"
    named = {"display_name": name, "name_id": name}
    return {**scene.game, **named, "version_id": scene.versions[0]}


def _other_version(scene: Scene, told: Fields) -> Fields:
    running = told["get_namespace"]["namespace"]["version_id"]
    return {**scene.place, "version_id": next(one for one in scene.versions if one != running)}


def _other_limit(scene: Scene, told: Fields) -> Fields:
    before = told["get_namespace"]["namespace"]["config"]["matchmaker"]["lobby_count_max"]
    return {**scene.place, "lobby_count_max": before + 1, "max_players": before + 2}


def _other_public_auth(scene: Scene, told: Fields) -> Fields:
    cdn = told["get_namespace"]["namespace"]["config"]["cdn"]
    return {**scene.place, "enabled": not cdn["enable_domain_public_auth"]}


def _of_domain(scene: Scene, _: Fields) -> Fields:
    return {**scene.place, "domain": scene.spare_domain or f"{uuid4().hex}.example.com"}


def _of_place(scene: Scene, _: Fields) -> Fields:
    return scene.place


def _of_environment(scene: Scene, _: Fields) -> Fields:
    return scene.environment


def _of_game(scene: Scene, _: Fields) -> Fields:
    return scene.game


def _new_development_token(scene: Scene, _: Fields) -> Fields:
    return {**scene.place, "hostname": "127.0.0.1", "ports": {}}


def _a_public_token(scene: Scene, told: Fields) -> Fields:
    good = [one for one in told["list_namespace_tokens"]["tokens"] if "revoke_ts" not in one]
    return {
        **scene.place,
        "token_id": next(one["token_id"] for one in good if one["kind"] == "pub"),
    }


OF_GAMES: Final = (
    asked("create_game", _new_game, steps=FED),
    asked("create_version", _new_version),
    asked("reserve_version_name", _of_game),
    asked("create_namespace", _new_namespace, steps=FED),
    asked("set_version", _other_version, steps=FED),
    asked("set_mm_config", _other_limit, steps=FED),
    asked("set_domain_public_auth", _other_public_auth, steps=FED),
    asked("add_domain", _of_domain, steps=FED),
    asked("remove_domain", _of_domain, steps=FED, prepare=Scene.new_domain),
    asked("create_public_token", _of_place),
    asked("create_development_token", _new_development_token, steps=FED),
    asked("create_service_token", _of_environment, steps=FED, is_repeatable=False),
    asked("revoke_namespace_token", _a_public_token, steps=FED, prepare=Scene.new_public_token),
)

# The site and who sees it -------------------------------------------------------------------------


def _other_cdn_auth(scene: Scene, told: Fields) -> Fields:
    before = told["get_namespace"]["namespace"]["config"]["cdn"]["auth_type"]
    return {**scene.place, "auth_type": "none" if before == "basic" else "basic"}


def _new_user(scene: Scene, _: Fields) -> Fields:
    user = uuid4().hex
    scene.passwords[user] = [uuid4().hex]
    return {**scene.place, "user": user, "password": scene.passwords[user][0]}


def _other_password(scene: Scene, _: Fields) -> Fields:
    user, passwords = list(scene.passwords.items())[-1]
    passwords.append(uuid4().hex)
    return {**scene.place, "user": user, "password": passwords[-1]}


def _a_user(scene: Scene, _: Fields) -> Fields:
    return {**scene.place, "user": list(scene.passwords)[-1]}


SET_CDN_AUTH: Final = asked("set_cdn_auth", _other_cdn_auth, prepare=Scene.new_user)
OF_SITES: Final = (
    asked("set_auth_user", _new_user, prepare=Scene.new_user, name="add a user"),
    asked("set_auth_user", _other_password, prepare=Scene.new_user, name="change a password"),
    asked("remove_auth_user", _a_user, prepare=Scene.new_user),
)

# What is uploaded ---------------------------------------------------------------------------------


def _new_build(scene: Scene, _: Fields) -> Fields:
    image = {"path": "server.tar", "content_length": len(BUILD)}
    return {**scene.game, "display_name": uuid4().hex, "image_file": image}


def _new_environment_build(scene: Scene, _: Fields) -> Fields:
    image = {"path": "server.tar", "content_length": len(BUILD)}
    return {**scene.environment, "name": uuid4().hex, "image_file": image}


def _new_site(scene: Scene, _: Fields) -> Fields:
    files = [{"path": "index.html", "content_length": len(PAGE)}]
    return {**scene.game, "display_name": uuid4().hex, "files": files}


def _new_picture(scene: Scene, _: Fields) -> Fields:
    return {**scene.game, "path": "a.png", "content_length": len(png())}


def _the_upload(scene: Scene, _: Fields) -> Fields:
    return {"upload_id": scene.upload_id}


def _the_picture(scene: Scene, _: Fields) -> Fields:
    return {**scene.game, "upload_id": scene.upload_id}


def _the_build(scene: Scene, _: Fields) -> Fields:
    return {**scene.game, "build_id": scene.build_id}


def _the_environment_build(scene: Scene, _: Fields) -> Fields:
    return {**scene.environment, "build_id": scene.build_id}


def _tags(scene: Scene, _: Fields) -> Fields:
    """Of the build that is to be the current one."""
    tags = {**CURRENT, "branch": uuid4().hex, "old": None}
    fields = {"build_id": scene.build_id, "tags": tags, "exclusive_tags": list(CURRENT)}
    return {**scene.environment, **fields}


def _completed(kind: str) -> Change:
    return asked(
        f"complete_{kind}", _the_picture, steps=KEPT, prepare=lambda scene: scene.new_picture(kind)
    )


OF_FILES: Final = (
    asked("create_game_build", _new_build),
    asked("prepare_build", _new_environment_build),
    asked("complete_build", _the_environment_build, steps=KEPT, prepare=Scene.new_build),
    asked("create_site", _new_site),
    *(asked(f"prepare_{kind}", _new_picture) for kind in ("avatar", "banner", "logo")),
    *(
        asked("complete_upload", _the_upload, steps=KEPT, prepare=prepare, name=name)
        for name, prepare in (
            ("complete a build", Scene.new_build),
            ("complete a site", Scene.new_site),
        )
    ),
    *map(_completed, ("banner", "logo", "avatar")),
    asked("patch_build_tags", _tags, prepare=Scene.new_tagged_builds),
    asked("delete_build", _the_build, steps=REMOVED, prepare=Scene.new_complete_build),
)

# Exports ------------------------------------------------------------------------------------------


def _the_lobby(scene: Scene, _: Fields) -> Fields:
    return {**scene.game, "lobby_id": scene.lobby_id, "stream": "std_out"}


def _all_time(scene: Scene, _: Fields) -> Fields:
    return {**scene.game, "query_start": 0, "query_end": 1}


OF_EXPORTS: Final = (
    asked("export_lobby_logs", _the_lobby, prepare=Scene.recorded_lobby, is_repeatable=False),
    asked("export_lobby_history", _all_time, is_repeatable=False),
)

# People and what they hold ------------------------------------------------------------------------


def _named(_: Scene, __: Fields) -> Fields:
    return {"display_name": uuid4().hex}


def _nothing(_: Scene, __: Fields) -> Fields:
    return {}


def _of_group(scene: Scene, _: Fields) -> Fields:
    return scene.group


def _the_token(scene: Scene, _: Fields) -> Fields:
    return {**scene.group, "token_id": scene.token_id}


def _the_link(scene: Scene, _: Fields) -> Fields:
    return {"device_link_token": scene.link_token, "game_id": scene.game_id}


def _the_person(scene: Scene, _: Fields) -> Fields:
    return {**scene.group, "identity_id": scene.people[-1].identity_id}


def _other_bio(scene: Scene, _: Fields) -> Fields:
    return {**scene.group, "bio": uuid4().hex}


def _paid(scene: Scene, _: Fields) -> Fields:
    event = control_admin_pb2.BILLING_EVENT_PAYMENT_SUCCEEDED
    return {**scene.group, "event": event, "ts_ms": next(_MOMENTS_OF_PAYMENT)}


def _of_namespace(token_kind: int) -> Callable[[Scene, Fields], Fields]:
    def fields(_: Scene, told: Fields) -> Fields:
        namespace = f"{told['games'][0]['name_id']}/prod"
        return {"kind": token_kind, "namespace": namespace}

    return fields


def _token_commands() -> Iterator[Change]:
    once_more: dict[str, Any] = {"is_repeatable": False}
    for whose, fields in (
        ("--group", _of_group),
        ("--game", _of_game),
        ("--identity", lambda *_: {"all_groups": True}),
    ):
        yield commanded(f"token create {whose}", "CreateCloudToken", fields, **once_more)
    for whose, kind, steps in (
        ("--kind public", admin_pb2.TOKEN_KIND_PUBLIC, ()),
        ("--kind environment", admin_pb2.TOKEN_KIND_ENVIRONMENT, FED),
    ):
        fields = _of_namespace(kind)
        method = "CreateNamespaceToken"
        yield commanded(f"token create {whose}", method, fields, steps=steps, **once_more)


OF_PEOPLE: Final = (
    asked("create_group", _named),
    asked("create_game_token", _of_game, is_repeatable=False),
    asked("revoke_group_token", _the_token, prepare=Scene.new_cloud_token),
    asked("prepare_device_link", _nothing),
    asked("complete_device_link", _the_link, prepare=Scene.new_link),
)
COMMANDS: Final = (
    commanded("identity create", "CreateIdentity", _named, is_repeatable=False),
    commanded("group create", "AdminCreateGroup", _named, is_repeatable=False),
    commanded("group update", "UpdateGroup", _other_bio, in_records=ONE_PAGE),
    commanded("group add-member", "AddMember", _the_person, prepare=Scene.new_person),
    commanded("group remove-member", "RemoveMember", _the_person, prepare=Scene.new_member),
    commanded("billing record", "RecordBilling", _paid, in_records=ONE_PAGE),
    *_token_commands(),
)
CHANGES: Final = (
    *OF_GAMES,
    SET_CDN_AUTH,
    *OF_SITES,
    *OF_FILES,
    *OF_SERVERS,
    *OF_EXPORTS,
    *OF_PEOPLE,
    *COMMANDS,
)
BY_NAME: Final = {str(change): change for change in CHANGES}
