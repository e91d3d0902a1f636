"""Cost of reading logs, in bytes that the kernel counts for the reading threads: each byte is read
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.run_logs import LINES_MAX, READ_BYTES_MAX, LogReader
from tests.support.runtime_host import RuntimeHost, until

pytestmark = pytest.mark.anyio

MIB: Final = 1 << 20
SMALL: Final = MIB // 2
"""Allowance for blocks that overlap."""
TEXT: Final = "x" * 60
FULL: Final = f"echo early >&2; yes {TEXT} | head -n 1000000; echo late"


@pytest.fixture
def logs() -> Iterator[LogReader]:
    reader = LogReader()
    yield reader
    reader.close()


class Count:
    bytes = 0


@contextmanager
def read() -> Iterator[Count]:
    count, before = Count(), _read_bytes()
    yield count
    count.bytes = _read_bytes() - before


def _read_bytes() -> int:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("logs")]
    counters = [Path(f"/proc/self/task/{thread.native_id}/io").read_text() for thread in threads]
    return sum(int(counter.split()[1]) for counter in counters)


def size(path: Path) -> int:
    return sum(segment.stat().st_size for segment in (path / "log").iterdir())


@pytest.mark.full
async def test_full_log_is_read_once_for_a_silent_stream(
    host: RuntimeHost, logs: LogReader
) -> None:
    order = host.want(FULL)
    await host.reports.end(order.id)
    path = host.of(order).path
    assert size(path) > 60 * MIB
    with read() as first:
        result = await logs.newest(path, "std_err")
    assert (result.lines, result.is_all) == ([], True), (
        "the first line went with the oldest segment"
    )
    assert first.bytes < size(path) + SMALL
    with read() as more:
        for _ in range(20):
            assert await logs.newest(path, "std_err") == result
            assert await logs.after(path, "std_err", result.position) == result
            assert await logs.after(path, "std_err", result.position - 40 * MIB) == result
    assert more.bytes < MIB
    with read() as newest:
        lines = (await logs.newest(path, "std_out")).lines
    assert [line.text for line in lines] == [*[TEXT] * (LINES_MAX - 1), "late"]
    assert newest.bytes < SMALL


async def test_old_line_is_found_and_then_cached(host: RuntimeHost, logs: LogReader) -> None:
    order = host.want(f"echo early >&2; yes {TEXT} | head -n 100000")
    await host.reports.end(order.id)
    path = host.of(order).path
    assert size(path) > 7 * MIB
    for _ in range(3):
        with read() as count:
            result = await logs.newest(path, "std_err")
        assert [line.text for line in result.lines] == ["early"]
        assert result.position == host.of(order).end()
    assert count.bytes < SMALL
    with read() as count:
        begin = await logs.after(path, "std_err", 0)
    assert begin == result
    assert count.bytes < SMALL


@pytest.mark.full
async def test_follower_reads_only_new_lines(
    host: RuntimeHost, logs: LogReader, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.mkdir()
    script = (
        f"for n in 1 2 3 4 5 6; do yes {TEXT} | head -n 20000;"
        f" until [ -e {go}/$n ]; do sleep 0.01; done; done; echo heard >&2; exec sleep 3600"
    )
    order = host.want(script)
    folder = host.of(order)
    before = index = 0
    with read() as count:
        for number in range(1, 7):
            portion_bytes = number * 20_000 * (len(TEXT) + 20)

            def has_come(least: int = portion_bytes) -> bool:
                return folder.end() >= least

            await until(has_come)
            for _ in range(10):
                result = await logs.after(folder.path, "std_err", index)
                assert result is not None
                assert not result.lines
                assert result.position == folder.end()
                before = result.position
            (go / str(number)).touch()

        async def read_new_lines() -> list[str]:
            result = await logs.after(folder.path, "std_err", index)
            assert result is not None
            return [line.text for line in result.lines]

        while not (lines := await read_new_lines()):
            await asyncio.sleep(0)
    assert lines == ["heard"]
    assert before > 9 * MIB
    assert count.bytes < before + 2 * MIB


@pytest.mark.full
async def test_readers_take_turns(host: RuntimeHost, logs: LogReader) -> None:
    full, short = host.want(FULL), host.want("echo here")
    for order in (full, short):
        await host.reports.end(order.id)
    path = host.of(full).path
    others = [path.rename(path.with_name("0"))]
    for number in range(1, 5):
        others.append(path.with_name(str(number)))
        others[-1].symlink_to(others[0])
    reading = [asyncio.create_task(logs.newest(other, "std_err")) for other in others]
    await asyncio.sleep(0)
    result = await logs.newest(host.of(short).path, "std_out")
    assert [line.text for line in result.lines] == ["here"]
    assert not any(task.done() for task in reading)
    await asyncio.gather(*reading)


@pytest.mark.full
async def test_one_response_searches_a_limited_part_of_a_log(
    host: RuntimeHost, logs: LogReader
) -> None:
    host.node = replace(host.node, log_bytes_max=4 * READ_BYTES_MAX)
    await host.anew()
    order = host.want(f"yes {TEXT} | head -n 1000000; echo last >&2; yes {TEXT} | head -n 100")
    await host.reports.end(order.id)
    path = host.of(order).path
    assert size(path) > READ_BYTES_MAX + 8 * MIB
    with read() as count:
        result = await logs.after(path, "std_err", 0)
    assert result is not None
    assert (result.lines, result.is_all) == ([], False)
    assert READ_BYTES_MAX <= result.position < READ_BYTES_MAX + 8 * MIB
    assert count.bytes < READ_BYTES_MAX + 8 * MIB
    rest = await logs.after(path, "std_err", result.position)
    assert rest is not None
    assert [line.text for line in rest.lines] == ["last"]
    assert rest.position == host.of(order).end()


async def test_output_above_the_rate_limit_is_dropped_and_counted(
    host: RuntimeHost, logs: LogReader
) -> None:
    host.node = replace(host.node, log_lines_per_s=10)
    await host.anew()
    order = host.want("seq 1 100000")
    await host.reports.end(order.id)
    path = host.of(order).path
    first = await logs.after(path, "std_out", 0)
    reports = (await logs.newest(path, "std_err")).lines
    assert first is not None
    assert [line.text for line in first.lines][:100] == [str(number) for number in range(1, 101)]
    assert all(line.text.endswith("dropped: the log has a rate limit]") for line in reports)
    dropped = sum(int(line.text.removeprefix("[").split()[0]) for line in reports)
    assert dropped > 10_000
    await until(lambda: host.supervisor.dropped_output.line_count == dropped)
    assert host.supervisor.dropped_output.byte_count > dropped


@pytest.mark.full
async def test_output_dropped_while_the_service_is_down_is_reported_later(
    host: RuntimeHost,
) -> None:
    host.node = replace(host.node, log_lines_per_s=10)
    await host.anew()
    waits = "until [ -e $HOME/{0} ]; do sleep 0.05; done"
    script = f"{waits.format('go')}; seq 1 100000; touch $HOME/flooded; {waits.format('end')}"
    order = await host.running(script)
    scratch = host.of(order).scratch
    await host.drop()
    (scratch / "go").touch()
    await until(lambda: (scratch / "flooded").exists())
    await host.anew()
    assert host.supervisor.dropped_output.line_count == 0
    (scratch / "end").touch()
    await host.reports.end(order.id)
    await until(lambda: host.supervisor.dropped_output.line_count > 10_000)


async def test_partial_line_is_returned_only_when_complete(tmp_path: Path, logs: LogReader) -> None:
    log = tmp_path / "log"
    log.mkdir()
    first, second = log / f"{0:020}", log / f"{20:020}"
    first.write_bytes(b"1 o one\n2 e two\n3 o ")
    second.write_bytes(b"4 o four\n5 o fi")
    for stream, texts in (("std_out", ["one", "four"]), ("std_err", ["two"])):
        newest = await logs.newest(tmp_path, stream)  # type: ignore[arg-type]
        assert [line.text for line in newest.lines] == texts
        assert newest.position == 29
    begin = await logs.after(tmp_path, "std_out", 0)
    assert begin is not None
    assert ([line.text for line in begin.lines], begin.position) == (["one", "four"], 29)
    with second.open("ab") as file:
        file.write(b"ve\n6 E six\n")
    for stream, text in (("std_out", "five"), ("std_err", "six")):
        page = await logs.after(tmp_path, stream, 29)  # type: ignore[arg-type]
        assert page is not None
        assert [line.text for line in page.lines] == [text]
    newest = await logs.newest(tmp_path, "std_err")
    assert [(line.text, line.goes_on) for line in newest.lines] == [("two", False), ("six", True)]
