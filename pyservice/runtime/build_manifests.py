"""Parsing and validation of the manifests of uploaded builds. Does no I/O.

A build is an archive with `server.json`, an OCI bundle with `config.json`, or a container image. An
image has the format of `docker save` (`manifest.json`) or the OCI image layout (`index.json`).
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

SERVER_JSON: Final = "server.json"
CONFIG_JSON: Final = "config.json"
MANIFEST_JSON: Final = "manifest.json"
INDEX_JSON: Final = "index.json"
SERVER_JSON_MAX_BYTES: Final = 64 << 10
MAX_BYTES: Final = 1 << 20
LAYERS_MAX: Final = 512
IDS_MAX: Final = 65_536
SCRATCH_MB_MIN: Final = 16
SCRATCH_MB_MAX: Final = 1 << 20
SCRATCH_LABEL: Final = "hosting.scratch_mb"
"""Label of an image, or annotation of a bundle, with the size of the scratch folder in MiB."""

_UNUSABLE: Final = re.compile("[\\0\\ud800-\\udfff]")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGEST: Final = re.compile(r"[a-z0-9]+:[0-9a-f]{32,128}")
_NESTED_MAX: Final = 8
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}

Read = Callable[[str], bytes]
"""Function that returns up to MAX_BYTES + 1 bytes of a file in the image. Raises KeyError."""


class BadManifest(Exception):
    """The manifest of a build is invalid.

    The message continues a sentence about the build, such as `must have at most 512 layers`.
    Developers read it.
    """


@dataclass(frozen=True, slots=True)
class BuildProgram:
    command: Sequence[str]
    args: Sequence[str] = ()
    """Default arguments. The arguments of a run replace them."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    is_readonly: bool = False
    scratch_mb: int = 0
    """Size of the scratch folder. 0: the size that the operator allows."""


class BuildContents(NamedTuple):
    program: BuildProgram
    layers: Sequence[str] = ()


def read_server_json(content: bytes | None) -> BuildProgram:
    """Parses `server.json`. Raises BadManifest, also if the file is missing (`content` is None)."""
    fields = _object(SERVER_JSON, content, SERVER_JSON_MAX_BYTES)
    problems = list(_problems(fields))
    if problems:
        raise BadManifest(f"{SERVER_JSON}: {'; '.join(problems)}")
    return BuildProgram(
        tuple(fields["command"]),
        env=dict(fields.get("env", {})),
        workdir=fields.get("workdir", "."),
        scratch_mb=fields.get("scratch_mb", 0),
    )


def _problems(fields: Mapping[str, Any]) -> Iterator[str]:
    for name in fields:
        if name not in ("command", "env", "workdir", "scratch_mb"):
            yield f"{name!r} is not known: the known fields are command, env, workdir and scratch_mb"
    if not _is_scratch_mb(fields.get("scratch_mb", SCRATCH_MB_MIN)):
        yield f"scratch_mb must be a whole number from {SCRATCH_MB_MIN} to {SCRATCH_MB_MAX}"
    command, env, workdir = fields.get("command"), fields.get("env", {}), fields.get("workdir", ".")
    if not (_are_texts(command) and command and command[0]):
        yield "command must be a list of strings that begins with a program"
    if not isinstance(env, dict) or not all(
        _VARIABLE.fullmatch(name) and _is_text(value) for name, value in env.items()
    ):
        yield "env must be an object that maps names of variables to strings"
    if not _is_text(workdir) or workdir.startswith("/") or ".." in workdir.split("/"):
        yield "workdir must be a path inside the archive"


def _is_scratch_mb(value: object) -> bool:
    return type(value) is int and SCRATCH_MB_MIN <= value <= SCRATCH_MB_MAX


def _labelled_scratch_mb(labels: object, path: str) -> int:
    text = labels.get(SCRATCH_LABEL, "0") if isinstance(labels, dict) else "0"
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 9
    if is_number and (text == "0" or _is_scratch_mb(int(text))):
        return int(text)
    limits = f"from {SCRATCH_MB_MIN} to {SCRATCH_MB_MAX}"
    raise BadManifest(f"{path}: {SCRATCH_LABEL} must be the text of a whole number {limits}")


