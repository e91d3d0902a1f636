from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.isolation_trials import choose_isolation
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.node_preparation import SYSTEM_PATHS
from pyservice.runtime.run_folder import KeeperNotices, LogLine, LogStream, RunFolder
from pyservice.runtime.run_logs import LINES_MAX, LogReader
from tests.support.runtime_host import RuntimeHost, until
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

LINES: Final = 30_000
COUNTS: Final = f"""
n=0
while [ $n -lt {LINES} ]; do
  n=$((n+1)); echo "$n {"x" * 100}"
  [ $((n % 10)) -eq 0 ] && echo "$n" >&2
done
"""


def test_keeper_prints_its_version_without_any_environment() -> None:
    # The Pod that has a node fetch an image runs it there.
    ended = subprocess.run([KEEPER_BINARY, "--version"], env={}, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("hosting-keeper ")


def numbers(lines: list[LogLine]) -> list[int]:
    return [int(line.text.split()[0]) for line in lines]


async def followed(logs: LogReader, path: Path, stream: LogStream) -> list[LogLine]:
    log_lines: list[LogLine] = []
    position = 0
    while (page := await logs.after(path, stream, position)) is not None and page.lines:
        assert len(page.lines) <= LINES_MAX
        assert page.position > position
        log_lines += page.lines
        position = page.position
    return log_lines


@pytest.fixture
def logs() -> Iterator[LogReader]:
    reader = LogReader()
    yield reader
    reader.close()


@pytest.mark.full
async def test_newest_lines_and_later_pages_span_several_segments(
    host: RuntimeHost, logs: LogReader
) -> None:
    order = host.want(COUNTS)
    await host.reports.end(order.id)
    path = host.of(order).path
    assert len(host.of(order).segments()) >= 3
    newest = await logs.newest(path, "std_out")
    assert numbers(list(newest.lines)) == [*range(LINES - LINES_MAX + 1, LINES + 1)]
    assert await logs.after(path, "std_out", newest.position) == ([], newest.position, True)
    assert await logs.after(path, "std_out", newest.position + 1) is None
    # The newest thousand lines of the rare stream are in more segments than the last.
    rare = (await logs.newest(path, "std_err")).lines
    assert numbers(list(rare)) == [*range(LINES - 10 * LINES_MAX + 10, LINES + 1, 10)]
    assert numbers(await followed(logs, path, "std_out")) == [*range(1, LINES + 1)]
    assert numbers(await followed(logs, path, "std_err")) == [*range(10, LINES + 1, 10)]
    times = [line.time_us for line in await followed(logs, path, "std_out")]
    assert times == sorted(times)


@pytest.mark.full
async def test_oldest_segment_of_an_oversized_log_is_removed(
    host: RuntimeHost, logs: LogReader
) -> None:
    host.node = replace(host.node, log_bytes_max=2 << 20)
    await host.anew()
    order = host.want(COUNTS)
    await host.reports.end(order.id)
    path = host.of(order).path
    sizes = [one.stat().st_size for _, one in host.of(order).segments()]
    assert sum(sizes) <= 2 << 20
    kept_numbers = numbers(await followed(logs, path, "std_out"))
    assert kept_numbers == [*range(kept_numbers[0], LINES + 1)]
    assert kept_numbers[0] > 1
    # A read position before the first stored line continues at the first stored line.
    page = await logs.after(path, "std_out", 1)
    assert page is not None
    assert numbers(list(page.lines))[0] == kept_numbers[0]


async def test_long_lines_are_split_and_invalid_text_is_replaced(
    host: RuntimeHost, logs: LogReader
) -> None:
    script = "head -c 10000 /dev/zero | tr '\\0' y; echo; printf 'a\\377b\\n'; printf end"
    order = host.want(script)
    await host.reports.end(order.id)
    lines = (await logs.newest(host.of(order).path, "std_out")).lines
    assert [len(line.text) for line in lines] == [4096, 4096, 10_000 - 2 * 4096, 3, 3]
    assert [line.goes_on for line in lines] == [False, True, True, False, False]
    assert [line.text for line in lines[3:]] == ["a\ufffdb", "end"]


@pytest.mark.parametrize("character", ["я", "水", "🐟"])
async def test_long_line_is_split_between_two_characters(
    host: RuntimeHost, logs: LogReader, character: str
) -> None:
    text = "x" + character * 5_000
    script = f"printf x; yes {character} | head -n 5000 | tr -d '\n'; echo; echo next"
    order = host.want(script)
    await host.reports.end(order.id)
    *parts, last = (await logs.newest(host.of(order).path, "std_out")).lines
    assert last.text == "next"
    assert "".join(part.text for part in parts) == text
    assert [part.goes_on for part in parts] == [False, *[True] * (len(parts) - 1)]
    assert all(4_093 <= len(part.text.encode()) <= 4_096 for part in parts[:-1])


async def test_program_cannot_write_to_the_stream_of_the_service(
    host: RuntimeHost, logs: LogReader
) -> None:
    forged = "1700000000000000 s forged"
    order = host.want(f"echo '{forged}'; printf 'a\\r{forged}\\n' >&2; echo 'log forged'")
    await host.reports.end(order.id)
    path = host.of(order).path
    assert (await logs.newest(path, "service")).lines == []
    texts = [(line.stream, line.text) for line in (await logs.newest(path, "all")).lines]
    assert sorted(texts) == [
        ("std_err", f"a\r{forged}"),
        ("std_out", forged),
        ("std_out", "log forged"),
    ]


async def test_line_of_the_service_is_added_while_a_program_runs(
    host: RuntimeHost, logs: LogReader
) -> None:
    order = await host.running("echo up; exec sleep 3600")
    assert await host.lines(order, 1) == ["up"]
    run = host.supervisor.runs[order.id]
    for sentence in ("one\ntwo", "ä" * 5_000, "three"):
        await run.log_problem(sentence)

    async def all_lines() -> list[str] | None:
        lines = [line.text for line in (await logs.newest(host.of(order).path, "service")).lines]
        return lines if lines[-1:] == ["three"] else None

    assert await eventually(all_lines) == ["one two", "ä" * 1_000, "three"]
    assert (await logs.newest(host.of(order).path, "std_out")).lines[0].text == "up"


async def test_missing_folder_has_no_lines(tmp_path: Path, logs: LogReader) -> None:
    missing = tmp_path / "gone"
    assert await logs.newest(missing, "std_out") == ([], 0, True)
    assert await logs.after(missing, "std_err", 4711) is None


async def test_log_follower_is_notified_of_growth(host: RuntimeHost) -> None:
    script = "while :; do [ -e $HOME/say ] && rm $HOME/say && echo said; sleep 0.02; done"
    order, other = await host.running(script), await host.running(script)
    for one in (order, other):
        await until(lambda one=one: one.id in host.noticed)  # type: ignore[misc]
    host.noticed.clear()
    host.supervisor.follow(order.id, 60_000)
    for one in (other, order):
        (host.of(one).scratch / "say").touch()
        assert await host.lines(one, 1) == ["said"]
    await until(lambda: host.noticed)
    assert set(host.noticed) == {order.id}
    # It is not an error to end a run that is over or unknown.
    host.supervisor.end(order.id, 0)
    await host.reports.end(order.id)
    host.supervisor.follow(order.id, 60_000)
    host.supervisor.follow(host.order().id, 60_000)


async def test_hints_are_parsed_in_any_chunks(tmp_path: Path) -> None:
    path = tmp_path / "notices"
    path.write_text("a file of another program")
    run_ids: list[str] = []
    keeper_notices = KeeperNotices(path, run_ids.append)
    keeper_notices.open()
    try:
        writer = os.open(path, os.O_WRONLY)
        os.write(writer, b"one state\ntw")
        await until(lambda: run_ids)
        os.write(
            writer, b"o state\none dropped 3 40\n\none dropped x 1\ntwo dropped 1 2\nthree log\n"
        )
        os.close(writer)
        await until(lambda: len(run_ids) == 3)
        assert run_ids == ["one", "two", "three"]
        assert (keeper_notices.dropped.line_count, keeper_notices.dropped.byte_count) == (4, 42)
    finally:
        keeper_notices.close()
        keeper_notices.close()


LOOKS_AROUND: Final = """
cat "$SECRET" && echo read a secret
cat "$OTHERS" && echo read of others
touch "$BUILD/new" && echo wrote into its build
echo > "$BUILD/server.json" && echo changed its build
touch "$HOME/mine" && echo wrote what is its own
cat "$BUILD/server.json" > /dev/null && echo read its build
env | grep -c OUTSIDE
ls /proc/self/fd | wc -l
"""


async def test_program_can_only_access_its_build_and_its_own_folder(
    host: RuntimeHost, unpacked_builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTSIDE", "ours")
    isolation = await choose_isolation("auto", KEEPER_BINARY, host.folder, SYSTEM_PATHS)
    if isolation is None:
        pytest.skip("no isolation works here: needs root, user namespaces or Landlock")
    assert not [path.name for path in host.folder.iterdir() if path.name.startswith(".trial")]
    host.node = replace(host.node, isolation=isolation, shared_paths=SYSTEM_PATHS)
    await host.anew()
    other = await host.running("echo private > $HOME/private; exec sleep 3600")
    secret = host.folder / "secret"
    secret.write_text("of the service")
    secret.chmod(0o600)
    order = host.order(LOOKS_AROUND)
    paths = {
        "SECRET": str(secret),
        "OTHERS": str(host.of(other).scratch / "private"),
        "BUILD": str(unpacked_builds / order.build_id / "root"),
    }
    host.supervisor.ensure_running(replace(order, env=paths))
    await host.reports.end(order.id)
    lines = [line.text for line in host.of(order).lines() if line.stream == "std_out"]
    # The program has the three standard descriptors and the one that lists the folder.
    assert lines == ["wrote what is its own", "read its build", "0", "4"], isolation


async def test_ineffective_isolation_is_not_chosen(tmp_path: Path) -> None:
    assert await choose_isolation("auto", tmp_path / "no-keeper", tmp_path, SYSTEM_PATHS) is None
    assert await choose_isolation("none", tmp_path / "no-keeper", tmp_path, SYSTEM_PATHS) == "none"
    assert list(tmp_path.iterdir()) == []


def test_partial_line_at_a_segment_end_hides_no_later_line(tmp_path: Path) -> None:
    """A line that was cut when the disk was full never gets its rest."""
    (tmp_path / "log").mkdir()
    whole, half = b"1 o one\n", b"2 o tw"
    (tmp_path / "log" / f"{0:020}").write_bytes(whole + half)
    (tmp_path / "log" / f"{len(whole + half):020}").write_bytes(b"3 o three\n" + half)
    assert [line.text for line in RunFolder(tmp_path).lines()] == ["one", "three"]
