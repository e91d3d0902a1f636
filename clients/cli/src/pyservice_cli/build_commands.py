"""Commands of `hosting.toml` that make the files of a build or of a site."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from pyservice_cli.failures import CommandFailed
from pyservice_cli.project import Project
from pyservice_cli.terminal import Terminal


def run_server_command(terminal: Terminal, project: Project) -> None:
    """Runs `build.build_command`, if there is one. Raises CommandFailed."""
    if project.build is not None and project.build.build_command is not None:
        _run(terminal, project, "build.build_command", project.build.build_command, {})


def run_site_command(terminal: Terminal, project: Project) -> None:
    """Runs `cdn.build_command`, if there is one. Raises CommandFailed."""
    cdn = project.config.get("cdn", {})
    if "build_command" in cdn:
        _run(terminal, project, "cdn.build_command", cdn["build_command"], cdn.get("build_env", {}))


def _run(
    terminal: Terminal, project: Project, place: str, command: str, variables: Mapping[str, str]
) -> None:
    """Runs a command in a shell, in the game's folder."""
    output = terminal.program_output
    environment = {**os.environ, **variables}
    ended = subprocess.run(
        command, shell=True, cwd=project.folder, env=environment, stdout=output, check=False
    )
    if ended.returncode:
        raise CommandFailed(
            f"{place} ended with exit status {ended.returncode}.", "Its lines above say why."
        )