def read_bundle_config(content: bytes | None) -> BuildProgram:
    """Parses the `config.json` of an OCI bundle. Raises BadManifest.

    Fields that the service sets itself are ignored.
    """
    fields = _object(CONFIG_JSON, content)
    process, root = _part(fields, "process", CONFIG_JSON), _part(fields, "root", CONFIG_JSON)
    if root.get("path", "rootfs") not in ("rootfs", "./rootfs", "rootfs/"):
        raise BadManifest(f"{CONFIG_JSON}: root.path must be rootfs")
    args = process.get("args")
    if not (_are_texts(args) and args and args[0]):
        raise BadManifest(
            f"{CONFIG_JSON}: process.args must be a list of strings that begins with a program"
        )
    user = process.get("user") or {}
    ids = [user.get(name) or 0 for name in ("uid", "gid")] if isinstance(user, dict) else [-1]
    if not all(isinstance(id_number, int) and 0 <= id_number < IDS_MAX for id_number in ids):
        raise BadManifest(f"{CONFIG_JSON}: process.user must have a uid and gid below {IDS_MAX}")
    return BuildProgram(
        tuple(args),
        env=_variables(process.get("env"), f"{CONFIG_JSON}: process.env"),
        workdir=_workdir(process.get("cwd"), f"{CONFIG_JSON}: process.cwd"),
        user=f"{ids[0]}:{ids[1]}",
        is_readonly=root.get("readonly") is True,
        scratch_mb=_labelled_scratch_mb(fields.get("annotations"), CONFIG_JSON),
    )


def read_image(read: Read, names: Collection[str], tag: str | None) -> BuildContents:
    """Returns the program and the layers of the image with this tag.

    Without a tag, the upload must have exactly one image. Raises BadManifest.
    """
    if MANIFEST_JSON in names:
        config, layers = _of_docker(read, tag)
    elif INDEX_JSON in names:
        config, layers = _of_layout(read, tag)
    else:
        raise BadManifest(
            f"has neither {MANIFEST_JSON}, as docker save writes it, nor {INDEX_JSON} of an OCI image layout"
        )
    if len(layers) > LAYERS_MAX:
        raise BadManifest(f"must have at most {LAYERS_MAX} layers")
    for layer in layers:
        if layer not in names:
            raise BadManifest(f"lacks the layer {layer!r}, which its manifest names")
    return BuildContents(_of_config(_object(config, _content(read, config)), config), layers)


def _of_docker(read: Read, tag: str | None) -> tuple[str, Sequence[str]]:
    fields = _json(MANIFEST_JSON, _content(read, MANIFEST_JSON))
    if (
        not isinstance(fields, list)
        or not fields
        or not all(isinstance(image, dict) for image in fields)
    ):
        raise BadManifest(f"{MANIFEST_JSON} must be a list of images")
    candidates = [(image.get("RepoTags") or [], image) for image in fields]
    image = _choose_image(candidates, tag, MANIFEST_JSON)
    config, layers = image.get("Config"), image.get("Layers")
    if not _is_text(config) or not _are_texts(layers):
        raise BadManifest(f"{MANIFEST_JSON}: an image must have Config and Layers")
    return _path(config), [_path(layer) for layer in layers]


def _of_layout(read: Read, tag: str | None) -> tuple[str, Sequence[str]]:
    path, fields = INDEX_JSON, _object(INDEX_JSON, _content(read, INDEX_JSON))
    for _ in range(_NESTED_MAX):
        manifests = fields.get("manifests")
        if manifests is None:
            break
        if not isinstance(manifests, list) or not all(
            isinstance(manifest, dict) for manifest in manifests
        ):
            raise BadManifest(f"{path}: manifests must be a list of objects")
        candidates = [
            (_names_of(manifest), manifest)
            for manifest in manifests
            if _is_for_this_machine(manifest.get("platform"))
        ]
        path = _blob(_choose_image(candidates, tag, path), path)
        fields = _object(path, _content(read, path))
        tag = None
    config, layers = fields.get("config"), fields.get("layers")
    if not isinstance(layers, list):
        raise BadManifest(f"{path}: an image must have config and layers")
    return _blob(config, path), [_blob(layer, path) for layer in layers]


