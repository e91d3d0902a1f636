"""Backup of a running service, and its restore on an empty machine: the game's clients go on."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyrage
import pytest

from pyservice.backup import create
from pyservice.backup.manifest import Manifest
from pyservice.process.child_process import NO_RESTART
from pyservice.storage.record_copy import copy_records
from tests.support.backups import back_up, problems
from tests.support.command_line import run
from tests.support.databases import Databases
from tests.support.full_service import Developer
from tests.support.published_game import Machine, Machines, PublishedGame
from tests.support.published_game import local as local
from tests.support.published_game import machines as machines
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, running_s3
from tests.support.server_back_end import ServerBackEnd
from tests.support.service_process import clean_environment
from tests.support.small_disk import small_disk
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]


async def test_restored_service_goes_on_with_the_clients_of_the_game(
    machines: Machines, tmp_path: Path
) -> None:
    old, new, target = machines.new(), machines.new(), str(tmp_path / "backups")
    await asyncio.to_thread(old.service.start)
    async with old.service.open_client("http") as client:
        game = await PublishedGame.publish(old.service, client)
        assert "Stored the backup 2" in old.good("backup", "create", target)
        assert await game.find(client), "the service goes on"
    metrics = httpx.get(f"http://{old.service.ready['metrics']}/metrics").text
    [age] = re.findall(r"\nhosting_control_backup_age_seconds (.+)\n", metrics)
    assert 0 <= float(age) < 120
    old.service.close()
    output = new.good("restore", target, "--yes")
    assert output.startswith("Restored the backup 2")
    await asyncio.to_thread(new.service.start)
    async with new.service.open_client("http") as client:
        found = await game.find(client)
        listed = await client.call("list", {}, token=game.tokens["environment"])
        assert [one["lobby_id"] for one in listed.body["lobbies"]] == [found["lobby"]["lobby_id"]]
        assert (await client.call("get_games", {}, token=game.tokens["cloud"])).code == "OK"
        ended = await client.call("heartbeat", {}, token=game.tokens["lobby"])
        assert ended.code == "TOKEN_INVALID"
        lobby = await Developer(new.service, client).lobby(
            game.game_id, game.tokens["environment"], "hosted"
        )
        before = {"player_token": game.tokens["player"]}
        refused = await client.call("connected", before, token=lobby["lobby_token"])
        assert refused.code == "PLAYER_TOKEN_INVALID"
        player = (await game.join(client, lobby["lobby_id"]))["player"]["token"]
        taken = await client.call("connected", {"player_token": player}, token=lobby["lobby_token"])
        assert taken.code == "OK"


async def test_lost_machine_is_replaced_beside_its_living_database(
    databases: Databases, tmp_path: Path
) -> None:
    machines, target = Machines(tmp_path, databases, "postgresql"), str(tmp_path / "backups")
    old, new = machines.new(), machines.new()
    try:
        game = await old.publish()
        old.good("backup", "create", target)
        async with old.service.open_client("http") as client:
            later = await PublishedGame.publish(old.service, client)
        old.service.close()
        # Without the database, the restore writes the records of the backup into a file.
        assert run(new.service.data_dir, "restore", target, "--yes").returncode == 0
        url = old.service.database_url
        assert url is not None
        took = run(new.service.data_dir, "takeover", PYSERVICE_DATABASE_URL=url)
        assert took.returncode == 0, took.stderr
        new.service.database_url = url
        await asyncio.to_thread(new.service.start)
        async with new.service.open_client("http") as client:
            assert await game.find(client)

            async def knows_later_game() -> bool:
                return (await client.call("list", {}, token=later.tokens["public"])).code == "OK"

            await eventually(knows_later_game)
        assert await asyncio.to_thread(old.service.spawn().wait, PATIENCE_S) == NO_RESTART
        assert "belongs to the service on" in old.service.log()
    finally:
        machines.close()


async def test_changes_beside_a_backup_are_restored_whole(
    local: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come after the backup has begun, and before it copies the records."""
    old, new, target = local.new(), local.new(), tmp_path / "backups"
    game = await old.publish()
    data_dir = old.service.data_dir
    async with old.service.open_client("http") as client:
        developer = Developer(old.service, client, game.tokens["cloud"])
        deleted = await developer.arena()

        async def is_removed() -> bool:
            return not records_of(data_dir, "SELECT * FROM removals")

        async def copy_after_changes(*arguments: Any) -> str:
            await asyncio.to_thread(old.good, "keys", "rotate")
            game.tokens["public"] = await developer.public_token(game.game_id)
            await developer.good("delete_game", game_id=deleted)
            await eventually(is_removed)
            return await copy_records(*arguments)

        monkeypatch.setattr(create, "copy_records", copy_after_changes)
        name = await back_up(data_dir, target)
    old.service.close()
    assert problems(target) == {name: []}
    new.good("restore", str(target), "--yes")
    await asyncio.to_thread(new.service.start)
    async with new.service.open_client("http") as client:
        assert await game.find(client)
    assert json.loads(new.good("namespace", "orphans", "--json")) == {"orphans": []}


