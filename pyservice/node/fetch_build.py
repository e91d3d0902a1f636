"""Command of the init container of a Pod: fetches a build, unpacks it, and writes the start script.

A keeper is copied beside it, which has SIGTERM reach the game server behind any start script.

Usage: `python3 -m pyservice.node.fetch_build <address of the node> <BuildFetch as JSON>`. The content
is right if it has the digest that the Pod names, so the certificate of the node is not checked.
Messages contain no paths, because developers read them.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import shutil
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, cast

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.durable_files import is_disk_full
from pyservice.kubernetes.build_fetch import (
    BUILD,
    BUILD_ROOT,
    KEEPER,
    SCRATCH,
    START,
    START_PROBLEM,
    TERMINATION_LOG,
    BuildFetch,
)
from pyservice.node.copy_program import copy_keeper
from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.build_manifests import (
    SERVER_JSON,
    BadManifest,
    BuildProgram,
    read_server_json,
)
from pyservice.runtime.build_unpacking import ARCHIVE, unpack
from pyservice.runtime.process_environment import default_variables, expand_references
from pyservice.runtime.root_filesystem import path_words
from pyservice.runtime.start_problems import RunProblem, program_problem, read_program_file

FETCH_TIMEOUT_S: Final = 1_800.0
"""Time for all attempts, as on a single machine."""

_RETRIES_S: Final = doubling(0.1, 2.0)
_CONNECT_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 600.0
"""Time in which the node must begin to answer. It first fetches a large archive as a whole."""
_STALL_TIMEOUT_S: Final = 60.0
_EXEC_FAILED_STATUS: Final = 127
_WORDS_MAX: Final = 2_000
"""Longest last words of a container. The node reads 4 KiB."""


class BuildUnusable(Exception):
    """The build can never be started. The message is a sentence for the developer."""


class NotFetched(Exception):
    """The node does not give the archive now. The message is a sentence for the operator."""


class _Download:
    """The body of an answer. Raises NotFetched if it ends too early."""

    def __init__(self, response: http.client.HTTPResponse, length: int) -> None:
        self._response = response
        self._left = length

    def read(self, size: int) -> bytes:
        try:
            block = self._response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise NotFetched(f"the node did not send the whole build: {error}") from None
        self._left -= len(block)
        if not block and self._left > 0:
            raise NotFetched("the node did not send the whole build")
        return block


def fetch_build(
    host: str, fetch: BuildFetch, folder: Path, *, timeout_s: float = FETCH_TIMEOUT_S
) -> None:
    """Unpacks the build into `root` of a folder. Retries while the node does not give it.

    Raises BuildUnusable, NotFetched.
    """
    end_s, backoff = time.monotonic() + timeout_s, Backoff(_RETRIES_S)
    while True:
        try:
            return _fetch_once(host, fetch, folder)
        except NotFetched as error:
            delay_s = backoff.next_s()
            if time.monotonic() + delay_s > end_s:
                raise
            print(error, file=sys.stderr, flush=True)
        time.sleep(delay_s)


def _fetch_once(host: str, fetch: BuildFetch, folder: Path) -> None:
    root = folder / BUILD_ROOT.name
    shutil.rmtree(root, ignore_errors=True)
    with _opened(host, fetch) as download:
        try:
            root.mkdir()
            # It reads nothing but blocks.
            source = cast(IO[bytes], download)
            sha256 = unpack(source, folder, ARCHIVE, fetch.compression, fetch.length)
        except BadArchive as error:
            entry = f"{error.entry!r} " if error.entry else ""
            raise BuildUnusable(f"{entry}{error.reason}") from None
        except BadManifest as error:
            raise BuildUnusable(str(error)) from None
        except OSError as error:
            if is_disk_full(error):
                raise BuildUnusable("the disk of the node has no space for the build") from None
            reason = error.strerror or type(error).__name__
            raise BuildUnusable(f"the build could not be unpacked: {reason}") from None
    if sha256 != fetch.sha256:
        raise BuildUnusable(
            "the stored file is damaged, because its SHA-256 differs: upload it as a new build"
        )


@contextlib.contextmanager
def _opened(host: str, fetch: BuildFetch) -> Iterator[_Download]:
    """Requests the archive from the node. Raises NotFetched, BuildUnusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The digest authenticates the content, and only its knowledge gives access.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        host, fetch.port, timeout=_CONNECT_TIMEOUT_S, context=context
    )
    with contextlib.closing(connection):
        try:
            connection.connect()
            connection.sock.settimeout(_ANSWER_TIMEOUT_S)
            connection.request("GET", f"/archives/{fetch.sha256}")
            stream = connection.sock
            response = connection.getresponse()
            words = (
                response.read(_WORDS_MAX).decode(errors="replace") if response.status != 200 else ""
            )
        except (OSError, http.client.HTTPException) as error:
            raise NotFetched(f"the node did not answer: {error}") from None
        if response.status == 404:
            sentence = "the file that was uploaded is missing in the service's storage"
            raise BuildUnusable(f"{sentence}: upload it as a new build")
        if response.status != 200:
            raise NotFetched(words.strip() or f"the node answered with {response.status}")
        stream.settimeout(_STALL_TIMEOUT_S)
        yield _Download(response, fetch.length)


