"""Logs of containers as the kubelet keeps them: rotation, unfinished lines, damage."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.node.container_log import LAST_BYTES, LINE_BYTES_MAX, ContainerLog, LogPiece
from pyservice.pb.hosting.internal.v1.node_logs_pb2 import LogCursor

UID = "0192f000-0000-7000-8000-0000000000aa"
BYTES_MAX = 1 << 20
TIME_US = 1_796_000_400_123_456


def line(text: str, number: int = 0, stream: str = "stdout", tags: str = "F") -> bytes:
    """Returns a line as a container runtime writes it. `number` makes its time unique."""
    return f"2026-11-30T01:00:{number // 1000:02}.{number % 1000:03}456789Z {stream} {tags} {text}\n".encode()


def time_us(number: int) -> int:
    return 1_796_000_400_000_456 + number * 1_000


class Container:
    """The files of a container, and a reader that stores its cursor as the service does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cursor = LogCursor()
        self.log = ContainerLog(folder, UID)
        self.lines: list[str] = []
        """Lines that were read, without their times."""

    def write(self, *lines: bytes, name: str = "0.log") -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / name).open("ab") as file:
            file.write(b"".join(lines))

    def rotate(self, time: str, start: int = 0) -> Path:
        return (self.folder / f"{start}.log").rename(self.folder / f"{start}.log.{time}")

    def compress(self, path: Path) -> Path:
        compressed = path.with_name(f"{path.name}.gz")
        compressed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        return compressed

    def read(self, *, has_ended: bool = False, bytes_max: int = BYTES_MAX) -> LogPiece:
        piece = self.log.read(self.cursor, bytes_max, has_ended=has_ended)
        self.cursor = LogCursor.FromString(piece.cursor.SerializeToString())
        self.lines += [
            one.split(" ", 1)[1] for one in piece.lines.decode(errors="replace").split("\n")[:-1]
        ]
        return piece

    def read_all(self, *, has_ended: bool = False) -> bool:
        """Reads to the end of the log, and returns whether there was a gap."""
        has_gap = False
        for _ in range(10_000):
            piece = self.read(has_ended=has_ended)
            has_gap |= piece.has_gap
            if piece.is_all:
                return has_gap
        raise AssertionError("the log has no end")

    def restart(self) -> None:
        """A new process of the node goes on with the cursor that the service has."""
        self.log.close()
        self.log = ContainerLog(self.folder, UID)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    container = Container(tmp_path / "game-server")
    yield container
    container.log.close()


def test_lines_have_the_form_of_the_log_of_a_run(container: Container) -> None:
    container.write(line("one"), line("", 1), line("two words", 2, "stderr", "F:tag"))
    piece = container.read()
    expected = f"{time_us(0)} o one\n{time_us(1)} o \n{time_us(2)} e two words\n"
    assert piece.lines.decode() == expected
    assert (piece.is_all, piece.has_gap) == (True, False)
    again = container.read()
    assert (again.lines, again.cursor, again.is_all) == (b"", piece.cursor, True)


@pytest.mark.parametrize(
    "text",
    ["2026-11-30T01:00:00.123456789Z", "2026-11-30T02:00:00.123456789+01:00"],
)
def test_times_are_corrected(container: Container, text: str) -> None:
    container.write(f"{text} stdout F one\n".encode())
    piece = container.log.read(LogCursor(), BYTES_MAX, correction_us=-3_600_000_000)
    assert piece.lines == b"%d o one\n" % (TIME_US - 3_600_000_000)


def test_log_that_does_not_exist_yet_is_empty(container: Container) -> None:
    assert container.read() == LogPiece(b"", LogCursor(), has_gap=False, is_all=True)
    container.write(b"")
    assert not container.read_all()
    container.write(line("one")[:20])
    assert not container.read_all()
    assert container.lines == []
    container.write(line("one")[20:])
    assert not container.read_all()
    assert container.lines == ["o one"]


def test_missing_log_of_an_ended_container_is_a_gap(container: Container) -> None:
    assert container.read_all(has_ended=True)


