"""Commands for developers: bad input, and a game from its first version to its removal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyservice_cli import uploading
from pyservice_cli.api import Api
from pyservice_cli.application import run
from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE
from pyservice_cli.failures import ExitStatus, InputInvalid, Interrupted
from pyservice_cli.local_services import Announcement, running_services
from pyservice_cli.packing import files_of, pack
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.full_service import FullService
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]


def write_settings(folder: Path, text: str) -> None:
    (folder / "hosting.toml").write_text(text)


def test_all_mistakes_of_the_settings_are_named_at_once(folder: Path, command: Command) -> None:
    mistakes = """
        game = "My Game"
        namspace = "prod"
        [build]
        comand = ["python3", "server.py"]
        exclude = "maps"
        [matchmaker.captcha.captcha_a]
        secret_key = "${env:CAPTCHA_SECRET}"
    """
    write_settings(folder, mistakes)
    ended = command("deploy")
    assert ended.status == ExitStatus.INPUT_INVALID
    for sentence in (
        "game: must have only a-z, 0-9 and single hyphens",
        "namspace: is not known; did you mean namespace?",
        "build.comand: is not known; did you mean command?",
        "build.exclude: must be a list",
        "matchmaker.captcha.captcha_a.secret_key: the environment variable CAPTCHA_SECRET is not set",
        "has 5 problems. Nothing was changed.",
    ):
        assert sentence in ended.errors


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'game = "a"\nbuild = [\n', 2),
        (b'game = "a"\nbuild = [\n\n\n', 2),
        (b'game = "a"\ndisplay_name = """\nA game', 3),
        (b'game = "a"\nbuild = = 1\nnamespace = "dev"\n', 2),
        (b'game = "a"\n# caf\xe9\n', 2),
    ],
    ids=["open list", "empty lines at the end", "open text", "wrong line", "other encoding"],
)
def test_syntax_error_has_its_line_and_a_remedy(
    folder: Path, command: Command, text: bytes, line: int
) -> None:
    (folder / "hosting.toml").write_bytes(text)
    ended = command("status", "--json")
    assert ended.status == ExitStatus.INPUT_INVALID
    error = ended.result["error"]
    assert re.findall(r"line (\d+)", error["message"]) == [str(line)]
    assert error["remedy"]


def test_wrong_names_and_types_of_the_configuration_are_named(
    folder: Path, command: Command
) -> None:
    text = (
        GAME.format(name="a") + 'max_player = 3\nlistable = "yes"\ndocker.ports.game.dev_port = "7"'
    )
    write_settings(folder, text)
    errors = command("deploy").errors
    mode = "matchmaker.game_modes.duel"
    assert f"{mode}.max_player: is not known; did you mean max_players?" in errors
    assert f"{mode}.listable: must be true or false" in errors
    assert f"{mode}.docker.ports.game.dev_port: must be a whole number" in errors


def test_help_lists_the_commands_of_developers_and_operators(command: Command) -> None:
    pages = [command(*words).output for words in (["--help"], ["-h"], [])]
    assert pages[0] == pages[1]
    for page in pages[:2]:
        for text in ("deploy", "Upload what changed", "serve", "Run the service", "token", "dev"):
            assert text in page
    assert "--dry-run" in command("deploy", "--help").output
    assert command("deplyo").status == ExitStatus.USAGE


def test_folder_without_a_game_says_what_to_do(command: Command) -> None:
    ended = command("deploy")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert "pyservice init" in ended.errors


