"""Kills of the data plane during `pyservice keys rotate` and `keys drop`, and messages of interrupted commands.

The ring afterwards is the old or the new one. Tokens stay valid while their key is in the ring.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.auth import keyring
from pyservice.auth.keyring import Keyring
from pyservice.cli.admin_requests import admin_socket
from pyservice.errors import Unreachable
from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.rpc import InternalClient
from tests.support import command_line
from tests.support.full_service import ARENA_MODES, Developer, ServiceClient
from tests.support.killed_service import (
    MOMENTS,
    RECORDS,
    KilledService,
    StateReader,
    Step,
    kill_at_step,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

RING: Final = "keys.json"
UNNAMED: Final = ".keys.json.*.tmp"
ROTATED: Final = (
    Step("the new ring is not synced", "data", "fsync", UNNAMED),
    Step("the new ring is beside the old one", "data", "fsync", UNNAMED, after=True),
    Step("the old ring is in its place", "data", "rename", RING),
    Step("the new ring is in its place", "data", "rename", RING, after=True),
    Step("the folder is not synced", "data", "fsync", ""),
    Step("the new key is durable and does not sign", "data", "fsync", "", after=True),
)
SESSION_BROKEN: Final = (
    Step("the ring without the old keys is not synced", "data", "fsync", UNNAMED, at=2),
    Step("the ring with the old keys is in its place", "data", "rename", RING, at=2),
    Step("the ring without the old keys is in its place", "data", "rename", RING, at=2, after=True),
    Step("the old keys are dropped without notification", "data", "fsync", "", at=2, after=True),
)
STEPS: Final = (*ROTATED, *(step for step in MOMENTS if step.role == "data"))
FEW: Final = ((ROTATED[3], False), (SESSION_BROKEN[2], True))
ALL: Final = (
    *((step, False) for step in STEPS),
    *((step, True) for step in (*STEPS, *SESSION_BROKEN)),
)


class SignedTokens:
    def __init__(self, full_service: KilledService, client: ServiceClient) -> None:
        self.full_service = full_service
        self.client = client
        self.developer = Developer(full_service, client)
        self.tokens: list[tuple[int, str]] = []

    async def prepare(self) -> SignedTokens:
        self.game_id = await self.developer.game()
        self.state_reader = StateReader(
            self.full_service, self.client, self.developer.token, self.game_id
        )
        mode = {**ARENA_MODES["arena"], "heartbeat_timeout": 3_600_000}
        config = {"matchmaker": {"game_modes": {"arena": mode}}}
        version_id = await self.developer.version(self.game_id, config)
        namespace_fields = {"game_id": self.game_id, "namespace_id": "prod"}
        await self.developer.good("set_version", **namespace_fields, version_id=version_id)
        service_token = await self.developer.service_token(self.game_id)
        self.lobby = await self.developer.lobby(self.game_id, service_token)
        self.lobby_key = self.ring().current_key
        # With a single key, the rotation would have no key to drop.
        await self.unneeded_key()
        return self

    def ring(self) -> Keyring:
        return keyring.load(self.full_service.data_dir)

    async def rotate(self, drop_unused: bool) -> admin_pb2.RotateKeysResponse | None:
        request = admin_pb2.RotateKeysRequest(drop_unused=drop_unused)
        async with InternalClient(admin_socket(self.full_service.data_dir)) as client:
            try:
                answer: admin_pb2.RotateKeysResponse = await client.call(
                    "hosting.internal.v1.Admin.RotateKeys", request
                )
            except Unreachable:
                return None
        return answer

    async def drop(self, key: int) -> admin_pb2.DropKeysResponse | None:
        request = admin_pb2.DropKeysRequest(keys=[key])
        async with InternalClient(admin_socket(self.full_service.data_dir)) as client:
            try:
                answer: admin_pb2.DropKeysResponse = await client.call(
                    "hosting.internal.v1.Admin.DropKeys", request
                )
            except Unreachable:
                return None
        return answer

    async def good(self, slug: str, fields: Any, token: str) -> Any:
        answer = await self.client.call(slug, fields, token=token)
        assert answer.code == "OK", (slug, answer)
        return answer.body

    async def public_token(self) -> str:
        token = await self.developer.public_token(self.game_id)
        self.tokens.append((self.ring().current_key, token))
        return token

    async def player(self) -> str:
        fields = {"lobby_id": self.lobby["lobby_id"]}
        join_response = await self.good("join", fields, await self.public_token())
        return str(join_response["player"]["token"])

    async def unneeded_key(self) -> None:
        """Adds a signing key that no lobby or player token needs."""
        assert await self.rotate(False)
        await self.public_token()

    async def check(self, player_token: str) -> None:
        numbers = dict(self.ring().mac_keys)
        for number, token in self.tokens:
            answer = await self.client.call("regions", {}, token=token)
            assert answer.code == ("OK" if number in numbers else "TOKEN_INVALID"), number
        assert self.lobby_key in numbers
        for slug in ("connected", "disconnected"):
            await self.good(slug, {"player_token": player_token}, self.lobby["lobby_token"])


def check_ring(
    before: Keyring, now: Keyring, answer: admin_pb2.RotateKeysResponse | None, is_dropping: bool
) -> None:
    old, keys = dict(before.mac_keys), dict(now.mac_keys)
    added = max(old) + 1
    assert now.hash_key == before.hash_key
    if answer is not None:
        assert (answer.current_key, now.current_key) == (added, added)
        assert {*answer.kept_keys, added} == keys.keys()
        assert set(answer.dropped_keys) == old.keys() - keys.keys()
    if now.current_key == before.current_key:
        assert keys == old
        return
    assert now.current_key == added
    del keys[added]
    assert keys.items() <= old.items()
    assert is_dropping or keys == old


@pytest.fixture
async def signed(tmp_path: Path, shim_library: Path) -> AsyncIterator[SignedTokens]:
    full_service = KilledService(tmp_path / "s", shim_library, None, rays={"per_second": 0})
    try:
        await asyncio.to_thread(full_service.start)
        client = full_service.client("http")
        signed = await SignedTokens(full_service, client).prepare()
        yield signed
        await signed.state_reader.close()
        await client.close()
        assert await asyncio.to_thread(full_service.stop) == 0
    finally:
        full_service.close()


async def kill_at(signed: SignedTokens, step: Step, is_dropping: bool) -> None:
    player_token = await signed.player()
    if is_dropping:
        await signed.unneeded_key()
    before = signed.ring()
    answer = await kill_at_step(signed.full_service, step, lambda: signed.rotate(is_dropping))
    await signed.state_reader.wait_until_fed()
    now = signed.ring()
    check_ring(before, now, answer, is_dropping)
    await signed.check(player_token)
    player_token = await signed.player()
    again = await signed.rotate(is_dropping)
    assert again is not None
    check_ring(now, signed.ring(), again, is_dropping)
    if is_dropping and now.current_key != before.current_key:
        # Otherwise the dropped key would have signed the player's token.
        assert before.current_key not in dict(signed.ring().mac_keys)
    await signed.check(player_token)


async def test_kill_during_data_key_rotation_leaves_a_whole_ring(signed: SignedTokens) -> None:
    for step, is_dropping in FEW:
        await kill_at(signed, step, is_dropping)


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_kill_at_every_step_of_a_data_key_rotation(signed: SignedTokens) -> None:
    for step, is_dropping in ALL:
        await signed.full_service.refresh()
        await kill_at(signed, step, is_dropping)


async def kill_at_drop(signed: SignedTokens, step: Step) -> None:
    await signed.unneeded_key()
    leaked = signed.ring().current_key
    await signed.unneeded_key()
    player_token = await signed.player()
    before = signed.ring()
    answer = await kill_at_step(signed.full_service, step, lambda: signed.drop(leaked))
    await signed.state_reader.wait_until_fed()
    now = signed.ring()
    without_leaked = tuple(key for key in before.mac_keys if key[0] != leaked)
    assert now in (before, replace(before, mac_keys=without_leaked))
    await signed.check(player_token)
    if now == before:
        assert answer is None
        answer = await signed.drop(leaked)
        assert answer is not None
        assert list(answer.dropped_keys) == [leaked]
    assert signed.ring() == replace(before, mac_keys=without_leaked)
    await signed.check(await signed.player())


@pytest.mark.parametrize("step", ROTATED[2:4], ids=lambda step: step.name)
async def test_kill_during_a_drop_leaves_all_other_keys(signed: SignedTokens, step: Step) -> None:
    await kill_at_drop(signed, step)


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_kill_at_every_step_of_a_drop(signed: SignedTokens) -> None:
    for step in STEPS:
        await signed.full_service.refresh()
        await kill_at_drop(signed, step)


async def test_command_reports_a_plane_that_did_not_answer(signed: SignedTokens) -> None:
    data_dir = signed.full_service.data_dir
    for plane, words, step in (
        ("data plane", ("keys", "rotate"), ROTATED[2]),
        ("control plane", ("identity", "create", "--display-name", "Somebody"), RECORDS[2]),
    ):
        ask = functools.partial(command_line.error_output, data_dir, *words)
        output = await kill_at_step(signed.full_service, step, ask)
        (line,) = output.splitlines()
        problem = f"the {plane} of {data_dir} does not answer: see the log of the service"
        assert line == f"pyservice {words[0]}: {problem}"
        await signed.state_reader.wait_until_fed()
        assert await command_line.output(data_dir, *words)
