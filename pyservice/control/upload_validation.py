"""Validation of uploads: paths, MIME types, build archives, digests and pictures."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyservice.control.name_rules import require_valid
from pyservice.errors import FieldProblem, field_problem
from pyservice.runtime.archive_rules import BadArchive, RootRules, SizeAllowance
from pyservice.runtime.archive_validation import ArchiveValidator, PackedLayers, SmallFiles
from pyservice.runtime.build_manifests import (
    CONFIG_JSON,
    MAX_BYTES,
    SERVER_JSON,
    SERVER_JSON_MAX_BYTES,
    BadManifest,
    read_bundle_config,
    read_image,
    read_server_json,
)
from pyservice.storage.database import Record
from pyservice.storage.image_validation import check_image, kind_of_name
from pyservice.storage.objects import FILE_PATH_MAX_BYTES, Objects, RunStep, is_file_path

ARCHIVE: Final = "archive"
IMAGE: Final = "docker_image"
BUNDLE: Final = "oci_bundle"
BuildForm = tuple[str, str, str | None]
STEP_S: Final = 0.05
"""A step yields to other tenants after this time."""
_BATCH_BYTES: Final = 1 << 20
_SMALL: Final[Mapping[str, tuple[str | None, int]]] = {
    ARCHIVE: (SERVER_JSON, SERVER_JSON_MAX_BYTES),
    BUNDLE: (CONFIG_JSON, MAX_BYTES),
    IMAGE: (None, MAX_BYTES),
}


@dataclass(frozen=True, slots=True)
class CheckedContents:
    digests: dict[str, bytes] = field(default_factory=dict)
    picture: str | None = None


async def check_contents(
    objects: Objects,
    run: RunStep,
    kind: str,
    build: BuildForm | None,
    files: Sequence[Record],
    keys: Mapping[str, str],
) -> CheckedContents:
    """Validates uploaded files. `run` executes the steps. Raises VALIDATION_FAILED,
    FileNotFoundError.

    `files` are rows of `upload_files`, `keys` their object keys.
    """
    if kind == "site":
        return CheckedContents()
    (file,) = files
    key = keys[file.path]
    if build is None:
        return CheckedContents(picture=await _picture(objects, run, file, key))
    return CheckedContents(digests={file.path: await _build(objects, run, build, file, key)})


async def _picture(objects: Objects, run: RunStep, file: Record, key: str) -> str:
    content = b"".join([block async for block in objects.read(key)])
    picture = await run(lambda: check_image(content))
    if picture is None:
        require_valid([field_problem(["path"], "invalid", "is not a whole png or jpeg picture")])
    elif picture.kind != kind_of_name(file.path):
        require_valid(
            [field_problem(["path"], "invalid", f"does not say {picture.kind}, as the file is")]
        )
    assert picture is not None
    return picture.kind


async def _build(objects: Objects, run: RunStep, form: BuildForm, file: Record, key: str) -> bytes:
    digest, problem = await _read_archive(
        objects, run, _ArchiveCheck(*form, file.content_length), key
    )
    problems: list[FieldProblem] = [] if problem is None else [problem]
    if file.sha256 is not None and file.sha256 != digest:
        reason = f"is not that of what was uploaded, which is {digest.hex()}"
        problems.insert(0, field_problem(["image_file", "sha256"], "invalid", reason))
    require_valid(problems)
    return digest


async def _read_archive(
    objects: Objects, run: RunStep, reading: _ArchiveCheck, key: str
) -> tuple[bytes, FieldProblem | None]:
    blocks: list[bytes] = []
    async for block in objects.read(key):
        blocks.append(block)
        if sum(map(len, blocks)) >= _BATCH_BYTES:
            await _done(run, reading.take(blocks))
            blocks = []
    await _done(run, reading.take(blocks))
    await _done(run, reading.finish())
    problem, bad = None, reading.bad
    if bad is None:
        bad = await run(reading.manifest_problem)
    if bad is not None:
        # The entry is not in the path: some clients split paths at dots, and an entry may have any
        # name.
        reason = f"has {bad.entry!r}, which {bad.reason}" if bad.entry else bad.reason
        problem = field_problem(["image_file"], bad.word, reason)
    return reading.digest.digest(), problem


class _ArchiveCheck:
    """Digest and validation of a build. Validation stops at the first error, the digest continues."""

    def __init__(self, kind: str, compression: str, image_tag: str | None, length: int) -> None:
        self.digest = hashlib.sha256()
        self.bad: BadArchive | None = None
        self._kind = kind
        self._image_tag = image_tag
        self._small = SmallFiles(*_SMALL[kind])
        self._archive = ArchiveValidator(
            compression,
            SizeAllowance(length),
            rules=RootRules() if kind == BUNDLE else None,
            small=self._small,
            layers=PackedLayers(SizeAllowance(length)) if kind == IMAGE else None,
        )

    def manifest_problem(self) -> BadArchive | None:
        files = self._small.files
        try:
            if self._kind == IMAGE:
                read_image(lambda path: bytes(files[path]), self._small.names, self._image_tag)
            else:
                name, read = (
                    (SERVER_JSON, read_server_json)
                    if self._kind == ARCHIVE
                    else (CONFIG_JSON, read_bundle_config)
                )
                read(bytes(files[name]) if name in files else None)
        except BadManifest as error:
            return BadArchive("", "invalid", str(error))
        return None

    def take(self, blocks: Sequence[bytes]) -> Iterator[None]:
        for block in blocks:
            self.digest.update(block)
            yield from self._unless_bad(lambda block=block: self._archive.feed(block))  # type: ignore[misc]

    def finish(self) -> Iterator[None]:
        yield from self._unless_bad(self._archive.finish)

    def _unless_bad(self, steps: Callable[[], Iterator[None]]) -> Iterator[None]:
        if self.bad is None:
            try:
                yield from steps()
            except BadArchive as error:
                self.bad = error


async def _done(run: RunStep, steps: Iterator[None]) -> None:
    while await run(lambda: _advance(steps)):
        pass


def _advance(steps: Iterator[None]) -> bool:
    until = time.perf_counter() + STEP_S
    return any(time.perf_counter() >= until for _ in steps)


_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE: Final = re.compile(
    rf'{_WORD}/{_WORD}(?:[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|"[\x20!\x23-\x5b\x5d-\x7e]*"))*'
)


def path_problems(path: str, *location: str) -> Iterator[FieldProblem]:
    """Yields problems unless the path has 1 to 512 bytes and is relative.

    It may have no empty, `.` or `..` segment, no control characters and no backslashes.
    """
    if not path:
        yield field_problem(location, "too-short", "must not be empty")
    elif len(path.encode("utf-8", "replace")) > FILE_PATH_MAX_BYTES:
        yield field_problem(location, "too-long", f"must have at most {FILE_PATH_MAX_BYTES} bytes")
    elif not is_file_path(path):
        reason = (
            "must be relative, without . or .. or nothing between slashes, and without backslashes"
        )
        yield field_problem(location, "invalid", reason)


def content_type_problems(content_type: str, *location: str) -> Iterator[FieldProblem]:
    if not _CONTENT_TYPE.fullmatch(content_type):
        yield field_problem(location, "invalid", "must be a MIME type, such as text/html")
