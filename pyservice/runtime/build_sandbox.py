"""Sandbox of build workers, entered by `hosting-keeper --build-sandbox`."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyservice
from pyservice.runtime.keeper_binary import KEEPER_BINARY

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


def _shared_library_folders() -> set[Path]:
    """Returns the folders of the loaded shared libraries. Not all are below `/usr` and `/lib`."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    files = {line.split(maxsplit=5)[-1] for line in lines}
    return {Path(file).parent for file in files if file.startswith("/") and ".so" in file}


@functools.cache
def _read_paths() -> Sequence[Path]:
    paths = [
        Path(sys.executable).resolve(),
        *(Path(prefix, "lib").resolve() for prefix in (sys.base_prefix, sys.base_exec_prefix)),
        *_library_folders(),
        *_shared_library_folders(),
        _PACKAGE,
    ]
    system = [Path(path) for path in _SYSTEM_PATHS]
    return [
        *system,
        *(
            path
            for path in dict.fromkeys(paths)
            if not any(path.is_relative_to(other) for other in {*system, *paths} - {path})
        ),
    ]
