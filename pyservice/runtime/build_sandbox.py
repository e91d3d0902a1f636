"""Sandbox of build workers, entered by `hosting-keeper --build-sandbox`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyservice

KEEPER_BINARY: Final = Path(__file__).parent.parent / "bin" / "hosting-keeper"
SANDBOX_UID: Final = 1_999_999
"""User and group of build workers, and of trials, if the service is root."""

_PACKAGE: Final = Path(pyservice.__file__).resolve().parent
_SYSTEM_PATHS: Final = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")
_LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")
_PROBE_TIMEOUT_S: Final = 10.0


def sandboxed_python(module: str, words: Sequence[str], write: Path | None = None) -> list[str]:
    """Returns the command that runs a module of this package in the sandbox.

    The module can read the Python installation and this package, and write below `write`.
    """
    options = [f"read={path}" for path in _read_paths()]
    # The import system lists this folder. It can contain the settings and the data.
    options.append(f"list={_PACKAGE.parent}")
    if write is not None:
        options.append(f"write={write}")
    interpreter = os.path.realpath(sys.executable)
    return [*_sandbox(), *options, "--", interpreter, "-s", "-m", module, *words]


def sandbox_environment() -> Mapping[str, str]:
    """Returns the environment of a worker. It has no variable of the service, as some are secret."""
    folders = [*map(str, _library_folders()), str(_PACKAGE.parent)]
    return {"PYTHONPATH": os.pathsep.join(folders)}


async def refused_sandbox_parts() -> list[str]:
    """Returns the parts of the sandbox that this machine refuses, each with the reason."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            process = await asyncio.create_subprocess_exec(
                *_sandbox(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={}
            )
            output, _ = await process.communicate()
    except (OSError, TimeoutError) as error:
        return [f"a sandbox: {error}"]
    if process.returncode != 0:
        return [f"a sandbox: hosting-keeper ended with {process.returncode}"]
    return output.decode(errors="replace").splitlines()


def _sandbox() -> list[str]:
    return [str(KEEPER_BINARY), "--build-sandbox", f"uid={SANDBOX_UID}"]


def _library_folders() -> Iterator[Path]:
    """Yields the folders of the standard library and of installed packages, in import order.

    Other folders of `sys.path`, such as the working folder, can have secrets.
    """
    installation = Path(sys.base_prefix, "lib").resolve()
    for entry in filter(None, sys.path):
        folder = Path(entry).resolve()
        if folder.is_relative_to(installation) or folder.name in _LIBRARY_FOLDERS:
            yield folder


def _read_paths() -> Iterator[Path]:
    yield from map(Path, _SYSTEM_PATHS)
    paths = [
        Path(sys.executable).resolve(),
        *(Path(prefix, "lib").resolve() for prefix in (sys.base_prefix, sys.base_exec_prefix)),
        *_library_folders(),
        _PACKAGE,
    ]
    for path in dict.fromkeys(paths):
        above = [Path("/usr"), *(other for other in paths if other != path)]
        if not any(path.is_relative_to(folder) for folder in above):
            yield path
