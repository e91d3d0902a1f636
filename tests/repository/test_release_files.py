"""`scripts/release-files`: list of parts, checksums, and the checks of wheels and tags."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import cyclonedx.schema
import jsonschema_rs
import pytest

from tests.support.tracked_files import ROOT

SCHEMAS: Final = Path(cyclonedx.schema.__file__).parent / "_res"
NATIVE: Final = ("pyservice/_native.abi3.so", "pyservice/bin/hosting-edge-guard")
PINNED: Final = re.compile(r"^([\w.-]+)(?:\[.*\])?==(\S+)", re.MULTILINE)
CRATE_PATH: Final = re.compile(rb"registry/src/[^/]+/([\w-]+?)-(\d+\.\d+\.\d+[\w.+-]*)/")
WHEEL: Final = "pyservice-0-cp311-abi3-manylinux_2_34_x86_64.whl"


def release_files(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts/release-files", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def write_wheel(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, content in files:
            wheel.writestr(name, content)


def schema(uri: str) -> dict[str, Any]:
    name = uri.rpartition("/")[2]
    document: dict[str, Any] = json.loads((SCHEMAS / name).read_text())
    return document


@pytest.mark.full
def test_release_names_each_part_that_it_ships(tmp_path: Path) -> None:
    natives = [(name, (ROOT / name).read_bytes()) for name in NATIVE]
    write_wheel(tmp_path, natives)
    result = release_files(tmp_path)
    assert result.returncode == 0, result.stderr
    [parts] = tmp_path.glob("pyservice-*.cdx.json")
    document = json.loads(parts.read_text())
    rules = jsonschema_rs.validator_for(schema("bom-1.6.SNAPSHOT.schema.json"), retriever=schema)
    assert not [error.message for error in rules.iter_errors(document)]
    listed = {one["purl"] for one in document["components"]}
    lock = (ROOT / "requirements/run.lock").read_text()
    packages = {f"pkg:pypi/{name}@{version}" for name, version in PINNED.findall(lock)}
    assert len(packages) > 50
    assert packages == {one for one in listed if one.startswith("pkg:pypi/")}
    # A program contains the path of each crate that can panic.
    linked = {
        f"pkg:cargo/{name.decode()}@{version.decode()}"
        for _, content in natives
        for name, version in CRATE_PATH.findall(content)
    }
    assert len(linked) > 30
    assert linked <= listed
    checked = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(checked, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    sums = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert {line.split()[1] for line in sums} == {WHEEL, parts.name, "run.lock"}


def test_wheel_that_needs_a_newer_glibc_is_refused(tmp_path: Path) -> None:
    write_wheel(tmp_path, [("pyservice/bin/program", b"\x7fELF GLIBC_2.34\0GLIBC_2.38\0")])
    result = release_files(tmp_path)
    assert result.returncode == 1
    assert result.stderr == f"{WHEEL}: pyservice/bin/program needs glibc 2.38\n"
    assert not (tmp_path / "SHA256SUMS").exists()


def test_folder_without_wheels_is_refused(tmp_path: Path) -> None:
    result = release_files(tmp_path)
    assert (result.returncode, "make wheel" in result.stderr) == (1, True)


@pytest.mark.parametrize("tag", ["v0.0.1", "0.2.0"])
def test_tag_of_another_version_is_refused(tag: str) -> None:
    result = release_files("--tag", tag)
    assert result.returncode == 1
    for file in ("Cargo.toml", "clients/cli/pyproject.toml", "pyproject.toml"):
        assert re.search(rf"^{file} has the version .+, and the tag is {tag}$", result.stderr, re.M)


def test_tag_of_this_version_is_accepted() -> None:
    [version] = re.findall(
        r'^version = "(.+)"', (ROOT / "clients/cli/pyproject.toml").read_text(), re.M
    )
    assert release_files("--tag", f"v{version}").returncode == 0
