"""What may be in an uploaded file: builds by digest and archive, pictures by their content (decisions 6.5, 8.8)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyservice.control.archives import Archive, BadArchive
from pyservice.control.names import refuse
from pyservice.errors import FieldProblem, field_problem
from pyservice.storage.database import Record
from pyservice.storage.images import check_image, kind_of_name
from pyservice.storage.objects import Objects

ARCHIVE: Final = "archive"
_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """What a good upload is: SHA-256 of files by path, and the kind of the picture."""

    digests: dict[str, bytes] = field(default_factory=dict)
    picture: str | None = None


async def check_contents(
    objects: Objects,
    kind: str,
    build: tuple[str, str] | None,
    files: Sequence[Record],
    keys: Mapping[str, str],
) -> Found:
    """Files are rows of `upload_files` whose objects are kept under `keys`. Raises VALIDATION_FAILED."""
    if kind == "site":
        return Found()
    (file,) = files
    if build is None:
        return Found(picture=await _picture(objects, file, keys[file.path]))
    digest = await _build(objects, build, file, keys[file.path])
    return Found(digests={file.path: digest})


async def _picture(objects: Objects, file: Record, key: str) -> str:
    content = b"".join([block async for block in objects.read(key)])
    picture = check_image(content)
    if picture is None:
        refuse([field_problem(["path"], "invalid", "is not a whole png or jpeg picture")])
    elif picture.kind != kind_of_name(file.path):
        refuse([field_problem(["path"], "invalid", f"does not say {picture.kind}, as the file is")])
    assert picture is not None
    return picture.kind


async def _build(objects: Objects, form: tuple[str, str], file: Record, key: str) -> bytes:
    """Its SHA-256. An archive is gone through while it is digested: it is read once."""
    problems: list[FieldProblem] = []
    if form[0] == ARCHIVE:
        digest, problem = await _read_archive(objects, form[1], key)
        problems += [] if problem is None else [problem]
    else:
        digest = bytes.fromhex(await objects.digest(key))
    if file.sha256 is not None and file.sha256 != digest:
        reason = f"is not that of what was uploaded, which is {digest.hex()}"
        problems.insert(0, field_problem(["image_file", "sha256"], "invalid", reason))
    refuse(problems)
    return digest


async def _read_archive(
    objects: Objects, compression: str, key: str
) -> tuple[bytes, FieldProblem | None]:
    archive, state = Archive(compression), hashlib.sha256()
    bad: BadArchive | None = None

    def take(blocks: list[bytes]) -> BadArchive | None:
        for block in blocks:
            state.update(block)
        if bad is None:
            try:
                for block in blocks:
                    archive.feed(block)
            except BadArchive as error:
                return error
        return bad

    blocks: list[bytes] = []
    async for block in objects.read(key):
        blocks.append(block)
        if sum(map(len, blocks)) >= _BATCH_BYTES:
            # In a thread: an archive of gigabytes must not hold up the loop.
            bad = await asyncio.to_thread(take, blocks)
            blocks = []
    bad = await asyncio.to_thread(take, blocks)
    if bad is None:
        try:
            await asyncio.to_thread(archive.finish)
        except BadArchive as error:
            bad = error
    problem = None
    if bad is not None:
        # A name of anything: in the sentence, not in the path, which some clients read as dotted words.
        reason = f"has {bad.entry!r}, which {bad.reason}" if bad.entry else bad.reason
        problem = field_problem(["image_file"], bad.word, reason)
    return state.digest(), problem
