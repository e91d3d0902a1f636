"""Key file: created once, read later, rejected if other users can read it, or if it is damaged or
lost.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pyservice.auth import keyring


def test_first_start_creates_a_private_key_file(tmp_path: Path) -> None:
    ring = keyring.load_or_create(tmp_path)
    assert stat.S_IMODE((tmp_path / keyring.FILE).stat().st_mode) == 0o600
    assert [number for number, _ in ring.mac_keys] == [ring.current_key]
    assert {len(key) for _, key in ring.mac_keys} == {len(ring.hash_key)} == {32}
    assert len({ring.hash_key, *(key for _, key in ring.mac_keys)}) == 2


def test_later_starts_read_the_same_keys(tmp_path: Path) -> None:
    assert keyring.load_or_create(tmp_path) == keyring.load_or_create(tmp_path)


def test_start_removes_files_of_a_killed_rotation(tmp_path: Path) -> None:
    keyring.load_or_create(tmp_path)
    leftover_file = tmp_path / f".{keyring.FILE}.4711.tmp"
    leftover_file.write_text("half a ring")
    keyring.load_or_create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [keyring.FILE]


def test_two_directories_have_different_keys(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = (keyring.load_or_create(tmp_path / name) for name in "ab")
    assert one.hash_key != other.hash_key
    assert one.mac_keys != other.mac_keys


def test_key_file_readable_by_others_is_rejected(tmp_path: Path) -> None:
    keyring.load_or_create(tmp_path)
    (tmp_path / keyring.FILE).chmod(0o640)
    with pytest.raises(keyring.KeyringError, match="chmod 600"):
        keyring.load(tmp_path)


def test_lost_keys_beside_a_journal_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "seg-1.log").touch()
    with pytest.raises(keyring.KeyringError, match="restore it from a backup"):
        keyring.load_or_create(tmp_path)
    assert not (tmp_path / keyring.FILE).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3},
        {"current_key": 9},
        {"current_key": "1"},
        {"hash_key": "00"},
        {"hash_key": "zz" * 32},
        {"mac_keys": {"1": "00"}},
        {"mac_keys": ["00" * 32]},
    ],
)
def test_damaged_key_file_is_rejected_and_not_shown(
    tmp_path: Path, change: dict[str, object]
) -> None:
    keyring.load_or_create(tmp_path)
    path = tmp_path / keyring.FILE
    content = json.loads(path.read_text())
    secret = content["mac_keys"]["1"]
    path.write_text(json.dumps(content | change))
    with pytest.raises(keyring.KeyringError, match="damaged") as caught:
        keyring.load(tmp_path)
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_keys_are_not_in_the_representation(tmp_path: Path) -> None:
    ring = keyring.load_or_create(tmp_path)
    assert repr(ring) == "Keyring(current_key=1)"


def test_rotation_signs_with_a_new_key_and_keeps_old_keys(tmp_path: Path) -> None:
    before = keyring.load_or_create(tmp_path)
    rotated = keyring.rotate(tmp_path)
    assert keyring.load(tmp_path) == rotated
    assert rotated.mac_keys[:-1] == before.mac_keys
    assert rotated.current_key == rotated.mac_keys[-1][0] == 2
    assert rotated.hash_key == before.hash_key, "it is never rotated"
    assert stat.S_IMODE((tmp_path / keyring.FILE).stat().st_mode) == 0o600
    assert len({key for _, key in keyring.rotate(tmp_path).mac_keys}) == 3


def test_dropped_keys_are_gone_except_the_signing_key(tmp_path: Path) -> None:
    keyring.load_or_create(tmp_path)
    for _ in range(3):
        keyring.rotate(tmp_path)
    assert [number for number, _ in keyring.drop(tmp_path, [1, 3, 4]).mac_keys] == [2, 4]
    assert keyring.load(tmp_path).current_key == 4
    assert keyring.rotate(tmp_path).current_key == 5, "a number is not used again"


def test_keyring_without_free_key_numbers_is_not_rotated(tmp_path: Path) -> None:
    keyring.load_or_create(tmp_path)
    path = tmp_path / keyring.FILE
    content = json.loads(path.read_text())
    content |= {"current_key": 65_535, "mac_keys": {"65535": "00" * 32}}
    path.write_text(json.dumps(content))
    before = path.read_bytes()
    with pytest.raises(keyring.KeyringError, match="used up"):
        keyring.rotate(tmp_path)
    assert path.read_bytes() == before


def test_restored_keys_stay_beside_a_new_one(tmp_path: Path) -> None:
    before = keyring.load_or_create(tmp_path)
    ring = keyring.restored(before, first_epoch=1_000)
    (tmp_path / keyring.FILE).write_bytes(keyring.text(ring))
    assert keyring.load(tmp_path) == ring
    assert ring.mac_keys[:-1] == before.mac_keys
    assert ring.hash_key == before.hash_key
    assert ring.restored_keys == {before.current_key}
    assert ring.current_key == ring.mac_keys[-1][0] != before.current_key
    assert ring.facts_stream != before.facts_stream


def test_second_restore_restores_the_keys_of_the_first(tmp_path: Path) -> None:
    first = keyring.restored(keyring.load_or_create(tmp_path), first_epoch=1_000)
    second = keyring.restored(first, first_epoch=2_000)
    assert second.restored_keys == {number for number, _ in first.mac_keys}
    assert second.facts_stream != first.facts_stream


def test_restored_key_can_be_dropped(tmp_path: Path) -> None:
    before = keyring.load_or_create(tmp_path)
    (tmp_path / keyring.FILE).write_bytes(keyring.text(keyring.restored(before, first_epoch=9)))
    ring = keyring.drop(tmp_path, [before.current_key])
    assert [number for number, _ in ring.mac_keys] == [ring.current_key]
    assert ring.restored_keys == frozenset()
    assert keyring.load(tmp_path) == ring, "the epoch and the stream stay"


def test_release_before_refuses_restored_keys(tmp_path: Path) -> None:
    """It would accept all tokens of them."""
    ring = keyring.restored(keyring.load_or_create(tmp_path), first_epoch=9)
    assert json.loads(keyring.text(ring))["format"] == 2
