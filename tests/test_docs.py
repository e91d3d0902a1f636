"""User documentation: every example runs against a real service, and the tables match the code."""

from __future__ import annotations

import ast
import json
import operator
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import typer
from websockets.sync.client import connect

from docs import generate
from pyservice.cli.commands import app
from pyservice.control.configuration_validation import GAME_MODES_MAX, IDLE_LOBBIES_MAX
from pyservice.dataplane.resolved_namespace import (
    MAX_DRAIN_MS,
    MAX_PLAYERS,
    PLAYER_TOKEN_TTL_MS,
    TIER,
)
from pyservice.pb.comments import COMMENTS
from pyservice.pb.errors import TABLE
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.schema.json_decoding import compile_decoder
from pyservice.schema.methods import METHODS
from pyservice.settings import Region, Settings
from pyservice.storage.signed_urls import PREFIX
from pyservice_cli.application import app as developer_app
from pyservice_cli.project import read_project
from tests.support.browser import browser as browser
from tests.support.doc_pages import (
    CDN,
    COMMAND_LINE_PAGES,
    DEVELOPERS,
    DOCS,
    GRPC,
    HTTP,
    INCIDENTS,
    LOBBY_SERVERS,
    METRICS,
    OPERATORS,
    PAGES,
    ROOM,
    ROOT,
    SEQUENCES,
    TIMEOUT_S,
    TUTORIALS,
    Reader,
    Shell,
    blocks_of,
    check_problem,
    code,
    commands,
    families_of,
    families_shown,
    file_of,
    headings,
    is_like,
    links,
    metrics_of_all,
    page,
    port_of,
    settings_rows,
    table_of,
)
from tests.support.doc_shell import names_in, reader_beside, wait_until_open
from tests.support.doc_shell import repository_shell as repository_shell
from tests.support.doc_shell import shell as shell
from tests.support.example_run import Run, StartRun
from tests.support.example_run import start_run as start_run
from tests.support.front_metrics import passed_besides_creation
from tests.support.leftover_processes import end_leftovers
from tests.support.service_process import clean_environment, wait_ready_file
from tests.support.waiting import until