def test_line_is_taken_when_it_is_whole(container: Container) -> None:
    container.write(line("one"), line("two", 1)[:-3])
    container.read_all()
    assert container.lines == ["o one"]
    container.write(line("two", 1)[-3:])
    container.read_all()
    assert container.lines == ["o one", "o two"]


def test_partial_lines_are_joined(container: Container) -> None:
    container.write(line("a", 0, tags="P"), line("between", 1, "stderr"))
    container.read_all()
    assert container.lines == ["e between"]
    container.restart()
    container.write(line("b", 2, tags="P:x"), line("", 3), line("next", 4))
    container.read_all()
    assert container.lines == ["e between", "o ab", "o next"]


def test_long_lines_continue_and_no_character_is_cut(container: Container) -> None:
    """A runtime divides lines at 16 KiB, also within a character."""
    text = "x" + "€" * 8_000
    encoded = text.encode()
    head, tail = encoded[:16_384], encoded[16_384:]
    prefix = b"2026-11-30T01:00:00.000456789Z stdout"
    container.write(b"%b P %b\n" % (prefix, head))
    container.read_all()
    container.restart()
    container.write(b"%b F %b\n" % (prefix, tail), line("next", 1))
    container.read_all()
    *parts, following = container.lines
    assert following == "o next"
    assert [part[0] for part in parts] == ["o"] + ["O"] * (len(parts) - 1)
    assert all(len(part[2:].encode()) <= 4_096 for part in parts)
    assert "".join(part[2:] for part in parts) == text


def test_invalid_text_is_divided_too(container: Container) -> None:
    container.write(b"2026-11-30T01:00:00Z stdout F " + b"\x80" * 10_000 + b"\n")
    piece = container.read()
    texts = [one.split(b" ", 2)[2] for one in piece.lines.splitlines()]
    assert [len(text) for text in texts] == [4_096, 4_096, 1_808]


def test_unfinished_line_is_taken_at_the_end(container: Container) -> None:
    container.write(line("name? ", 7, tags="P"))
    assert container.read().lines == b""
    piece = container.read(has_ended=True)
    assert piece.lines == b"%d o name? \n" % time_us(7)
    assert (piece.is_all, piece.has_gap) == (True, False)
    assert container.read(has_ended=True).lines == b""


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_renamed_files_are_read_to_their_end(
    container: Container, is_restarted: bool, is_compressed: bool
) -> None:
    container.write(line("0"), line("1", 1))
    container.read_all()
    container.write(line("2", 2))
    first = container.rotate("20261130-010001")
    container.write(line("3", 3))
    second = container.rotate("20261130-010011")
    container.write(line("4", 4))
    if is_compressed:
        container.compress(first)
        container.compress(second)
    if is_restarted:
        container.restart()
    assert not container.read_all()
    container.write(line("5", 5))
    assert not container.read_all()
    assert container.lines == [f"o {number}" for number in range(6)]


def test_log_is_read_from_its_oldest_file(container: Container) -> None:
    for number in range(4):
        container.write(line(f"{number}", number))
        container.compress(container.rotate(f"2026113{number}-010000"))
    container.write(line("4", 4))
    assert not container.read_all()
    assert container.lines == [f"o {number}" for number in range(5)]


def test_file_and_its_compressed_form_are_read_once(container: Container) -> None:
    container.write(line("0"))
    path = container.rotate("20261130-010001")
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.with_name(f"{path.name}.tmp").write_bytes(path.read_bytes())
    container.write(line("1", 1))
    assert not container.read_all()
    assert container.lines == ["o 0", "o 1"]


def test_late_line_in_a_renamed_file_is_read(container: Container) -> None:
    """The runtime still writes to the earlier file when the next one has its first line."""
    container.write(line("0"))
    container.read_all()
    path = container.rotate("20261130-010001")
    container.write(line("2", 2))
    assert not container.read().is_all
    container.write(line("1", 1), name=path.name)
    assert not container.read_all()
    assert container.lines == ["o 0", "o 1", "o 2"]


