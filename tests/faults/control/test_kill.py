"""`kill -9` of either plane between any two steps of a change leaves the old or the new, never a mixture; what was
answered is there, what was not is there or not, and repeating it with its key has one effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.control.files import put, tar
from tests.databases import KINDS, Databases
from tests.databases import databases as databases
from tests.faults.control.struck import FED, MOMENTS, RECORDS, Step, StruckHouse, Witness, struck
from tests.household import ARENA_MODES, Answer, Developer, Door

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

DOMAIN: Final = "play.example.com"
BUILD: Final = tar()
PAGE: Final = b"<h1>Arena</h1>"
Fields = dict[str, Any]


class Scene:
    """A game in a service that dies, with everything that a change may change."""

    def __init__(self, house: StruckHouse, door: Door) -> None:
        self.house = house
        self.door = door
        self.developer = Developer(house, door)
        self.public_tokens: dict[str, str] = {}
        """By id."""
        self.wanted_game = ""
        """name_id of a game that is about to be made."""
        self.spare_domain = ""
        self.upload_id = ""
        self.link_token = ""
        """What is about to be removed, and completed."""

    async def prepare(self) -> Scene:
        self.game_id = await self.developer.arena()
        config = {"matchmaker": {"game_modes": ARENA_MODES}}
        self.versions = [await self.developer.version(self.game_id, config, n) for n in ("a", "b")]
        await self.developer.good("add_domain", **self.place, domain=DOMAIN)
        await self.new_public_token()
        self.witness = Witness(self.house, self.door, self.developer.token, self.game_id)
        return self

    @property
    def place(self) -> Fields:
        return {"game_id": self.game_id, "namespace_id": "prod"}

    async def new_public_token(self) -> str:
        made = await self.developer.good("create_public_token", **self.place)
        self.public_tokens[made["token_id"]] = made["token"]
        return str(made["token_id"])

    async def new_domain(self) -> None:
        self.spare_domain = f"{uuid4().hex}.example.com"
        await self.developer.good("add_domain", **self.place, domain=self.spare_domain)

    async def new_build(self) -> None:
        """Uploaded, to be completed."""
        image = {"path": "server.tar", "content_length": len(BUILD)}
        fields: Fields = {"game_id": self.game_id, "display_name": uuid4().hex, "image_file": image}
        made = await self.developer.good("create_game_build", **fields)
        await self._upload(made["upload_id"], made["image_presigned_request"], BUILD)

    async def new_site(self) -> None:
        """Uploaded, to be completed."""
        files = [{"path": "index.html", "content_length": len(PAGE)}]
        fields: Fields = {"game_id": self.game_id, "display_name": uuid4().hex, "files": files}
        made = await self.developer.good("create_site", **fields)
        (wanted,) = made["presigned_requests"]
        await self._upload(made["upload_id"], wanted, PAGE)

    async def _upload(self, upload_id: str, wanted: Fields, content: bytes) -> None:
        answer = await put(wanted, content)
        assert answer.status_code == 200, answer.text
        self.upload_id = upload_id

    async def new_link(self) -> None:
        """That nobody has completed."""
        answer = await self.door.call("prepare_device_link", {})
        self.link_token = answer.body["device_link_token"]

    async def seen(self) -> Fields:
        """All that a developer and a device are told of it, without what changes by itself."""
        told: Fields = {}
        for slug in ("get_namespace", "version_history", "list_namespace_tokens"):
            told[slug] = await self.developer.good(slug, **self.place)
        for slug in ("list_game_builds", "list_sites"):
            told[slug] = await self.developer.good(slug, game_id=self.game_id)
        if self.link_token:
            shown = {"device_link_token": self.link_token}
            answer = await self.door.call("get_device_link", shown)
            assert answer.code == "OK", answer
            told["get_device_link"] = answer.body
        game_ids = [self.game_id]
        listed = (await self.developer.good("get_games"))["games"]
        game_ids += [one["game_id"] for one in listed if one["name_id"] == self.wanted_game]
        told["games"] = [
            (await self.developer.good("get_game", game_id=game_id))["game"] for game_id in game_ids
        ]
        for body in told.values():
            if isinstance(body, dict):
                body.pop("watch", None)
        return told

    async def check_effects(self, told: Fields) -> None:
        """The data plane does what the developer is told."""
        cdn = told["get_namespace"]["namespace"]["config"]["cdn"]
        for domain in filter(None, (DOMAIN, self.spare_domain)):
            is_let_in = cdn["enable_domain_public_auth"] and domain in {
                one["domain"] for one in cdn["domains"]
            }
            answer = await self.door.call("regions", {}, origin=f"https://{domain}")
            assert (answer.code == "OK") == is_let_in, (answer, cdn)
        for record in told["list_namespace_tokens"]["tokens"]:
            token = self.public_tokens.get(record["token_id"])
            if token is not None:
                answer = await self.door.call("regions", {}, token=token)
                assert (answer.code == "OK") == ("revoke_ts" not in record), (answer, record)
        for site in told["list_sites"]["sites"]:
            await self._check_use({"cdn": {"site_id": site["site_id"]}}, site["complete"])
        for build in told["list_game_builds"]["builds"]:
            docker = {**ARENA_MODES["arena"]["docker"], "image_id": build["build_id"]}
            modes = {"arena": {"max_players": 4, "docker": docker}}
            await self._check_use({"matchmaker": {"game_modes": modes}}, build["complete"])
        if token := told.get("get_device_link", {}).get("cloud_token"):
            device = Developer(self.house, self.door, token)
            assert (await device.good("inspect_token"))["game_id"] == self.game_id

    async def _check_use(self, config: Fields, is_complete: bool) -> None:
        """What is complete may be named by a version, what is not may not."""
        fields: Fields = {"game_id": self.game_id, "display_name": "use", "config": config}
        errors = (await self.developer.good("validate_version", **fields))["errors"]
        assert (errors == []) == is_complete, (config, errors)


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked for. `fields` makes a request that changes something, given what was seen before."""

    slug: str
    fields: Callable[[Scene, Fields], Fields]
    is_fed: bool = True
    """Whether the data plane has to write something down for it."""
    is_repeatable: bool = True
    """Whether its key makes a repetition the same: not where the answer is a secret that is not kept."""
    prepare: Callable[[Scene], Awaitable[Any]] | None = None
    """Makes what is changed."""
    name: str = ""
    """Of several with one slug."""

    def __str__(self) -> str:
        return self.name or self.slug