def call(run: Run, method: str, path: str, kind: str, body: Any = None) -> Any:
    """Calls the service of a `make run` until it responds, with its token of this kind."""
    token = (run.data_dir / f"{kind}.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(run.api_url + path, content, headers, method=method)
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        except OSError:
            assert time.monotonic() < end, run.output()
            time.sleep(0.05)


def wait_for_players(run: Run, count: int) -> None:
    end = time.monotonic() + TIMEOUT_S
    statistics = "/matchmaker/players/statistics"
    while call(run, "GET", statistics, "public")["player_count"] < count:
        assert time.monotonic() < end, run.output()
        time.sleep(0.1)


@pytest.mark.full
@pytest.mark.parametrize(
    "names",
    [DEVELOPERS, LOBBY_SERVERS, *((name,) for name in (*TUTORIALS, *COMMAND_LINE_PAGES))],
    ids=["developers", "lobby servers", *TUTORIALS, *COMMAND_LINE_PAGES],
)
def test_page_examples_run_beside_make_run(
    names: tuple[str, ...], start_run: StartRun, repository_shell: Shell
) -> None:
    run = start_run(bots=2)
    reader = reader_beside(run, repository_shell)
    repository = names_in(reader.folder)
    wait_for_players(run, 2)
    for name in names:
        reader.follow(name)
    assert sum(block.language == "sh" for block in reader.done) >= 2 + len(names) // 2
    if len(names) == 1:  # The page creates a game, in a folder of its own.
        assert names_in(reader.folder) == repository
    if names[0] in TUTORIALS:
        assert passed_besides_creation(httpx.get(run.metrics_url).text) == set()
    run.stop()


def test_readme_client_and_server_meet(start_run: StartRun, tmp_path: Path) -> None:
    run = start_run()
    wait_until_open(run)
    environment = os.environ | {
        "API": run.api_url,
        "PUBLIC_TOKEN": (run.data_dir / "public.token").read_text().strip(),
        "HOSTING_API_URL": run.api_url,
        "HOSTING_LOBBY_TOKEN": (run.data_dir / "lobby.token").read_text().strip(),
    }
    (tmp_path / "server.py").write_text(file_of("../README.md", "server.py"))
    client = file_of("../README.md", "client.py")
    both = f"from server import admit\n{client}\nprint(admit(found['player']['token']))\n"
    printed = subprocess.run(
        [sys.executable, "-c", both],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.fullmatch(r"\S+:\d+ player_\S+\nTrue\n", printed)
    run.stop()


def test_tutorial_shows_the_server_of_the_template() -> None:
    shown = file_of("tutorials/browser-game.md", "../star-catcher/server/server.py")
    template = ROOT / "clients/cli/src/pyservice_cli/templates/ws-python/server/server.py"
    assert shown.strip() == template.read_text().strip()


# Pages and how often they start the service.
@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (("quickstart.md",), 1),
        pytest.param(OPERATORS, 2, marks=pytest.mark.full),
        pytest.param(INCIDENTS, 3, marks=pytest.mark.full),
    ],
    ids=["quickstart", "operators", "incidents"],
)
def test_page_examples_run_with_their_own_service(
    names: tuple[str, ...], starts: int, shell: Shell, tmp_path: Path
) -> None:
    services: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "service.log"

    def serve(reader: Reader, text: str) -> None:
        ready_file = tmp_path / "ready.json"
        ready_file.unlink(missing_ok=True)
        program, *words = text.split()
        assert [Path(program).name, words[0]] == ["pyservice", "serve"]
        if "--config" not in words:  # Another program may use the default ports.
            words += [f"--{name}=127.0.0.1:0" for name in ("http", "grpc", "cdn", "metrics")]
        command = [sys.executable, "-m", "pyservice", *words]
        with log.open("ab") as errors:
            services.append(subprocess.Popen(command, cwd=tmp_path, stdout=errors, stderr=errors))
        end = time.monotonic() + TIMEOUT_S
        while not ready_file.exists():
            assert services[-1].poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        ready = json.loads(ready_file.read_text())
        reader.ports = {
            HTTP: port_of(ready["http"]),
            GRPC: port_of(ready["grpc"]),
            METRICS: port_of(ready["metrics"]),
            CDN: port_of(ready["cdn"]),
        }

    def wait_stopped() -> None:
        assert services[-1].wait(timeout=TIMEOUT_S) == 0, log.read_text()

    try:
        # The ports are unknown until the service starts.
        unbound = dict.fromkeys((HTTP, GRPC, METRICS, CDN), "0")
        reader = Reader(tmp_path, shell, unbound, serve, wait_stopped)
        for name in names:
            reader.follow(name)
        assert len(services) == starts
        services[-1].terminate()
        wait_stopped()
    finally:
        for service in services:
            if service.poll() is None:
                service.kill()
                service.wait()
        for data_dir in tmp_path.glob("data*"):
            end_leftovers(data_dir)


@pytest.mark.parametrize("name", ["use-postgresql", "try-a-captcha-provider"])
def test_page_examples_run_without_a_service(name: str, shell: Shell, tmp_path: Path) -> None:
    Reader(tmp_path, shell, {}).follow(f"how-to/{name}.md")


@pytest.mark.full
def test_script_of_the_browser_page_finds_and_connects(start_run: StartRun, browser: Any) -> None:
    run = start_run()
    port = wait_until_open(run)[CDN]
    domain = {"domain": "play.localhost"}
    call(run, "POST", "/cloud/games/arena/namespaces/prod/domains", "control/owner", domain)
    tab = browser.new_page()
    tab.goto(f"http://play.localhost:{port}/")
    script = file_of("how-to/use-a-browser-page.md", "find.js")
    message = "new Promise((resolve) => (socket.onmessage = (event) => resolve(event.data)))"
    received = tab.evaluate(f"async (api) => {{ {script} return await {message}; }}", run.api_url)
    assert json.loads(received)["type"] == "welcome"
    run.stop()


