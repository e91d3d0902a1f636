"""Logs that arrive in parts: cursors, crashes in a write, limits."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.runtime.copied_log import SEGMENT_BYTES, CopiedLog
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_logs import EMPTY_SPAN, read_backward, read_forward

BYTES_MAX = 64 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def texts(path: Path) -> list[str]:
    return [line.text for line in RunFolder(path).lines()]


def opened(path: Path) -> CopiedLog:
    """Returns the log as a service has it after a restart."""
    return CopiedLog(path, BYTES_MAX)


def output(*lines: str) -> bytes:
    return b"".join(b"1 o %b\n" % line.encode() for line in lines)


def test_log_without_a_folder_has_no_cursor(path: Path) -> None:
    assert opened(path).cursor() == b""
    assert not path.exists()


def test_cursor_is_that_of_the_last_write(path: Path) -> None:
    log = opened(path)
    log.append(output("one", "two"), b"\x00\xff first")
    log.append(b"", b"second")
    log.add_line("a sentence")
    assert log.cursor() == b"second"
    assert opened(path).cursor() == b"second"
    assert texts(path) == ["one", "two", "a sentence"]


def test_readers_see_no_cursors(path: Path) -> None:
    log = opened(path)
    log.append(output("one"), b"first")
    log.append(output("two"), b"second")
    forward = read_forward(path, "all", 0, 10, EMPTY_SPAN, BYTES_MAX)
    assert forward is not None
    assert [line.text for line in forward.lines] == ["one", "two"]
    backward = read_backward(path, "all", None, 10, EMPTY_SPAN, BYTES_MAX)
    assert backward.lines == forward.lines
    assert forward.stop == backward.stop == RunFolder(path).end()


@pytest.mark.parametrize("lost", range(1, 40))
def test_end_that_a_crash_lost_is_sent_again(path: Path, lost: int) -> None:
    """A crash loses the end of the file, and the sender goes on behind the cursor that is left."""
    opened(path).append(output("one"), b"first")
    before = RunFolder(path).end()
    opened(path).append(output("two", "three"), b"second")
    [(_, segment)] = RunFolder(path).segments()
    content = segment.read_bytes()
    segment.write_bytes(content[: max(len(content) - lost, before)])
    log = opened(path)
    assert log.cursor() == b"first"
    log.append(output("two", "three"), b"second")
    assert texts(path) == ["one", "two", "three"]
    assert opened(path).cursor() == b"second"


def test_crash_in_the_first_write_leaves_only_lines_of_the_service(path: Path) -> None:
    log = opened(path)
    log.add_line("a sentence")
    log.append(output("one", "two"), b"first")
    [(_, segment)] = RunFolder(path).segments()
    content = segment.read_bytes()
    segment.write_bytes(content[: content.index(b"two")])
    log = opened(path)
    assert log.cursor() == b""
    log.append(output("one"), b"first")
    assert texts(path) == ["a sentence", "one"]


def test_crash_in_the_first_write_of_a_segment(path: Path) -> None:
    log = opened(path)
    log.append(output("x" * 4_000) * 300, b"first")
    log.append(output("two"), b"second")
    (_, first), (_, second) = RunFolder(path).segments()
    second.write_bytes(second.read_bytes()[:5])
    log = opened(path)
    assert log.cursor() == b"first"
    assert [one for _, one in RunFolder(path).segments()] == [first]
    log.append(output("two"), b"second")
    assert texts(path)[-1] == "two"


def test_oldest_segments_are_removed_above_the_limit(path: Path) -> None:
    log = CopiedLog(path, 4 * SEGMENT_BYTES)
    for number in range(40):
        log.append(output(f"{number} {'x' * 4_000}") * 64, b"%d" % number)
    segments = RunFolder(path).segments()
    size = RunFolder(path).end() - segments[0][0]
    assert 3 * SEGMENT_BYTES < size <= 4 * SEGMENT_BYTES
    assert opened(path).cursor() == b"39"
    assert texts(path)[-1].startswith("39 ")


def test_log_without_its_old_segments_goes_on(path: Path) -> None:
    """A quota removes old segments, also beside a running service."""
    log = opened(path)
    for number in range(3):
        log.append(output("x" * 4_000) * 300, b"%d" % number)
    for _, segment in RunFolder(path).segments()[:-1]:
        segment.unlink()
    log.append(output("last"), b"3")
    assert opened(path).cursor() == b"3"
    assert texts(path)[-1] == "last"


@pytest.fixture
def limited_file() -> Iterator[None]:
    """Files of this process can have 4 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    earlier = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, earlier)


def test_write_that_does_not_fit_changes_nothing(path: Path, limited_file: None) -> None:
    log = opened(path)
    log.append(output("one"), b"first")
    with pytest.raises(OSError, match=r"No space left|File too large"):
        log.append(output("two") * 1_000, b"second")
    assert log.cursor() == b"first"
    log.append(output("two"), b"second")
    assert texts(path) == ["one", "two"]


def test_line_of_the_service_after_a_failed_write(path: Path, limited_file: None) -> None:
    log = opened(path)
    log.append(output("one"), b"first")
    with pytest.raises(OSError, match=r"No space left|File too large"):
        log.append(output("two") * 1_000, b"second")
    log.add_line("a sentence")
    assert texts(path) == ["one", "a sentence"]
    assert opened(path).cursor() == b"first"
