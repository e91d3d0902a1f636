"""Programs that cannot start: the sentence of a failed run, and the same one of an upload's check."""

from __future__ import annotations

import io
import json
import platform
import tarfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.build_worker import check_build
from pyservice.runtime.start_problems import read_program, start_problem
from tests.support.runtime_host import RuntimeHost, until
from tests.support.upload_files import entry

pytestmark = pytest.mark.anyio

BUILD: Final = "0192f000-0000-7000-8000-000000000f00"
HI: Final = b"#!/bin/sh\necho hi\n"
NOT_THERE: Final = (
    "run.sh is not in the build: add this file, or correct `build.command` in hosting.toml, "
    "or `command` in server.json"
)
NO_INTERPRETER: Final = (
    "run.sh names no interpreter: make `#!/bin/sh`, or another one, its first line"
)
NO_LOADER: Final = (
    "run.sh needs the loader /lib/ld-other.so.1, which does not exist for game servers: "
    "build it for glibc, or link it statically"
)
WRONG_SYSTEM: Final = (
    f"run.sh is not a program for Linux on {platform.machine()}: build it for this system"
)


def elf(loader: bytes, machine: int | None = None) -> bytes:
    """Returns the beginning of a program for this machine with this loader."""
    number = {"x86_64": 62, "aarch64": 183}[platform.machine()] if machine is None else machine
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little")
    header += number.to_bytes(2, "little") + bytes(12) + (64).to_bytes(8, "little") + bytes(14)
    header += (56).to_bytes(2, "little") + (1).to_bytes(2, "little") + bytes(6)
    segment = (3).to_bytes(4, "little") + bytes(4) + (120).to_bytes(8, "little") + bytes(40)
    return header + segment + loader + b"\0"


CASES: Final[Sequence[tuple[str, bytes | None, int, str, str]]] = (
    ("absent", None, 0o755, "program-not-found", NOT_THERE),
    (
        *("no x bit", HI, 0o644, "not-executable"),
        "run.sh is not executable: run `chmod +x run.sh` before you pack the archive",
    ),
    (
        *("CRLF", HI.replace(b"\n", b"\r\n"), 0o755, "windows-line-ends"),
        "run.sh has Windows line ends (CRLF), so its interpreter is not found: run `dos2unix run.sh`",
    ),
    (
        *("CRLF behind env", b"#!/usr/bin/env python3\r\n", 0o755, "windows-line-ends"),
        "run.sh has Windows line ends (CRLF), so its interpreter is not found: run `dos2unix run.sh`",
    ),
    (
        *("other interpreter", b"#! /lib/ld-other.so.1 -x\n", 0o755, "interpreter-not-found"),
        "run.sh needs the interpreter /lib/ld-other.so.1, which does not exist for game servers: "
        "name another one in its first line",
    ),
    ("no #!", b"echo hi\n", 0o755, "no-interpreter", NO_INTERPRETER),
    ("empty #!", b"#!\necho hi\n", 0o755, "no-interpreter", NO_INTERPRETER),
    ("other libc", elf(b"/lib/ld-other.so.1"), 0o755, "interpreter-not-found", NO_LOADER),
    ("other machine", elf(b"", machine=2), 0o755, "wrong-system", WRONG_SYSTEM),
    ("Windows program", b"MZ\x90\0", 0o755, "wrong-system", WRONG_SYSTEM),
)
"""Name, content and mode of `run.sh`, and the kind and sentence of its problem."""


def archive(
    content: bytes | None,
    mode: int,
    command: str = "./run.sh",
    links: Sequence[tarfile.TarInfo] = (),
    **more: str,
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        manifest = json.dumps({"command": [command], **more}).encode()
        for name, text in (("run.sh", content), ("server.json", manifest)):
            if text is not None:
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(text), mode
                tar.addfile(info, io.BytesIO(text))
        for link in links:
            tar.addfile(link)
    return out.getvalue()


async def upload_problem(content: bytes) -> tuple[str, str] | None:
    async def blocks() -> AsyncIterator[bytes]:
        yield content

    report = await check_build("archive", "none", len(content), None, blocks())
    problem = report.problem
    return None if problem is None else (problem.entry, problem.reason)


async def test_failed_start_has_a_kind_a_sentence_and_a_last_line(host: RuntimeHost) -> None:
    for number, (name, content, mode, kind, sentence) in enumerate(CASES, 1):
        if "env" in name:
            continue  # env starts, and fails itself
        build_id = f"{BUILD[:-2]}{number:02}"
        host.store.archives[build_id] = archive(content, mode)
        order = host.want(build_id=build_id, args=())
        end = await host.reports.end(order.id)
        assert (end.reason, end.kind, end.message) == ("exec_failed", kind, sentence), name
        assert (end.exit_code, end.started_ms) == (None, None)
        await until(lambda: not host.supervisor.runs)
        assert [line.text for line in host.of(order).lines()] == [sentence]


async def test_program_on_no_path_has_a_kind_and_a_last_line(host: RuntimeHost) -> None:
    host.store.archives[BUILD] = archive(None, 0o644, "no\nprogram")
    order = host.want(build_id=BUILD, args=())
    end = await host.reports.end(order.id)
    assert (end.reason, end.kind) == ("exec_failed", "program-not-found")
    await until(lambda: not host.supervisor.runs)
    [line] = host.of(order).lines()
    assert line.text.startswith("no program is not in any of /usr/local/bin:/usr/bin:/bin: ")
    await host.anew()
    assert [line.text for line in host.of(order).lines()] == [line.text], "its log is kept"


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
async def test_upload_with_the_same_problem_is_refused_with_the_same_sentence(
    case: tuple[str, bytes | None, int, str, str],
) -> None:
    _, content, mode, _, sentence = case
    assert await upload_problem(archive(content, mode)) == ("", sentence)


@pytest.mark.parametrize(
    "content",
    [
        archive(HI, 0o755),
        archive(elf(b""), 0o755),
        archive(elf(b"/bin/sh"), 0o755),
        archive(HI, 0o755, "../run.sh", workdir="elsewhere"),
        archive(HI, 0o644, "sh"),
        archive(HI, 0o644, "/opt/game"),
        archive(HI, 0o644, "./$(GAME)"),
        archive(
            HI,
            0o755,
            "./now/game",
            [entry("v1/game", tarfile.SYMTYPE, "../run.sh"), entry("now", tarfile.SYMTYPE, "v1")],
        ),
        archive(HI, 0o755, "./game", [entry("game", tarfile.LNKTYPE, "run.sh")]),
        archive(b"#!run.sh\n", 0o755),
    ],
)
async def test_upload_with_a_program_that_may_start_is_accepted(content: bytes) -> None:
    assert await upload_problem(content) is None


def test_interpreter_outside_of_the_visible_paths_does_not_exist(tmp_path: Path) -> None:
    interpreter, script = tmp_path / "interpreter", tmp_path / "root" / "run.sh"
    interpreter.write_bytes(b"")
    script.parent.mkdir()
    script.write_text(f"#!{interpreter}\n")
    script.chmod(0o755)
    judged = [
        start_problem(script, script.parent, script.parent, visible)
        for visible in (None, [tmp_path], [script.parent])
    ]
    assert [problem and problem.kind for problem in judged] == [None, None, "interpreter-not-found"]
    assert start_problem(tmp_path / "x", tmp_path, script.parent, None) is not None


@pytest.mark.parametrize("beginning", [b"", b"#!", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_incomplete_file_is_judged(beginning: bytes) -> None:
    assert read_program(is_executable=True, beginning=beginning).interpreter == ""