@pytest.mark.full
def test_roles_of_the_page_serve_together(tmp_path: Path) -> None:
    toml = file_of("how-to/run-the-service.md", "service.toml")
    (tmp_path / "service.toml").write_text(re.sub(r"(127\.0\.0\.1):\d+", r"\1:0", toml))
    ready_file, log = tmp_path / "ready.json", tmp_path / "log"
    (block, _) = blocks_of("how-to/run-the-planes-separately.md")
    processes = []
    try:
        for line in block.text.splitlines():
            command = [sys.executable, "-m", *line.split()]
            if "data" in command:
                command += ["--ready-file", str(ready_file)]
            with log.open("ab") as errors:
                processes.append(
                    subprocess.Popen(
                        command, cwd=tmp_path, env=clean_environment(), stdout=errors, stderr=errors
                    )
                )
        ready = wait_ready_file(processes[0], ready_file, log.read_text)
        metrics_of_all(f"http://{ready['metrics']}/metrics")
    finally:
        for process in processes:
            process.terminate()
        statuses = [process.wait(TIMEOUT_S) for process in processes]
        end_leftovers(tmp_path / "data")
    assert statuses == [0, 0, 0], log.read_text()


@pytest.mark.parametrize("name", PAGES)
def test_blocks_are_run_saved_or_plain_text(name: str) -> None:
    is_run = name in {page for names in SEQUENCES for page in names}
    previous = ""
    for block in blocks_of(name):
        where = f"{name}:{block.line}"
        if block.file:
            assert block.language in ("python", "toml", "yaml", "json", "html", "ini", "js"), where
        else:
            assert block.language in ("sh", "json", "text", "mermaid"), where
        if block.language == "sh":
            assert is_run, f"{where}: no test runs it; write `text` if none can"
        elif block.note.startswith("message: "):
            message = getattr(versions_pb2, block.note.removeprefix("message: "))
            decode = compile_decoder(message.DESCRIPTOR)
            assert not decode(message(), json.loads(block.text)), where
        elif block.language == "json" and previous != "sh":
            document = json.loads(block.text)
            if "code" in document:
                check_problem(document)
        previous = block.language


@pytest.mark.parametrize("names", [DEVELOPERS, LOBBY_SERVERS, OPERATORS])
def test_page_names_the_pages_that_it_needs(names: tuple[str, ...]) -> None:
    for index, name in enumerate(names[1:], 1):
        (needed,) = re.findall(r"^\*\*Before you begin:\*\* (.+)$", page(name), re.M)
        linked = re.findall(r"\]\(([\w-]+\.md)", needed)
        assert linked, name
        assert {f"how-to/{one}" for one in linked} <= set(names[:index]), name


def test_settings_of_games_on_pages_are_valid(tmp_path: Path) -> None:
    files = [block for name in PAGES for block in blocks_of(name)]
    settings = [one.text for one in files if one.file and one.file.endswith("hosting.toml")]
    assert len(settings) > 4
    for text in settings:
        (tmp_path / "hosting.toml").write_text(text)
        read_project(tmp_path)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert not [name for name in PAGES[1:] if f" {name}\n" not in navigation]


def test_how_to_pages_are_short() -> None:
    folders = ("how-to/", "kubernetes/")
    lines = {name: page(name).count("\n") for name in PAGES if name.startswith(folders)}
    assert len(lines) > 40
    assert {name for name, count in lines.items() if count > 150} == set()


OPERATIONS: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value_of(node: ast.expr) -> float:
    if isinstance(node, ast.BinOp):
        return OPERATIONS[type(node.op)](value_of(node.left), value_of(node.right))
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int | float)
    return node.value


