"""Files that a deployment sends: those of the build, of the site, and of container images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pyservice_cli.build_commands import run_server_command, run_site_command
from pyservice_cli.container_images import image_problems
from pyservice_cli.failures import Problem
from pyservice_cli.ignore_rules import IgnoreRules
from pyservice_cli.packing import DESCRIPTION, Entry, scan
from pyservice_cli.project import Build, Project, settings_invalid
from pyservice_cli.python_packages import installed_packages
from pyservice_cli.terminal import Terminal

_COMMAND_MISSING: Final = 'is missing, such as command = ["python3", "server.py"]'


def make_files(terminal: Terminal, project: Project) -> None:
    """Runs the commands of the site and of the build, and installs Python packages.

    Raises InputInvalid if a deployment cannot send the files that they have made.
    """
    run_site_command(terminal, project)
    run_server_command(terminal, project)
    installed_packages(terminal, project)
    has_command = project.build is not None and project.build.build_command is not None
    has_command |= "build_command" in project.config.get("cdn", {})
    if has_command and (problems := file_problems(project, are_made=True)):
        raise settings_invalid(problems)


def file_problems(project: Project, *, are_made: bool) -> list[Problem]:
    """Returns why a deployment cannot send the files of the game.

    Unless `are_made`, says nothing of the folders that a command makes.
    """
    problems: list[Problem] = []
    build, cdn = project.build, project.config.get("cdn", {})
    has_site_files = are_made or "build_command" not in cdn
    if build is not None and (are_made or build.build_command is None):
        problems += _build_problems(build, project)
    if "build_output" in cdn and has_site_files:
        site = project.folder / cdn["build_output"]
        if site.is_dir():
            problems += _scanned_site(project)[1]
        else:
            problems.append(Problem("cdn.build_output", f"does not exist: {site}"))
    return [*problems, *image_problems(project, has_files=has_site_files)]


def _build_problems(build: Build, project: Project) -> list[Problem]:
    if not build.folder.is_dir():
        return [Problem("build.folder", f"does not exist: {build.folder}")]
    entries, problems = _scanned_build(build, project)
    if not build.description and not any(entry.name == DESCRIPTION for entry in entries):
        problems.append(Problem("build.command", _COMMAND_MISSING))
    return problems


def build_entries(build: Build, project: Project) -> list[Entry]:
    """Returns the files of the build in their order by name. Raises InputInvalid."""
    entries, problems = _scanned_build(build, project)
    if problems:
        raise settings_invalid(problems)
    return entries


def _scanned_build(build: Build, project: Project) -> tuple[list[Entry], list[Problem]]:
    rules = IgnoreRules.of(build.folder, build.exclude, project.folder)
    entries, problems = scan(build.folder, rules)
    remedy = "remove it, or list it in build.exclude"
    return entries, list(_of_setting("build.folder", problems, remedy))


def site_files(project: Project) -> dict[str, Path]:
    """Returns the files of the site by their path there. Raises InputInvalid."""
    entries, problems = _scanned_site(project)
    if problems:
        raise settings_invalid(problems)
    # A link is sent as the file that it leads to, because a site has no links.
    return {entry.name: entry.path for entry in entries}


def _scanned_site(project: Project) -> tuple[list[Entry], list[Problem]]:
    site = project.folder / project.config["cdn"]["build_output"]
    entries, problems = scan(site, IgnoreRules.of(site, (), project.folder))
    problems += [
        Problem(entry.name, f"is a link to {entry.target}, which is not a file")
        for entry in entries
        if entry.target is not None and not entry.path.is_file()
    ]
    remedy = "remove it, or list it in .gitignore"
    return entries, list(_of_setting("cdn.build_output", problems, remedy))


def _of_setting(place: str, problems: Iterable[Problem], remedy: str) -> Iterator[Problem]:
    """Yields the problems of files as those of the setting that names their folder."""
    for one in problems:
        yield Problem(place, f"{one.place}: {one.sentence}; {remedy}")
