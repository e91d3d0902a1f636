"""Every change of the records that somebody may ask for, at a door or by a command, and the steps of its own at which a
plane may die.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyservice.pb.hosting.internal.v1 import admin_pb2, control_admin_pb2
from tests.control.files import png
from tests.faults.control.scene import BUILD, CURRENT, PAGE, Fields, Scene
from tests.faults.control.struck import (
    ENDED,
    ENDED_IN_RECORDS,
    FED,
    IN_CONTAINER,
    KEPT,
    MOMENTS,
    ONE_PAGE,
    RECORDS,
    REMOVED,
    STARTED,
    STARTED_IN_RECORDS,
    UNPACKED,
    Step,
)
from tests.household import ARENA_MODES, Answer
from tests.programs import images

Ask = Callable[[Scene, Fields, str], Awaitable[Answer]]
_MOMENTS_OF_PAYMENT: Final = itertools.count(1_000_000_000_000)


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked for. `fields` makes a request that changes something, given what was seen before."""

    name: str
    operation: str
    """Its slug; of a command the method that it calls."""
    ask: Ask
    """Of fields and a key."""
    fields: Callable[[Scene, Fields], Fields]
    prepare: Callable[[Scene], Awaitable[Any]] | None = None
    """Makes what is changed."""
    steps: tuple[Step, ...] = ()
    """Those of files beside the records."""
    in_records: tuple[Step, ...] = RECORDS
    is_repeatable: bool = True
    """Whether a repetition changes nothing; otherwise it makes one more: where the answer is a secret that is not kept,
    and where there is no key.
    """

    def __str__(self) -> str:
        return self.name

    def all_steps(self, kind: str) -> Iterator[Step]:
        """With records in a database of this kind."""
        if kind == "sqlite":
            yield from self.in_records
        yield from self.steps
        yield from MOMENTS


def _asked(slug: str, fields: Callable[[Scene, Fields], Fields], **more: Any) -> Change:
    """At the public door; `name` of several with one slug."""

    async def ask(scene: Scene, wanted: Fields, key: str) -> Answer:
        return await scene.developer.call(slug, key, **wanted)

    return Change(more.pop("name", slug), slug, ask, fields, **more)


def _commanded(
    name: str, method: str, fields: Callable[[Scene, Fields], Fields], **more: Any
) -> Change:
    """`pyservice …` asks the control plane for it; there are no keys."""

    async def ask(scene: Scene, wanted: Fields, _: str) -> Answer:
        return await scene.command(method, **wanted)

    return Change(name, method, ask, fields, **more)


# Games and their namespaces -----------------------------------------------------------------------


def _new_game(scene: Scene, _: Fields) -> Fields:
    scene.wanted_game = f"g{uuid4().hex[:20]}"
    group_id = scene.house.group_id
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
    _asked("create_game", _new_game, steps=FED),
    _asked("create_version", _new_version),
    _asked("reserve_version_name", _of_game),
    _asked("create_namespace", _new_namespace, steps=FED),
    _asked("set_version", _other_version, steps=FED),
    _asked("set_mm_config", _other_limit, steps=FED),
    _asked("set_domain_public_auth", _other_public_auth, steps=FED),
    _asked("add_domain", _of_domain, steps=FED),
    _asked("remove_domain", _of_domain, steps=FED, prepare=Scene.new_domain),
    _asked("create_public_token", _of_place),
    _asked("create_development_token", _new_development_token, steps=FED),
    _asked("create_service_token", _of_environment, steps=FED, is_repeatable=False),
    _asked("revoke_namespace_token", _a_public_token, steps=FED, prepare=Scene.new_public_token),
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


