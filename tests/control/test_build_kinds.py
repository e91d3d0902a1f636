from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.container_images import file, layer, link, needs_oci_runtime, saved
from tests.support.databases import KINDS_OF_OWN_SERVICES, Databases
from tests.support.full_service import Developer, FullService, eventually, running
from tests.support.game_back_end import GameBackEnd
from tests.support.upload_files import bomb, packed, put, tar
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

NO_TAR: Final = b"layers of an image, and no tar " * 1_000
CONFIG: Final = b'{"process": {"args": ["/run"]}, "root": {"path": "rootfs"}}'
IMAGE: Final = saved(layer(file("run", b"x", 0o755)))
BUNDLE: Final = tar({"config.json": CONFIG, "rootfs/run": b"x"})
CONTENTS: Final = {"archive": tar(), "docker_image": IMAGE}


@pytest.fixture(scope="module", params=KINDS_OF_OWN_SERVICES)
def full_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> Iterator[FullService]:
    kinds = {"kinds": list(CONTENTS)}
    created = FullService(tmp_path_factory.mktemp("s"), databases.url(request.param), runtime=kinds)
    try:
        yield created.start()
    finally:
        created.close()


@pytest.fixture
async def back_end(full_service: FullService) -> AsyncIterator[GameBackEnd]:
    async for back_end in back_end_of(full_service):
        yield back_end


async def back_end_of(full_service: FullService) -> AsyncIterator[GameBackEnd]:
    async with full_service.open_client("http") as client:
        developer = Developer(full_service, client)
        game_id = await developer.game()
        yield GameBackEnd(developer, game_id, await developer.service_token(game_id))


def digest(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest()}


@needs_oci_runtime
@pytest.mark.parametrize("kind", CONTENTS)
async def test_accepted_build_kind_is_completed(back_end: GameBackEnd, kind: str) -> None:
    content = CONTENTS[kind]
    build_id = await back_end.build(content, kind=kind, image=digest(content))
    assert (await back_end.good("get_build", build_id=build_id))["build"]["complete"]


async def test_build_kind_defaults_to_archive(back_end: GameBackEnd) -> None:
    for kind in ({}, {"kind": "archive"}):
        refusal = await back_end.refused(IMAGE, **kind)
        assert refusal.code == "VALIDATION_FAILED"
        assert refusal.errors == (("image_file", "invalid"),)
        assert "server.json" in problem(refusal)


@needs_oci_runtime
async def test_game_build_of_a_disabled_kind_is_refused(back_end: GameBackEnd) -> None:
    developer = back_end.developer
    image = {"path": "server.img", "content_length": len(IMAGE), **digest(IMAGE)}
    fields: dict[str, Any] = {"game_id": back_end.game_id, "display_name": "x", "image_file": image}
    refusal = await developer.call("create_game_build", **fields, kind="oci_bundle")
    assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("kind", "not-allowed"),))
    response = await developer.good("create_game_build", **fields, kind="docker_image")
    assert (await put(response["image_presigned_request"], IMAGE)).status_code == 200
    await developer.good("complete_upload", upload_id=response["upload_id"])
    named = {"game_id": back_end.game_id, "build_id": response["build_id"]}
    await developer.good("delete_build", **named)
    assert await back_end.listed() == []


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    kinds = {"kinds": ["archive", "docker_image", "oci_bundle"]}
    with running(FullService(tmp_path_factory.mktemp("open"), runtime=kinds)) as open_service:
        yield open_service


@pytest.fixture
async def open_back_end(open_service: FullService) -> AsyncIterator[GameBackEnd]:
    async for open_back_end in back_end_of(open_service):
        yield open_back_end


def problem(refused: Any) -> str:
    return str(refused.body["errors"][0]["message"]) if refused.body else "server.json"


TAGGED: Final = [
    {"Config": "c.json", "RepoTags": [name], "Layers": []} for name in ("game:1", "game:2")
]
SEVERAL: Final = tar({"manifest.json": json.dumps(TAGGED).encode(), "c.json": b"{}"})
ESCAPING: Final = tar({"config.json": CONFIG, "rootfs/../../x": b"x"})
# The tests of `runtime` have every defect.
BAD: Final[dict[str, tuple[str, bytes, str, str]]] = {
    "archive without its manifest": ("archive", tar({"run": b"x"}), "invalid", "server.json"),
    "image that is none": ("docker_image", NO_TAR, "invalid", "not a tar"),
    "image of several": ("docker_image", SEVERAL, "invalid", "several images"),
    "bundle that leaves its root": ("oci_bundle", ESCAPING, "not-allowed", ".."),
    "truncated bundle": ("oci_bundle", BUNDLE[:1_200], "invalid", "truncated"),
}


