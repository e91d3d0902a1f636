"""Parser and runner for the pages of the user documentation: blocks, tables, links and examples.

The shell blocks of a page run in order in one shell. A `text` or `json` block after a shell block
is its output, where `...` matches anything and numbers in JSON may differ. A comment before a
block gives the reader's action. `file: x` saves the block, `serve` starts a service, `stopped`
waits for its end, and `until` repeats the block. `message: x` gives the type of a JSON block.
Default ports in a page stand for the real ports,
and a public port of edge-guard for any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from pyservice.errors import ServiceError
from pyservice.settings import PREFIX, Region, Tier
from pyservice.transport.native import problem_json
from tests.support.service_process import clean_environment
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("../README.md", *sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")))


def _how_to(names: str) -> tuple[str, ...]:
    return tuple(f"how-to/{name}.md" for name in names.split())


# Each sequence of pages runs in one shell, beside one service. A page can use everything that an
# earlier page of its sequence created.
DEVELOPERS = _how_to(
    "index create-a-game deploy-a-version manage-namespace-tokens use-development-tokens "
    "use-a-browser-page upload-files publish-a-site delete-games-and-their-parts "
    "upload-a-server-build configure-the-matchmaker "
    "read-lobby-logs export-lobbies start-dynamic-servers link-a-device watch-for-changes "
    "trace-a-request use-openapi find-a-lobby create-a-private-lobby keep-parties-together "
    "retry-requests rejoin-a-lobby list-lobbies call-from-a-back-end use-grpc"
)
LOBBY_SERVERS = _how_to(
    "index attach-a-lobby-server confirm-players send-heartbeats set-lobby-state handle-restarts "
    "write-a-lobby-server"
)
OPERATORS = _how_to(
    "run-the-service manage-developers set-quotas read-the-audit-log rotate-keys run-game-servers "
    "isolate-game-servers "
    "operate-edge-guard use-s3 serve-files-of-games set-up-domains run-behind-a-proxy serve-tls "
    "monitor "
    "handle-failures back-up restore use-a-feed-file"
)
INCIDENTS = (
    *_how_to("run-the-service manage-developers"),
    *(f"runbooks/{name}.md" for name in ("leaked-token", "leaked-key", "lost-key", "lost-machine")),
)
TUTORIALS = tuple(
    f"tutorials/{name}.md"
    for name in ("browser-game", "own-server", "udp-game", "godot-game", "deploy-with-curl")
)
CLUSTER = tuple(
    f"kubernetes/{name}.md" for name in ("install-on-k3s", "failures", "move-from-one-machine")
)
"""Pages with examples that run on the cluster of the tests."""
COMMAND_LINE_PAGES = _how_to("add-dependencies bring-an-existing-server publish-a-unity-web-build")
PAGES_BY_THEMSELVES = (
    "quickstart.md",
    *_how_to("install run-the-planes-separately use-postgresql try-a-captcha-provider"),
)
SEQUENCES = (
    DEVELOPERS,
    LOBBY_SERVERS,
    OPERATORS,
    INCIDENTS,
    *((one,) for one in (*TUTORIALS, *COMMAND_LINE_PAGES, *PAGES_BY_THEMSELVES, *CLUSTER)),
)
HTTP, GRPC, METRICS, CDN, ROOM = "8080", "8081", "8090", "8092", "8200"
TIMEOUT_S = 30.0

_PUBLIC_PORT = re.compile(r"\b(?:2[6-9]|3[01])\d{3}\b")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^>]+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    note: str
    line: int

    @property
    def file(self) -> str | None:
        return self.note.removeprefix("file: ") if self.note.startswith("file: ") else None


def page(name: str) -> str:
    return (DOCS / name).read_text()


def blocks_of(name: str) -> list[Block]:
    text = page(name)
    return [
        Block(
            match["language"],
            match["text"],
            match["note"] or "",
            text[: match.start()].count("\n") + 1,
        )
        for match in _BLOCK.finditer(text)
    ]


def file_of(name: str, file: str) -> str:
    (block,) = (block for block in blocks_of(name) if block.file == file)
    return block.text


def table_of(name: str, table: str) -> list[list[str]]:
    """Returns the cells of the table after its comment, without the header row."""
    after = page(name).split(f"<!-- table: {table} -->\n", 1)[1]
    lines = after.split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def code(cell: str) -> str:
    return cell.removeprefix("`").removesuffix("`")


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        environment = clean_environment()
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        self._bash = subprocess.Popen(
            ["/bin/bash", "--norc", "-eu", "-o", "pipefail"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str, *, is_tried_again: bool = False) -> str:
        """Returns the output of the block. A failure ends the shell, unless the block may be
        repeated.
        """
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._count += 1
        files = [self.folder / f".{kind}-{self._count}" for kind in ("block", "out", "err")]
        block, output, errors = files
        block.write_text(text)
        command = f"source {block} >{output} 2>{errors} </dev/null"
        if is_tried_again:
            report = "if [ $? = 0 ]; then echo done; else echo failed; fi"
            self._bash.stdin.write(f"set +e; {command}; {report}; set -e\n")
        else:
            self._bash.stdin.write(f"{command}; echo done\n")
        self._bash.stdin.flush()
        assert self._bash.stdout.readline() == "done\n", (
            f"failed:\n{text}\n{output.read_text()}\n{errors.read_text()}"
        )
        return output.read_text()

    def close(self) -> None:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.wait(timeout=TIMEOUT_S)
        self._bash.stdout.close()


def help_of_curl() -> bytes:
    try:
        return subprocess.run(
            ["curl", "--help", "all"], capture_output=True, check=False, timeout=10
        ).stdout
    except FileNotFoundError:
        return b""


@dataclass
class Reader:
    """Runs a page. `ports` maps the ports in the page to the real ports.

    `words` maps other words in the page to the real ones. `before` receives each block that follows.
    """

    folder: Path
    shell: Shell
    ports: dict[str, str]
    serve: Callable[[Reader, str], None] | None = None
    wait_stopped: Callable[[], None] | None = None
    done: list[Block] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    before: Callable[[Block], None] = lambda block: None

    def follow(self, name: str) -> None:
        blocks = blocks_of(name)
        for index, block in enumerate(blocks):
            follower = blocks[index + 1] if index + 1 < len(blocks) else None
            self.before(block)
            try:
                self._take(block, follower)
            except AssertionError as error:
                raise AssertionError(f"{name}:{block.line}: {error}") from None
            self.done.append(block)

    def _take(self, block: Block, follower: Block | None) -> None:
        if block.file:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._real(block.text))
        elif block.language == "sh" and block.note == "serve":
            assert self.serve is not None
            self.serve(self, block.text)
        elif block.language == "sh":
            if block.note == "stopped":
                assert self.wait_stopped is not None
                self.wait_stopped()
            self._run(block, follower)

    def _run(self, block: Block, follower: Block | None) -> None:
        is_tried_again = block.note == "until"
        end = time.monotonic() + (TIMEOUT_S if is_tried_again else 0.0)
        while True:
            try:
                output = self.shell.run(self._real(block.text), is_tried_again=is_tried_again)
                if follower is not None:
                    check_output(output, follower, self._real(follower.text))
                return
            except AssertionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _real(self, text: str) -> str:
        for word, real in self.words.items():
            text = text.replace(word, real)
        return re.sub(r"\b8\d\d\d\b", lambda match: self.ports.get(match[0], match[0]), text)


def check_output(output: str, follower: Block, expected: str) -> None:
    if follower.file or follower.language not in ("text", "json"):
        return
    if follower.language == "text":
        assert re.fullmatch(pattern(expected.strip(), ".*?"), output.strip()), (
            f"printed:\n{output}\nexpected:\n{expected}"
        )
        return
    printed, expected_documents = list(documents(output)), list(documents(expected))
    assert len(printed) == len(expected_documents), f"printed:\n{output}\nexpected:\n{expected}"
    for one, other in zip(printed, expected_documents, strict=True):
        assert is_like(one, other), f"printed:\n{output}\nexpected:\n{expected}"


def pattern(expected: str, anything: str) -> str:
    return _PUBLIC_PORT.sub(
        lambda _: _PUBLIC_PORT.pattern, re.escape(expected).replace(r"\.\.\.", anything)
    )


def documents(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    rest = text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        yield value
        rest = rest[end:].strip()


def is_like(printed: Any, expected: Any) -> bool:
    """Returns whether two JSON values have the same structure and strings. Numbers may differ."""
    if isinstance(expected, dict):
        return (
            isinstance(printed, dict)
            and printed.keys() == expected.keys()
            and all(is_like(printed[key], expected[key]) for key in expected)
        )
    if isinstance(expected, list):
        return (
            isinstance(printed, list)
            and len(printed) == len(expected)
            and all(map(is_like, printed, expected))
        )
    if isinstance(expected, str) and isinstance(printed, str):
        return bool(re.fullmatch(pattern(expected, ".+"), printed))
    if isinstance(expected, bool) or expected is None:
        return printed is expected
    return type(printed) is type(expected)


def check_problem(problem: dict[str, Any]) -> None:
    error = ServiceError(problem["code"], metadata=problem.get("metadata"))
    assert problem == json.loads(problem_json(error, problem["ray_id"]))


def settings_rows(model: type[BaseModel], prefix: str = "") -> Iterator[list[str]]:
    """Returns TOML name, environment variable, flag and default of every setting."""
    flags = {"feed_file": "--feed", **{n: f"--{n}" for n in ("http", "grpc", "cdn", "metrics")}}
    flags |= {"data_dir": "--data-dir", "front": "--front"}
    for name, setting in model.model_fields.items():
        full = prefix + name
        default = setting.get_default()
        if isinstance(default, BaseModel):
            yield from settings_rows(type(default), f"{full}.")
            continue
        variable = PREFIX + full.upper().replace(".", "__")
        yield [full, variable, flags.get(full, "--set"), shown_default(default)]


def shown_default(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if type(value) is tuple:
        return ", ".join(shown_default(one) for one in value)
    if isinstance(value, Region):
        return value.name_id
    if isinstance(value, Tier):
        return value.tier_name_id
    return str(value)


def metrics_of_all(url: str) -> str:
    """Returns the metrics page. Repeats until edge-guard and the control plane answer its scrape."""
    required_lines = {"hosting_edge_up 1", "hosting_control_plane_up 1"}

    def text() -> str:
        exposition = httpx.get(url, timeout=TIMEOUT_S).text
        return exposition if required_lines <= set(exposition.splitlines()) else ""

    return until(text)


LABELS_WITHOUT_SAMPLES: Final = {
    "hosting_certificate_end_timestamp_seconds": set(),
    "hosting_control_backup_age_seconds": set(),
    "hosting_edge_certificate_end_timestamp_seconds": {"server_name"},
    "hosting_namespace_traffic_bytes_total": {"namespace", "way"},
    "hosting_namespace_traffic_packets_total": {"namespace", "way"},
    "hosting_namespace_server_cpu_seconds_total": {"namespace"},
    "hosting_namespace_server_memory_bytes": {"namespace"},
}
"""Labels of metrics that have no samples in a service without certificates and game servers."""


def families_of(text: str) -> dict[str, tuple[str, set[str] | None]]:
    """Returns type and labels of each metric of the service by name. The labels of a metric without
    samples are those of `LABELS_WITHOUT_SAMPLES`, or None.
    """
    families = {}
    names = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name.startswith("hosting_"):
            without_samples = LABELS_WITHOUT_SAMPLES.get(name)
            families[name] = (names[name], labels if family.samples else without_samples)
    return families


def families_shown(table: str) -> dict[str, tuple[str, set[str]]]:
    """Returns the metrics in a table of the metrics page, as `families_of` does."""
    return {
        code(name): (kind, set(re.findall(r"\w+", labels)))
        for name, kind, labels, meaning in table_of("reference/metrics.md", table)
        if meaning
    }


def commands(group: Any, before: str = "pyservice") -> Iterator[tuple[str, set[str]]]:
    """Returns each command with its visible options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before} {name}")
            if not command.invoke_without_command:
                continue
        if not command.hidden:
            options = [one for one in command.params if not getattr(one, "hidden", False)]
            words = {word for one in options for word in (*one.opts, *one.secondary_opts)}
            yield f"{before} {name}", {word for word in words if word.startswith("--")}


def links() -> Iterable[tuple[str, str, str]]:
    for name in PAGES:
        for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page(name)):
            yield name, target, heading


def headings(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def port_of(address: str) -> str:
    return address.rpartition(":")[2].partition("/")[0]
