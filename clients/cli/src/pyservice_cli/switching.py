"""Switch of a namespace to a new or an earlier version, if no other deployment was faster."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Final

from pyservice_cli.api import Answer
from pyservice_cli.failures import CommandFailed, InputInvalid, Refused, Unreachable
from pyservice_cli.games import Game
from pyservice_cli.terminal import Terminal

PAGE_SETTINGS: Final = "hosting.json"
"""File of each site with the API's address and a public token. The game's page reads it."""

_SITE_TIMEOUT_S: Final = 10.0
"""The CDN reads the version of a namespace again after half a second."""
_POLL_S: Final = 0.05


def switch_version(game: Game, running: Answer, version_id: str, *, has_new_site: bool) -> None:
    """Sets a version in place of the running one, and waits until players can get in.

    The service answers when its matchmaker runs the version: each later find gets a lobby of it.
    With a new site, also waits until the CDN serves the new files. A site with passwords, or one that
    this machine cannot reach, is not waited for.

    Raises CommandFailed if the namespace runs another version than `running`.
    """
    page = f"{str(running['site_url']).rstrip('/')}/{PAGE_SETTINGS}"
    before = _served(game, page) if has_new_site else None
    _set_version(game, running, version_id, "deploy")
    if before is not None:
        _wait_for_site(game, page, before)


def roll_back(terminal: Terminal, game: Game, name: str | None) -> None:
    """Sets a version that the namespace ran before, by default the last other one."""
    names = game.version_names()
    empty = game.empty_version(names)
    running = game.describe_namespace()
    current = running["version_id"]
    if name is None:
        history = game.api.pages(f"{game.namespace_path}/version-history", "versions")
        earlier = [entry["version_id"] for entry in history if entry["version_id"] in names]
        target = next((one for one in earlier if one not in (current, empty)), None)
        if target is None:
            raise CommandFailed(
                f"{game.namespace} has no earlier version that was deployed.",
                "`pyservice list versions` prints all versions of the game. Name one of them.",
            )
    else:
        named = [one for one, version in names.items() if name in (one, version)]
        if not named:
            raise InputInvalid(f"There is no version {name}.", "`pyservice versions` lists them.")
        target = named[0]
        if target == empty:
            raise InputInvalid(
                f"Version {names[target]} is empty: the service made it with the game.",
                "`pyservice versions` lists the versions that were deployed.",
            )
    if target == current:
        terminal.finish(
            {"version": names[target], "version_id": target, "changed": False},
            f"Nothing changed: {game.namespace} runs version {names[target]}.",
        )
        return
    _set_version(game, running, target, "rollback")
    terminal.finish(
        {"version": names[target], "version_id": target, "changed": True},
        f"{game.namespace} runs version {names[target]} again.",
        f"Lobbies of version {names.get(current, current)} end when they are empty.",
    )


def _set_version(game: Game, running: Answer, version_id: str, command: str) -> None:
    """Sets a version. Raises CommandFailed if the namespace runs another version than `running`."""
    body = {"version_id": version_id, "expected_version_id": running["version_id"]}
    try:
        game.api.put(f"{game.namespace_path}/version", body)
    except Refused as refused:
        if refused.code != "VERSION_CHANGED":
            raise
        raise _overtaken(game, command) from None


def _overtaken(game: Game, command: str) -> CommandFailed:
    now = game.describe_namespace()["version_id"]
    name = game.version_names().get(now, now)
    history = game.api.get(f"{game.namespace_path}/version-history", limit=1)["versions"]
    moment = f" at {history[0]['deploy_ts']}" if history else ""
    failure = CommandFailed(
        f"Another deployment set version {name} in {game.namespace}{moment}. Yours changed nothing.",
        f"Look at the other change, then run `pyservice {command}` again.",
    )
    failure.code = "VERSION_CHANGED"
    return failure


def _served(game: Game, page: str) -> tuple[int, str | None] | None:
    """Returns the status and the entity tag of a file, or None if this machine cannot see the site."""
    try:
        status, tag = game.api.fetch_tag(page)
    except Unreachable:
        return None
    return None if status in (401, 403) else (status, tag)


def _wait_for_site(game: Game, page: str, before: tuple[int, str | None]) -> None:
    until_s = time.monotonic() + _SITE_TIMEOUT_S
    while (now := _served(game, page)) is not None and (now == before or now[0] != HTTPStatus.OK):
        if time.monotonic() >= until_s:
            raise CommandFailed(
                f"The version is set, but {page} is not the new file yet.",
                "Check the domain of the site, then open the page again.",
            )
        time.sleep(_POLL_S)