def test_size_of_a_cluster_is_computed_correctly() -> None:
    rows = table_of("kubernetes/size-a-cluster.md", "size of a cluster")
    assert len(rows) > 30
    for what, amount, calculation, _ in rows:
        text = code(calculation).replace(",", "").replace("×", "*").replace("−", "-")
        [stated] = re.findall(r"\d[\d,]*\.?\d*", amount)
        digits = len(stated.partition(".")[2])
        computed = value_of(ast.parse(text, mode="eval").body)
        # Numbers of nodes are rounded up.
        assert abs(computed - float(stated.replace(",", ""))) < 10**-digits, what


def test_complete_lobby_server_has_less_than_60_lines() -> None:
    server = file_of("how-to/write-a-lobby-server.md", "room.py")
    assert sum(bool(line) for line in server.splitlines()) < 60


@pytest.mark.full
def test_complete_lobby_server_survives_a_service_restart(
    start_run: StartRun, tmp_path: Path
) -> None:
    run = start_run()
    port = wait_until_open(run)[ROOM]
    (tmp_path / "room.py").write_text(file_of("how-to/write-a-lobby-server.md", "room.py"))
    address = {"address": "127.0.0.1", "port": int(port)}
    path = "/cloud/games/arena/namespaces/prod/lobbies/attach"
    body = {"game_mode": "by-hand", "ports": {"game": address}}
    lobby = call(run, "POST", path, "environment", body)
    environment = {
        "HOSTING_API_URL": run.api_url,
        "HOSTING_LOBBY_TOKEN": lobby["lobby_token"],
        "PORT": port,
    }
    room = subprocess.Popen([sys.executable, tmp_path / "room.py"], env=os.environ | environment)

    def url_of_new_player() -> str:
        wish = {"lobby_id": lobby["lobby_id"]}
        joined = call(run, "POST", "/matchmaker/lobbies/join", "public", wish)
        return f"ws://127.0.0.1:{port}/?token={joined['player']['token']}"

    try:
        with connect(url_of_new_player()) as first:
            first.send("before")
            assert first.recv(timeout=TIMEOUT_S) == "before"
            os.kill(run.service_pid(), signal.SIGKILL)
            first.send("meanwhile")
            assert first.recv(timeout=TIMEOUT_S) == "meanwhile"
            with connect(url_of_new_player()) as second:
                second.send("after")
                assert first.recv(timeout=TIMEOUT_S) == "after"
        path = f"/cloud/games/arena/matchmaker/lobbies/{lobby['lobby_id']}"
        assert call(run, "DELETE", path, "environment") == {"did_remove": True}
        assert room.wait(timeout=TIMEOUT_S) == 0
    finally:
        room.kill()
        room.wait()
    run.stop()


@pytest.mark.parametrize(
    ("printed", "expected", "is_same"),
    [
        ({"a": "xyz", "n": 1}, {"a": "x...", "n": 7}, True),
        ({"a": "xyz", "n": 1}, {"a": "y...", "n": 1}, False),
        ({"a": "xyz"}, {"a": "xyz", "b": 1}, False),
        ({"a": "xyz", "b": 1}, {"a": "xyz"}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": True}, {"a": False}, False),
        ({"a": None}, {"a": 1}, False),
        ({"a": 1}, {"a": "..."}, False),
        ({"a": "127.0.0.1:31999"}, {"a": "127.0.0.1:26000"}, True),
        ({"a": "127.0.0.1:32000"}, {"a": "127.0.0.1:26000"}, False),
    ],
)
def test_response_that_differs_from_the_page_is_found(
    printed: Any, expected: Any, is_same: bool
) -> None:
    assert is_like(printed, expected) is is_same


def test_settings_table_matches_the_settings() -> None:
    rows = table_of("reference/settings.md", "settings")
    assert [[code(cell) for cell in row[:4]] for row in rows] == list(settings_rows(Settings))
    assert all(row[4] for row in rows)


def test_region_table_matches_its_fields() -> None:
    rows = table_of("reference/settings.md", "regions")
    defaults = {code(name): code(default) for name, default, _ in rows}
    assert defaults == {
        name: "" if setting.is_required() else str(setting.default)
        for name, setting in Region.model_fields.items()
    }


def test_every_flag_in_the_table_is_a_serve_flag() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "pyservice", "serve", "--help"],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for row in table_of("reference/settings.md", "settings"):
        assert re.search(rf"{code(row[2])}\b", help_text), row


