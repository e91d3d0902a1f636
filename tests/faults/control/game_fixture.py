"""A game in a service with killed planes, and checks of its records, responses and effects."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import bcrypt
import httpx
from google.protobuf.json_format import MessageToDict

from pyservice.cli.admin_requests import control_socket
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import control_admin_pb2
from pyservice.rpc import InternalClient
from tests.support import container_images, game_programs
from tests.support.full_service import (
    ARENA_MODES,
    Developer,
    ServiceClient,
    ServiceResponse,
    eventually,
)
from tests.support.killed_service import REMOVAL_S, KilledService, StateReader
from tests.support.running_servers import RunningServers
from tests.support.upload_files import png, put, tar
from tests.support.waiting import PATIENCE_S

DOMAIN: Final = "play.example.com"
BUILD: Final = tar()
PAGE: Final = b"<h1>Arena</h1>"
CURRENT: Final = {"current": "yes"}
"""Time for which the data plane may still accept a revoked token."""
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Person:
    identity_id: str
    token: str
    of_group: str | None = None


@dataclass(frozen=True, slots=True)
class Lobby:
    lobby_id: str
    token: str
    public_token: str


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a game, or of a namespace of the game, that a change deletes."""

    game_id: str
    lobby: Lobby
    uploads: tuple[str, ...] = ()
    server_id: str = ""


