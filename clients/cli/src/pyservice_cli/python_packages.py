"""Python packages of a game server, installed by pip into a folder of the game."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from pyservice_cli.failures import CommandFailed, InputInvalid
from pyservice_cli.ignore_rules import IgnoreRules
from pyservice_cli.packing import Entry, scan
from pyservice_cli.project import Project
from pyservice_cli.terminal import Terminal

PREFIX: Final = "python_packages"
"""Folder of the packages in the archive. `PYTHONPATH` names it."""


def installed_packages(terminal: Terminal, project: Project) -> Path | None:
    """Returns the folder with `build.python_requirements`. Installs them if they have changed."""
    if project.build is None or not project.build.python_requirements:
        return None
    requirements = project.build.python_requirements
    text = "\n".join([sys.version.split()[0], *requirements])
    folder = project.work_folder / "python" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    if importlib.util.find_spec("pip") is None:
        raise InputInvalid(
            "build.python_requirements needs pip, which this Python lacks.",
            f"Install it: {sys.executable} -m ensurepip",
        )
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    terminal.say(f"Installing {', '.join(requirements)} for the game server …")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # A module of bytes that a source does not determine would change the archive.
    command += ["--no-compile", "--target", str(fresh), *requirements]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        shutil.rmtree(fresh, ignore_errors=True)
        lines = "\n".join(ended.stderr.strip().splitlines()[-5:])
        raise CommandFailed(
            f"pip cannot install build.python_requirements:\n{lines}",
            "Check the names of the packages and your network.",
        )
    for record in [*fresh.glob("*.dist-info/RECORD"), *fresh.glob("*.dist-info/direct_url.json")]:
        record.unlink()
    fresh.rename(folder)
    return folder


def packed_packages(folder: Path) -> list[Entry]:
    """Returns the files of installed packages, with their names in the archive."""
    entries, problems = scan(folder, IgnoreRules.without_files())
    if problems:
        raise InputInvalid(
            "build.python_requirements has files that an archive cannot have.", "", problems
        )
    return [Entry(f"{PREFIX}/{one.name}", one.path, one.target) for one in entries]
