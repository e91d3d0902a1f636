"""Programs and libraries that `make test-programs` compiles for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ROOT / "build" / "test_programs"
_SOURCES: Final = {
    "faults.so": "tests/faults/shim.c",
    "older_machine.so": "tests/runtime/older_machine.c",
    "contained-server": "tests/programs/contained.rs",
    "hosting-keeper": "native/keeper/src",
    "fuzz-http": "native/front",
    "fuzz-grpc": "native/front",
    "udp-server": "examples/udp/src",
    "udp-bot": "examples/udp/src",
}
"""A source file or a folder of Rust sources for each program."""


def compiled_program(name: str, folder: Path = PROGRAMS) -> Path:
    """Returns the path of a compiled program.

    Fails if the program is missing or older than its sources. A test never compiles: a build in
    a test takes minutes, hides its errors and counts against the timeout of the test.
    """
    program = folder / name
    assert program.exists(), f"{program} is missing: run `make test-programs`"
    built_ns = program.stat().st_mtime_ns
    newer = [path.name for path in _sources(name) if path.stat().st_mtime_ns > built_ns]
    assert not newer, f"{program} is older than {newer[0]}: run `make test-programs`"
    return program


def _sources(name: str) -> Iterator[Path]:
    source = ROOT / _SOURCES[name]
    return source.rglob("*.rs") if source.is_dir() else iter((source,))
