"""Kills of the control plane during `RotateControlKeys`, its part of `pyservice keys rotate`."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from pyservice.auth import keyring
from pyservice.control import signing_keys
from pyservice.control.signing_keys import SigningKeys
from tests.faults.control.game_fixture import BUILD, GameFixture, open_game_fixture
from tests.support import command_line
from tests.support.databases import KINDS, Databases
from tests.support.full_service import ServiceResponse
from tests.support.killed_service import MOMENTS, Step, answer_of, kill_at_step
from tests.support.upload_files import put

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

RING: Final = "control/keys.json"
UNNAMED: Final = "control/.keys.json.*.tmp"
ROTATED: Final = (
    Step("the new ring is not synced", "control", "fsync", UNNAMED),
    Step("the new ring is beside the old one", "control", "fsync", UNNAMED, after=True),
    Step("the old ring is in its place", "control", "rename", RING),
    Step("the new ring is in its place", "control", "rename", RING, after=True),
    Step("the folder is not synced", "control", "fsync", "control"),
    Step("the new key is durable and does not sign", "control", "fsync", "control", after=True),
)
ALL: Final = (*ROTATED, *(step for step in MOMENTS if step.role == "control"))
FEW: Final = {"sqlite": (ROTATED[1], ROTATED[3]), "postgresql": (ROTATED[5],)}


class SignedUrls:
    def __init__(self, fixture: GameFixture) -> None:
        self.fixture = fixture

    def ring(self) -> SigningKeys:
        return signing_keys._parse(
            json.loads((self.fixture.full_service.data_dir / RING).read_text())
        )

    async def prepare(self, key: str) -> Any:
        image = {"path": "server.tar", "content_length": len(BUILD)}
        fields = {**self.fixture.game, "display_name": "Signed", "image_file": image}
        return await self.fixture.developer.good("create_game_build", key, **fields)

    async def rotate(self, *, is_dropping: bool) -> ServiceResponse | None:
        return await answer_of(self.fixture.command("RotateControlKeys", drop_unused=is_dropping))

    async def kill_at(self, step: Step, *, is_dropping: bool) -> None:
        fixture, key = self.fixture, uuid4().hex
        signed, before = await self.prepare(key), self.ring()
        answer = await kill_at_step(
            fixture.full_service, step, lambda: self.rotate(is_dropping=is_dropping)
        )
        await fixture.state_reader.wait_until_fed()
        now = self.ring()
        check_ring(before, now, answer)
        assert not list((fixture.full_service.data_dir / "control").glob(".keys.json.*"))
        again = await self.prepare(key)
        assert again["upload_id"] == signed["upload_id"]
        for one in (signed, again):
            assert (await put(one["image_presigned_request"], BUILD)).status_code == 200
        await fixture.developer.good("complete_upload", upload_id=signed["upload_id"])
        answer = await self.rotate(is_dropping=is_dropping)
        assert answer is not None
        check_ring(now, self.ring(), answer)
        assert (await self.prepare(key))["upload_id"] == signed["upload_id"]


def check_ring(before: SigningKeys, now: SigningKeys, answer: ServiceResponse | None) -> None:
    assert now.hash_key == before.hash_key
    added = before.current.number + 1
    if answer is not None:
        assert answer.code == "OK", answer
        key_numbers = [key.number for key in before.signing]
        assert answer.body == {"current_key": added, "kept_keys": key_numbers}
    elif now == before:
        return
    assert now.current.number == added
    assert [(one.number, one.secret) for one in now.signing[:-1]] == [
        (one.number, one.secret) for one in before.signing
    ]
    assert [one.ended_ms is None for one in now.signing] == [False] * len(before.signing) + [True]


@pytest.fixture(params=KINDS)
async def signing(
    request: pytest.FixtureRequest, tmp_path: Path, shim_library: Path, databases: Databases
) -> AsyncIterator[tuple[str, SignedUrls]]:
    kind = request.param
    async with open_game_fixture(tmp_path / "s", shim_library, databases.url(kind)) as fixture:
        yield kind, SignedUrls(fixture)


async def test_kill_during_control_key_rotation_leaves_a_whole_ring(
    signing: tuple[str, SignedUrls],
) -> None:
    kind, one = signing
    for step in FEW[kind]:
        await one.fixture.full_service.refresh()
        await one.kill_at(step, is_dropping=step is ROTATED[3])


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_kill_at_every_step_of_a_control_key_rotation(
    signing: tuple[str, SignedUrls],
) -> None:
    _, one = signing
    for is_dropping in (False, True):
        for step in ALL:
            await one.fixture.full_service.refresh()
            await one.kill_at(step, is_dropping=is_dropping)


async def test_failed_rotation_changes_no_plane_and_can_be_repeated(
    signing: tuple[str, SignedUrls],
) -> None:
    _, one = signing
    data_dir = one.fixture.full_service.data_dir
    of_data, of_control = keyring.load(data_dir), one.ring()
    ask = functools.partial(command_line.error_output, data_dir, "keys", "rotate")
    output = await kill_at_step(one.fixture.full_service, ROTATED[2], ask)
    assert output.startswith(f"pyservice keys: the control plane of {data_dir} does not answer: ")
    await one.fixture.state_reader.wait_until_fed()
    assert (keyring.load(data_dir), one.ring()) == (of_data, of_control)
    returned = await command_line.json_output(data_dir, "keys", "rotate")
    assert returned["current_key"] == of_data.current_key + 1
    assert returned["control"]["current_key"] == of_control.current.number + 1
