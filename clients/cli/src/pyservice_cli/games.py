"""The game of a folder at a service: its paths in the API, versions, and removal."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyservice_cli.api import Answer, Api
from pyservice_cli.connections import find_connection
from pyservice_cli.failures import CommandFailed, InputInvalid, Problem, Refused
from pyservice_cli.project import Project, check_project, read_project, settings_invalid
from pyservice_cli.terminal import Terminal, table

FIRST_NAMESPACES: Final = ("prod", "staging")
"""Namespaces of a new game, which the service makes."""


class NamespaceUnknown(InputInvalid):
    """The game has no such namespace. Names the known ones, and the one that was probably meant."""

    code = "NAMESPACE_NOT_FOUND"

    def __init__(self, game: Game, known: Sequence[str], remedy: str) -> None:
        similar = difflib.get_close_matches(game.namespace.lower(), known, n=1)
        meant = f"; did you mean {similar[0]}?" if similar else "."
        super().__init__(f"{game.project.game} has no namespace {game.namespace}{meant}", remedy)


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

    @classmethod
    def open_with_mistakes(
        cls, folder: Path, namespace: str | None, profile: str | None
    ) -> tuple[Game, list[Problem]]:
        """Returns the game, without the wrong members of `hosting.toml`, and their problems.

        Raises InputInvalid with the problems if no service can find more.
        """
        project, mistakes = check_project(folder)
        try:
            connection = find_connection(profile)
        except CommandFailed:
            if mistakes:
                raise settings_invalid(mistakes) from None
            raise
        if project is None:
            raise settings_invalid(mistakes)
        return cls(project, Api(connection), namespace or project.namespace), mistakes

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
        """Returns the record of the namespace. Raises NamespaceUnknown."""
        try:
            answer: Answer = self.api.get(self.namespace_path)["namespace"]
        except Refused as refused:
            if refused.code not in ("NAMESPACE_NOT_FOUND", "ID_INVALID"):
                raise
            entries = self.api.pages(f"{self.path}/namespaces", "namespaces")
            known = [entry["name_id"] for entry in entries]
            raise NamespaceUnknown(
                self,
                known,
                f"Namespaces: {', '.join(known)}. "
                f"`pyservice create namespace {self.namespace}` creates another one.",
            ) from None
        return answer

    def check_first_namespace(self) -> None:
        """Raises NamespaceUnknown if the game, which is not created yet, will not have the namespace."""
        if self.namespace not in FIRST_NAMESPACES:
            names = ", ".join(FIRST_NAMESPACES)
            raise NamespaceUnknown(
                self,
                FIRST_NAMESPACES,
                f"Namespaces of a new game: {names}. Deploy to one of them first. "
                f"Then `pyservice create namespace {self.namespace}` creates another one.",
            )

    def create_namespace(self) -> dict[str, str]:
        """Creates the namespace with the version of `prod`, or else of the oldest namespace.

        The newest version of the game is not used, because its trial can have failed.
        """
        entries = list(self.api.pages(f"{self.path}/namespaces", "namespaces"))
        if not entries:
            raise CommandFailed(
                f"{self.project.game} has no namespace with a version for the new one.",
                "Create a namespace with the API, and name a version.",
            )
        default = FIRST_NAMESPACES[0]
        source = next((entry for entry in entries if entry["name_id"] == default), entries[0])
        version_id = source["version_id"]
        names = {"display_name": self.namespace, "name_id": self.namespace}
        answer = self.api.post(f"{self.path}/namespaces", {**names, "version_id": version_id})
        return {
            "namespace": self.namespace,
            "namespace_id": str(answer["namespace_id"]),
            "version": self.version_names().get(version_id, version_id),
            "version_id": version_id,
            "version_of": source["name_id"],
        }

    def lobbies(self) -> Iterator[Answer]:
        """Yields the records of all lobbies of the namespace, newest first."""
        return self.api.pages(f"{self.namespace_path}/logs/lobbies", "lobbies")

    def version_names(self) -> dict[str, str]:
        """Returns the names of all versions by their id, newest first."""
        versions = self.api.pages(f"{self.path}/versions", "versions")
        return {version["version_id"]: version["display_name"] for version in versions}

    def empty_version(self, names: Mapping[str, str]) -> str | None:
        """Returns the id of the version that the service made with the game, if it still exists.

        It is the oldest one, and has no configuration. `names` are those of all versions.
        """
        oldest = next(reversed(list(names)), None)
        if oldest is None:
            return None
        version = self.api.get(f"{self.path}/versions/{oldest}")["version"]
        return None if version["config"] else oldest

    def public_token(self) -> str:
        """Returns a token for clients of the namespace, the same one at each call."""
        return str(self.api.post(f"{self.namespace_path}/tokens/public", {"reuse": True})["token"])

    def api_url(self) -> str:
        """Returns the address of the API for clients."""
        return str(self.api.get("/cloud/bootstrap")["origins"]["api"])


def show_versions(terminal: Terminal, game: Game) -> None:
    """Prints the deployed versions that the namespace has run, newest first."""
    current = game.describe_namespace()["version_id"]
    names = game.version_names()
    empty = game.empty_version(names)
    entries = game.api.pages(f"{game.namespace_path}/version-history", "versions")
    history = [entry for entry in entries if entry["version_id"] != empty]
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


def destroy(terminal: Terminal, game: Game, *, is_confirmed: bool) -> None:
    """Deletes the game with all namespaces, versions, builds, sites, tokens and logs."""
    name = game.project.game
    if not is_confirmed:
        if not sys.stdin.isatty():
            raise InputInvalid("A deletion needs a confirmation.", "Give --yes.")
        question = (
            f"This deletes the game {name} at {game.api.url} and ends all of its lobbies.\n"
            f"Type {name} to go on: "
        )
        if terminal.ask(question) != name:
            raise CommandFailed("Nothing was deleted.", "Type the name of the game, or give --yes.")
    game.api.delete(game.path, force="true")
    terminal.finish({"game": name, "deleted": True}, f"The game {name} is deleted.")


def create_namespace(terminal: Terminal, game: Game) -> None:
    """Creates the namespace with the version of `prod`, or else of the oldest namespace."""
    created = game.create_namespace()
    terminal.finish(
        created,
        f"Created the namespace {game.namespace} with version {created['version']} "
        f"of {created['version_of']}.",
    )


def create_development_token(terminal: Terminal, game: Game, hostname: str | None) -> None:
    """Prints a token for a client and a server on this machine."""
    body: dict[str, Any] = {} if hostname is None else {"hostname": hostname}
    answer = game.api.post(f"{game.namespace_path}/tokens/development", body)
    terminal.finish(answer, str(answer["token"]))


def show_public_token(terminal: Terminal, game: Game) -> None:
    """Prints a token for clients of the namespace, the same one at each call."""
    answer = {"api_url": game.api_url(), "token": game.public_token()}
    terminal.finish(answer, answer["token"])
