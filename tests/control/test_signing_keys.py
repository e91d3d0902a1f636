"""Signing keys: old signatures stay valid after a rotation."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from pyservice.control import signing_keys
from pyservice.control.signing_keys import KEY_RETENTION_MS, SigningKeyFile
from pyservice.errors import ServiceError
from tests.control.service_fixtures import service_fixture
from tests.support.command_line import json_output
from tests.support.full_service import Developer
from tests.support.upload_files import png, put, tar
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


full_service = service_fixture("function")


@pytest.mark.full
async def test_signatures_survive_rotation_and_restart(developer: Developer) -> None:
    full_service, game_id = developer.full_service, await developer.game()
    target, picture = {"game_id": game_id}, png()
    image = {"path": "a.tar", "content_length": len(tar())}
    of_build: dict[str, Any] = {**target, "display_name": "x", "image_file": image}
    build = await developer.good("create_game_build", **of_build)
    of_logo: dict[str, Any] = {**target, "path": "x.png", "content_length": len(picture)}
    logo = await developer.good("prepare_logo", **of_logo)
    assert (await put(logo["presigned_request"], picture)).status_code == 200
    await developer.good("complete_logo", **target, upload_id=logo["upload_id"])
    logo_url = (await developer.good("get_game", **target))["game"]["logo_url"]
    link = (await developer.client.call("prepare_device_link", {})).body["device_link_token"]
    key = uuid4().hex
    version = {**target, "display_name": "2.0.0", "config": {}}
    first = await developer.good("create_version", key, **version)

    reported_keys = await json_output(full_service.data_dir, "keys", "rotate")
    assert reported_keys["control"] == {"current_key": 2, "kept_keys": [1], "dropped_keys": []}
    after = (await developer.good("get_game", **target))["game"]["logo_url"]
    assert after != logo_url
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for url in (logo_url, after):
            assert (await client.get(url)).content == picture
    assert (await put(build["image_presigned_request"], tar())).status_code == 200
    assert await developer.good("complete_device_link", device_link_token=link, **target) == {}
    device = (await developer.client.call("get_device_link", {"device_link_token": link})).body
    assert full_service.stop() == 0
    full_service.start()
    again = await developer.good("get_device_link", device_link_token=link)
    assert again["cloud_token"] == device["cloud_token"]
    assert await developer.good("create_version", key, **version) == first
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        assert (await client.get(logo_url)).content == picture


def file_of(folder: Path) -> Any:
    return json.loads((folder / "keys.json").read_text())


async def test_keys_survive_restart_and_are_private(tmp_path: Path) -> None:
    created = SigningKeyFile.load_or_create(tmp_path)
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    await created.rotate(drop_unused=False)
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    again = SigningKeyFile.load_or_create(tmp_path)
    assert again.now == created.now
    assert len({key.secret for key in again.now.signing} | {again.now.hash_key}) == 3
    assert created.now.current.secret.hex() not in repr(created.now)
    assert created.now.hash_key.hex() not in repr(created.now)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(format=2),
        lambda content: content.pop("hash_key"),
        lambda content: content.update(hash_key="00"),
        lambda content: content.update(signing_keys=[]),
        lambda content: content["signing_keys"][0].update(ended_ms=1),
        lambda content: content["signing_keys"][0].update(key="no"),
    ],
)
def test_damaged_key_file_is_refused_and_not_shown(tmp_path: Path, change: Any) -> None:
    created = SigningKeyFile.load_or_create(tmp_path)
    content = file_of(tmp_path)
    change(content)
    (tmp_path / "keys.json").write_text(json.dumps(content))
    with pytest.raises(OSError, match="restore it from a backup") as caught:
        SigningKeyFile.load_or_create(tmp_path)
    assert created.now.current.secret.hex() not in str(caught.value)


async def test_old_keys_are_removed_on_request(tmp_path: Path) -> None:
    now = [1_000_000]
    created = SigningKeyFile.load_or_create(tmp_path, lambda: now[0])
    assert (await created.rotate(drop_unused=True)) == (2, [1], [])
    now[0] += KEY_RETENTION_MS
    assert (await created.rotate(drop_unused=True)) == (3, [1, 2], [])
    now[0] += 1
    assert (await created.rotate(drop_unused=False)) == (4, [1, 2, 3], [])
    assert (await created.rotate(drop_unused=True)) == (5, [2, 3, 4], [1])
    assert [one["number"] for one in file_of(tmp_path)["signing_keys"]] == [2, 3, 4, 5]


async def test_key_that_cannot_be_stored_signs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = SigningKeyFile.load_or_create(tmp_path)
    generations: list[int] = []
    created.listen(lambda now: generations.append(now.current.number))

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(signing_keys, "write_file", is_full)
        with pytest.raises(ServiceError) as caught:
            await created.rotate(drop_unused=True)
    assert caught.value.code == "STORAGE_FULL"
    assert created.now.current.number == 1
    await created.rotate(drop_unused=False)
    assert generations == [1, 2]
