"""The wheel of `make wheel`, installed outside of the checkout with the packages of
`requirements/run.lock` and no others.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from tests.support.doc_pages import blocks_of
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("hosting-edge-guard", "hosting-keeper")

pytestmark = pytest.mark.full


def wheel() -> Path:
    wheels = list((ROOT / "build/wheel").glob("*.whl"))
    assert len(wheels) == 1, "build/wheel must contain one wheel: run `make wheel`"
    return wheels[0]


def locked_packages() -> Iterator[metadata.Distribution]:
    lock = (ROOT / "requirements/run.lock").read_text()
    for name, version in re.findall(r"^([\w.-]+)(?:\[.*?\])?==(\S+)", lock, re.MULTILINE):
        package = metadata.distribution(name)
        assert package.version == version
        yield package


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Returns a virtual environment, made with the commands of `docs/how-to/install.md`. Links the
    locked packages of this environment, so that no index is needed.
    """
    folder = tmp_path / "environment"
    (block,) = blocks_of("how-to/install.md")
    create, *install = block.text.replace("/opt/hosting/.venv", str(folder)).splitlines()

    def run(command: str) -> None:
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PIP_NO_INDEX": "1"}
        subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env=environment, check=True)

    run(create)
    [packages] = folder.glob("lib/python*/site-packages")
    for package in locked_packages():
        for file in package.files or ():
            target = packages / file
            if ".." not in file.parts and file.suffix != ".pyc":
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.locate())
    shutil.copy(ROOT / "requirements/run.lock", tmp_path)
    shutil.copy(wheel(), tmp_path)
    for command in install:
        run(command)
    run(f"{folder}/bin/pip check")
    installed = packages / "pyservice"
    assert (installed / "_native.abi3.so").exists()
    assert all((installed / "bin" / name).stat().st_mode & 0o111 for name in PROGRAMS)
    return folder


def test_service_starts_from_the_installed_wheel(environment: Path, tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    local = [f"--{server}=127.0.0.1:0" for server in ("http", "grpc", "cdn", "metrics")]
    service = subprocess.Popen(
        [environment / "bin/pyservice", "serve", *local, "--ready-file", ready_file],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
    )
    try:
        until(lambda: ready_file.exists() or service.poll() is not None)
        metrics = json.loads(ready_file.read_text())["metrics"]
        until(lambda: httpx.get(f"http://{metrics}/readyz", timeout=PATIENCE_S).status_code == 200)
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_S) == 0
