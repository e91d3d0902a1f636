#!/usr/bin/env python3
"""Builds the last stage of a Containerfile as an OCI archive, without a container builder and a registry.

The packages of Debian come from mmdebstrap, which needs root. Files of the build stage are given
by `--add`, in place of the COPY instructions of the last stage:

    build_image.py Containerfile image.tar --name localhost/hosting:1 --add packages=/opt/hosting/packages

containerd takes the archive by `ctr --namespace k8s.io images import image.tar`. `skopeo copy` brings
the archive to a registry. The script needs only Python's standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_ARCHITECTURE: Final = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
_BASE: Final = re.compile(r"debian:([a-z]+)-slim")
_INSTALLATION: Final = "apt-get install -y --no-install-recommends $PACKAGES"
_OMITTED: Final = (
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    # Java's installation needs the folders of the manuals.
    "/usr/share/man/*/*",
)
"""Files that no program reads."""
_CHUNK_BYTES: Final = 1 << 20


class Unsupported(Exception):
    """The Containerfile needs more than this script can do."""


@dataclass
class Stage:
    """Last stage of a Containerfile."""

    base: str = "scratch"
    packages: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    """Commands besides the installation of the packages."""
    copied: list[str] = field(default_factory=list)
    """Targets of the COPY instructions."""
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def suite(self) -> str | None:
        """Release of Debian. None: the image contains only the added files."""
        match = _BASE.fullmatch(self.base)
        if match is None and self.base != "scratch":
            raise Unsupported(f"cannot build from {self.base}")
        return match[1] if match else None


def read_stage(text: str) -> Stage:
    """Returns the last stage. Raises Unsupported."""
    stage = Stage()
    for instruction, rest in _instructions(text):
        match instruction:
            case "FROM":
                stage = Stage(base=rest.split()[0])
            case "ARG" if rest.startswith("PACKAGES="):
                stage.packages = shlex.split(rest.removeprefix("PACKAGES="))[0].split()
            case "COPY":
                stage.copied.append(rest.split()[-1])
            case "RUN" if _INSTALLATION not in rest:
                stage.commands.append(rest)
            case "RUN":
                pass
            case _:
                _configure(stage.config, instruction, rest)
    if stage.suite is None and stage.commands:
        raise Unsupported(f"cannot run without a base: {stage.commands[0]}")
    return stage


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, _, rest = line.strip().partition(" ")
            yield instruction.upper(), rest.strip()


def _configure(config: dict[str, Any], instruction: str, rest: str) -> None:
    match instruction:
        case "ENTRYPOINT" | "CMD":
            config[instruction.capitalize()] = json.loads(rest)
        case "ENV":
            config.setdefault("Env", []).extend(shlex.split(rest))
        case "EXPOSE":
            config["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
        case "USER":
            config["User"] = rest
        case "WORKDIR":
            config["WorkingDir"] = rest
        case _:
            raise Unsupported(f"cannot follow: {instruction} {rest}")


def system_layer(stage: Stage, cache: Path, mirrors: Sequence[str]) -> Path:
    """Returns a tar archive of the root file system, and makes it if no earlier build did."""
    wanted = json.dumps([stage.suite, stage.packages, stage.commands, mirrors])
    path = cache / f"system-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.tar"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.tar")
        omitted = [f"--dpkgopt=path-exclude={pattern}" for pattern in _OMITTED]
        command = [
            *("mmdebstrap", "--mode=root", "--variant=minbase", "--skip=output/dev", *omitted),
            f"--include={','.join(stage.packages)}",
            *(f'--customize-hook=chroot "$1" sh -c {shlex.quote(one)}' for one in stage.commands),
            *(str(stage.suite), str(partial), *mirrors),
        ]
        subprocess.run(command, check=True)
        partial.rename(path)
    return path


def folder_layer(source: Path, target: str, path: Path) -> Path:
    """Writes a folder or file as a layer with the owner root."""

    def owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(path, "w") as archive:
        name = target.strip("/")
        for parent in reversed(Path(name).parents[:-1]):
            info = tarfile.TarInfo(str(parent))
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        archive.add(source, name, filter=owned_by_root)
    return path


@dataclass(frozen=True)
class Blob:
    """Content of an image, in a file or in memory."""

    media_type: str
    size: int
    digest: str
    content: bytes | Path

    @classmethod
    def of_json(cls, kind: str, value: Mapping[str, Any]) -> Blob:
        content = json.dumps(value).encode()
        media_type = f"application/vnd.oci.image.{kind}.v1+json"
        return cls(media_type, len(content), _digest(io.BytesIO(content)), content)

    @classmethod
    def of_layer(cls, path: Path) -> Blob:
        with path.open("rb") as file:
            digest = _digest(file)
        kind = "application/vnd.oci.image.layer.v1.tar"
        return cls(kind, path.stat().st_size, digest, path)

    @property
    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def write_image(path: Path, name: str, config: Mapping[str, Any], layers: Sequence[Path]) -> str:
    """Writes an OCI archive. Returns the digest of the image."""
    blobs = [Blob.of_layer(layer) for layer in layers]
    system = {"architecture": _ARCHITECTURE, "os": "linux"}
    files = {"type": "layers", "diff_ids": [blob.digest for blob in blobs]}
    described = Blob.of_json("config", {**system, "config": config, "rootfs": files})
    content = {
        "schemaVersion": 2,
        "config": described.descriptor,
        "layers": [blob.descriptor for blob in blobs],
    }
    manifest = Blob.of_json("manifest", content)
    # containerd takes the name from the first annotation, other programs from the second.
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    listed = {**manifest.descriptor, "platform": system, "annotations": names}
    index = Blob.of_json("index", {"schemaVersion": 2, "manifests": [listed]})
    partial = path.with_name(f"{path.name}.partial")
    with tarfile.open(partial, "w") as archive:
        _add_bytes(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", index)
        for blob in {blob.digest: blob for blob in (manifest, described, *blobs)}.values():
            _add(archive, f"blobs/{blob.digest.replace(':', '/')}", blob)
    partial.rename(path)
    return manifest.digest


def _add(archive: tarfile.TarFile, name: str, blob: Blob) -> None:
    if isinstance(blob.content, bytes):
        _add_bytes(archive, name, blob.content)
    else:
        archive.add(blob.content, name)


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _digest(file: Any) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("containerfile", type=Path)
    parser.add_argument("output", type=Path, help="the OCI archive")
    parser.add_argument("--name", required=True, help="name and tag of the image")
    parser.add_argument(
        "--add", action="append", default=[], metavar="PATH=TARGET", help="files of one layer"
    )
    parser.add_argument("--mirror", action="append", default=[], help="as mmdebstrap takes it")
    parser.add_argument(
        "--cache", type=Path, default=Path("build/container"), help="folder of finished layers"
    )
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    stage = read_stage(arguments.containerfile.read_text())
    added = [one.split("=", 1) for one in arguments.add]
    for target in stage.copied:
        if all(target != to for _, to in added):
            raise Unsupported(f"give the files of COPY {target} by --add PATH={target}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    layers = []
    if stage.suite is not None:
        layers.append(system_layer(stage, arguments.cache, arguments.mirror))
    for number, (source, target) in enumerate(added):
        path = arguments.output.with_name(f".{arguments.output.name}.{number}-{os.getpid()}")
        layers.append(folder_layer(Path(source), target, path))
    digest = write_image(arguments.output, arguments.name, stage.config, layers)
    for layer in layers[stage.suite is not None :]:
        layer.unlink()
    print(f"{arguments.output}: {arguments.name}, {digest}")


if __name__ == "__main__":
    try:
        main()
    except (Unsupported, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"build_image.py: {error}")
