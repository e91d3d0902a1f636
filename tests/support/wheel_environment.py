"""A virtual environment with the wheels of `make wheel`, and the packages of `requirements/run.lock`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.doc_pages import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("hosting-edge-guard", "hosting-keeper")


def wheels() -> list[Path]:
    found = sorted((ROOT / "build/wheel").glob("*.whl"))
    names = [wheel.name.partition("-")[0] for wheel in found]
    assert names == ["pyservice", "pyservice_cli"], "run `make wheel`"
    return found


def locked_packages() -> Iterator[metadata.Distribution]:
    lock = (ROOT / "requirements/run.lock").read_text()
    for name, version in re.findall(r"^([\w.-]+)(?:\[.*?\])?==(\S+)", lock, re.MULTILINE):
        package = metadata.distribution(name)
        assert package.version == version
        yield package


def _link(source: Path, target: Path) -> None:
    """Makes a file of this name. A symbolic link would lead out of the sandbox of build checks."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a virtual environment, made with the commands of `docs/how-to/install.md`. Links the
    locked packages of this environment, so that no index is needed.
    """
    work = tmp_path_factory.mktemp("wheels")
    folder = work / "environment"
    (block,) = blocks_of("how-to/install.md")
    create, *install = block.text.replace("/opt/hosting/.venv", str(folder)).splitlines()

    def run(command: str) -> None:
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PIP_NO_INDEX": "1"}
        subprocess.run(["/bin/sh", "-c", command], cwd=work, env=environment, check=True)

    run(create)
    [packages] = folder.glob("lib/python*/site-packages")
    for package in locked_packages():
        for file in package.files or ():
            target = packages / file
            if ".." not in file.parts and file.suffix != ".pyc":
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(Path(str(file.locate())), target)
    shutil.copy(ROOT / "requirements/run.lock", work)
    for wheel in wheels():
        shutil.copy(wheel, work)
    for command in install:
        run(command)
    run(f"{folder}/bin/pip check")
    installed = packages / "pyservice"
    assert (installed / "_native.abi3.so").exists()
    assert all((installed / "bin" / name).stat().st_mode & 0o111 for name in PROGRAMS)
    return folder