async def test_second_backup_stores_only_new_objects(machines: Machines, tmp_path: Path) -> None:
    machine, target = machines.new(), tmp_path / "backups"
    await machine.publish()
    first = json.loads(machine.good("backup", "create", str(target), "--json"))
    assert first["objects"] >= 1
    objects = sorted(path for path in (target / "objects").rglob("*") if path.is_file())
    before = [path.stat().st_mtime_ns for path in objects]
    machine.good("backup", "create", str(target))
    assert [path.stat().st_mtime_ns for path in objects] == before
    assert len(list((target / "backups").iterdir())) == 2
    machine.good("backup", "create", str(target), "--set", "backup.keep=1")
    assert len(list((target / "backups").iterdir())) == 1


def records_of(data_dir: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(data_dir / "control" / "records.db")) as records:
        return records.execute(query).fetchall()


def bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


async def test_backup_beside_running_servers_is_as_small_as_what_is_stored(
    local: Machines, tmp_path: Path
) -> None:
    machine, target = local.new(), tmp_path / "backups"
    game = await machine.publish()
    async with machine.service.open_client("http") as client:
        developer = Developer(machine.service, client)
        back_end = ServerBackEnd(developer, game.game_id, game.tokens["environment"])
        await back_end.prepare_build()
        for _ in range(3):
            await back_end.running()
        machine.good("backup", "create", str(target))
    data_dir = machine.service.data_dir
    [[record_bytes]] = records_of(
        data_dir, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    )
    stored = record_bytes + bytes_below(data_dir / "control" / "objects" / "kept")
    assert 0.9 * stored < bytes_below(target) <= 1.2 * stored
    assert bytes_below(data_dir / "servers") > stored, "the backup has no files of servers"


