"""What may be in an uploaded file: builds by digest and archive, pictures by their content (decisions 6.5, 8.8)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyservice.control.names import refuse
from pyservice.errors import FieldProblem, field_problem
from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.archives import Archive
from pyservice.storage.database import Record
from pyservice.storage.images import check_image, kind_of_name
from pyservice.storage.objects import Objects, Run

ARCHIVE: Final = "archive"
TURN_S: Final = 0.05
"""After so long somebody else's file has its turn."""
_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """What a good upload is: SHA-256 of files by path, and the kind of the picture."""

    digests: dict[str, bytes] = field(default_factory=dict)
    picture: str | None = None


async def check_contents(
    objects: Objects,
    run: Run,
    kind: str,
    build: tuple[str, str] | None,
    files: Sequence[Record],
    keys: Mapping[str, str],
) -> Found:
    """Files are rows of `upload_files` whose objects are kept under `keys`; what takes long is done by `run`, in steps.

    Raises VALIDATION_FAILED, and FileNotFoundError when the objects are gone.
    """
    if kind == "site":
        return Found()
    (file,) = files
    key = keys[file.path]
    if build is None:
        return Found(picture=await _picture(objects, run, file, key))
    return Found(digests={file.path: await _build(objects, run, build, file, key)})


async def _picture(objects: Objects, run: Run, file: Record, key: str) -> str:
    content = b"".join([block async for block in objects.read(key)])
    picture = await run(lambda: check_image(content))
    if picture is None:
        refuse([field_problem(["path"], "invalid", "is not a whole png or jpeg picture")])
    elif picture.kind != kind_of_name(file.path):
        refuse([field_problem(["path"], "invalid", f"does not say {picture.kind}, as the file is")])
    assert picture is not None
    return picture.kind


async def _build(
    objects: Objects, run: Run, form: tuple[str, str], file: Record, key: str
) -> bytes:
    """Its SHA-256. An archive is gone through while it is digested: it is read once."""
    problems: list[FieldProblem] = []
    if form[0] == ARCHIVE:
        digest, problem = await _read_archive(objects, run, form[1], key)
        problems += [] if problem is None else [problem]
    else:
        digest = bytes.fromhex(await objects.digest(key, run))
    if file.sha256 is not None and file.sha256 != digest:
        reason = f"is not that of what was uploaded, which is {digest.hex()}"
        problems.insert(0, field_problem(["image_file", "sha256"], "invalid", reason))
    refuse(problems)
    return digest


async def _read_archive(
    objects: Objects, run: Run, compression: str, key: str
) -> tuple[bytes, FieldProblem | None]:
    reading = _Reading(compression)
    blocks: list[bytes] = []
    async for block in objects.read(key):
        blocks.append(block)
        if sum(map(len, blocks)) >= _BATCH_BYTES:
            await _done(run, reading.take(blocks))
            blocks = []
    await _done(run, reading.take(blocks))
    await _done(run, reading.finish())
    problem, bad = None, reading.bad
    if bad is not None:
        # A name of anything: in the sentence, not in the path, which some clients read as dotted words.
        reason = f"has {bad.entry!r}, which {bad.reason}" if bad.entry else bad.reason
        problem = field_problem(["image_file"], bad.word, reason)
    return reading.digest.digest(), problem


class _Reading:
    """An archive and its digest, as far as they were read; what is bad is gone through no further."""

    def __init__(self, compression: str) -> None:
        self.digest = hashlib.sha256()
        self.bad: BadArchive | None = None
        self._archive = Archive(compression)

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


async def _done(run: Run, steps: Iterator[None]) -> None:
    """Goes through steps, many at a time, and lets others have their turn in between."""
    while await run(lambda: _advance(steps)):
        pass


def _advance(steps: Iterator[None]) -> bool:
    """Whether there are more after so long."""
    until = time.perf_counter() + TURN_S
    return any(time.perf_counter() >= until for _ in steps)