def _other_version(scene: Scene, told: Fields) -> Fields:
    running = told["get_namespace"]["namespace"]["version_id"]
    return {"version_id": next(one for one in scene.versions if one != running)}


def _other_limit(_: Scene, told: Fields) -> Fields:
    before = told["get_namespace"]["namespace"]["config"]["matchmaker"]["lobby_count_max"]
    return {"lobby_count_max": before + 1, "max_players": before + 2}


def _other_auth(_: Scene, told: Fields) -> Fields:
    cdn = told["get_namespace"]["namespace"]["config"]["cdn"]
    return {"enabled": not cdn["enable_domain_public_auth"]}


def _new_game(scene: Scene, _: Fields) -> Fields:
    scene.wanted_game = f"g{uuid4().hex[:20]}"
    group_id = scene.house.group_id
    return {"developer_group_id": group_id, "display_name": "G", "name_id": scene.wanted_game}


def _new_version(_: Scene, __: Fields) -> Fields:
    config = {"matchmaker": {"game_modes": ARENA_MODES}}
    return {"display_name": uuid4().hex, "config": config}


def _new_namespace(scene: Scene, _: Fields) -> Fields:
    name = f"n{uuid4().hex[:12]}"
    return {"display_name": name, "name_id": name, "version_id": scene.versions[0]}


def _a_token(scene: Scene, told: Fields) -> Fields:
    good = [one for one in told["list_namespace_tokens"]["tokens"] if "revoke_ts" not in one]
    return {"token_id": next(one["token_id"] for one in good if one["kind"] == "pub")}


def _the_upload(scene: Scene, _: Fields) -> Fields:
    return {"upload_id": scene.upload_id}


def _the_link(scene: Scene, _: Fields) -> Fields:
    return {"device_link_token": scene.link_token, "game_id": scene.game_id}