def test_removed_files_are_a_gap(container: Container) -> None:
    container.write(line("0"))
    container.read_all()
    container.write(line("1", 1))
    first = container.rotate("20261130-010001")
    container.write(line("2", 2))
    container.log.close()
    first.unlink()
    assert container.read_all()
    assert not container.read_all()
    assert container.lines == ["o 0", "o 2"]


def test_open_file_is_read_after_its_removal(container: Container) -> None:
    """A node removes the log of a deleted Pod at once."""
    container.write(line("0"))
    container.read_all()
    container.write(line("1", 1), line("2", 2, tags="P"))
    shutil.rmtree(container.folder)
    assert not container.read_all(has_ended=True)
    assert container.lines == ["o 0", "o 1", "o 2"]


def test_log_that_is_gone_after_a_restart_is_one_gap(container: Container) -> None:
    container.write(line("0"))
    container.read_all()
    container.restart()
    shutil.rmtree(container.folder)
    assert container.read_all()
    assert not container.read_all()


def test_later_starts_of_the_container_follow(container: Container) -> None:
    container.write(line("0"))
    container.read_all()
    container.write(line("1", 1), name="1.log")
    container.write(line("2", 2), name="2.log")
    assert not container.read_all()
    assert container.lines == ["o 0", "o 1", "o 2"]


def test_cursor_of_another_pod_counts_for_nothing(container: Container) -> None:
    container.write(line("0"))
    container.cursor = LogCursor(pod_uid="another", first_time="2026", offset=99)
    assert not container.read_all()
    assert container.lines == ["o 0"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 500 + b"\n",
        b"\n",
        b"no line of a runtime\n",
        b"2026-11-30T01:00:00Z stdin F x\n",
        b"2026-11-30T01:00:00Z stdout F\n",
        b"9999-99-99T01:00:00Z stdout F x\n",
        b"x" * 3 * LINE_BYTES_MAX + b"\n",
    ],
)
def test_garbage_is_a_gap(container: Container, garbage: bytes) -> None:
    container.write(line("0"), garbage, line("1", 1))
    assert container.read_all()
    assert container.lines == ["o 0", "o 1"]


def test_damaged_compressed_file_is_a_gap(container: Container) -> None:
    container.write(*(line(f"{number}", number) for number in range(5_000)))
    path = container.compress(container.rotate("20261130-010001"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    container.write(line("last", 9_999))
    assert container.read_all()
    assert container.lines[-1] == "o last"


def test_links_are_not_followed(container: Container, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(line("secret"))
    container.folder.mkdir()
    (container.folder / "0.log").symlink_to(tmp_path / "secret")
    container.read_all()
    assert container.lines == []


def test_read_takes_a_limited_part(container: Container) -> None:
    count = 2 * LINE_BYTES_MAX // 100
    container.write(*(line("x" * 100, number) for number in range(count)))
    piece = container.read(bytes_max=LINE_BYTES_MAX)
    assert len(piece.lines) < LINE_BYTES_MAX
    assert not piece.is_all
    assert not container.read_all()
    assert len(container.lines) == count


@pytest.mark.parametrize("is_compressed", [False, True])
def test_only_the_newest_output_is_read_after_the_end(
    container: Container, is_compressed: bool
) -> None:
    text = "x" * 990
    count = 3 * LAST_BYTES // 2_000
    container.write(line("begin"))
    container.read_all()
    container.write(*(line(f"{number} {text}", number) for number in range(count)))
    first = container.rotate("20261130-010001")
    container.write(*(line(f"{number} {text}", number) for number in range(count, 2 * count)))
    if is_compressed:
        container.compress(first)
    assert container.read_all(has_ended=True)
    begin, *rest = container.lines
    assert begin == "o begin"
    numbers = [int(one.split(" ")[1]) for one in rest]
    assert numbers == [*range(numbers[0], 2 * count)]
    assert LAST_BYTES * 0.9 < len(rest) * 1_040 <= LAST_BYTES * 1.1