@needs_oci_runtime
@pytest.mark.full
@pytest.mark.parametrize("name", BAD)
async def test_defective_build_is_refused_at_completion(
    open_back_end: GameBackEnd, name: str
) -> None:
    kind, content, word, words = BAD[name]
    for compression, packed_content in (("none", content), ("zstd", packed(content, "zstd"))):
        refusal = await open_back_end.refused(packed_content, kind=kind, compression=compression)
        assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("image_file", word),))
        assert words in problem(refusal), problem(refusal)


BOMBS: Final[dict[str, tuple[str, str, bytes]]] = {
    "an archive": ("archive", "gzip", bomb("gzip")),
    "the archive of an image": ("docker_image", "zstd", bomb("zstd")),
    "layers of an image": ("docker_image", "none", saved(*[bomb("gzip", 640 << 20)] * 2)),
    "a bundle": (
        "oci_bundle",
        "zstd",
        packed(tar({"config.json": CONFIG})[:1024], "zstd") + bomb("zstd", 2 << 30, "rootfs/zeros"),
    ),
}


@needs_oci_runtime
@pytest.mark.full
@pytest.mark.parametrize("name", BOMBS)
async def test_build_that_expands_to_gigabytes_is_refused(
    open_back_end: GameBackEnd, name: str
) -> None:
    kind, compression, content = BOMBS[name]
    refusal = await open_back_end.refused(content, kind=kind, compression=compression)
    assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("image_file", "too-high"),))
    allowed = f"{len(content)} bytes may unpack to at most {1 << 30} (100 times as much"
    assert allowed in problem(refusal)
    assert "upload it with less compression" in problem(refusal)


@needs_oci_runtime
@pytest.mark.full
async def test_bundle_root_may_have_links_and_devices(open_back_end: GameBackEnd) -> None:
    entries = [link("rootfs/sh", "/bin/busybox"), file("rootfs/dev/null", type=tarfile.CHRTYPE)]
    content = tar({"config.json": CONFIG, "rootfs/run": b"x"}, [one for one, _ in entries])
    build_id = await open_back_end.build(content, kind="oci_bundle")
    assert (await open_back_end.good("get_build", build_id=build_id))["build"]["complete"]
    refusal = await open_back_end.refused(content, kind="archive")
    assert refusal.errors == (("image_file", "not-allowed"),)


@needs_oci_runtime
@pytest.mark.full
async def test_unknown_image_tag_is_refused(open_back_end: GameBackEnd) -> None:
    await open_back_end.build(SEVERAL, kind="docker_image", image_tag="game:2")
    refusal = await open_back_end.refused(SEVERAL, kind="docker_image", image_tag="game:3")
    assert "no image 'game:3', it has game:1, game:2" in problem(refusal)


@pytest.mark.full
async def test_builds_of_a_kind_without_a_runtime_are_refused(tmp_path: Path) -> None:
    missing = tmp_path / "no-runtime"
    settings = {"kinds": ["archive", "oci_bundle"], "oci_runtime": str(missing)}
    with running(FullService(tmp_path / "s", runtime=settings)) as full_service:
        async for back_end in back_end_of(full_service):
            image = {"path": "x.tar", "content_length": 10}
            refusal = await back_end.call(
                "prepare_build", name="x", image_file=image, kind="oci_bundle"
            )
            assert refusal.errors == (("kind", "not-allowed"),)
            assert "(archive)" in problem(refusal)
            assert str(missing.name) in problem(refusal)
            await back_end.build()
        async with httpx.AsyncClient(
            base_url=f"http://{full_service.ready['metrics']}", timeout=PATIENCE_S
        ) as client:

            async def is_reported() -> bool:
                verbose = await client.get("/readyz?verbose")
                return "oci_bundle is not run: no OCI runtime works here" in verbose.text

            await eventually(is_reported)
