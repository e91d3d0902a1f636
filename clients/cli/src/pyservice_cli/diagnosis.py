"""`pyservice doctor`: checks of this machine, the service, the token and the game."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from pyservice_cli.api import Api
from pyservice_cli.connections import Connection, find_connection
from pyservice_cli.failures import CommandFailed, Problem, Refused
from pyservice_cli.packing import files_of
from pyservice_cli.project import Project, read_project
from pyservice_cli.terminal import Terminal

_OK: Final = "ok"
_FAILED: Final = "failed"
_SKIPPED: Final = "skipped"
_Value = TypeVar("_Value")


class _Report:
    """Results of checks. A check that needs a failed one is skipped."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def check(self, name: str, look: Callable[[], tuple[_Value, str]]) -> _Value | None:
        try:
            value, text = look()
        except CommandFailed as failure:
            problems = "".join(f"; {problem}" for problem in failure.problems)
            text = f"{failure.code}: {failure.sentence}{problems} {failure.remedy}"
            self.rows.append({"check": name, "result": _FAILED, "text": text})
            return None
        self.rows.append({"check": name, "result": _OK, "text": text})
        return value

    def skip(self, name: str, text: str) -> None:
        self.rows.append({"check": name, "result": _SKIPPED, "text": text})

    def lines(self) -> Iterator[str]:
        width = max(len(row["check"]) for row in self.rows)
        for row in self.rows:
            yield f"{row['check']:{width}}  {row['result']:7}  {row['text']}"


def diagnose(terminal: Terminal, folder: Path, profile: str | None) -> None:
    """Prints the result of each check. Raises CommandFailed if one has failed."""
    report = _Report()
    report.check("python", lambda: (True, f"{platform.python_version()} on {platform.system()}"))
    report.check("pip", _pip)
    report.check("git", _git)
    connection = report.check("service", lambda: _service(profile))
    if connection is None:
        report.skip("token", "needs a service")
    else:
        report.check("token", lambda: _token(connection))
    project = report.check("hosting.toml", lambda: _settings(folder))
    if project is None or connection is None:
        report.skip("game", "needs a service and a valid hosting.toml")
    else:
        report.check("files", lambda: _files(project))
        report.check("game", lambda: _game(Api(connection), project))
    failed = [row for row in report.rows if row["result"] == _FAILED]
    if not failed:
        terminal.finish({"checks": report.rows}, *report.lines())
        return
    for line in report.lines():
        terminal.say(line)
    names = ", ".join(row["check"] for row in failed)
    problems = [Problem(row["check"], row["text"]) for row in failed] if terminal.is_json else ()
    raise CommandFailed(
        f"Failed: {names}.", "Do what the text of each failed check says.", problems
    )


def _pip() -> tuple[bool, str]:
    if importlib.util.find_spec("pip") is None:
        raise CommandFailed("This Python has no pip.", "build.python_requirements needs it.")
    return True, "found"


def _git() -> tuple[bool, str]:
    found = shutil.which("git")
    return True, found or "not found: versions get their names from a counter"


def _service(profile: str | None) -> tuple[Connection, str]:
    connection = find_connection(profile)
    Api(connection).get("/cloud/bootstrap")
    return connection, f"{connection.url} (profile {connection.profile})"


def _token(connection: Connection) -> tuple[bool, str]:
    scope = Api(connection).get("/cloud/auth/inspect")
    expiry = f", until {scope['expires_ts']}" if "expires_ts" in scope else ""
    covered = next(
        (f"one {kind}" for kind in ("game", "group") if f"{kind}_id" in scope), "all groups"
    )
    return True, f"covers {covered}{expiry}"


def _settings(folder: Path) -> tuple[Project, str]:
    project = read_project(folder)
    return project, f"game {project.game}, namespace {project.namespace}"


def _files(project: Project) -> tuple[bool, str]:
    if project.build is None:
        return True, "no build"
    files = files_of(project.build.folder, project.build.exclude, project.folder)
    return True, f"{len(files)} files in the build"


def _game(api: Api, project: Project) -> tuple[bool, str]:
    try:
        namespace = api.get(f"/cloud/games/{project.game}/namespaces/{project.namespace}")
    except Refused as refused:
        if refused.code != "GAME_NOT_FOUND":
            raise
        return True, "not deployed yet"
    return True, str(namespace["namespace"]["site_url"])