CHANGES: Final = (
    Change("create_game", _new_game),
    Change("create_version", _new_version, is_fed=False),
    Change("create_namespace", _new_namespace),
    Change("set_version", _other_version),
    Change("set_mm_config", _other_limit),
    Change("set_domain_public_auth", _other_auth),
    Change("add_domain", lambda *_: {"domain": f"{uuid4().hex}.example.com"}),
    Change("create_public_token", lambda *_: {}, is_fed=False),
    Change("create_development_token", lambda *_: {"hostname": "127.0.0.1", "ports": {}}),
    Change("create_service_token", lambda *_: {}, is_repeatable=False),
    Change("revoke_namespace_token", _a_token, prepare=Scene.new_public_token),
    Change(
        "remove_domain", lambda scene, _: {"domain": scene.spare_domain}, prepare=Scene.new_domain
    ),
    Change(
        "complete_upload",
        _the_upload,
        is_fed=False,
        prepare=Scene.new_build,
        name="complete a build",
    ),
    Change(
        "complete_upload", _the_upload, is_fed=False, prepare=Scene.new_site, name="complete a site"
    ),
    Change("complete_device_link", _the_link, is_fed=False, prepare=Scene.new_link),
)
BY_NAME: Final = {str(change): change for change in CHANGES}


def _request(scene: Scene, change: Change, fields: Fields) -> Fields:
    if change.slug in ("create_game", "complete_upload", "complete_device_link"):
        return fields
    if change.slug == "create_service_token":
        return {"game_id": scene.game_id, "environment_id": "prod"}
    if change.slug in ("create_version", "create_namespace"):
        return {"game_id": scene.game_id, **fields}
    return {**scene.place, **fields}


async def die_at(scene: Scene, change: Change, step: Step) -> None:
    """One change, one death, and everything that has to be true afterwards."""
    if change.prepare is not None:
        await change.prepare(scene)
    fields = _request(scene, change, change.fields(scene, await scene.seen()))
    before = await scene.seen()
    key = uuid4().hex

    async def ask() -> Answer:
        return await scene.developer.call(change.slug, key, **fields)

    answer = await struck(scene.house, step, ask)
    assert answer is None or answer.code == "OK", (step, answer)
    await scene.witness.agree()
    found = await scene.seen()
    await scene.check_effects(found)
    if not change.is_repeatable:
        new = len(found["list_namespace_tokens"]["tokens"]) - len(
            before["list_namespace_tokens"]["tokens"]
        )
        assert new in ((1,) if answer else (0, 1))
        return
    again = await ask()
    assert again.code == "OK", (step, again)
    last = await scene.seen()
    assert last != before
    if answer is not None:
        assert again.body == answer.body
        assert found == last
    assert found in (before, last), (step, found)
    # And once more: the same answer, and nothing changes.
    assert (await ask()).body == again.body
    assert await scene.seen() == last
    await scene.witness.agree()
    await scene.check_effects(last)


@contextlib.asynccontextmanager
async def scene_of(folder: Path, library: Path, url: str | None) -> AsyncIterator[Scene]:
    house = StruckHouse(folder, library, url)
    try:
        house.start()
        door = house.door("http")
        scene = await Scene(house, door).prepare()
        yield scene
        await scene.witness.close()
        await door.close()
        assert house.stop() == 0
    finally:
        house.close()


FEW: Final = {
    "sqlite": (
        ("create_game", RECORDS[2]),
        ("set_version", RECORDS[3]),
        ("set_mm_config", FED[2]),
        ("revoke_namespace_token", FED[5]),
        ("set_version", FED[3]),
        ("complete a build", RECORDS[3]),
        ("complete_device_link", RECORDS[2]),
    ),
    "postgresql": (
        ("set_version", MOMENTS[7]),
        ("set_domain_public_auth", FED[4]),
        ("remove_domain", FED[3]),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_plane_that_dies_in_a_change_leaves_the_old_or_the_new(
    kind: str, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    async with scene_of(tmp_path / "house", shim_library, databases.url(kind)) as scene:
        for name, step in FEW[kind]:
            await scene.house.refresh()
            await die_at(scene, BY_NAME[name], step)


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_either_plane_dies_at_every_step_of_every_change(
    kind: str, change: Change, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    steps = [
        *(RECORDS if kind == "sqlite" else ()),
        *(FED if change.is_fed else ()),
        *MOMENTS,
    ]
    async with scene_of(tmp_path / "house", shim_library, databases.url(kind)) as scene:
        for step in steps:
            await scene.house.refresh()
            await die_at(scene, change, step)
