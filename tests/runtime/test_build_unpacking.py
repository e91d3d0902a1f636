"""Unpacking of builds on a node: once, read-only and in a separate process. A rejected build
leaves nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pytest

from pyservice.errors import ServiceError
from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.build_manifests import BadManifest
from pyservice.runtime.build_worker import NoDiskSpace
from pyservice.runtime.unpacked_builds import BuildUnusable
from tests.runtime.unpacked_trees import unpacked
from tests.support.build_store import BUILD, GAME, MANIFEST, Store, open_builds, whole
from tests.support.runtime_host import disk_of
from tests.support.upload_files import entry, packed, tar

pytestmark = pytest.mark.anyio

LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "builds"


async def refused(folder: Path, store: Store) -> str:
    """Returns the error sentence for a rejected build, and checks that nothing of the build is
    left.
    """
    with pytest.raises(BuildUnusable) as caught:
        await open_builds(folder, store).get(GAME, BUILD)
    assert list(folder.iterdir()) == []
    sentence = str(caught.value)
    assert sentence
    assert "Traceback" not in sentence
    return sentence


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "lz4"])
async def test_build_is_the_same_in_every_compression(folder: Path, compression: str) -> None:
    content = whole() if compression == "none" else packed(whole(), compression)
    store = Store(content, compression, hashlib.sha256(content).hexdigest())
    build = await open_builds(folder, store).get(GAME, BUILD)
    root = folder / BUILD / "root"
    assert (build.root, build.workdir) == (root, root / "bin")
    assert (list(build.command), build.env) == (["./run", "--fast"], {"A": "b"})
    modes = {
        str(path.relative_to(root)): oct(stat.S_IMODE(path.lstat().st_mode))
        for path in root.rglob("*")
        if not path.is_symlink()
    }
    # Only the owner may write, no set-user-ID bit stays, and executable files are executable for
    # all users.
    assert modes == {
        "bin": "0o755",
        "bin/run": "0o755",
        "data": "0o755",
        "data/map": "0o644",
        "data/run.sh": "0o755",
        "map": "0o644",
        "server.json": "0o644",
    }
    assert (root / "bin/start").readlink() == Path("run")
    assert (root / "map").samefile(root / "data/map")
    assert (root / "map").read_bytes() == bytes(3 << 20)
    assert {path.stat().st_uid for path in root.rglob("*")} == {os.getuid()}


async def test_last_of_two_files_with_one_name_wins(folder: Path) -> None:
    first, second = tar({"server.json": MANIFEST, "a": b"first"}), tar({"a": b"second"})
    end = first.rindex(b"first") // 512 * 512 + 512
    build = await open_builds(folder, Store(first[:end] + second)).get(GAME, BUILD)
    assert (build.root / "a").read_bytes() == b"second"


def sparse() -> bytes:
    one = tarfile.TarInfo("a")
    one.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.size": "99999999999"}
    return one.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


def endless() -> bytes:
    """Returns an archive that claims a size over the limit and contains a thousandth of the limit."""
    large = tarfile.TarInfo("zeros")
    large.size = 1 << 40
    return packed(large.tobuf() + bytes(8 << 20), "gzip")


def of(*entries: tuple[str, bytes, str], files: dict[str, bytes] | None = None) -> bytes:
    return tar({"server.json": MANIFEST, **(files or {})}, [entry(*one) for one in entries])


BAD: Final = {
    "a path above": (of(files={"../x": b"x"}), r"'../x' has \.\. in its path"),
    "an absolute path": (of(files={"/x": b"x"}), "'/x' has an absolute path"),
    "a link out": (of(("a/b", LINK, "../../x")), "'a/b' is a symbolic link that points outside"),
    "an absolute link": (of(("a", LINK, "/etc/passwd")), "'a' is a symbolic link with an absolute"),
    "a hard link out": (of(("a", HARD, "../x")), r"'a' has \.\. in its path"),
    "a hard link through a link": (
        of(("up", LINK, "."), ("a", HARD, "up/server.json")),
        "'a' has a symbolic link as a parent folder",
    ),
    "a hard link to a folder": (
        of(("b", FOLDER, ""), ("a", HARD, "b")),
        "'a' is a hard link to a folder",
    ),
    "a hard link to nothing": (of(("a", HARD, "b")), "'a' is a hard link to a missing file"),
    "a file through a link": (
        of(("up", LINK, "."), ("up/a", FOLDER, "")),
        "has a symbolic link as",
    ),
    "a file in place of a link": (
        of(("a", LINK, "b"), ("a", FOLDER, "")),
        "path as a symbolic link",
    ),
    "a device": (of(("a", tarfile.CHRTYPE, "")), "'a' is a device or a pipe"),
    "a pipe": (of(("a", tarfile.FIFOTYPE, "")), "'a' is a device or a pipe"),
    "a sparse file": (sparse(), "has a sparse file"),
    "a file for a folder": (of(files={"a": b"", "a/b": b""}), "is a file or link, but other"),
    "a folder and a file": (of(files={"a/b": b"", "a": b""}), "'a' is both a folder and a file"),
    "no archive": (b"no tar " * 1000, "is not a tar"),
    "an empty one": (bytes(10_240), "has no server.json at its root"),
}


def refused_here(tmp_path: Path, content: bytes, compression: str = "none") -> str:
    """Returns the error of the unpacker, without its process."""
    with pytest.raises((BadArchive, BadManifest)) as caught:
        unpacked(tmp_path / "build", content, "archive", compression=compression)
    assert [path.name for path in tmp_path.iterdir()] == ["build"]
    error = caught.value
    return f"{error.entry!r} {error.reason}" if isinstance(error, BadArchive) else str(error)


@pytest.mark.parametrize("name", BAD)
def test_forbidden_entries_are_rejected(tmp_path: Path, name: str) -> None:
    content, sentence = BAD[name]
    reason = refused_here(tmp_path, content)
    assert re.search(sentence, reason), reason


@pytest.mark.parametrize("name", ["a link out", "no archive"])
async def test_rejected_build_leaves_nothing(folder: Path, name: str) -> None:
    content, sentence = BAD[name]
    reason = await refused(folder, Store(content))
    assert re.search(sentence, reason), reason
    assert str(folder) not in reason
    assert [path.name for path in folder.parent.iterdir()] == ["builds"]


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_truncated_or_mislabelled_archive_is_rejected(tmp_path: Path, compression: str) -> None:
    content = packed(whole(), compression)
    bad = {
        f"is truncated: its {compression} stream has no end": content[: len(content) // 2],
        f"cannot be decompressed as {compression}": whole(),
        "is truncated: its last entry is incomplete": packed(whole()[:4_000], compression),
    }
    for number, (reason, archive) in enumerate(bad.items()):
        (tmp_path / f"{number}").mkdir()
        refusal = refused_here(tmp_path / f"{number}", archive, compression)
        assert refusal == f"'' {reason}"


def test_announced_size_over_the_limit_is_rejected(tmp_path: Path) -> None:
    assert "unpacks to at least" in refused_here(tmp_path, endless(), "gzip")


async def test_stored_archive_must_match_the_upload(folder: Path) -> None:
    content = whole()
    result = await refused(folder, Store(content, sha256=hashlib.sha256(b"other").hexdigest()))
    assert "its SHA-256 differs" in result


async def test_unpacking_waits_when_the_disk_reaches_its_reserve(tmp_path: Path) -> None:
    content = packed(tar({"server.json": MANIFEST, "zeros": bytes(64 << 20)}), "zstd")
    store = Store(content, "zstd")
    with disk_of(tmp_path / "disk", inodes=1_000, mib=72) as disk:
        folder = disk / "builds"
        with pytest.raises(NoDiskSpace):
            await open_builds(folder, store, reserve_bytes=64 << 20).get(GAME, BUILD)
        assert list(folder.iterdir()) == []
        assert (await open_builds(folder, store).get(GAME, BUILD)).root.is_dir()
    assert len(store.requests) == 2


WRONG: Final = {
    "nothing": (None, ["has no server.json at its root"]),
    "a link": (LINK, ["has no server.json at its root"]),
    "a folder": (FOLDER, ["has no server.json at its root"]),
    "a long one": (b" " * 70_000, ["is longer than 65536 bytes"]),
    "no JSON": (b"{", ["is not valid JSON"]),
    "no text": (b"\xff", ["is not valid JSON"]),
    "a deep one": (b"[" * 60_000, ["is not valid JSON"]),
    "a list": (b"[]", ["must be an object"]),
    "no command": (b"{}", ["command must be"]),
    "an empty command": (b'{"command": []}', ["command must be"]),
    "a command without a program": (b'{"command": [""]}', ["command must be"]),
    "what no process can be given": (b'{"command": ["a", "\\ud800"]}', ["command must be"]),
    "everything": (
        b'{"command": "./run", "env": {"1A": "x", "B": 1}, "workdir": "a/../..", "image": ""}',
        ["'image' is not known", "command must be", "env must be", "workdir must be a path inside"],
    ),
    "an absolute workdir": (b'{"command": ["x"], "workdir": "/"}', ["workdir must be"]),
    "a variable with a NUL": (b'{"command": ["x"], "env": {"A": "\\u0000"}}', ["env must be"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_server_json_problem_is_reported(tmp_path: Path, name: str) -> None:
    content, sentences = WRONG[name]
    if isinstance(content, bytes) and content not in (LINK, FOLDER):
        archive = tar({"server.json": content})
    else:
        kinds = [] if content is None else [entry("server.json", content, "other.json")]
        archive = tar({"other.json": MANIFEST}, kinds)
    reason = refused_here(tmp_path, archive)
    assert [sentence for sentence in sentences if sentence not in reason] == [], reason


async def test_concurrent_requests_unpack_a_build_once(folder: Path) -> None:
    store = Store(whole())
    builds = open_builds(folder, store)
    impatient = asyncio.create_task(builds.get(GAME, BUILD))
    others = [asyncio.create_task(builds.get(GAME, BUILD)) for _ in range(8)]
    await asyncio.sleep(0)
    impatient.cancel()
    paths = await asyncio.gather(*others)
    assert all(one is paths[0] for one in paths)
    assert await builds.get(GAME, BUILD) is paths[0]
    assert store.requests == [f"{GAME}/{BUILD}"], "the cancelled request did not stop the unpacking"
    assert [path.name for path in folder.iterdir()] == [BUILD]


async def test_failed_download_is_retried(folder: Path) -> None:
    store = Store(whole())
    store.fault = ServiceError("CONTROL_PLANE_UNAVAILABLE")
    builds = open_builds(folder, store)
    with pytest.raises(ServiceError):
        await builds.get(GAME, BUILD)
    assert list(folder.iterdir()) == []
    store.fault = None
    assert (await builds.get(GAME, BUILD)).root.is_dir()


UNPACKS_FOR_EVER: Final = """
import asyncio, sys
from pathlib import Path
from pyservice.runtime.unpacked_builds import BuildSource, UnpackedBuilds