def _names_of(descriptor: Mapping[str, Any]) -> Sequence[str]:
    fields = descriptor.get("annotations")
    labels = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    return (
        [fields[label] for label in labels if label in fields] if isinstance(fields, dict) else []
    )


def _is_for_this_machine(fields: object) -> bool:
    if not isinstance(fields, dict):
        return True
    return (fields.get("os", "linux"), fields.get("architecture", _architecture())) == (
        "linux",
        _architecture(),
    )


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _choose_image(candidates: Sequence[tuple[Any, Any]], tag: str | None, path: str) -> Any:
    known_names = sorted(
        {str(name) for names, _ in candidates if isinstance(names, list) for name in names}
    )
    matches = [image for names, image in candidates if tag is None or _has(names, tag)]
    if not matches and len(candidates) == 1 and not known_names:
        matches = [candidates[0][1]]
    if len(matches) == 1:
        return matches[0]
    if not candidates:
        raise BadManifest(f"{path} has no image for linux/{_architecture()}")
    names = ", ".join(known_names[:8]) or "no names"
    if matches:
        raise BadManifest(f"{path} has several images ({names}): set image_tag to select one")
    raise BadManifest(f"{path} has no image {tag!r}, it has {names}")


def _has(names: object, tag: str) -> bool:
    texts = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return any(name == tag or name.endswith((f"/{tag}", f":{tag}")) for name in texts)


def _blob(descriptor: Any, path: str) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadManifest(f"{path}: a descriptor has no digest")
    return f"blobs/{digest.replace(':', '/')}"


def _of_config(fields: Mapping[str, Any], path: str) -> BuildProgram:
    system = fields.get("os", "linux"), fields.get("architecture", _architecture())
    if system != ("linux", _architecture()):
        raise BadManifest(
            f"is for {'/'.join(map(str, system))}, servers run on linux/{_architecture()}"
        )
    config = fields.get("config") or {}
    if not isinstance(config, dict):
        raise BadManifest(f"{path}: config must be an object")
    command, args = config.get("Entrypoint") or [], config.get("Cmd") or []
    if not _are_texts(command) or not _are_texts(args):
        raise BadManifest(f"{path}: Entrypoint and Cmd must be lists of strings")
    user = config.get("User") or ""
    if not _is_text(user):
        raise BadManifest(f"{path}: User must be a string")
    return BuildProgram(
        tuple(command),
        tuple(args),
        _variables(config.get("Env"), f"{path}: Env"),
        _workdir(config.get("WorkingDir"), f"{path}: WorkingDir"),
        user,
        scratch_mb=_labelled_scratch_mb(config.get("Labels"), path),
    )


def _variables(fields: Any, label: str) -> dict[str, str]:
    if not _are_texts(fields or []):
        raise BadManifest(f"{label} must be a list of strings")
    pairs = [variable.partition("=") for variable in fields or []]
    if not all(name and separator for name, separator, _ in pairs):
        raise BadManifest(f"{label} must be of the form NAME=value")
    return {name: value for name, _, value in pairs}


def _workdir(fields: Any, label: str) -> str:
    if not _is_text(fields or "") or (fields and not fields.startswith("/")):
        raise BadManifest(f"{label} must be an absolute path")
    return fields or "/"


def _path(text: str) -> str:
    return "/".join(word for word in text.split("/") if word not in ("", "."))


def _part(fields: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    part = fields.get(name)
    if not isinstance(part, dict):
        raise BadManifest(f"{path} must have an object {name}")
    return part


def _content(read: Read, path: str) -> bytes | None:
    try:
        return read(path)
    except KeyError:
        return None


def _object(path: str, content: bytes | None, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    fields = _json(path, content, max_bytes)
    if not isinstance(fields, dict):
        raise BadManifest(f"{path}: must be an object")
    return fields


def _json(path: str, content: bytes | None, max_bytes: int = MAX_BYTES) -> Any:
    if content is None:
        raise BadManifest(f"has no {path}" + (" at its root" if "/" not in path else ""))
    if len(content) > max_bytes:
        raise BadManifest(f"{path} is longer than {max_bytes} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"{path} is not valid JSON: {error}") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not _UNUSABLE.search(value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))
