"""Reasons why a game server cannot start, each as one sentence for the developer.

The check of an uploaded archive and a failed start use the same rules and sentences. So do the record
of a lobby that was never ready, and the error of a request that waited for it.
"""

from __future__ import annotations

import os
import platform
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from pyservice.runtime.adapters import Adapter

BEGINNING_BYTES: Final = 4_096
"""Bytes at the beginning of a file that are enough to judge it."""

_FIRST_LINE_BYTES: Final = 256
"""Linux reads no more of a first line."""
_ELF: Final = b"\x7fELF"
_ELF_INTERPRETER: Final = 3
_ELF_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
_ELF_PROGRAM_HEADERS_MAX: Final = 64


class RunProblem(NamedTuple):
    kind: Literal[
        "program-not-found",
        "not-executable",
        "windows-line-ends",
        "interpreter-not-found",
        "no-interpreter",
        "wrong-system",
        "missing-module",
        "scratch-full",
        "exited",
        "bind-denied",
        "out-of-memory",
        "disk-full",
        "never-ready",
        "nothing-listens",
    ]
    sentence: str


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """Properties of a file that decide whether Linux can run it."""

    is_executable: bool
    form: Literal["script", "elf", "text", "other"]
    interpreter: str = ""
    """Interpreter in the first line of a script, or loader of an ELF program. Empty: none."""


def read_program(is_executable: bool, beginning: bytes) -> ProgramFile:
    if beginning.startswith(b"#!"):
        line = beginning[2:_FIRST_LINE_BYTES].split(b"\n")[0].lstrip(b" \t")
        words = line.rstrip(b"\r").split()
        interpreter = os.fsdecode(words[0]) if words else ""
        # The kernel and the interpreter take the carriage return as a part of the last word.
        return ProgramFile(
            is_executable, "script", interpreter + ("\r" if line.endswith(b"\r") else "")
        )
    if beginning.startswith(_ELF):
        loader = _elf_loader(beginning)
        if loader is not None:
            return ProgramFile(is_executable, "elf", loader)
    elif not any(byte < 9 for byte in beginning[:_FIRST_LINE_BYTES]) and beginning[:2] != b"MZ":
        return ProgramFile(is_executable, "text")
    return ProgramFile(is_executable, "other")


def _elf_loader(beginning: bytes) -> str | None:
    """Returns the loader of a 64-bit program for this machine. None: another format or machine."""
    try:
        form, order = beginning[4], beginning[5]
        (machine,) = struct.unpack_from("<H", beginning, 18)
        (at,) = struct.unpack_from("<Q", beginning, 32)
        size, count = struct.unpack_from("<HH", beginning, 54)
        if (form, order) != (2, 1) or machine != _ELF_MACHINES.get(platform.machine(), machine):
            return None
        for number in range(min(count, _ELF_PROGRAM_HEADERS_MAX)):
            kind, _, offset = struct.unpack_from("<IIQ", beginning, at + number * size)
            if kind == _ELF_INTERPRETER:
                text = beginning[offset : offset + _FIRST_LINE_BYTES]
                return os.fsdecode(text.split(b"\0")[0])
    except (IndexError, struct.error):
        return None
    return ""


def program_problem(
    name: str, program: ProgramFile | None, has_file: Callable[[str], bool]
) -> RunProblem | None:
    """Returns why a program cannot start, or None if no reason is known.

    `name` is the path that the developer knows. `has_file` returns whether a game server sees a path.
    """
    if program is None:
        setting = "`build.command` in hosting.toml, or `command` in server.json"
        remedy = f"add this file, or correct {setting}"
        place = "does not exist for game servers" if name.startswith("/") else "is not in the build"
        return RunProblem("program-not-found", f"{name} {place}: {remedy}")
    if not program.is_executable:
        remedy = f"run `chmod +x {name}` before you pack the archive"
        return RunProblem("not-executable", f"{name} is not executable: {remedy}")
    if program.form == "script" and program.interpreter.endswith("\r"):
        reason = "has Windows line ends (CRLF), so its interpreter is not found"
        return RunProblem("windows-line-ends", f"{name} {reason}: run `dos2unix {name}`")
    if program.form == "text" or (program.form == "script" and not program.interpreter):
        reason = "names no interpreter: make `#!/bin/sh`, or another one, its first line"
        return RunProblem("no-interpreter", f"{name} {reason}")
    if program.form == "other":
        reason = f"is not a program for Linux on {platform.machine()}: build it for this system"
        return RunProblem("wrong-system", f"{name} {reason}")
    if program.interpreter and not has_file(program.interpreter):
        missing = f"{program.interpreter}, which does not exist for game servers"
        if program.form == "script":
            remedy = f"needs the interpreter {missing}: name another one in its first line"
        else:
            remedy = f"needs the loader {missing}: build it for glibc, or link it statically"
        return RunProblem("interpreter-not-found", f"{name} {remedy}")
    return None


def start_problem(
    command: Path, workdir: Path, root: Path, visible: Iterable[Path] | None
) -> RunProblem | None:
    """Returns why a program of a build or of the machine cannot start. Raises OSError.

    `root` is the folder of the build. `visible` are the paths that the game server sees, or None if
    it sees all.
    """

    def has_file(path: str) -> bool:
        absolute = workdir / path
        is_visible = visible is None or any(absolute.is_relative_to(one) for one in visible)
        return is_visible and absolute.exists()

    name = str(command.relative_to(root) if command.is_relative_to(root) else command)
    return program_problem(name, read_program_file(command), has_file)


def start_timeout_problem(
    timeout_s: float, ports: str | None, adapter: Adapter | None
) -> RunProblem:
    """Returns why a lobby was ended before it was ready. `ports` is the problem of its ports."""
    sentence = f"The lobby was not ready after {timeout_s:.0f} s: {_missing_sign(adapter)}"
    return RunProblem("never-ready", sentence if ports is None else f"{sentence}. {ports}")


def _missing_sign(adapter: Adapter | None) -> str:
    """Returns what would have made a lobby ready."""
    calls = "call lobbies/ready when the server listens"
    if adapter is None:
        return calls
    signs = {
        "log": f'no line of its log matched log_match "{adapter.log_match}"',
        "port": f"nothing listened at its port {adapter.port}",
        "query": f"no answer to the query {adapter.query} at its port {adapter.query_port}",
    }
    return signs.get(adapter.ready, calls)


def read_program_file(path: Path) -> ProgramFile | None:
    """Returns the properties of a file, or None if it does not exist. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return None
        return read_program(bool(mode & 0o111), file.read(BEGINNING_BYTES))