def read_program(root: Path) -> BuildProgram:
    """Returns the program of an unpacked build. Raises BuildUnusable."""
    path = root / SERVER_JSON
    try:
        return read_server_json(path.read_bytes() if path.is_file() else None)
    except BadManifest as error:
        raise BuildUnusable(str(error)) from None


def find_problem(program: BuildProgram, root: Path) -> RunProblem | None:
    """Returns why a program of the build cannot start, or None if no reason is known.

    The interpreter is in another image, so only one in the build is looked for.
    """
    name = program.command[0]
    if "/" not in name or name.startswith("/") or "$(" in name:
        return None
    workdir = root.joinpath(*path_words(program.workdir))
    path = workdir / name

    def has_file(interpreter: str) -> bool:
        return interpreter.startswith("/") or (workdir / interpreter).exists()

    with contextlib.suppress(OSError):
        shown = "/".join(path_words(f"{program.workdir}/{name}"))
        return program_problem(shown, read_program_file(path), has_file)
    return None


def start_script(
    program: BuildProgram,
    fetch: BuildFetch,
    problem: RunProblem | None,
    *,
    root: str = str(BUILD_ROOT),
    keeper: str = str(KEEPER),
    scratch: str = str(SCRATCH),
    last_words: str = str(TERMINATION_LOG),
) -> str:
    """Returns a shell script that replaces itself by a keeper with the program of a build.

    `last_words` is the file for the reason why the program cannot start.
    """
    own = {**default_variables(scratch), **program.env}
    exported = {name: value for name, value in own.items() if name not in fetch.variables}
    names = {"PATH", *own, *fetch.variables}
    name, *_ = command = [*_words([*program.command, *fetch.args], names)]
    workdir = "/".join([root, *path_words(program.workdir)])

    def give_up(found: RunProblem) -> str:
        text = f"{START_PROBLEM} {found.kind} {found.sentence}"
        return f"{{ printf %s {_quote(text)} > {_quote(last_words)}; exit {_EXEC_FAILED_STATUS}; }}"

    lines = [
        "#!/bin/sh",
        f"cd {_quote(workdir)} || {give_up(_missing_folder(program))}",
        *(f"export {variable}={_quote(value)}" for variable, value in exported.items()),
        *([] if problem is None else [give_up(problem)]),
        f"command -v {name} >/dev/null || {give_up(_missing_program(program.command[0]))}",
        f"exec {_quote(keeper)} --container {' '.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def _missing_folder(program: BuildProgram) -> RunProblem:
    sentence = f"the folder {program.workdir} is not in the build: correct `workdir` in server.json"
    return RunProblem("program-not-found", sentence)


def _missing_program(name: str) -> RunProblem:
    if "/" in name:
        problem = program_problem(name, None, lambda _: False)
        assert problem is not None
        return problem
    sentence = (
        f"{name} is not in any folder of PATH: give its path in the archive, such as ./{name}"
    )
    return RunProblem("program-not-found", sentence)


def _words(words: Sequence[str], names: set[str]) -> Iterator[str]:
    """Yields words of a shell. A reference to one of the variables becomes one of the shell."""
    # No word and no name has a NUL, so it marks the references.
    marks = {name: f"\0{name}\0" for name in names if re.fullmatch(r"\w+", name, re.ASCII)}
    for word in expand_references(words, marks):
        literal_and_names = word.split("\0")
        parts = [
            f'"${{{part}}}"' if number % 2 else _quote(part)
            for number, part in enumerate(literal_and_names)
            if part
        ]
        yield "".join(parts) or "''"


def _quote(text: str) -> str:
    return shlex.quote(text)


def prepare(host: str, fetch: BuildFetch, folder: Path) -> None:
    """Fetches the build, and writes the script that starts it. Raises BuildUnusable, NotFetched."""
    fetch_build(host, fetch, folder)
    root = folder / BUILD_ROOT.name
    program = read_program(root)
    script = start_script(program, fetch, find_problem(program, root))
    path = folder / START.name
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    copy_keeper(folder / KEEPER.name)


def main(arguments: Sequence[str] = sys.argv[1:]) -> int:
    host, text = arguments
    try:
        prepare(host, BuildFetch.decode(text), Path(BUILD))
    except (BuildUnusable, NotFetched) as error:
        print(error, file=sys.stderr)
        with contextlib.suppress(OSError):
            Path(TERMINATION_LOG).write_text(str(error)[:_WORDS_MAX])
        return os.EX_UNAVAILABLE if isinstance(error, NotFetched) else os.EX_DATAERR
    return 0


if __name__ == "__main__":
    sys.exit(main())
