"""The helpers as packages: each one has its files, a license and the version of the table."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.tracked_files import ROOT, relative, tracked

CLIENTS: Final = ROOT / "clients"
VERSION: Final = "0.1.0"
PACKAGES: Final = {
    "python": ("pyproject.toml", f'version = "{VERSION}"'),
    "typescript": ("package.json", f'"version": "{VERSION}"'),
    "csharp": ("HostingGame.csproj", f"<Version>{VERSION}</Version>"),
    "cpp": ("CMakeLists.txt", f"VERSION {VERSION} "),
    "gdscript/addons/hosting_game": ("plugin.cfg", f'version="{VERSION}"'),
}
COMMENT: Final = re.compile(r"\s*($|//|#|\*|/\*)")
SOURCES: Final = (
    ("python", 500, ["hosting_game.py"]),
    ("typescript", 540, ["src/player.ts", "src/server.ts"]),
    ("csharp", 670, ["Matchmaker.cs", "LobbyServer.cs"]),
    ("csharp", 180, ["Json.cs"]),
    ("cpp", 540, ["hosting_game.hpp", "hosting_game_server.hpp"]),
    ("cpp", 200, ["hosting_game_json.hpp"]),
    ("gdscript/addons/hosting_game", 500, ["*.gd"]),
)
"""Limits of lines without comments, and the files of players and lobby servers, or of JSON."""
STATEMENT_LINES_MAX: Final = 500
"""Lines of players and lobby servers in any language, also without lines that have only brackets."""
CONSUMER: Final = """cmake_minimum_required(VERSION 3.18)
project(game CXX)
find_package(hosting_game 0.1 REQUIRED)
add_library(game OBJECT game.cpp)
target_link_libraries(game hosting_game::hosting_game)
"""


def copied(language: str, folder: Path) -> Path:
    """Copies the tracked files of a package, because a build writes beside them."""
    for path in tracked(f"clients/{language}"):
        target = folder / relative(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder / "clients" / language


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("folder", [*PACKAGES, "cli"])
def test_package_has_the_license(folder: str) -> None:
    assert (CLIENTS / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(("folder", "manifest"), PACKAGES.items())
def test_package_has_the_version_of_the_table(folder: str, manifest: tuple[str, str]) -> None:
    name, version = manifest
    assert version in (CLIENTS / folder / name).read_text()
    assert re.search(r"^\| 0\.1 \|", (CLIENTS / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("folder", "limit", "patterns"), SOURCES)
def test_helper_is_short(folder: str, limit: int, patterns: list[str]) -> None:
    files = [path for pattern in patterns for path in (CLIENTS / folder).glob(pattern)]
    assert len(files) >= len(patterns)
    lines = [line for path in files for line in path.read_text().splitlines()]
    code = [line for line in lines if not COMMENT.match(line)]
    assert len(code) <= limit
    assert len([line for line in code if line.strip("(){}[];, ")]) <= STATEMENT_LINES_MAX


@pytest.mark.full
def test_wheel_has_the_module_and_the_license(tmp_path: Path) -> None:
    words = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")
    package = copied("python", tmp_path)
    run(sys.executable, "-m", "pip", *words, str(tmp_path), ".", cwd=package)
    [wheel] = tmp_path.glob("hosting_game-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hosting_game.py" in names
    assert any(name.endswith("/LICENSE") for name in names)
    assert not [name for name in names if "driver" in name or "example" in name]


@pytest.mark.full
def test_wheel_of_the_command_line_has_its_readme_and_license(tmp_path: Path) -> None:
    words = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")
    package = copied("cli", tmp_path)
    run(sys.executable, "-m", "pip", *words, str(tmp_path), ".", cwd=package)
    [wheel] = tmp_path.glob("pyservice_cli-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (description,) = (name for name in names if name.endswith("/METADATA"))
        assert (package / "README.md").read_text() in archive.read(description).decode()
    assert any(name.endswith("/LICENSE") for name in names)


@pytest.mark.full
def test_npm_package_has_the_compiled_modules(tmp_path: Path) -> None:
    libraries = CLIENTS / "typescript/node_modules"
    if not libraries.exists():
        pytest.skip("no libraries: apt-get install nodejs npm, then `make client-drivers`")
    package = copied("typescript", tmp_path)
    os.symlink(libraries, package / "node_modules")
    run("npm", "run", "build", cwd=package)
    [packed] = json.loads(
        run("npm", "pack", "--ignore-scripts", "--dry-run", "--json", cwd=package)
    )
    assert {entry["path"] for entry in packed["files"]} == {
        *("LICENSE", "README.md", "package.json"),
        *(f"dist/{name}{end}" for name in ("player", "server") for end in (".js", ".d.ts")),
    }


@pytest.mark.full
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake: apt-get install cmake")
def test_installed_headers_are_found_by_cmake(tmp_path: Path) -> None:
    prefix, game = tmp_path / "installed", tmp_path / "game"
    run("cmake", "-S", str(CLIENTS / "cpp"), "-B", "build", cwd=tmp_path)
    run("cmake", "--install", "build", "--prefix", str(prefix), cwd=tmp_path)
    game.mkdir()
    (game / "CMakeLists.txt").write_text(CONSUMER)
    (game / "game.cpp").write_text("#include <hosting_game.hpp>\n")
    run("cmake", f"-DCMAKE_PREFIX_PATH={prefix}", "-B", "build", cwd=game)
    run("cmake", "--build", "build", cwd=game)
