"""Container images and OCI bundles, written by the tests without a network."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pytest

from tests.support.compiled_programs import compiled_program
from tests.support.upload_files import gzipped, tar

PROGRAM: Final = "/bin/server"
ARCHITECTURE: Final = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
KINDS: Final = ("archive", "docker_image", "oci_bundle")


def has_oci_runtime() -> bool:
    return shutil.which("crun") is not None


needs_oci_runtime: Final = pytest.mark.skipif(
    not has_oci_runtime(), reason="no OCI runtime: apt-get install crun"
)


@functools.cache
def server_program() -> bytes:
    """Returns the static program of contained.rs."""
    return compiled_program("contained-server").read_bytes()


def file(
    name: str, content: bytes = b"", mode: int = 0o644, **more: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    for label, value in more.items():
        setattr(info, label, value)
    return info, content


def folder(name: str, mode: int = 0o755, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, mode=mode, type=tarfile.DIRTYPE, **more)


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, type=kind, linkname=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def server_layer(*more: tuple[tarfile.TarInfo, bytes]) -> bytes:
    passwd = b"root:x:0:0::/root:/bin/sh\ngame:x:1000:1001::/home/game:/bin/sh\n"
    group = b"root:x:0:\ngame:x:1001:\nplayers:x:1002:game\n"
    return layer(
        folder("bin"),
        folder("etc"),
        folder("root", 0o700),
        folder("home"),
        folder("home/game", 0o700, uid=1000, gid=1001),
        file("etc/passwd", passwd),
        file("etc/group", group),
        file(PROGRAM[1:], server_program(), 0o755),
        *more,
    )


def saved(
    *layers: bytes,
    config: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = ("server:latest",),
    **more: Any,
) -> bytes:
    """Returns an image in the format of `docker save` before Docker 25."""
    image_config = _image_config(config, layers, **more)
    name = hashlib.sha256(image_config).hexdigest()
    paths = [f"{number:064x}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": f"{name}.json", "RepoTags": tags, "Layers": paths}]
    files = dict(zip(paths, layers, strict=True))
    return tar(
        {f"{name}.json": image_config, **files, "manifest.json": json.dumps(manifest).encode()}
    )


def laid_out(
    *layers: bytes,
    config: Mapping[str, Any] | None = None,
    tag: str = "server:latest",
    with_manifest: bool = False,
    others: Iterable[Mapping[str, Any]] = (),
) -> bytes:
    """Returns an OCI image layout with compressed layers and the manifest file that current
    versions of `docker save` add.
    """
    packed = [gzipped(one) for one in layers]
    image_config = _image_config(config, layers)
    blobs = {_blob(one): one for one in (image_config, *packed)}
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "config": _descriptor(image_config),
            "layers": [_descriptor(one) for one in packed],
        }
    ).encode()
    blobs[_blob(manifest)] = manifest
    platform_ = {"os": "linux", "architecture": ARCHITECTURE}
    inner = json.dumps(
        {"manifests": [*others, {**_descriptor(manifest), "platform": platform_}]}
    ).encode()
    blobs[_blob(inner)] = inner
    named = {"io.containerd.image.name": f"docker.io/library/{tag}"}
    index = {"manifests": [{**_descriptor(inner), "annotations": named}]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', **blobs}
    files["index.json"] = json.dumps(index).encode()
    if with_manifest:
        paths = [_blob(one) for one in packed]
        files["manifest.json"] = json.dumps(
            [{"Config": _blob(image_config), "RepoTags": [tag], "Layers": paths}]
        ).encode()
    return tar(files)


def bundle(
    *more: tuple[tarfile.TarInfo, bytes], config: Mapping[str, Any] | None = None, **process: Any
) -> bytes:
    runtime_config = {
        "ociVersion": "1.0.2",
        "process": {"args": [PROGRAM], "cwd": "/", **process},
        "root": {"path": "rootfs"},
        **(config or {}),
    }
    return layer(
        file("./config.json", json.dumps(runtime_config).encode()),
        folder("./rootfs"),
        folder("./rootfs/bin"),
        file(f"./rootfs{PROGRAM}", server_program(), 0o755),
        *more,
    )


def _image_config(config: Mapping[str, Any] | None, layers: Sequence[bytes], **more: Any) -> bytes:
    usual = {"Entrypoint": [PROGRAM], "Cmd": ["--usual"]}
    digests = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
    return json.dumps(
        {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": usual if config is None else config,
            "rootfs": {"type": "layers", "diff_ids": digests},
            **more,
        }
    ).encode()


def _blob(content: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def _descriptor(content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"digest": digest, "size": len(content)}
