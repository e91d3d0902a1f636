"""Images in `deploy/container`, and the script that builds them without a container builder."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.container.build_image import Unsupported, read_stage
from pyservice.kubernetes.pod_manifest import USER_ID
from tests.support.tracked_files import ROOT

FOLDER: Final = ROOT / "deploy" / "container"
SERVICE: Final = (FOLDER / "service.Containerfile").read_text()
RUNNER: Final = (FOLDER / "runner.Containerfile").read_text()
SCRATCH: Final = 'FROM scratch\nCOPY server /server\nENTRYPOINT ["/server"]\nUSER 10001\n'


def build(folder: Path, *words: str, text: str = SCRATCH) -> subprocess.CompletedProcess[str]:
    containerfile, output = folder / "Containerfile", folder / "image.tar"
    containerfile.write_text(text)
    command = [sys.executable, FOLDER / "build_image.py", containerfile, output, "--name=it:1"]
    return subprocess.run([*map(str, command), *words], capture_output=True, text=True, check=False)


def files_of(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        members = [member for member in opened if member.isfile()]
        assert all(member.uid == member.gid == 0 for member in members)
        return {member.name: opened.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def test_service_runs_as_a_user_and_gets_sigterm() -> None:
    stage = read_stage(SERVICE)
    assert stage.config["User"] == "10001:10001"
    # With a shell as the first process, SIGTERM would not reach the service.
    assert stage.config["Entrypoint"][-2:] == ["-m", "pyservice"]
    assert stage.config["Cmd"] == ["serve"]
    assert stage.copied == ["/opt/hosting/packages"]
    assert f"PYTHONPATH={stage.copied[0]}" in stage.config["Env"]


def test_runner_has_the_languages_of_game_servers() -> None:
    stage = read_stage(RUNNER)
    assert stage.config["User"] == "10001:10001"
    assert {"python3", "nodejs", "openjdk-17-jre-headless"} <= set(stage.packages)
    # Programs ask for the name and the home of their user.
    [command] = stage.commands
    assert command.startswith(f"useradd --uid {USER_ID} ")
    assert command.endswith(" server")


def test_both_images_have_one_release_of_debian() -> None:
    assert read_stage(SERVICE).suite == read_stage(RUNNER).suite == "bookworm"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("FROM scratch\nRUN make install", "cannot run without a base: make install"),
        ("FROM scratch\nONBUILD ADD . /", "cannot follow: ONBUILD"),
        ("FROM alpine:3", "cannot build from alpine:3"),
    ],
)
def test_other_instructions_are_refused(text: str, problem: str) -> None:
    with pytest.raises(Unsupported, match=problem):
        read_stage(text)


def test_image_contains_the_added_files(tmp_path: Path) -> None:
    (tmp_path / "server").write_bytes(b"program")
    built = build(tmp_path, f"--add={tmp_path / 'server'}=/server")
    assert built.returncode == 0, built.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    blobs = files_of((tmp_path / "image.tar").read_bytes())

    def content(descriptor: dict[str, Any]) -> bytes:
        found = blobs[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(found).hexdigest()}"
        assert descriptor["size"] == len(found)
        return found

    [listed] = json.loads(blobs["index.json"])["manifests"]
    assert listed["annotations"]["io.containerd.image.name"] == "it:1"
    manifest = json.loads(content(listed))
    config = json.loads(content(manifest["config"]))
    assert config["config"] == {"Entrypoint": ["/server"], "User": "10001"}
    [layer] = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    assert files_of(content(layer)) == {"server": b"program"}


def test_missing_files_are_named(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert built.returncode == 1
    assert "--add PATH=/server" in built.stderr
    assert not (tmp_path / "image.tar").exists()