@pytest.mark.full
def test_metrics_tables_match_the_metrics_pages(start_run: StartRun) -> None:
    run = start_run(bots=2)
    wait_until_open(run)
    ready = json.loads((run.data_dir / "ready.json").read_text())
    # A family without samples has no labels to compare. This request adds the sample of a failed read.
    unsigned = httpx.get(f"http://{ready['cdn']}{PREFIX}missing", timeout=TIMEOUT_S)
    assert unsigned.status_code == 403
    backup = [sys.executable, "-m", "pyservice", "backup", "create", str(run.data_dir / "backups")]
    subprocess.run([*backup, "--data-dir", str(run.data_dir)], check=True)
    # The use of game servers has a sample after two readings.
    until(lambda: "\nhosting_runtime_processor_used_cores " in httpx.get(run.metrics_url).text)
    live = families_of(metrics_of_all(run.metrics_url))
    socket = str(run.data_dir / "edge" / "admin.sock")
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=TIMEOUT_S) as admin:
        live_of_edge = families_of(admin.get("http://edge-guard/metrics").text)
    run.stop()
    of_edge = {name for name in live if name.startswith("hosting_edge_")}
    assert of_edge == {"hosting_edge_up", *live_of_edge}, (
        "the page of the service also has the families"
    )
    assert families_shown("metrics") == {
        name: live[name] for name in live if name not in live_of_edge
    }
    assert families_shown("edge metrics") == live_of_edge


@pytest.mark.parametrize(
    "message",
    [
        configuration_pb2.NamespaceConfiguration,
        configuration_pb2.MatchmakerLimits,
        configuration_pb2.Access,
        configuration_pb2.EnvironmentToken,
        configuration_pb2.MatchmakerConfig,
        configuration_pb2.GameMode,
    ],
)
def test_every_feed_field_is_documented(message: Any) -> None:
    text = page("reference/feed-file.md") + page("how-to/use-a-feed-file.md")
    # Users do not write these fields. The source of a file is always 0.
    missing = {name for name in message.DESCRIPTOR.fields_by_name if name not in text}
    assert missing <= {"source_epoch", "dev_hostname"}


@pytest.mark.parametrize(
    "message",
    [
        versions_pb2.CloudConfig,
        versions_pb2.VersionCdn,
        versions_pb2.VersionRoute,
        versions_pb2.VersionEngine,
        versions_pb2.VersionMatchmaker,
        versions_pb2.VersionCaptcha,
        versions_pb2.VersionGameMode,
        versions_pb2.VersionCreateAction,
        versions_pb2.VersionVerification,
        versions_pb2.VersionDocker,
        versions_pb2.VersionPort,
        versions_pb2.VersionIdleLobbies,
    ],
)
def test_every_configuration_field_is_documented(message: Any) -> None:
    words = set(re.findall(r"\w+", page("reference/version-configuration.md")))
    assert set(message.DESCRIPTOR.fields_by_name) <= words