async def test_damage_of_a_backup_is_named(machines: Machines, tmp_path: Path) -> None:
    machine, target = machines.new(), tmp_path / "backups"
    await machine.publish()
    machine.good("backup", "create", str(target))

    def verify() -> str:
        ended = subprocess.run(
            [*machine.service.interpreter, "-m", "pyservice", "backup", "verify", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.stdout + ended.stderr

    assert "is complete: " in verify()
    [folder] = (target / "backups").iterdir()
    keys = folder / "keys.json"
    content = keys.read_bytes()
    keys.write_bytes(content.replace(b"mac_keys", b"mac_kays"))
    assert f"backups/{folder.name}/keys.json has another content than at the backup" in verify()
    keys.write_bytes(content[:-1])
    assert f"keys.json has {len(content) - 1} bytes instead of {len(content)}" in verify()
    keys.unlink()
    assert "keys.json is missing" in verify()
    keys.write_bytes(content)
    [stored, *_] = (path for path in (target / "objects").rglob("*") if path.is_file())
    stored.unlink()
    assert "is missing" in verify()
    (folder / "manifest.json").unlink()
    assert "has no complete backup" in verify()


async def finds_a_lobby(machine: Machine, game: PublishedGame) -> bool:
    await asyncio.to_thread(machine.service.start)
    async with machine.service.open_client("http") as client:
        return bool(await game.find(client))


async def test_backup_in_a_bucket_is_restored(local: Machines, tmp_path: Path) -> None:
    old, new = local.new(), local.new()
    game = await old.publish()
    with running_s3(tmp_path / "s3") as server:
        environment = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": server.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }
        place = f"s3://{BUCKET}/backups"
        for _ in range(2):
            old.good("backup", "create", place, "--set", "backup.keep=1", **environment)
        old.service.close()
        new.good("restore", place, "--yes", **environment)
        assert await finds_a_lobby(new, game)
        server.kill()
        refusal = old.refusal("backup", "create", place, **environment, AWS_MAX_RETRIES="0")
        assert f"{place} cannot be used: " in refusal


async def test_encrypted_backup_needs_the_private_key(local: Machines, tmp_path: Path) -> None:
    old, new, target = local.new(), local.new(), str(tmp_path / "backups")
    identity = pyrage.x25519.Identity.generate()
    private_key = tmp_path / "private.key"
    private_key.write_text(f"{identity}\n")
    game = await old.publish()
    recipients = json.dumps([str(identity.to_public())])
    old.good("backup", "create", target, "--set", f"backup.recipients={recipients}")
    old.service.close()
    refusal = new.refusal("restore", target, "--yes")
    assert refusal.endswith("is encrypted: name the file of the private key with --identity\n")
    assert not new.service.data_dir.exists() or not any(new.service.data_dir.iterdir())
    new.good("restore", target, "--yes", "--identity", str(private_key))
    assert await finds_a_lobby(new, game)


async def test_damaged_backup_is_not_restored(local: Machines, tmp_path: Path) -> None:
    old, new, target = local.new(), local.new(), tmp_path / "backups"
    await old.publish()
    old.good("backup", "create", str(target))
    [stored, *_] = (path for path in (target / "objects").rglob("*") if path.is_file())
    content = stored.read_bytes()
    stored.write_bytes(content[:-1])
    assert f"has {len(content) - 1} bytes instead of {len(content)}" in new.refusal(
        "restore", str(target), "--yes"
    )
    process = new.service.spawn()
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    assert "has an unfinished restore: run pyservice restore again" in new.service.log()
    stored.write_bytes(content)
    new.good("restore", str(target), "--yes")


async def test_backup_of_another_version_is_not_restored(local: Machines, tmp_path: Path) -> None:
    old, new, target = local.new(), local.new(), tmp_path / "backups"
    await old.publish()
    old.good("backup", "create", str(target))
    [manifest] = (target / "backups").glob("*/manifest.json")
    stored = Manifest.decode(manifest.read_bytes(), "")
    manifest.write_bytes(replace(stored, revision="9999", release="9.0.0").encode())
    refusal = new.refusal("restore", str(target), "--yes")
    assert "is of release 9.0.0, and this release does not know its records: use that" in refusal
    manifest.write_bytes(stored.encode().replace(b'"format": 1', b'"format": 2'))
    assert "has the format 2, this release reads 1: use a newer release" in new.refusal(
        "restore", str(target), "--yes"
    )
    manifest.write_text("{")
    assert "manifest.json is damaged: use another backup" in new.refusal(
        "restore", str(target), "--yes"
    )


async def test_full_target_keeps_the_earlier_backup(local: Machines, tmp_path: Path) -> None:
    machine = local.new()
    await machine.publish()
    disk, interpreter = small_disk(tmp_path, 8), machine.service.interpreter
    script = """
        set -e
        backup() { "$@" backup create "$DISK/backups" --data-dir "$DATA"; }
        backup "$@"
        head -c 16M /dev/zero > "$DISK/filler" || true
        if backup "$@"; then exit 3; fi
        rm "$DISK/filler"
        "$@" backup verify "$DISK/backups"
        backup "$@"
    """
    ended = await asyncio.to_thread(
        subprocess.run,
        [*disk.command_prefix, "sh", "-c", script, "sh", *interpreter, "-m", "pyservice"],
        env=clean_environment(DISK=str(disk.mount_point), DATA=str(machine.service.data_dir)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "backups cannot be used: " in ended.stderr
    assert ended.stdout.count("Stored the backup") == 2


async def test_restore_asks_first_and_changes_nothing_before(
    local: Machines, tmp_path: Path
) -> None:
    machine, target = local.new(), str(tmp_path / "backups")
    await machine.publish()
    machine.good("backup", "create", target)
    new = local.new()
    refusal = new.refusal("restore", target)
    assert "Everything since then is lost: games, versions, tokens, and revocations" in refusal
    assert refusal.endswith("nothing was changed: add --yes\n")
    assert not new.service.data_dir.exists()
    refusal = machine.refusal("restore", target, "--yes")
    assert refusal.endswith("is not empty: choose a new --data-dir\n")
    refusal = machine.refusal("restore", "--journal-only", "--yes")
    assert "another process" in refusal or "is in use" in refusal
    assert "name the target of the backup, or use --journal-only" in new.refusal("restore")
    assert "has no backup 2020: it has 2" in new.refusal("restore", target, "--backup", "2020")


async def test_service_goes_on_without_its_journal(local: Machines) -> None:
    machine = local.new()
    game = await machine.publish()
    assert machine.service.stop() == 0
    output = machine.good("restore", "--journal-only", "--yes")
    assert output.startswith("The service starts without its journal, which is in ")
    assert await finds_a_lobby(machine, game)
    kept = Path(output.split()[-1].rstrip("."))
    assert machine.service.stop() == 0
    journal = machine.service.data_dir / "journal"
    journal.rename(tmp := journal.with_name("new"))
    kept.rename(journal)
    process = machine.service.spawn()
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    assert "is older than the restore" in machine.service.log()
    assert tmp.exists()