async def blocks():
    yield bytes.fromhex(sys.argv[2])
    print("waits", flush=True)
    await asyncio.Event().wait()

async def fetch(game_id, build_id):
    return BuildSource("archive", "none", None, blocks(), 10_240)

async def main():
    builds = UnpackedBuilds(Path(sys.argv[1]), fetch, 0)
    builds.recover()
    await builds.get("game", sys.argv[3])

asyncio.run(main())
"""


async def test_start_removes_partly_unpacked_builds(folder: Path) -> None:
    partial_archive = tar({"server.json": MANIFEST, "large": b""})[:512].hex()
    command = [sys.executable, "-c", UNPACKS_FOR_EVER, str(folder), partial_archive, BUILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"waits\n"
        service.send_signal(signal.SIGKILL)
    assert [path.name for path in folder.iterdir()] == [f"{BUILD}.unpacking"]
    builds = open_builds(folder, Store(whole()))
    await builds.remove_unused(set, is_full=False)
    assert list(folder.iterdir()) == []
    assert (await builds.get(GAME, BUILD)).command[0] == "./run"


async def test_complete_build_survives_a_service_restart_but_not_a_reboot(folder: Path) -> None:
    store = Store(whole())
    first = await open_builds(folder, store).get(GAME, BUILD)
    assert await open_builds(folder, store).get(GAME, BUILD) == first
    assert len(store.requests) == 1
    # The build was unpacked before a reboot, perhaps not to its end.
    (folder / BUILD / "boot_id").write_text("0b9e0f5c-0000-4000-8000-000000000000")
    (first.root / "data/map").write_bytes(b"")
    repeat = await open_builds(folder, store).get(GAME, BUILD)
    assert (repeat.root / "data/map").stat().st_size == 3 << 20
    assert len(store.requests) == 2