def test_configuration_defaults_and_limits_match_the_code() -> None:
    rows = {code(row[0]): row for row in table_of("reference/version-configuration.md", "modes")}
    defaults = {
        "max_players": MAX_PLAYERS,
        "player_token_ttl": PLAYER_TOKEN_TTL_MS,
        "max_drain_ms": MAX_DRAIN_MS,
        "heartbeat_timeout": Settings().attached_heartbeat_timeout_ms,
        "heartbeat_grace_ms": Settings().heartbeat_grace_ms,
        "tier": f"`{TIER}`",
    }
    assert {name: rows[name][2] for name in defaults} == {
        name: str(default) for name, default in defaults.items()
    }
    assert f"at most {GAME_MODES_MAX};" in rows["game_modes"][3]
    assert f"1 to {Settings().player_limit_max}," in rows["max_players"][3]
    assert f"`max` ≤ {IDLE_LOBBIES_MAX}" in rows["idle_lobbies"][3]


@pytest.mark.parametrize(
    ("table", "application"), [("commands", app), ("developer commands", developer_app)]
)
def test_command_table_matches_the_commands(table: str, application: typer.Typer) -> None:
    documented = {
        code(command): set(re.findall(r"--[\w-]+", options))
        for command, _, options in table_of("reference/cli.md", table)
    }
    assert documented == dict(commands(typer.main.get_command(application)))
    before, _, after = page("reference/cli.md").partition(f"<!-- table: {table} -->")
    explained = before + after.partition("\n\n")[2]
    assert set().union(*documented.values()) <= set(re.findall(r"--[\w-]+", explained))


def test_paths_on_pages_are_operations() -> None:
    templates = {re.sub(r"{\w+}", "{}", method.template) for method in METHODS.values()}
    path = re.compile(r"`(?:[A-Z]+ )?(/(?:cloud|games|matchmaker|events)/[\w{}/-]*[\w}])[`?]")
    named = {(name, path_on_page) for name in PAGES for path_on_page in path.findall(page(name))}
    assert len(named) > 20
    assert not [one for one in named if re.sub(r"{\w+}", "{}", one[1]) not in templates]


def test_lobby_environment_matches_the_arena() -> None:
    names = re.compile(r"\bHOSTING_[A-Z_]+")
    read = set(names.findall((ROOT / "examples/arena/settings.py").read_text()))
    assert read <= set(names.findall(page("reference/matchmaker.md")))


def test_generated_pages_are_current() -> None:
    assert not generate.outdated(), f"run: {generate.COMMAND}"


def test_codes_on_pages_are_in_the_table() -> None:
    """Every span in capitals with an underscore is a known name.

    Known are error codes, variables, reasons of a failed lobby, and listed names of the system.
    """
    slug = re.compile(r"`([A-Z][A-Z\d]*(?:_[A-Z\d]+)+)`")
    variable = re.compile(
        r"(HOSTING|HATHORA|PYSERVICE|PORT|GAME|AF|CAP|CLONE|NETLINK|SO)_\w+|(CLOUD|PUBLIC|SERVICE)_TOKEN"
    )
    reasons = re.findall(r"[A-Z_]{4,}", COMMENTS["hosting.v1.LobbyRecord.failure"])
    system = {"LD_LIBRARY_PATH", "RLIMIT_AS", "SCHED_BATCH"}
    edge_guard = {
        *("SERVER_NOT_THERE", "SERVER_UNREACHABLE", "SERVER_HEADERS_TOO_LARGE", "SERVER_LATE"),
        *("REQUEST_INVALID", "PLAYER_WITHOUT_SLOT"),
    }
    commands_of_developers = {code(row[0]) for row in table_of("reference/cli.md", "failures")}
    known = {*TABLE, *reasons, *system, *edge_guard, *commands_of_developers}
    named = {(name, code_on_page) for name in PAGES for code_on_page in slug.findall(page(name))}
    assert len(named) > 100
    assert not {one for one in named if one[1] not in known and not variable.fullmatch(one[1])}


def test_page_links_resolve() -> None:
    broken = []
    for name, target, heading in links():
        path = (DOCS / name).parent / target if target else DOCS / name
        if not path.exists() or (heading and heading not in headings(path)):
            broken.append((name, target, heading))
    assert not broken
