"""`image`, `dockerfile`, `build_args` and `game_module` of `hosting.toml`."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice_cli.application import run
from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE
from pyservice_cli.failures import ExitStatus
from pyservice_cli.project import read_project
from tests.support.container_images import has_oci_runtime, needs_oci_runtime, saved, server_layer
from tests.support.full_service import FullService, running

HAS_OCI_RUNTIME: Final = has_oci_runtime()
SETTINGS: Final = """
game = "{name}"
[matchmaker.game_modes.duel.docker]
dockerfile = "Dockerfile"
build_args = {{ GREETING = "hello" }}
ports.game.protocol = "http"
"""
DOCKERFILE: Final = """
FROM scratch
ARG GREETING
COPY start /start
ENV GREETING=$GREETING
CMD ["/start"]
"""
DOCKER: Final = """#!{python}
import json, pathlib, shutil, sys
folder = pathlib.Path({folder!r})
with (folder / "words").open("a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
if sys.argv[1:3] == ["image", "inspect"]:
    if (folder / "absent").exists():
        sys.exit("no such image")
    print("sha256:" + "a" * 64)
elif sys.argv[1] == "pull":
    (folder / "absent").unlink()
elif sys.argv[1] == "save":
    shutil.copy(folder / "image.tar", sys.argv[sys.argv.index("--output") + 1])
"""


_numbers = itertools.count()


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    kinds: Any = {}
    if HAS_OCI_RUNTIME:
        kinds = {"kinds": ["archive", "docker_image"], "oci_runtime": shutil.which("crun")}
    with running(FullService(tmp_path_factory.mktemp("s"), runtime=kinds)) as service:
        yield service


@pytest.fixture
def folder(tmp_path: Path, full_service: FullService, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a game that the service does not have yet."""
    folder = tmp_path / "game"
    folder.mkdir()
    (folder / "Dockerfile").write_text(DOCKERFILE)
    (folder / "start").write_text("")
    (folder / "hosting.toml").write_text(SETTINGS.format(name=f"image-{next(_numbers)}"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setenv(URL_VARIABLE, f"http://{full_service.ready['http']}")
    monkeypatch.setenv(TOKEN_VARIABLE, full_service.cloud_token)
    return folder


@pytest.fixture
def docker_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a program with the options of docker into `PATH`. Returns the file with its words."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "docker"
    program.write_text(DOCKER.format(python=sys.executable, folder=str(programs)))
    program.chmod(0o755)
    (programs / "image.tar").write_bytes(saved(server_layer()))
    monkeypatch.setenv("PATH", str(programs))
    return programs / "words"


def deploy(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = run(["deploy", "--json", *words])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_missing_tool_is_named(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "podman"
    broken.write_text("#!/bin/sh\necho 'no user namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    status, result = deploy(capsys)
    assert status == ExitStatus.REFUSED
    assert "need docker, podman or buildah" in result["error"]["message"]
    assert result["error"]["problems"] == [
        {"place": "docker", "message": "is not installed"},
        {"place": "podman", "message": "no user namespace"},
        {"place": "buildah", "message": "is not installed"},
    ]


@pytest.mark.full
def test_image_is_built_and_exported_by_docker(
    folder: Path, docker_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, result = deploy(capsys, "--no-trial")
    if not HAS_OCI_RUNTIME:
        assert "must be a kind that this service runs (archive)" in str(result)
        assert status == ExitStatus.REFUSED
    words = [json.loads(line) for line in docker_words.read_text().splitlines()]
    game = read_project(folder).game
    name = f"localhost/{game}:latest"
    assert words[1] == [
        *("build", "--file", str(Path("Dockerfile")), "--tag", name),
        *("--build-arg", "GREETING=hello", "."),
    ]
    assert words[2][:2] == ["image", "inspect"]
    assert [*words[3][:2], words[3][-1]] == ["save", "--output", name]


@pytest.mark.full
def test_image_that_this_machine_lacks_is_fetched(
    folder: Path, docker_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "registry.example/server:1"
    fields = """dockerfile = "Dockerfile"\nbuild_args = { GREETING = "hello" }\n"""
    text = (folder / "hosting.toml").read_text()
    assert fields in text
    (folder / "hosting.toml").write_text(text.replace(fields, f'image = "{name}"\n'))
    (docker_words.parent / "absent").touch()
    deploy(capsys, "--no-trial")
    words = [json.loads(line) for line in docker_words.read_text().splitlines()]
    assert [one[0] for one in words] == ["info", "image", "pull", "image", "save"]
    assert words[2] == ["pull", name]
    assert words[4][-1] == name


@pytest.mark.full
def test_image_with_a_digest_is_uploaded_to_a_service_on_one_machine(
    folder: Path, docker_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"registry.example/server:1@sha256:{'ab' * 32}"
    text = SETTINGS.format(name=f"image-{next(_numbers)}")
    lines = [
        line for line in text.splitlines() if not line.startswith(("dockerfile", "build_args"))
    ]
    (folder / "hosting.toml").write_text("\n".join([*lines, f'image = "{name}"']))
    deploy(capsys, "--no-trial")
    words = [json.loads(line) for line in docker_words.read_text().splitlines()]
    assert [one[0] for one in words] == ["info", "image", "image", "save"]
    assert words[-1][-1] == name


@pytest.mark.full
@needs_oci_runtime
@pytest.mark.skipif(shutil.which("buildah") is None, reason="no buildah: apt-get install buildah")
def test_image_of_buildah_becomes_a_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, first = deploy(capsys, "--no-trial")
    assert first.get("changed") is True, first
    assert deploy(capsys, "--no-trial")[1]["changed"] is False
    (folder / "start").write_text("#!/bin/sh\n")
    assert deploy(capsys, "--no-trial")[1]["changed"] is True
    run(["list", "builds", "--json"])
    builds = json.loads(capsys.readouterr().out)["builds"]
    assert [build["complete"] for build in builds] == [True, True]


@pytest.mark.full
def test_build_args_need_a_dockerfile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "hosting.toml").read_text().replace("dockerfile", "image")
    (folder / "hosting.toml").write_text(text)
    status, result = deploy(capsys)
    assert status == ExitStatus.INPUT_INVALID
    (problem,) = result["error"]["problems"]
    assert problem["place"] == "matchmaker.game_modes.duel.docker.build_args"


def test_game_module_is_the_program_and_a_build_argument(tmp_path: Path) -> None:
    text = """
        game = "a"
        [build]
        [engine.unreal]
        game_module = "Arena"
    """
    (tmp_path / "hosting.toml").write_text(text)
    project = read_project(tmp_path)
    assert project.build is not None
    assert project.build.description == {"command": ["./ArenaServer.sh", "-log", "-port=$(PORT)"]}
    assert project.game_module == "Arena"
    (tmp_path / "server.json").write_text('{"command": ["./own"]}')
    other = read_project(tmp_path).build
    assert other is not None
    assert other.description == {}
