"""Programs that end too early: the sentence of the run's end is also the last line of its log."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final

import pytest

from pyservice.runtime.adapters import Adapter
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.end_problems import FAILED_STARTS, exit_problem, failed_start
from pyservice.runtime.run_requests import LobbyProgress, PortRequest, Resources, RunEnd
from pyservice.runtime.start_problems import RunProblem
from tests.support.runtime_host import RuntimeHost, until

pytestmark = [pytest.mark.anyio, pytest.mark.full]

STARTING: Final = LobbyProgress(is_ready=False)
READY: Final = LobbyProgress(is_ready=True)
PYTHON: Final = f"exec {sys.executable} -S -c "
NODE: Final = (
    "node:internal/modules/cjs/loader:1080",
    "Error: Cannot find module 'ws'",
    "Require stack:",
    "- /build/server.js",
    "    at Module._resolveFilename (node:internal/modules/cjs/loader:1077:15) {",
    "  code: 'MODULE_NOT_FOUND',",
    "}",
    "",
    "Node.js v18.19.0",
)
JAVA: Final = (
    'Exception in thread "main" java.lang.NoClassDefFoundError: com/example/Game',
    "\tat Server.main(Server.java:3)",
    "Caused by: java.lang.ClassNotFoundException: com.example.Game",
    "\t... 1 more",
)
PROGRAMS: Final[Sequence[tuple[str, LobbyProgress | None, str, str]]] = (
    ("exit 3", STARTING, "exited", "The program exited with code 3 before the lobby was ready."),
    ("exit 0", STARTING, "exited", "The program exited with code 0 before the lobby was ready."),
    ("exit 3", READY, "exited", "The program exited with code 3."),
    (
        *("kill -SEGV $$", STARTING, "exited"),
        "The program exited with code 139 (SIGSEGV) before the lobby was ready.",
    ),
    (
        *(PYTHON + shlex.quote("import no_such.part"), STARTING, "missing-module"),
        "The module no_such is missing: add it to the build (build.python_requirements)",
    ),
    (
        *(f"exec {sys.executable} -S -m no_such", None, "missing-module"),
        "The module no_such is missing: add it to the build (build.python_requirements)",
    ),
    ("exit 0", READY, "", ""),
    ("exit 3", None, "", ""),
)
"""A script, the progress of its lobby, and the kind and sentence of its end."""


@pytest.mark.parametrize(("script", "progress", "kind", "sentence"), PROGRAMS)
async def test_end_of_a_program_has_a_kind_a_sentence_and_a_last_line(
    host: RuntimeHost, script: str, progress: LobbyProgress | None, kind: str, sentence: str
) -> None:
    order = host.order(script, owner="server" if progress is None else "lobby")
    if progress is not None:
        host.reports.progress[order.id] = progress
    host.supervisor.ensure_running(order)
    end = await host.reports.end(order.id)
    assert (end.kind, end.message) == (kind, sentence)
    await until(lambda: not host.supervisor.runs)
    lines = [line.text for line in host.of(order).lines()]
    assert (lines[-1:] if sentence else lines) == ([sentence] if sentence else [])


@pytest.mark.parametrize(
    ("errors", "module"),
    [
        (NODE, "ws"),
        (["Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'ws' imported from /a.mjs"], "ws"),
        (JAVA, "com.example.Game"),
        (["ModuleNotFoundError: No module named 'caught'", *["more"] * 5], None),
        (["said: ModuleNotFoundError: No module named 'x'"], None),
    ],
)
def test_missing_module_is_read_from_the_end_of_the_errors(
    errors: Sequence[str], module: str | None
) -> None:
    problem = exit_problem(1, errors, None)
    expected = None if module is None else f"The module {module} is missing: add it to the build"
    assert (problem and problem.sentence) == expected


@pytest.mark.parametrize("has_groups", [False, True])
async def test_server_without_memory_names_its_peak_and_its_limit(
    host: RuntimeHost, has_groups: bool
) -> None:
    if has_groups:
        groups = ControlGroups.find(host.folder)
        if groups.memory is None:
            pytest.skip("needs a control group that limits memory")
        host.node = dataclasses.replace(host.node, groups=groups)
        await host.anew()
    leak = "a = bytearray(1)\nwhile True: a += bytes(1 << 20)"
    order = host.want(PYTHON + shlex.quote(leak), resources=Resources(10, 32))
    end = await host.reports.end(order.id)
    assert (end.reason, end.kind) == ("out_of_memory", "out-of-memory")
    used, _, rest = end.message.removeprefix("The server used ").partition(" MiB of its 32 MiB: ")
    assert rest == "choose a larger tier, or use less memory"
    assert (int(used) == 32) if has_groups else (int(used) > 32)
    await until(lambda: not host.supervisor.runs)
    assert [line.text for line in host.of(order).lines()] == [end.message]


async def test_lobby_that_never_was_ready_says_what_to_call(host: RuntimeHost) -> None:
    order = await host.running(owner="lobby")
    host.reports.progress[order.id] = LobbyProgress(is_ready=False, start_timeout_s=299.9)
    host.supervisor.runs[order.id].ports_problem = "Nothing listens at PORT_GAME=12345."
    host.supervisor.end(order.id, 0)
    end = await host.reports.end(order.id)
    assert (end.reason, end.kind) == ("stopped", "never-ready")
    assert end.message == (
        "The lobby was not ready after 300 s: call lobbies/ready when the server listens. "
        "Nothing listens at PORT_GAME=12345."
    )
    await until(lambda: not host.supervisor.runs)
    assert [line.text for line in host.of(order).lines()] == [end.message]


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [
        (Adapter(ready="log", log_match="Done"), 'no line of its log matched log_match "Done"'),
        (Adapter(ready="port", port="game"), "nothing listened at its port game"),
        (
            Adapter(ready="query", query="a2s", query_port="query"),
            "no answer to the query a2s at its port query",
        ),
        (Adapter(players="edge"), "call lobbies/ready when the server listens"),
    ],
)
async def test_lobby_with_an_adapter_that_never_was_ready_says_what_was_missing(
    host: RuntimeHost, adapter: Adapter, missing: str
) -> None:
    order = await host.running(owner="lobby", adapter=adapter)
    host.reports.progress[order.id] = LobbyProgress(is_ready=False, start_timeout_s=60.04)
    host.supervisor.end(order.id, 0)
    end = await host.reports.end(order.id)
    assert end.message == f"The lobby was not ready after 60 s: {missing}"


@pytest.mark.parametrize(
    "errors",
    [
        ["  self.socket.bind(('', 80))", "PermissionError: [Errno 1] Operation not permitted"],
        ["Error: listen EPERM: operation not permitted 0.0.0.0:9000", "    at Server.setup"],
        ["listen tcp :9000: bind: operation not permitted"],
    ],
)
def test_refused_bind_names_the_port_to_bind(errors: Sequence[str]) -> None:
    problem = exit_problem(1, errors, None, ports={"PORT_GAME": "15057"})
    sentence = "The server may not bind this port: bind $PORT_GAME, which is 15057"
    assert problem == RunProblem("bind-denied", sentence)
    assert exit_problem(1, errors, None) is None, "it has no port"


async def test_refused_bind_of_a_run_names_its_port(host: RuntimeHost) -> None:
    script = "echo 'bind: Operation not permitted' >&2; exit 1"
    order = host.want(script, ports={"game": PortRequest("tcp")})
    number = (await host.reports.wait_for(order.id, "placed"))["game"][1]
    end = await host.reports.end(order.id)
    sentence = f"The server may not bind this port: bind $PORT_GAME, which is {number}"
    assert (end.kind, end.message) == ("bind-denied", sentence)


def test_lack_of_space_names_the_size_of_the_scratch_folder() -> None:
    errors = ["OSError: [Errno 28] No space left on device"]
    problem = exit_problem(1, errors, None, scratch_mb=16)
    assert problem is not None
    assert problem.kind == "scratch-full"
    assert problem.sentence == (
        "The scratch folder is full (16 MiB): write less, or set a larger value "
        "(`build.scratch_mb` in hosting.toml, `scratch_mb` in server.json) or a tier with a larger disk"
    )
    assert exit_problem(1, errors, None) is None, "it has no limit"


@pytest.mark.parametrize(
    ("end", "progress", "reason"),
    [
        (RunEnd("build_unusable"), None, "build_unusable"),
        (RunEnd("stopped"), None, None),
        (RunEnd("exited", 1, started_ms=1), None, None),
        (RunEnd("exited", 1, started_ms=1), READY, None),
        (RunEnd("exited", 1, started_ms=1), STARTING, "exited"),
        (RunEnd("stopped", started_ms=1), STARTING, None),
        (RunEnd("stopped", started_ms=1), LobbyProgress(False, 60.0), "start_timeout"),
    ],
)
def test_end_before_a_lobby_is_ready_is_a_failed_start(
    end: RunEnd, progress: LobbyProgress | None, reason: str | None
) -> None:
    assert failed_start(end, progress) == reason


def test_each_reason_of_a_failed_start_is_a_label() -> None:
    named = re.findall(r"\w+", inspect.getsource(RunEnd).partition("One of: ")[2].partition(".")[0])
    assert {*named, "start_timeout"} - {"stopped"} == set(FAILED_STARTS)