SET_CDN_AUTH: Final = _asked("set_cdn_auth", _other_cdn_auth, prepare=Scene.new_user)
OF_SITES: Final = (
    _asked("set_auth_user", _new_user, prepare=Scene.new_user, name="add a user"),
    _asked("set_auth_user", _other_password, prepare=Scene.new_user, name="change a password"),
    _asked("remove_auth_user", _a_user, prepare=Scene.new_user),
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
    return _asked(
        f"complete_{kind}", _the_picture, steps=KEPT, prepare=lambda scene: scene.new_picture(kind)
    )


OF_FILES: Final = (
    _asked("create_game_build", _new_build),
    _asked("prepare_build", _new_environment_build),
    _asked("complete_build", _the_environment_build, steps=KEPT, prepare=Scene.new_build),
    _asked("create_site", _new_site),
    *(_asked(f"prepare_{kind}", _new_picture) for kind in ("avatar", "banner", "logo")),
    *(
        _asked("complete_upload", _the_upload, steps=KEPT, prepare=prepare, name=name)
        for name, prepare in (
            ("complete a build", Scene.new_build),
            ("complete a site", Scene.new_site),
        )
    ),
    *map(_completed, ("banner", "logo", "avatar")),
    _asked("patch_build_tags", _tags, prepare=Scene.new_tagged_builds),
    _asked("delete_build", _the_build, steps=REMOVED, prepare=Scene.new_complete_build),
)

# Servers ------------------------------------------------------------------------------------------


def _new_server(scene: Scene, _: Fields) -> Fields:
    return scene.servers.wanted()


def _the_server(timeout_ms: int) -> Callable[[Scene, Fields], Fields]:
    """To be ended, so long after SIGTERM, which it ignores."""

    def fields(scene: Scene, _: Fields) -> Fields:
        named = {"server_id": scene.server_id, "override_kill_timeout": timeout_ms}
        return {**scene.environment, **named}

    return fields


_IN_ITS_TIME_MS: Final = 400
_WHILE_IT_ENDS: Final = tuple(
    Step(f"{delay_ms} ms after it was told to end", "control", delay_ms=delay_ms)
    for delay_ms in (100, _IN_ITS_TIME_MS - 10, _IN_ITS_TIME_MS + 10)
)

OF_SERVERS: Final = (
    _asked(
        "create_server",
        _new_server,
        prepare=lambda scene: scene.servers.prepare(),
        steps=STARTED,
        in_records=(*RECORDS, *STARTED_IN_RECORDS),
    ),
    _asked(
        "destroy_server",
        _the_server(0),
        prepare=Scene.new_server,
        steps=ENDED,
        in_records=(*RECORDS, *ENDED_IN_RECORDS),
    ),
    _asked(
        "destroy_server",
        _the_server(_IN_ITS_TIME_MS),
        name="destroy a server in its time",
        prepare=Scene.new_server,
        steps=(*ENDED, *_WHILE_IT_ENDS),
        in_records=(*RECORDS, *ENDED_IN_RECORDS),
    ),
    _asked(
        "create_server",
        _new_server,
        name="create a server of a new build",
        prepare=lambda scene: scene.servers.prepare_new(),
        steps=UNPACKED,
        in_records=(),
    ),
)
IN_CONTAINERS: Final = (
    _asked(
        "create_server",
        _new_server,
        name="create a server in a container",
        prepare=lambda scene: scene.servers.prepare_contained(),
        steps=(*STARTED, *IN_CONTAINER),
        in_records=STARTED_IN_RECORDS,
    ),
    _asked(
        "destroy_server",
        _the_server(0),
        name="destroy a server in a container",
        prepare=lambda scene: scene.new_server(is_contained=True),
        steps=ENDED,
        in_records=ENDED_IN_RECORDS,
    ),
)

# Exports ------------------------------------------------------------------------------------------


def _the_lobby(scene: Scene, _: Fields) -> Fields:
    return {**scene.game, "lobby_id": scene.lobby_id, "stream": "std_out"}


def _all_time(scene: Scene, _: Fields) -> Fields:
    return {**scene.game, "query_start": 0, "query_end": 1}


OF_EXPORTS: Final = (
    _asked("export_lobby_logs", _the_lobby, prepare=Scene.recorded_lobby, is_repeatable=False),
    _asked("export_lobby_history", _all_time, is_repeatable=False),
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
        yield _commanded(f"token create {whose}", "CreateCloudToken", fields, **once_more)
    for whose, kind, steps in (
        ("--kind public", admin_pb2.TOKEN_KIND_PUBLIC, ()),
        ("--kind environment", admin_pb2.TOKEN_KIND_ENVIRONMENT, FED),
    ):
        fields = _of_namespace(kind)
        method = "CreateNamespaceToken"
        yield _commanded(f"token create {whose}", method, fields, steps=steps, **once_more)


OF_PEOPLE: Final = (
    _asked("create_group", _named),
    _asked("create_game_token", _of_game, is_repeatable=False),
    _asked("revoke_group_token", _the_token, prepare=Scene.new_cloud_token),
    _asked("prepare_device_link", _nothing),
    _asked("complete_device_link", _the_link, prepare=Scene.new_link),
)
COMMANDS: Final = (
    _commanded("identity create", "CreateIdentity", _named, is_repeatable=False),
    _commanded("group create", "AdminCreateGroup", _named, is_repeatable=False),
    _commanded("group update", "UpdateGroup", _other_bio, in_records=ONE_PAGE),
    _commanded("group add-member", "AddMember", _the_person, prepare=Scene.new_person),
    _commanded("group remove-member", "RemoveMember", _the_person, prepare=Scene.new_member),
    _commanded("billing record", "RecordBilling", _paid, in_records=ONE_PAGE),
    *_token_commands(),
)
CHANGES: Final = (
    *OF_GAMES,
    SET_CDN_AUTH,
    *OF_SITES,
    *OF_FILES,
    *OF_SERVERS,
    *(IN_CONTAINERS if images.has_oci_runtime() else ()),
    *OF_EXPORTS,
    *OF_PEOPLE,
    *COMMANDS,
)
BY_NAME: Final = {str(change): change for change in CHANGES}
