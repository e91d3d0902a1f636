"""Profiles: `login`, `logout` and `whoami`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pyservice_cli.api import Api
from pyservice_cli.connections import (
    LOCAL,
    Connection,
    Profiles,
    find_connection,
    normalized_url,
)
from pyservice_cli.failures import InputInvalid, NotLoggedIn
from pyservice_cli.local_services import configuration_folder
from pyservice_cli.terminal import Terminal, open_browser


def log_in(terminal: Terminal, url: str, token: str | None, profile: str | None) -> None:
    """Checks a token with the service and stores both."""
    base = normalized_url(url)
    if token == "-":
        token = sys.stdin.readline()
    token = token or _linked_token(terminal, base)
    name = profile or urlsplit(base).netloc
    if name == LOCAL:
        raise InputInvalid(f"The name {LOCAL} is reserved.", "Choose another --profile.")
    scope = Api(Connection(base, token.strip(), name)).get("/cloud/auth/inspect")
    Profiles(configuration_folder()).add(name, base, token.strip())
    terminal.finish(
        {"profile": name, "url": base, "scope": scope},
        f"Logged in to {base} (profile {name}).",
    )


def _linked_token(terminal: Terminal, url: str) -> str:
    """Creates a device link, and waits until a person has approved it in a browser."""
    api = Api(Connection(url, None, url))
    link = api.post("/cloud/devices/links")
    address = str(link["device_link_url"])
    open_browser(address)
    terminal.say(
        f"Open this address in a browser, and approve the access within 10 minutes:\n{address}"
    )
    index = None
    while True:
        answer = api.get(
            "/cloud/devices/links",
            device_link_token=link["device_link_token"],
            watch_index=index,
        )
        if "cloud_token" in answer:
            return str(answer["cloud_token"])
        index = answer["watch"]["index"]


def log_out(terminal: Terminal, profile: str | None) -> None:
    """Removes a profile, by default the current one."""
    profiles = Profiles(configuration_folder())
    _, current = profiles.read()
    name = profile or current
    if name is None or not profiles.remove(name):
        raise NotLoggedIn("There is no such profile." if name else "You are not logged in.")
    terminal.finish(
        {"profile": name},
        f"The profile {name} is removed. Its token stays valid until it is revoked.",
    )


def show_identity(terminal: Terminal, profile: str | None) -> None:
    """Prints the service and the scope of the token."""
    connection = find_connection(profile)
    scope = Api(connection).get("/cloud/auth/inspect")
    terminal.finish(
        {"url": connection.url, "profile": connection.profile, "scope": scope},
        f"service    {connection.url}",
        f"profile    {connection.profile}",
        *_scope_lines(scope),
    )


def _scope_lines(scope: Mapping[str, Any]) -> Iterator[str]:
    names = {
        "identity_id": "identity",
        "group_id": "group",
        "game_id": "game",
        "expires_ts": "expires",
    }
    for field, name in names.items():
        if field in scope:
            yield f"{name:10} {scope[field]}"
