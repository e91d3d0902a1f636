from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyservice.control.name_rules import require_valid
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.observability.logging import get_logger
from pyservice.runtime.build_worker import WorkerFailed, check_build
from pyservice.storage.database import Record
from pyservice.storage.objects import FILE_PATH_MAX_BYTES, Objects, RunStep, is_file_path
from pyservice.storage.picture_validation import check_picture, kind_of_name

BuildForm = tuple[str, str, str | None]
"""Kind, compression, image tag."""
CHECK_TIMEOUT_S: Final = 30 * 60.0

_log = get_logger("control")


@dataclass(frozen=True, slots=True)
class CheckedContents:
    digests: dict[str, bytes] = field(default_factory=dict)
    picture: str | None = None
    scratch_mb: int = 0
    """Size of the scratch folder that a build requests. 0: none."""


async def check_contents(
    objects: Objects,
    run: RunStep,
    kind: str,
    build: BuildForm | None,
    files: Sequence[Record],
    keys: Mapping[str, str],
) -> CheckedContents:
    """Validates the uploaded files of a site, a picture or a build. `run` executes the check of a
    picture in a thread.

    `files` are rows of the table `upload_files`, and `keys` maps their paths to object keys. Raises
    VALIDATION_FAILED, DEADLINE_EXCEEDED, INTERNAL, FileNotFoundError, OSError.
    """
    if kind == "site":
        await _site(objects, run, files, keys)
        return CheckedContents()
    (file,) = files
    key = keys[file.path]
    if build is None:
        return CheckedContents(picture=await _picture(objects, run, file, key))
    digest, scratch_mb = await _build(objects, build, file, key)
    return CheckedContents(digests={file.path: digest}, scratch_mb=scratch_mb)


async def _site(
    objects: Objects, run: RunStep, files: Sequence[Record], keys: Mapping[str, str]
) -> None:
    """Compares the files with the SHA-256 of the request. A later site copies them by these."""
    problems: list[FieldProblem] = []
    for file in files:
        if file.sha256 is None:
            continue
        digest = await objects.digest(keys[file.path], run)
        if digest != file.sha256.hex():
            # Some clients split paths at dots, so the path of the file is in the text.
            reason = f"of {file.path!r} is not the SHA-256 of the uploaded file, which is {digest}"
            problems.append(field_problem(["files", "sha256"], "invalid", reason))
    require_valid(problems)


async def _picture(objects: Objects, run: RunStep, file: Record, key: str) -> str:
    content = b"".join([block async for block in objects.read(key)])
    picture = await run(lambda: check_picture(content))
    if picture is None:
        require_valid([field_problem(["path"], "invalid", "is not a complete PNG or JPEG picture")])
    elif picture.kind != kind_of_name(file.path):
        reason = f"must have an extension of {picture.kind}, the format of the file"
        require_valid([field_problem(["path"], "invalid", reason)])
    assert picture is not None
    return picture.kind


async def _build(objects: Objects, form: BuildForm, file: Record, key: str) -> tuple[bytes, int]:
    """Returns the digest of a build, and the size of the scratch folder that it requests."""
    kind, compression, image_tag = form
    blocks = objects.read(key)
    limit = asyncio.timeout(CHECK_TIMEOUT_S)
    try:
        async with limit:
            report = await check_build(kind, compression, file.content_length, image_tag, blocks)
    except TimeoutError:
        if not limit.expired():
            raise
        _log.warning("upload not checked in time", key=key, timeout_s=CHECK_TIMEOUT_S)
        raise ServiceError("DEADLINE_EXCEEDED") from None
    except WorkerFailed as error:
        _log.error("check of an upload failed", key=key, error=str(error))
        raise ServiceError("INTERNAL") from None
    digest, bad = bytes.fromhex(report.sha256), report.problem
    problems: list[FieldProblem] = []
    if file.sha256 is not None and file.sha256 != digest:
        reason = f"is not the SHA-256 of the uploaded file, which is {digest.hex()}"
        problems.append(field_problem(["image_file", "sha256"], "invalid", reason))
    if bad is not None:
        # The entry is not in the path: some clients split paths at dots, and an entry may have any
        # name.
        reason = f"has {bad.entry!r}, which {bad.reason}" if bad.entry else bad.reason
        problems.append(field_problem(["image_file"], bad.word, reason))
    require_valid(problems)
    return digest, report.scratch_mb


_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE: Final = re.compile(
    rf'{_WORD}/{_WORD}(?:[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|"[\x20!\x23-\x5b\x5d-\x7e]*"))*'
)


def path_problems(path: str, *location: str) -> Iterator[FieldProblem]:
    """Yields a problem if `path` is not a valid path of an uploaded file."""
    if not path:
        yield field_problem(location, "too-short", "must not be empty")
    elif len(path.encode("utf-8", "replace")) > FILE_PATH_MAX_BYTES:
        yield field_problem(location, "too-long", f"must have at most {FILE_PATH_MAX_BYTES} bytes")
    elif not is_file_path(path):
        reason = (
            "must be relative, without empty, . or .. segments, backslashes or control characters"
        )
        yield field_problem(location, "invalid", reason)


def content_type_problems(content_type: str, *location: str) -> Iterator[FieldProblem]:
    if not _CONTENT_TYPE.fullmatch(content_type):
        yield field_problem(location, "invalid", "must be a MIME type, such as text/html")
