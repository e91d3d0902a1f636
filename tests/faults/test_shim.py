"""Tests of the preloaded library on small programs. All fault tests depend on it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.fault_shim import Shim
from tests.support.waiting import PATIENCE_S

DAY_S = 86_400

WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for number in range(4):
    try:
        os.pwrite(fd, b"abcdefgh", number * 8)
        os.fdatasync(fd)
        print("durable", number, flush=True)
    except OSError as error:
        print("failed", number, error.errno, flush=True)
"""


@pytest.fixture
def shim(shim_library: Path, tmp_path: Path) -> Shim:
    folder = tmp_path / "journal"
    folder.mkdir()
    shim = Shim(shim_library, tmp_path / "control", folder)
    shim.begin_run()
    return shim


def spawn(shim: Shim, program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **shim.environment()},
        stdout=subprocess.PIPE,
        text=True,
    )


def run(shim: Shim, program: str, *arguments: str) -> tuple[int, list[str]]:
    process = spawn(shim, program, *arguments)
    output, _ = process.communicate(timeout=30)
    return process.returncode, output.splitlines()


def test_only_calls_below_the_folder_are_steps(shim: Shim, tmp_path: Path) -> None:
    run(shim, WRITER, str(shim.journal_folder / "seg-1.log"))
    assert [(step.kind, step.name) for step in shim.steps()] == 4 * [
        ("pwrite", "seg-1.log"),
        ("fdatasync", "seg-1.log"),
    ]
    assert [step.offset for step in shim.steps() if step.kind == "pwrite"] == [0, 8, 16, 24]
    shim.begin_run()
    assert run(shim, WRITER, str(tmp_path / "elsewhere.log"))[0] == 0
    assert shim.steps() == []


def test_stalled_sync_continues_when_released(shim: Shim) -> None:
    rule = shim.stall("fdatasync", "seg-*")
    process = spawn(shim, WRITER, str(shim.journal_folder / "seg-1.log"))
    end = time.monotonic() + 20
    while rule.waiting == 0 and time.monotonic() < end:
        time.sleep(0.001)
    assert rule.waiting == 1
    assert [step.kind for step in shim.steps()] == ["pwrite", "fdatasync"]
    assert process.poll() is None
    rule.release()
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert output.splitlines() == [f"durable {number}" for number in range(4)]


def test_failing_call_returns_the_error_and_is_not_made(shim: Shim) -> None:
    shim.fail("pwrite", error=errno.ENOSPC, first=2, last=3)
    file = shim.journal_folder / "seg-1.log"
    _, lines = run(shim, WRITER, str(file))
    full = str(errno.ENOSPC)
    assert lines == ["durable 0", f"failed 1 {full}", f"failed 2 {full}", "durable 3"]
    assert file.read_bytes() == b"abcdefgh" + 16 * b"\0" + b"abcdefgh"


@pytest.mark.parametrize(("after", "written"), [(False, 16), (True, 24)])
def test_kill_happens_before_or_after_the_nth_call(shim: Shim, after: bool, written: int) -> None:
    rule = shim.kill("pwrite", "seg-*", at=3, after=after)
    file = shim.journal_folder / "seg-1.log"
    code, lines = run(shim, WRITER, str(file))
    assert code == -signal.SIGKILL
    assert lines == ["durable 0", "durable 1"]
    assert file.stat().st_size == written
    assert (rule.matched, rule.hits) == (3, 1)


def test_torn_write_leaves_its_first_bytes(shim: Shim) -> None:
    shim.tear("seg-*", at=2, keep=3)
    file = shim.journal_folder / "seg-1.log"
    code, _ = run(shim, WRITER, str(file))
    assert code == -signal.SIGKILL
    assert file.read_bytes() == b"abcdefghabc"


