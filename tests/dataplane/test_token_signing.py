"""Rotation of MAC keys."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.auth import keyring
from pyservice.dataplane.engine import Engine, EngineLimits, open_engine
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.dataplane.token_signing import MacKeyRotation, RotatedKeys
from tests.support.matchmaker_scene import TOKEN_ID, MatchmakerScene, expect_error
from tests.support.namespace_configurations import NAMESPACE_ID

pytestmark = pytest.mark.anyio

NAMESPACE, PUBLIC_ID = raw_id(NAMESPACE_ID), raw_id(TOKEN_ID)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = _open(tmp_path)
    yield engine
    await engine.close()


def _open(data_dir: Path) -> Engine:
    ring = keyring.load_or_create(data_dir)
    engine = open_engine(data_dir / "journal", ring, EngineLimits(segment_bytes=1 << 20))
    engine.start()
    return engine


async def test_new_key_signs_and_old_signatures_stay_valid(engine: Engine, tmp_path: Path) -> None:
    scene = MatchmakerScene(engine)
    lobby = await scene.attach("tagged")
    client = scene.client()
    players = [(await scene.join(lobby.lobby_id, client)).player.token]
    assert await MacKeyRotation(tmp_path, engine).rotate(drop_unused=False) == RotatedKeys(
        2, [1], []
    )
    assert scene.client().call.authorization != client.call.authorization
    players.append((await scene.join(lobby.lobby_id)).player.token)
    await engine.close()
    again = MatchmakerScene(_open(tmp_path))
    again.lobby_tokens = scene.lobby_tokens
    for token in players:
        await again.connected(lobby.lobby_id, token)
    assert again.slot_counts(lobby.lobby_id) == (0, 0, 2, 0)
    await again.join(lobby.lobby_id, client)
    await again.engine.close()


async def test_unused_keys_are_dropped_on_request(engine: Engine, tmp_path: Path) -> None:
    scene = MatchmakerScene(engine)
    lobby = await scene.attach("tagged")
    first = scene.client()
    rotation = MacKeyRotation(tmp_path, engine)
    assert await rotation.rotate(drop_unused=True) == RotatedKeys(2, [1], [])
    second = scene.client()
    assert await rotation.rotate(drop_unused=True) == RotatedKeys(3, [1], [2])
    assert [number for number, _ in keyring.load(tmp_path).mac_keys] == [1, 3]
    await scene.join(lobby.lobby_id, first)
    error = await expect_error(scene.join(lobby.lobby_id, second))
    assert error.code == "TOKEN_INVALID", "no record names its key"
    await scene.join(lobby.lobby_id)
    assert await rotation.rotate(drop_unused=False) == RotatedKeys(4, [1, 3], [])


async def test_dropped_key_ends_only_its_own_tokens(engine: Engine, tmp_path: Path) -> None:
    scene = MatchmakerScene(engine)
    lobby = await scene.attach("tagged")
    rotation = MacKeyRotation(tmp_path, engine)
    older = scene.client()
    await rotation.rotate(drop_unused=False)
    leaked = scene.client()
    await rotation.rotate(drop_unused=False)
    replacement = scene.client()
    await scene.join(lobby.lobby_id, leaked)
    assert await rotation.drop([2]) == RotatedKeys(3, [1], [2])
    assert (await expect_error(scene.join(lobby.lobby_id, leaked))).code == "TOKEN_INVALID"
    for client in (older, replacement):
        await scene.join(lobby.lobby_id, client)


@pytest.mark.parametrize(
    ("numbers", "code", "detail"),
    [
        ([2, 9], "VALIDATION_FAILED", "There is no key 9. The keys are 1, 2, 3."),
        ([2, 3], "IN_USE", "Key 3 signs new tokens."),
        ([2, 1], "IN_USE", "A lobby or player token of the last 24 h needs key 1."),
    ],
)
async def test_refused_drop_drops_no_key(
    engine: Engine, tmp_path: Path, numbers: list[int], code: str, detail: str
) -> None:
    await MatchmakerScene(engine).attach("tagged")
    rotation = MacKeyRotation(tmp_path, engine)
    for _ in range(2):
        await rotation.rotate(drop_unused=False)
    before = keyring.load(tmp_path)
    error = await expect_error(rotation.drop(numbers))
    assert (error.code, error.detail.partition(" No key was dropped.")[0]) == (code, detail)
    assert keyring.load(tmp_path) == before
    assert engine.key_ids() == [1, 2, 3]
    assert await rotation.drop([2]) == RotatedKeys(3, [1], [2])


async def test_key_is_stored_before_it_signs(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: list[int] = []
    add_key = engine.add_key

    def added(key_id: int, secret: bytes) -> None:
        on_disk.append(keyring.load(tmp_path).current_key)
        add_key(key_id, secret)

    monkeypatch.setattr(engine, "add_key", added)
    await MacKeyRotation(tmp_path, engine).rotate(drop_unused=False)
    assert on_disk == [2]


async def test_full_disk_keeps_the_old_key(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data_dir: Path) -> keyring.Keyring:
        raise OSError(errno.ENOSPC, "disk full")

    before = engine.public_token(NAMESPACE, PUBLIC_ID)
    with monkeypatch.context() as patched:
        patched.setattr(keyring, "rotate", fail)
        rotating = MacKeyRotation(tmp_path, engine).rotate(drop_unused=True)
        assert (await expect_error(rotating)).code == "STORAGE_FULL"
    assert engine.public_token(NAMESPACE, PUBLIC_ID) == before
    assert (await MacKeyRotation(tmp_path, engine).rotate(drop_unused=False)).current == 2


async def test_full_disk_keeps_the_leaked_key(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, content: bytes, mode: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    rotation = MacKeyRotation(tmp_path, engine)
    await rotation.rotate(drop_unused=False)
    before = keyring.load(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(keyring, "write_file", fail)
        assert (await expect_error(rotation.drop([1]))).code == "STORAGE_FULL"
    assert (keyring.load(tmp_path), engine.key_ids()) == (before, [1, 2])
    assert await rotation.drop([1]) == RotatedKeys(2, [], [1])


async def test_concurrent_and_cancelled_rotations(engine: Engine, tmp_path: Path) -> None:
    rotation = MacKeyRotation(tmp_path, engine)
    cancelled = asyncio.create_task(rotation.rotate(drop_unused=False))
    await asyncio.sleep(0)
    cancelled.cancel()
    rotated = await asyncio.gather(*(rotation.rotate(drop_unused=False) for _ in range(3)))
    assert [one.current for one in rotated] == [3, 4, 5]
    assert sorted(engine.key_ids()) == [1, 2, 3, 4, 5]
    assert keyring.load(tmp_path).current_key == 5
