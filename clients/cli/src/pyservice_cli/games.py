"""The game of a folder at a service: its paths in the API, versions, and removal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyservice_cli.api import Answer, Api
from pyservice_cli.connections import find_connection
from pyservice_cli.failures import CommandFailed, InputInvalid
from pyservice_cli.project import Project, read_project
from pyservice_cli.terminal import Terminal, table


@dataclass(frozen=True, slots=True)
class Game:
    """The game of a folder, in one namespace of a service."""

    project: Project
    api: Api
    namespace: str

    @classmethod
    def open(cls, folder: Path, namespace: str | None, profile: str | None) -> Game:
        project = read_project(folder)
        return cls(project, Api(find_connection(profile)), namespace or project.namespace)

    @property
    def path(self) -> str:
        return f"/cloud/games/{self.project.game}"

    @property
    def namespace_path(self) -> str:
        return f"{self.path}/namespaces/{self.namespace}"

    @property
    def environment_path(self) -> str:
        return f"/games/{self.project.game}/environments/{self.namespace}"

    def describe_namespace(self) -> Answer:
        answer: Answer = self.api.get(self.namespace_path)["namespace"]
        return answer

    def version_names(self) -> dict[str, str]:
        """Returns the names of all versions by their id, newest first."""
        versions = self.api.pages(f"{self.path}/versions", "versions")
        return {version["version_id"]: version["display_name"] for version in versions}


def show_versions(terminal: Terminal, game: Game) -> None:
    """Prints the versions that the namespace has run, newest first."""
    names = game.version_names()
    history = list(game.api.pages(f"{game.namespace_path}/version-history", "versions"))
    current = game.describe_namespace()["version_id"]
    rows = [
        {
            "version": names.get(entry["version_id"], "(deleted)"),
            "deployed": entry["deploy_ts"],
            "version_id": entry["version_id"],
            "runs": index == 0 and entry["version_id"] == current,
        }
        for index, entry in enumerate(history)
    ]
    terminal.finish({"versions": rows}, *table(rows, ("version", "deployed", "runs")))


def roll_back(terminal: Terminal, game: Game, name: str | None) -> None:
    """Sets a version that the namespace ran before, by default the last other one."""
    names = game.version_names()
    current = game.describe_namespace()["version_id"]
    if name is None:
        history = game.api.pages(f"{game.namespace_path}/version-history", "versions")
        earlier = [entry["version_id"] for entry in history if entry["version_id"] in names]
        target = next((one for one in earlier if one != current), None)
        if target is None:
            raise CommandFailed(f"{game.namespace} has run no other version.")
    else:
        named = [one for one, version in names.items() if name in (one, version)]
        if not named:
            raise InputInvalid(f"There is no version {name}.", "`pyservice versions` lists them.")
        target = named[0]
    if target == current:
        terminal.finish(
            {"version": names[target], "version_id": target, "changed": False},
            f"Nothing changed: {game.namespace} runs version {names[target]}.",
        )
        return
    game.api.put(f"{game.namespace_path}/version", {"version_id": target})
    terminal.finish(
        {"version": names[target], "version_id": target, "changed": True},
        f"{game.namespace} runs version {names[target]} again.",
        f"Lobbies of version {names.get(current, current)} end when they are empty.",
    )


def destroy(terminal: Terminal, game: Game, *, is_confirmed: bool) -> None:
    """Deletes the game with all namespaces, versions, builds, sites, tokens and logs."""
    name = game.project.game
    if not is_confirmed:
        if not sys.stdin.isatty():
            raise InputInvalid("A deletion needs a confirmation.", "Give --yes.")
        terminal.say(f"This deletes the game {name} at {game.api.url} and ends all of its lobbies.")
        if input(f"Type {name} to go on: ").strip() != name:
            raise CommandFailed("Nothing was deleted.")
    game.api.delete(game.path, force="true")
    terminal.finish({"game": name, "deleted": True}, f"The game {name} is deleted.")


def create_development_token(terminal: Terminal, game: Game, hostname: str | None) -> None:
    """Prints a token for a client and a server on this machine."""
    body: dict[str, Any] = {} if hostname is None else {"hostname": hostname}
    answer = game.api.post(f"{game.namespace_path}/tokens/development", body)
    terminal.finish(answer, str(answer["token"]))