def test_missing_service_says_what_to_do(command: Command) -> None:
    assert command("init").status == 0
    ended = command("deploy", "--json")
    assert ended.status == ExitStatus.NOT_ALLOWED
    assert ended.result["error"]["code"] == "NOT_LOGGED_IN"
    assert "pyservice serve" in ended.result["error"]["remedy"]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_wrong_address_says_what_to_check(
    command: Command, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    command("init")
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:{silent_port}")
    ended = command("deploy")
    assert ended.status == ExitStatus.NOT_ALLOWED
    assert TOKEN_VARIABLE in ended.errors
    monkeypatch.setenv(TOKEN_VARIABLE, "cloud_x")
    ended = command("deploy")
    assert ended.status == ExitStatus.UNREACHABLE
    assert f"Nothing listens at http://127.0.0.1:{silent_port}" in ended.errors


def test_init_does_not_overwrite_files(folder: Path, command: Command) -> None:
    (folder / "bot.py").write_text("mine")
    ended = command("init")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert "bot.py: exists" in ended.errors
    assert [path.name for path in folder.iterdir()] == ["bot.py"]


def test_archive_is_determined_by_the_files(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "kept.txt").write_text("a")
    (folder / "old.log").write_text("b")
    (folder / "maps").mkdir()
    (folder / "maps/large.map").write_text("c")
    (folder / "start").write_text("#!/bin/sh\n")
    archives = []
    for moment in (1, 2):
        os.utime(folder / "kept.txt", (moment, moment))
        path = folder.parent / f"{moment}.tar"
        with path.open("wb") as file:
            pack(files_of(folder, ("maps",)), {"command": ["./start"]}, file)
        archives.append(path)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        modes = {entry.name: entry.mode for entry in archive}
    assert modes == {"server.json": 0o644, ".gitignore": 0o644, "kept.txt": 0o644, "start": 0o755}


def test_files_that_an_archive_cannot_have_are_all_named(folder: Path) -> None:
    (folder / "out").symlink_to("/etc/passwd")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control.sock"))
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("")
    (folder / "inside").symlink_to("control.sock")
    with pytest.raises(InputInvalid) as raised:
        files_of(folder)
    assert {problem.place for problem in raised.value.problems} == {
        "out",
        "control.sock",
        "caf\\udce9.txt",
    }


def test_command_line_needs_nothing_of_the_service(folder: Path) -> None:
    """Imports every module and packs a build, as Windows would without `fcntl` and the service."""
    (folder / "start").write_bytes(b"#!/bin/sh\n")
    program = """
import importlib, io, pathlib, pkgutil, sys, tarfile
for name in ("fcntl", "pyservice", "pyservice._native"):
    sys.modules[name] = None
import pyservice_cli
for module in pkgutil.iter_modules(pyservice_cli.__path__):
    if module.name != "__main__":
        importlib.import_module("pyservice_cli." + module.name)
from pyservice_cli import packing
packing._HAS_MODES = False
archive = io.BytesIO()
packing.pack(packing.files_of(pathlib.Path()), {"command": ["./start"]}, archive)
archive.seek(0)
print([(entry.name, oct(entry.mode)) for entry in tarfile.open(fileobj=archive)])
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder
    )
    assert ended.stdout.strip() == "[('server.json', '0o644'), ('start', '0o755')]"


def test_ctrl_c_before_the_command_begins_has_its_exit_status() -> None:
    program = """
import builtins, signal

def interrupted_import(name, *more, original=builtins.__import__):
    if name == "typer":
        builtins.__import__ = original
        signal.raise_signal(signal.SIGINT)
    return original(name, *more)

builtins.__import__ = interrupted_import
import pyservice_cli
pyservice_cli.main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, "deploy"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitStatus.INTERRUPTED, ended.stderr
    assert ended.stderr.startswith("pyservice: INTERRUPTED: Interrupted.\n")


def test_announcement_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    token_file = tmp_path / "token"
    token_file.write_text("cloud_secret")
    announcement = Announcement.publish("http://127.0.0.1:1", token_file)
    (service,) = running_services()
    assert (service.url, service.token()) == ("http://127.0.0.1:1", "cloud_secret")
    assert "cloud_secret" not in service.announcement.read_text()
    # As if the process was killed: the kernel releases the lock, and the file stays.
    os.close(announcement._descriptor)
    assert not service.is_running()
    assert running_services() == []


def test_restarted_service_of_this_machine_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = Announcement.publish("http://127.0.0.1:1", tmp_path / "token")
    (service,) = running_services()
    before.withdraw()
    assert not service.is_running()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        other = Announcement.publish("http://127.0.0.1:1", tmp_path / "other-token")
        assert not service.is_running(), "a service with another token is another service"
        other.withdraw()
        patch.setattr(os, "getpid", lambda: 2)
        after = Announcement.publish("http://127.0.0.1:1", tmp_path / "token")
    assert service.is_running()
    after.withdraw()


GAME = """
game = "{name}"
[build]
command = ["python3", "server.py"]
[matchmaker.game_modes.duel]
max_players = 2
docker.ports.game.protocol = "http"
"""


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_game_is_deployed_changed_rolled_back_and_destroyed(folder: Path, command: Command) -> None:
    write_settings(folder, GAME.format(name="cli-game"))
    (folder / "server.py").write_text("print('one')\n")
    first = command("deploy", "--no-trial", "--json").result
    assert first["changed"] is True
    assert command("deploy", "--json").result == {**first, "changed": False}
    (folder / "server.py").write_text("print('two')\n")
    assert command("deploy", "--dry-run", "--json").result["changed"] is False
    second = command("deploy", "--no-trial", "--json").result
    assert second["version"] != first["version"]
    rows = command("versions", "--json").result["versions"]
    assert [row["version"] for row in rows[:2]] == [second["version"], first["version"]]
    assert command("rollback", "--json").result["version"] == first["version"]
    assert command("rollback", second["version"], "--json").result["changed"] is True
    ended = command("rollback", "9.9.9")
    assert (ended.status, "pyservice versions" in ended.errors) == (ExitStatus.INPUT_INVALID, True)
    assert first["version"] in command("versions").output
    assert len(command("list", "builds", "--json").result["builds"]) == 2
    assert command("destroy").status == ExitStatus.INPUT_INVALID
    assert command("destroy", "--yes", "--json").result == {"game": "cli-game", "deleted": True}
    ended = command("status")
    assert ended.status == ExitStatus.REFUSED
    assert "GAME_NOT_FOUND" in ended.errors


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_rollback_does_not_overwrite_the_deployment_of_another_person(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(folder, GAME.format(name="cli-two-people"))
    (folder / "server.py").write_text("print('one')\n")
    first = command("deploy", "--no-trial", "--json").result
    (folder / "server.py").write_text("print('two')\n")
    command("deploy", "--no-trial")
    put = Api.put

    def deploy_meanwhile(api: Api, path: str, body: Mapping[str, Any]) -> Any:
        monkeypatch.setattr(Api, "put", put)
        (folder / "server.py").write_text("print('three')\n")
        assert run(["deploy", "--no-trial"]) == ExitStatus.DONE
        return put(api, path, body)

    monkeypatch.setattr(Api, "put", deploy_meanwhile)
    ended = command("rollback", first["version"])
    assert ended.status == ExitStatus.REFUSED
    assert "VERSION_CHANGED: Another deployment set version" in ended.errors
    assert "run `pyservice rollback` again" in ended.errors
    rows = command("versions", "--json").result["versions"]
    assert rows[0]["version"] in ended.errors
    assert rows[0]["version"] != first["version"]
    assert command("rollback", first["version"], "--json").result["changed"] is True


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_commands_make_the_build_and_the_site(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = """
folder = "made"
build_command = "mkdir -p made && cp source.py made/server.py && echo compiled"
[cdn]
build_command = "mkdir -p site && echo $GREETING >site/index.html && echo rendered"
build_env = { GREETING = "hello" }
build_output = "site"
[matchmaker.game_modes.duel]"""
    text = GAME.format(name="cli-made").replace("[matchmaker.game_modes.duel]", commands)
    write_settings(folder, text)
    (folder / "source.py").write_text("")
    capfd.readouterr()
    assert run(["deploy", "--no-trial", "--json"]) == 0
    output, errors = capfd.readouterr()
    with urllib.request.urlopen(json.loads(output)["url"]) as page:
        assert page.read() == b"hello\n"
    assert {"compiled", "rendered"} <= set(errors.splitlines())
    assert (folder / "made/server.py").exists()
    write_settings(folder, text.replace("echo compiled", "exit 3"))
    assert run(["deploy", "--no-trial", "--json"]) == ExitStatus.REFUSED
    assert "build.build_command ended with exit status 3" in capfd.readouterr().err


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_interrupted_upload_goes_on_with_its_missing_parts(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(folder, GAME.format(name="cli-large"))
    (folder / "server.py").write_text("")
    with (folder / "large.map").open("wb") as file:
        file.truncate(130 << 20)
    send_part = uploading._send_part
    sent: list[int] = []

    def interrupt_second(api: Api, request: dict[str, Any], *more: Any) -> None:
        if sent:
            raise Interrupted
        sent.append(request["byte_offset"])
        send_part(api, request, *more)

    monkeypatch.setattr(uploading, "_send_part", interrupt_second)
    ended = command("deploy", "--no-trial")
    assert (ended.status, sent) == (ExitStatus.INTERRUPTED, [0]), ended.errors
    assert "version" not in ended.output
    monkeypatch.setattr(uploading, "_send_part", send_part)
    ended = command("deploy", "--no-trial")
    assert (ended.status, "2 parts are missing" in ended.output) == (0, True)
    assert [
        build["complete"] for build in command("list", "builds", "--json").result["builds"]
    ] == [True]


def stopped_lobby(command: Command, lobby_id: str) -> Any:
    """Returns the record, which the control plane gets after the response to the deletion."""

    def record() -> Any:
        ended = command("show", "lobby", lobby_id)
        found = ended.result["lobby"] if ended.status == 0 else None
        return found if found and found["state"] == "stopped" else None

    return until(record)


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_program_of_this_machine_becomes_a_lobby(folder: Path, command: Command) -> None:
    write_settings(folder, GAME.format(name="cli-attached") + "docker.ports.game.dev_port = 7001\n")
    (folder / "server.py").write_text("")
    command("deploy", "--no-trial")
    program = "import os; print(sorted(name for name in os.environ if 'PORT' in name or 'HOSTING' in name))"
    ended = command("dev", "attach", "--json", "--", sys.executable, "-c", program)
    assert ended.result["exit_code"] == 0
    record = stopped_lobby(command, ended.result["lobby_id"])
    assert record["lobby_group_name_id"] == "duel"
    printed = command("dev", "attach", "--port", "game=7002", "--json").result["environment"]
    assert (printed["PORT"], printed["PORT_GAME"], printed["HOSTING_GAME_MODE"]) == (
        "7002",
        "7002",
        "duel",
    )
    assert printed["HOSTING_LOBBY_TOKEN"].startswith("lobby_")
    ended = command("dev", "attach", "--port", "gmae=7002")
    assert (ended.status, "Names: game." in ended.errors) == (ExitStatus.INPUT_INVALID, True)


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_attached_program_gets_free_numbers_of_the_range(folder: Path, command: Command) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other_program:
        other_program.bind(("127.0.0.1", 0))
        first = other_program.getsockname()[1]
        settings = GAME.format(name="cli-range") + f"docker.ports.fixed.dev_port = {first + 1}\n"
        span = "docker.ports.{}.dev_port_range = {{ min = {}, max = {} }}\n"
        chat, game = (span.format(name, first, first + 50) for name in ("chat", "game"))
        write_settings(folder, settings + chat + game)
        (folder / "server.py").write_text("")
        command("deploy", "--no-trial")
        printed = command("dev", "attach", "--json").result["environment"]
        numbers = [int(printed[f"PORT_{name}"]) for name in ("FIXED", "GAME", "CHAT")]
        assert numbers[0] == first + 1
        assert first + 1 < numbers[1] < numbers[2] <= first + 50
        printed = command("dev", "attach", "--port", "game=1", "--json").result["environment"]
        assert (printed["PORT_GAME"], printed["PORT_CHAT"]) == ("1", str(numbers[1]))
        write_settings(folder, settings + span.format("chat", first, first + 1))
        ended = command("dev", "attach")
        assert ended.status == ExitStatus.INPUT_INVALID
        assert f"No port from {first} to {first + 1} is free for chat." in ended.errors


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
@pytest.mark.parametrize(
    ("settings", "options", "address"),
    [
        ("", (), "127.0.0.1"),
        ("[matchmaker]\ndev_hostname = 'localhost'\n", (), "localhost"),
        ("[matchmaker]\ndev_hostname = 'localhost'\n", ("--address", "127.0.0.2"), "127.0.0.2"),
    ],
)
def test_players_reach_an_attached_program_at_the_development_address(
    folder: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    options: tuple[str, ...],
    address: str,
) -> None:
    name = f"cli-address-{address.replace('.', '-')}"
    text = GAME.format(name=name) + "docker.ports.game.dev_port = 7001\n"
    table = "[matchmaker.game_modes.duel]"
    assert table in text
    write_settings(folder, text.replace(table, settings + table))
    (folder / "server.py").write_text("")
    command("deploy", "--no-trial")
    bodies = []
    post = Api.post

    def record(api: Api, path: str, body: Any, **more: Any) -> Any:
        bodies.append((path, body))
        return post(api, path, body, **more)

    monkeypatch.setattr(Api, "post", record)
    assert command("dev", "attach", *options).status == 0
    ((path, body),) = bodies
    assert path.endswith("/lobbies/attach")
    assert body["ports"] == {"game": {"address": address, "port": 7001}}


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_end_of_play_ends_its_bots(folder: Path, command: Command, number: signal.Signals) -> None:
    bot = '\n[play]\nbot = ["python3", "bot.py"]\n'
    write_settings(folder, GAME.format(name=f"cli-bots-{number.value}") + bot)
    (folder / "server.py").write_text("")
    (folder / "bot.py").write_text(
        "import os, signal; open(str(os.getpid()) + '.bot', 'w').close(); signal.pause()"
    )
    command("deploy", "--no-trial")
    # A test run under nohup ignores SIGHUP, and so would its programs.
    program = ["env", "--default-signal=HUP", sys.executable, "-m", "pyservice_cli"]
    play = subprocess.Popen([*program, "play", "--bots", "2"], cwd=folder)
    until(lambda: len(list(folder.glob("*.bot"))) == 2)
    play.send_signal(number)
    assert play.wait(PATIENCE_S) == 0
    bots = [int(path.stem) for path in folder.glob("*.bot")]
    assert not [pid for pid in bots if Path(f"/proc/{pid}").exists()]


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_problems_of_the_configuration_have_their_path(folder: Path, command: Command) -> None:
    text = GAME.format(name="cli-mistakes").replace(
        "max_players = 2", "max_players = 0\ntier = 'x'"
    )
    write_settings(folder, text)
    (folder / "server.py").write_text("")
    ended = command("deploy")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert "matchmaker.game_modes.duel.max_players: must be at least 1" in ended.errors
    tiers = ", ".join(
        sorted(one["tier_name_id"] for one in command("list", "tiers", "--json").result["tiers"])
    )
    expected = f"duel.tier: is not a tier of this service, which has {tiers}\n"
    assert expected in ended.errors
    # The game that this deployment created is gone.
    assert "GAME_NOT_FOUND" in command("status").errors


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_mistakes_that_only_the_service_finds_are_named_with_the_others(
    folder: Path, command: Command
) -> None:
    """Five mistakes in one run, before and after the game exists."""
    good = GAME.format(name="cli-five")
    bad = good.replace("[build]", '[build]\nfolder = "servr"\nexclude = "maps"') + (
        "max_player = 3\ntier = 'x'\nregions.nowhere.tier = 'basic-1d1'\n"
    )
    mode = "matchmaker.game_modes.duel"
    places = {"build.folder", "build.exclude", f"{mode}.max_player", f"{mode}.tier"}
    (folder / "server.py").write_text("")
    for is_new in (True, False):
        write_settings(folder, bad)
        ended = command("deploy", "--json")
        assert ended.status == ExitStatus.INPUT_INVALID
        error = ended.result["error"]
        found = [one["place"] for one in error["problems"]]
        assert len(found) == 5, found
        assert places < set(found)
        assert f"{mode}.regions.nowhere" in " ".join(found)
        assert error["message"] == "hosting.toml has 5 problems. Nothing was changed."
        write_settings(folder, good)
        games = command("list", "games", "--json").result["games"]
        assert ("cli-five" in [game["name_id"] for game in games]) is not is_new
        if is_new:
            assert command("deploy", "--no-trial").status == ExitStatus.DONE


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_wrong_token_and_scheme_are_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, full_service: FullService
) -> None:
    command("init")
    monkeypatch.setenv(TOKEN_VARIABLE, "cloud_wrong")
    ended = command("deploy")
    assert ended.status == ExitStatus.NOT_ALLOWED
    assert "TOKEN_INVALID" in ended.errors
    address = full_service.ready["http"]
    monkeypatch.setenv(URL_VARIABLE, f"https://{address}")
    ended = command("deploy")
    assert ended.status == ExitStatus.UNREACHABLE
    assert f"Use http://{address} instead." in ended.errors


@pytest.mark.full
def test_doctor_names_what_fails(
    folder: Path, command: Command, full_service: FullService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = command("doctor", "--json")
    assert ended.status == ExitStatus.REFUSED
    assert ended.result["error"]["message"] == "Failed: service, hosting.toml."
    monkeypatch.setenv(URL_VARIABLE, f"http://{full_service.ready['http']}")
    monkeypatch.setenv(TOKEN_VARIABLE, full_service.cloud_token)
    command("init")
    ended = command("doctor")
    assert ended.status == 0
    assert "covers all groups" in ended.output
    assert "not deployed yet" in ended.output