class GameFixture:
    def __init__(self, full_service: KilledService, client: ServiceClient) -> None:
        self.full_service = full_service
        self.client = client
        self.developer = Developer(full_service, client)
        self.tokens: dict[str, str] = {}
        self.kept_ids: set[str] = set()
        self.version_names: dict[str, str] = {}
        self.pictures: dict[str, bytes] = {}
        self.contents: dict[str, Contents] = {}
        self.next_game = self.unused_version = self.unused_site = ""
        self.unused_namespace = self.unused_game = ""
        self.link_token = self.lobby_id = ""
        self.begin()

    def begin(self) -> None:
        """Forgets the expected records of earlier changes."""
        self.spare_domain = self.upload_id = self.build_id = self.token_id = self.server_id = ""
        self.images: dict[str, str] = {}
        self.passwords: dict[str, list[str]] = {}
        self.shut_out: set[str] = set()
        self.people: list[Person] = []

    async def prepare(self) -> GameFixture:
        self.game_id = await self.developer.game()
        self.servers = RunningServers(self.developer, self.game_id)
        self.state_reader = StateReader(
            self.full_service, self.client, self.developer.token, self.game_id
        )
        await self.new_site()
        await self.developer.good("complete_upload", upload_id=self.upload_id)
        cdn = {"site_id": self.site_id, "routes": []}
        config = {"matchmaker": {"game_modes": ARENA_MODES}, "cdn": cdn}
        self.versions = [await self.developer.version(self.game_id, config, n) for n in ("a", "b")]
        await self.developer.good(
            "set_version", **self.namespace_fields, version_id=self.versions[0]
        )
        await self.developer.good("add_domain", **self.namespace_fields, domain=DOMAIN)
        await self.new_public_token()
        return self

    @property
    def game(self) -> Fields:
        return {"game_id": self.game_id}

    @property
    def namespace_fields(self) -> Fields:
        return {"game_id": self.game_id, "namespace_id": "prod"}

    @property
    def environment(self) -> Fields:
        return {"game_id": self.game_id, "environment_id": "prod"}

    @property
    def group(self) -> Fields:
        return {"group_id": self.full_service.group_id}

    async def command(self, method: str, **fields: Any) -> ServiceResponse:
        request = getattr(control_admin_pb2, f"{method}Request")(**fields)
        async with InternalClient(control_socket(self.full_service.data_dir)) as client:
            try:
                message = await client.call(f"hosting.internal.v1.ControlAdmin.{method}", request)
            except ServiceError as error:
                return ServiceResponse(error.code, None, detail=error.detail)
        return ServiceResponse("OK", MessageToDict(message, preserving_proto_field_name=True))

    async def commanded(self, method: str, **fields: Any) -> Any:
        answer = await self.command(method, **fields)
        assert answer.code == "OK", answer
        return answer.body

    async def new_public_token(self) -> None:
        self.keep("", await self.developer.good("create_public_token", **self.namespace_fields))

    async def new_cloud_token(self) -> None:
        response = await self.developer.good("create_game_token", **self.game)
        self.keep("", response)
        self.token_id = response["token_id"]

    async def new_domain(self) -> None:
        self.spare_domain = f"{uuid4().hex}.example.com"
        await self.developer.good("add_domain", **self.namespace_fields, domain=self.spare_domain)

    async def new_user(self) -> None:
        user = uuid4().hex
        self.passwords[user] = [uuid4().hex]
        fields = {"user": user, "password": self.passwords[user][0]}
        await self.developer.good("set_auth_user", **self.namespace_fields, **fields)
        await self.developer.good("set_cdn_auth", **self.namespace_fields, auth_type="basic")

    async def new_build(self) -> None:
        image = {"path": "server.tar", "content_length": len(BUILD)}
        fields: Fields = {**self.game, "display_name": uuid4().hex, "image_file": image}
        response = await self.developer.good("create_game_build", **fields)
        self.build_id = response["build_id"]
        await self._upload(response["upload_id"], response["image_presigned_request"], BUILD)

    async def new_complete_build(self) -> None:
        await self.new_build()
        await self.developer.good("complete_upload", upload_id=self.upload_id)
        self.images[self.build_id] = self.upload_id

    async def new_tagged_builds(self) -> None:
        for tags in (CURRENT, {"old": "yes"}):
            await self.new_complete_build()
            fields: Fields = {"build_id": self.build_id, "tags": tags, "exclusive_tags": list(tags)}
            await self.developer.good("patch_build_tags", **self.environment, **fields)

    async def new_site(self) -> None:
        files = [{"path": "index.html", "content_length": len(PAGE)}]
        fields: Fields = {**self.game, "display_name": uuid4().hex, "files": files}
        response = await self.developer.good("create_site", **fields)
        self.site_id = response["site_id"]
        (request,) = response["presigned_requests"]
        await self._upload(response["upload_id"], request, PAGE)

    async def new_unused_version(self) -> None:
        config = {"matchmaker": {"game_modes": ARENA_MODES}}
        self.unused_version = await self.developer.version(self.game_id, config, uuid4().hex)

    async def new_unused_namespace(self) -> None:
        name = f"n{uuid4().hex[:12]}"
        named = {"name_id": name, "display_name": name, "version_id": self.versions[0]}
        response = await self.developer.good("create_namespace", **self.game, **named)
        self.unused_namespace = response["namespace_id"]
        target = {**self.game, "namespace_id": name}
        await self.developer.good("set_mm_config", **target, lobby_count_max=8, max_players=8)
        await self.developer.good("create_public_token", **target)

    async def new_unused_game(self) -> None:
        self.unused_game = await self.developer.arena()
        await self.developer.good("create_game_token", game_id=self.unused_game)

    async def new_live_namespace(self) -> None:
        """Creates a namespace of the game, with a lobby that has not ended."""
        await self.new_unused_namespace()
        lobby = await self._attach(self.game_id, self.unused_namespace)
        self.contents[self.unused_namespace] = Contents(self.game_id, lobby)

    async def new_full_game(self) -> None:
        """Creates a game with uploads, a lobby and a server."""
        own, own_servers = self.game_id, self.servers
        game_id = self.unused_game = self.game_id = await self.developer.game()
        self.servers = RunningServers(self.developer, game_id)
        try:
            await self.new_site()
            await self.developer.good("complete_upload", upload_id=self.upload_id)
            uploads = [self.upload_id]
            config = {"matchmaker": {"game_modes": ARENA_MODES}, "cdn": {"site_id": self.site_id}}
            version_id = await self.developer.version(game_id, config)
            await self.developer.good("set_version", **self.namespace_fields, version_id=version_id)
            for prepare in (self.new_build, lambda: self.new_picture("avatar")):
                await prepare()
                uploads.append(self.upload_id)
            server_id = await self.servers.add_of_new_build()
            own_servers.of_other_games.add(server_id)
            lobby = await self._attach(game_id, "prod")
            self.contents[game_id] = Contents(game_id, lobby, tuple(uploads), server_id)
        finally:
            self.game_id, self.servers = own, own_servers

    async def _attach(self, game_id: str, namespace_id: str) -> Lobby:
        fields: Fields = {"game_id": game_id, "namespace_id": namespace_id}
        token = (await self.developer.good("create_public_token", **fields))["token"]
        environment = {"game_id": game_id, "environment_id": namespace_id}
        service = (await self.developer.good("create_service_token", **environment))["token"]
        ports = {"game": {"address": "127.0.0.1", "port": 4000}}
        fields = {**fields, "game_mode": "arena", "ports": ports}

        async def is_attached() -> Any:
            answer = await self.client.call("attach", fields, token=service)
            return answer.body if answer.code == "OK" else None

        lobby = await eventually(is_attached)
        ready = await self.client.call("ready", {}, token=lobby["lobby_token"])
        assert ready.code == "OK", ready
        return Lobby(lobby["lobby_id"], lobby["lobby_token"], token)

    async def new_unused_site(self) -> None:
        """Creates a complete site that no version names. Its files are checked like an image."""
        used = self.site_id
        await self.new_site()
        await self.developer.good("complete_upload", upload_id=self.upload_id)
        self.unused_site, self.site_id = self.site_id, used
        self.images[self.unused_site] = self.upload_id

    async def new_complete_picture(self, kind: str) -> None:
        await self.new_picture(kind)
        await self.developer.good("complete_upload", upload_id=self.upload_id)

    async def new_picture(self, kind: str) -> None:
        content = png(len(self.pictures) + 1)
        fields: Fields = {**self.game, "path": "a.png", "content_length": len(content)}
        response = await self.developer.good(f"prepare_{kind}", **fields)
        self.pictures[response["upload_id"]] = content
        await self._upload(response["upload_id"], response["presigned_request"], content)

    async def _upload(self, upload_id: str, request: Fields, content: bytes) -> None:
        answer = await put(request, content)
        assert answer.status_code == 200, answer.text
        self.upload_id = upload_id

    async def new_link(self) -> None:
        self.keep("", await self.developer.good("prepare_device_link"))

    async def new_person(self) -> str:
        created = await self.commanded("CreateIdentity", display_name=uuid4().hex)
        identity_id: str = created["identity_id"]
        fields = {"all_groups": True, "identity_id": identity_id}
        token = (await self.commanded("CreateCloudToken", **fields))["token"]
        self.people.append(Person(identity_id, token))
        return identity_id

    async def new_member(self) -> None:
        member = {**self.group, "identity_id": await self.new_person()}
        await self.commanded("AddMember", **member)
        of_group = (await self.commanded("CreateCloudToken", **member))["token"]
        person = self.people.pop()
        self.people.append(Person(person.identity_id, person.token, of_group))

    async def disabled_member(self) -> None:
        await self.new_member()
        await self.commanded("DisableIdentity", identity_id=self.people[-1].identity_id)

    async def set_quota(self) -> None:
        await self.commanded("SetQuotas", **self.group, limits={"builds": 1_000})

    async def reset_quotas(self) -> None:
        await self.commanded("ResetQuotas", **self.group)

    async def new_server(self, *, is_contained: bool = False) -> None:
        self.server_id = await self.servers.add(is_contained=is_contained)

    async def recorded_lobby(self) -> None:
        if self.lobby_id:
            return
        token = await self.developer.service_token(self.game_id)
        self.lobby_id = (await self.developer.lobby(self.game_id, token))["lobby_id"]

        async def is_recorded() -> bool:
            fields = {**self.namespace_fields, "lobby_id": self.lobby_id}
            return (await self.developer.call("get_lobby_record", **fields)).code == "OK"

        await eventually(is_recorded)

    def keep(self, key: str, body: Any) -> None:
        """Stores the response to a request with a key. The records in the response must exist from
        now on.
        """
        if "token" in body:
            self.tokens[body["token_id"]] = body["token"]
        self.kept_ids |= {body[name] for name in ("identity_id", "group_id") if name in body}
        self.link_token = body.get("device_link_token", self.link_token)
        if name := body.get("version_display_name"):
            assert self.version_names.setdefault(name, key) == key, name

    async def read_all(self) -> Fields:
        """Returns all database rows and all responses, without values that change without a
        request.
        """
        returned: Fields = {}
        for slugs, fields in (
            (("get_namespace", "version_history", "list_namespace_tokens"), self.namespace_fields),
            (("list_game_builds", "list_sites", "list_avatars"), self.game),
            (("list_group_tokens", "get_billing"), self.group),
        ):
            for slug in slugs:
                returned[slug] = await self.developer.good(slug, **fields)
        if self.link_token:
            query = {"device_link_token": self.link_token}
            returned["get_device_link"] = await self.developer.good("get_device_link", **query)
        returned["identities"] = (await self.commanded("ListIdentities"))["identities"]
        response = await self.developer.good("get_games")
        returned["groups"] = response["groups"]
        games = [one for one in response["games"] if one["name_id"] == self.next_game]
        returned["games"] = [
            (await self.developer.good("get_game", game_id=game_id))["game"]
            for game_id in (self.game_id, *(one["game_id"] for one in games))
        ]
        for body in returned.values():
            if isinstance(body, dict):
                body.pop("watch", None)
        returned["records"] = await self.state_reader.records()
        return returned

    async def check_effects(self, responses: Fields) -> None:
        await self.state_reader.check_stored_use()
        await self._check_domains(responses)
        await self._check_tokens(responses)
        await self._check_uploads(responses)
        await self._check_people(responses)
        await self.servers.check()
        await self._check_contents()
        async with httpx.AsyncClient(verify=False, timeout=PATIENCE_S) as browser:
            await self._check_pictures(responses, browser)
            await self._check_site(responses, browser)
        if token := responses.get("get_device_link", {}).get("cloud_token"):
            device = Developer(self.full_service, self.client, token)
            assert (await device.good("inspect_token"))["game_id"] == self.game_id

    async def _check_contents(self) -> None:
        """Checks that each game and namespace with contents has all of them or nothing."""
        for owner_id, contents in self.contents.items():
            game = await self.developer.call("get_game", game_id=contents.game_id)
            assert game.code in ("OK", "GAME_NOT_FOUND"), game
            namespaces = game.body["game"]["namespaces"] if game.code == "OK" else []
            owners = {contents.game_id, *(one["namespace_id"] for one in namespaces)}
            is_there = game.code == "OK" and owner_id in owners

            async def is_as_reported(
                contents: Contents = contents, is_there: bool = is_there
            ) -> bool:
                return set((await self._held(contents)).values()) == {is_there}

            try:
                await eventually(is_as_reported)
            except AssertionError:
                raise AssertionError((is_there, await self._held(contents))) from None

    async def _held(self, contents: Contents) -> dict[str, bool]:
        """Returns which parts of a game's or namespace's contents exist."""
        lobby = contents.lobby
        ready = await self.client.call("ready", {}, token=lobby.token)
        listed = await self.client.call("list", {}, token=lobby.public_token)
        held = {"lobby": ready.code == "OK", "public token": listed.code == "OK"}
        objects = self.full_service.data_dir / "control" / "objects"
        for upload_id in contents.uploads:
            files = itertools.chain(
                (objects / "kept" / upload_id).glob("*"),
                (objects / "pending" / upload_id).glob("*"),
            )
            held[f"upload {upload_id}"] = any(path.is_file() for path in files)
        if contents.server_id:
            held["server"] = await self.servers.has_begun(contents.server_id)
        return held

    async def check_removals(self) -> None:
        """Checks that nothing of deleted games and namespaces remains."""
        for owner_id, contents in self.contents.items():
            game = await self.developer.call("get_game", game_id=contents.game_id)
            if game.code != "OK" or owner_id != contents.game_id:
                check = functools.partial(self._is_removed, contents)
                await eventually(check, timeout_s=REMOVAL_S)

    async def _is_removed(self, contents: Contents) -> bool:
        """Returns whether no record names the contents and no run folder is left.

        The removals that wait are records too.
        """
        ids = {contents.lobby.lobby_id, contents.server_id, *contents.uploads} - {""}
        rows = await self.state_reader.all_records()
        is_named = any(ids.intersection(row) for table in rows.values() for row in table)
        run_folder = self.full_service.data_dir / "servers" / contents.server_id
        return not is_named and not (contents.server_id and run_folder.exists())

    async def _check_domains(self, responses: Fields) -> None:
        cdn = responses["get_namespace"]["namespace"]["config"]["cdn"]
        for domain in filter(None, (DOMAIN, self.spare_domain)):
            is_let_in = cdn["enable_domain_public_auth"] and domain in {
                one["domain"] for one in cdn["domains"]
            }
            answer = await self.client.call("regions", {}, origin=f"https://{domain}")
            assert (answer.code == "OK") == is_let_in, (answer, cdn)

    async def _check_tokens(self, responses: Fields) -> None:
        """Checks that each token of a response is listed, and works unless it was revoked."""
        slugs = ("list_namespace_tokens", "list_group_tokens")
        listed = {one["token_id"]: one for slug in slugs for one in responses[slug]["tokens"]}
        for token_id, token in self.tokens.items():
            record = listed[token_id]
            slug = "inspect_token" if token.startswith("cloud_") else "regions"
            answer = await self.client.call(slug, {}, token=token)
            assert (answer.code == "OK") == ("revoke_ts" not in record), (answer, record)
            if token_id == self.token_id:
                await self._check_at_data_plane(token, "revoke_ts" in record)

    async def _check_at_data_plane(self, token: str, is_revoked: bool) -> None:
        fields = {**self.game, "lobby_id": str(uuid4())}

        async def is_known() -> bool:
            answer = await self.client.call("detach", fields, token=token)
            good = "MATCHMAKER_LOBBY_NOT_FOUND"
            return answer.code == ("TOKEN_REVOKED" if is_revoked else good)

        await eventually(is_known)

    async def _check_uploads(self, responses: Fields) -> None:
        for site in responses["list_sites"]["sites"]:
            await self._check_use({"cdn": {"site_id": site["site_id"]}}, site["complete"])
        listed = {one["build_id"]: one for one in responses["list_game_builds"]["builds"]}
        for build_id, build in listed.items():
            docker = {**ARENA_MODES["arena"]["docker"], "image_id": build_id}
            modes = {"arena": {"max_players": 4, "docker": docker}}
            await self._check_use({"matchmaker": {"game_modes": modes}}, build["complete"])
        current = [one for one, build in listed.items() if CURRENT.items() <= build["tags"].items()]
        fields = {**self.environment, "tags_json": json.dumps(CURRENT)}
        builds = (await self.developer.good("list_builds", **fields))["builds"]
        assert [one["id"] for one in builds] == current
        assert len(current) <= 1
        kept_folder = self.full_service.data_dir / "control" / "objects" / "kept"
        listed |= {one["site_id"]: one for one in responses["list_sites"]["sites"]}
        for owner_id, upload_id in self.images.items():

            async def is_as_reported(
                folder: Any = kept_folder / upload_id, is_there: bool = owner_id in listed
            ) -> bool:
                return is_there == any(path.is_file() for path in folder.glob("*"))

            await eventually(is_as_reported)

    async def _check_use(self, config: Fields, is_complete: bool) -> None:
        fields: Fields = {**self.game, "display_name": "use", "config": config}
        errors = (await self.developer.good("validate_version", **fields))["errors"]
        assert (errors == []) == is_complete, (config, errors)

    async def _check_people(self, responses: Fields) -> None:
        ids = {one["identity_id"] for one in responses["identities"]}
        for group in responses["groups"]:
            ids.add(group["group_id"])
            assert group["is_current_identity_member"], group
            answer = await self.developer.good("get_group", group_id=group["group_id"])
            assert answer["group"] == group, (answer, group)
        assert self.kept_ids <= ids
        group_id = self.full_service.group_id
        members = {row[1] for row in responses["records"]["members"] if row[0] == group_id}
        disabled = {one["identity_id"] for one in responses["identities"] if "disable_ms" in one}
        for person in self.people:
            is_member = person.identity_id in members
            if person.identity_id in disabled:
                answer = await self.client.call("get_group", self.group, token=person.token)
                assert answer.code == "TOKEN_REVOKED"
                continue
            answer = await self.client.call("get_group", self.group, token=person.token)
            assert answer.code == ("OK" if is_member else "GROUP_NOT_FOUND")
            if person.of_group:
                answer = await self.client.call("get_group", self.group, token=person.of_group)
                assert answer.code == ("OK" if is_member else "TOKEN_REVOKED")

    async def _check_pictures(self, responses: Fields, browser: httpx.AsyncClient) -> None:
        urls = [responses["games"][0].get(f"{kind}_url") for kind in ("banner", "logo")]
        for avatar in responses["list_avatars"]["custom_avatars"]:
            assert ("url" in avatar) == avatar["complete"], avatar
            urls.append(avatar.get("url"))
        for url in filter(None, urls):
            (content,) = (one for upload_id, one in self.pictures.items() if upload_id in url)
            assert (await browser.get(url)).content == content

    async def _check_site(self, responses: Fields, browser: httpx.AsyncClient) -> None:
        cdn = responses["get_namespace"]["namespace"]["config"]["cdn"]
        url = f"http://{self.full_service.ready['cdn']}/{responses['games'][0]['name_id']}/prod/"

        async def answers(status: int, credentials: tuple[str, str] | None = None) -> None:
            async def is_so() -> bool:
                return (await browser.get(url, auth=credentials)).status_code == status

            await eventually(is_so)

        is_guarded = cdn["auth_type"] == "basic"
        await answers(401 if is_guarded else 200)
        hashes = {row[1]: row[2] for row in responses["records"]["auth_users"]}
        assert hashes.keys() == {one["user"] for one in cdn["auth_user_list"]}
        for user, passwords in self.passwords.items() if is_guarded else ():
            if user in hashes:
                expected = hashes[user].encode()
                (right,) = [one for one in passwords if bcrypt.checkpw(one.encode(), expected)]
                await answers(200, (user, right))
            elif user not in self.shut_out:
                self.shut_out.add(user)
                await answers(401, (user, passwords[-1]))


@contextlib.asynccontextmanager
async def open_game_fixture(
    folder: Path, library: Path, url: str | None
) -> AsyncIterator[GameFixture]:
    runtime = dict(game_programs.SETTINGS)
    if container_images.has_oci_runtime():
        runtime["kinds"] = container_images.KINDS
    # Rays are written in the background. The kill must meet a write of the change.
    full_service = KilledService(folder, library, url, rays={"per_second": 0}, runtime=runtime)
    try:
        full_service.start()
        client = full_service.client("http")
        fixture = await GameFixture(full_service, client).prepare()
        yield fixture
        await fixture.check_removals()
        await fixture.state_reader.close()
        await client.close()
        assert full_service.stop() == 0
    finally:
        full_service.close()
