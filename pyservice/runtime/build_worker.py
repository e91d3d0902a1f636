from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.build_sandbox import sandbox_environment, sandboxed_python
from pyservice.runtime.build_unpacking import CHECK, FAULT_STATUS, NO_SPACE_STATUS
from pyservice.runtime.start_problems import ProgramFile, program_problem


class NoDiskSpace(Exception):
    pass


class WorkerFailed(Exception):
    """The worker process ended without a report."""


class BuildReport(NamedTuple):
    sha256: str
    """Not known if the build has a problem and was to be unpacked."""
    problem: BadArchive | None
    scratch_mb: int = 0
    """Size of the scratch folder that a checked archive requests. 0: none."""


async def check_build(
    kind: str, compression: str, length: int, image_tag: str | None, blocks: AsyncIterable[bytes]
) -> BuildReport:
    """Validates a build in a sandboxed worker process. A cancelled call kills the worker.

    Raises WorkerFailed, OSError, and the errors of the iterator `blocks`.
    """
    return await _run(None, (kind, compression, str(length), "0", ""), image_tag, blocks)


async def unpack_build(
    folder: Path,
    kind: str,
    compression: str,
    length: int,
    reserve_bytes: int,
    image_tag: str | None,
    blocks: AsyncIterable[bytes],
    root_uid: int | None,
) -> BuildReport:
    """Validates a build in a sandboxed worker process, and unpacks it into `folder`.

    `root_uid` is the host's user id for root in containers, or None if the service is not root.
    Raises NoDiskSpace, and the same errors as `check_build`.
    """
    owner = "" if root_uid is None else str(root_uid)
    words = (kind, compression, str(length), str(reserve_bytes), owner)
    return await _run(folder, words, image_tag, blocks)


async def _run(
    folder: Path | None,
    build: Sequence[str],
    image_tag: str | None,
    blocks: AsyncIterable[bytes],
) -> BuildReport:
    words = [
        str(os.getpid()),
        CHECK if folder is None else str(folder),
        *build,
        *(() if image_tag is None else (image_tag,)),
    ]
    process = await asyncio.create_subprocess_exec(
        *sandboxed_python("pyservice.runtime.build_unpacking", words, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=sandbox_environment(),
    )
    assert process.stdin is not None
    try:
        # The worker may die before it has read all blocks.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            async for block in blocks:
                if process.stdin.is_closing():
                    break
                process.stdin.write(block)
                await process.stdin.drain()
        process.stdin.close()
        output, message = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await await_despite_cancel(process.wait())
        raise
    reason = _last_line(message)
    if process.returncode == NO_SPACE_STATUS:
        raise NoDiskSpace(reason)
    if process.returncode == FAULT_STATUS:
        raise OSError(reason)
    if process.returncode != 0:
        raise WorkerFailed(f"the build worker ended with {process.returncode}: {reason}")
    report = json.loads(output)
    problem = report["problem"] and BadArchive(*report["problem"])
    if problem is None and report["program"] is not None:
        problem = _missing_interpreter(*report["program"])
    return BuildReport(report["sha256"], problem, report["scratch_mb"])


def _missing_interpreter(name: str, form: Any, interpreter: str) -> BadArchive | None:
    """Returns the problem of a program that needs a missing interpreter. The worker cannot look."""
    program = ProgramFile(is_executable=True, form=form, interpreter=interpreter)
    problem = program_problem(name, program, os.path.exists)
    return None if problem is None else BadArchive("", "not-found", problem.sentence)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
