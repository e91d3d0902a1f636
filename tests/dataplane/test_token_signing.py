"""Rotation of MAC keys."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.auth import keyring
from pyservice.dataplane.engine import Engine, EngineLimits, open_engine
from pyservice.dataplane.token_signing import MacKeyRotation, RotatedKeys
from tests.dataplane.engine_calls import NAMESPACE, attach, error_code, join

pytestmark = pytest.mark.anyio

TOKEN_ID = bytes(range(16, 32))


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
    lobby, lobby_token = await attach(engine, 4)
    player, public = (await join(engine, lobby)).tokens[0], engine.public_token(NAMESPACE, TOKEN_ID)
    assert await MacKeyRotation(tmp_path, engine).rotate(drop_unused=False) == RotatedKeys(
        2, [1], []
    )
    assert engine.public_token(NAMESPACE, TOKEN_ID) != public
    later = (await join(engine, lobby)).tokens[0]
    await engine.close()
    again = _open(tmp_path)
    assert again.lobby_of_token(lobby_token) == lobby
    assert again.namespace_of_public_token(public) == (NAMESPACE, TOKEN_ID)
    for token in (player, later):
        await again.connected(lobby, token, None, None)
    await again.close()


async def test_unused_keys_are_dropped_on_request(engine: Engine, tmp_path: Path) -> None:
    lobby, _ = await attach(engine, 4)
    public = engine.public_token(NAMESPACE, TOKEN_ID)
    rotation = MacKeyRotation(tmp_path, engine)
    assert await rotation.rotate(drop_unused=True) == RotatedKeys(2, [1], [])
    later = engine.public_token(NAMESPACE, TOKEN_ID)
    assert await rotation.rotate(drop_unused=True) == RotatedKeys(3, [1], [2])
    assert [number for number, _ in keyring.load(tmp_path).mac_keys] == [1, 3]
    assert engine.namespace_of_public_token(public) is not None
    assert engine.namespace_of_public_token(later) is None, "no record names its key"
    await join(engine, lobby)
    assert await rotation.rotate(drop_unused=False) == RotatedKeys(4, [1, 3], [])


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

    before = engine.public_token(NAMESPACE, TOKEN_ID)
    with monkeypatch.context() as patched:
        patched.setattr(keyring, "rotate", fail)
        rotating = MacKeyRotation(tmp_path, engine).rotate(drop_unused=True)
        assert await error_code(rotating) == "STORAGE_FULL"
    assert engine.public_token(NAMESPACE, TOKEN_ID) == before
    assert (await MacKeyRotation(tmp_path, engine).rotate(drop_unused=False)).current == 2


async def test_concurrent_and_cancelled_rotations(engine: Engine, tmp_path: Path) -> None:
    rotation = MacKeyRotation(tmp_path, engine)
    cancelled = asyncio.create_task(rotation.rotate(drop_unused=False))
    await asyncio.sleep(0)
    cancelled.cancel()
    rotated = await asyncio.gather(*(rotation.rotate(drop_unused=False) for _ in range(3)))
    assert [one.current for one in rotated] == [3, 4, 5]
    assert sorted(engine.key_ids()) == [1, 2, 3, 4, 5]
    assert keyring.load(tmp_path).current_key == 5