def test_rename_is_recorded_with_its_new_name(shim: Shim) -> None:
    old, new = shim.journal_folder / "image.tmp", shim.journal_folder / "image-7.img"
    old.touch()
    shim.kill("rename", "image-*")
    code, _ = run(shim, "import os, sys; os.rename(*sys.argv[1:])", str(old), str(new))
    assert code == -signal.SIGKILL
    assert old.exists()
    assert not new.exists()


BUILDING_BUNDLE = """if True:
    import os, sys
    from pathlib import Path
    folder = Path(sys.argv[1])
    reading, asking = os.pipe()
    os.mkdir(folder / "run")
    (folder / "run" / "spec").write_bytes(b"abcdefgh")
    os.write(asking, os.fsencode(folder / "run") + bytes(1))
    print(os.read(reading, 1000) == os.fsencode(folder / "run") + bytes(1))
"""


@pytest.mark.parametrize(
    ("kind", "name", "after", "names_left"),
    [
        ("mkdir", "run", False, []),
        ("mkdir", "run", True, ["run"]),
        ("make", "run/spec", False, ["run"]),
        ("make", "run/spec", True, ["run", "run/spec"]),
        ("ask", "run", False, ["run", "run/spec"]),
    ],
)
def test_file_creation_and_requests_naming_files_are_steps(
    shim: Shim, kind: str, name: str, after: bool, names_left: list[str]
) -> None:
    folder = shim.journal_folder
    rule = shim.kill(kind, name, after=after)
    code, lines = run(shim, BUILDING_BUNDLE, str(folder))
    assert (code, lines, rule.hits) == (-signal.SIGKILL, [], 1)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == names_left


def test_half_written_file_is_left_after_a_kill(shim: Shim, tmp_path: Path) -> None:
    shim.tear("run/spec", kind="write", keep=3)
    assert run(shim, BUILDING_BUNDLE, str(shim.journal_folder)) == (-signal.SIGKILL, [])
    assert (shim.journal_folder / "run" / "spec").read_bytes() == b"abc"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run(shim, BUILDING_BUNDLE, str(elsewhere)) == (0, ["True"])
    assert shim.steps() == [], "they are no steps of a journal"


@pytest.mark.parametrize("shift_s", [DAY_S, -DAY_S, 0.75, -0.75])
def test_only_the_wall_clock_is_shifted(shim: Shim, shift_s: float) -> None:
    program = """if True:
        import time
        wall, atomic = time.clock_gettime(time.CLOCK_REALTIME), time.clock_gettime(time.CLOCK_TAI)
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        print(wall - atomic, time.time() - wall, boot, time.monotonic())
    """
    leap_s = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_TAI)
    shim.shift_wall_clock(shift_s)
    _, lines = run(shim, program)
    ahead, apart, boot, monotonic = (float(word) for word in lines[0].split())
    assert ahead == pytest.approx(leap_s + shift_s, abs=0.2)
    assert apart == pytest.approx(0, abs=0.2)
    assert boot == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=20)
    assert monotonic == pytest.approx(time.monotonic(), abs=20)


def test_wall_clock_can_be_shifted_while_a_process_runs(shim: Shim) -> None:
    program = "import time\nwhile True: print(time.time(), flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **shim.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        before = float(process.stdout.readline())
        shim.shift_wall_clock(DAY_S)
        print(file=process.stdin, flush=True)
        assert float(process.stdout.readline()) - before == pytest.approx(DAY_S, abs=20)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


STARTS = {
    "subprocess": "import subprocess; subprocess.run(words, env={})",
    "uvloop": """
import asyncio, uvloop
async def start():
    await (await asyncio.create_subprocess_exec(*words, env={})).wait()
uvloop.run(start())
""",
}


@pytest.mark.parametrize("start", STARTS)
def test_shim_is_loaded_into_a_program_with_its_own_environment(shim: Shim, start: str) -> None:
    words = [sys.executable, "-c", WRITER, str(shim.journal_folder / "seg-1.log")]
    status, _ = run(shim, f"words = {words!r}\n{STARTS[start]}")
    assert status == 0
    assert len(shim.steps()) == 8
