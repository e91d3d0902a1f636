"""The service that a command talks to: its address and its token, and where both come from.

A command uses the first of these that exists:

- the profile that `--profile` names
- `PYSERVICE_URL` with `PYSERVICE_TOKEN`
- the profile of the last `login`
- the service that runs on this machine for this user
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyservice_cli.failures import InputInvalid, NotLoggedIn
from pyservice_cli.local_services import LocalService, configuration_folder, running_services

URL_VARIABLE: Final = "PYSERVICE_URL"
TOKEN_VARIABLE: Final = "PYSERVICE_TOKEN"
LOCAL: Final = "local"
"""Name of the profile of the service that runs on this machine."""
_PROFILES: Final = "profiles.json"


@dataclass(frozen=True, slots=True)
class Connection:
    url: str
    token: str | None
    """None for calls that need no token."""
    profile: str
    """Name of the profile, or `environment`."""
    local: LocalService | None = None


class Profiles:
    """The stored profiles of this user: an address and a token by name."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _PROFILES

    def read(self) -> tuple[dict[str, dict[str, str]], str | None]:
        """Returns the profiles, and the name of the current one. Raises InputInvalid."""
        try:
            content = json.loads(self._path.read_text())
            return dict(content["profiles"]), content.get("current")
        except FileNotFoundError:
            return {}, None
        except (ValueError, KeyError, TypeError):
            raise InputInvalid(
                f"{self._path} cannot be read.", "Delete the file, and run `pyservice login` again."
            ) from None

    def add(self, name: str, url: str, token: str) -> None:
        """Stores a profile and makes it the current one."""
        profiles, _ = self.read()
        self._write({**profiles, name: {"url": url, "token": token}}, name)

    def remove(self, name: str) -> bool:
        profiles, current = self.read()
        if name not in profiles:
            return False
        del profiles[name]
        self._write(profiles, None if current == name else current)
        return True

    def _write(self, profiles: Mapping[str, Mapping[str, str]], current: str | None) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
            json.dump({"current": current, "profiles": profiles}, file, indent=1)
        fresh.replace(self._path)


def normalized_url(text: str) -> str:
    """Returns the base of a service's address. Raises InputInvalid."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputInvalid(
            f"{text} is not an address of a service.",
            "Give its base, such as https://games.example.com.",
        )
    return f"{parts.scheme}://{parts.netloc}"


def find_connection(profile: str | None = None) -> Connection:
    """Returns the service of this command. Raises NotLoggedIn and InputInvalid."""
    if profile == LOCAL:
        return _local()
    if profile is None and (from_environment := _of_environment()):
        return from_environment
    profiles, current = Profiles(configuration_folder()).read()
    name = profile or current
    if name is None:
        return _local()
    if name not in profiles:
        known = ", ".join([LOCAL, *sorted(profiles)])
        raise InputInvalid(f"There is no profile {name}.", f"Profiles: {known}.")
    return Connection(profiles[name]["url"], profiles[name]["token"], name)


def _of_environment() -> Connection | None:
    url, token = os.environ.get(URL_VARIABLE), os.environ.get(TOKEN_VARIABLE)
    if not url and not token:
        return None
    if not url or not token:
        missing = TOKEN_VARIABLE if url else URL_VARIABLE
        raise NotLoggedIn(
            f"{missing} is not set.", f"Set both {URL_VARIABLE} and {TOKEN_VARIABLE}."
        )
    return Connection(normalized_url(url), token.strip(), "environment")


def _local() -> Connection:
    services = running_services()
    if not services:
        raise NotLoggedIn(
            "No service runs on this machine for this user, and no profile is stored.",
            "Start one with `pyservice serve` in another terminal, or log in to a service with `pyservice login URL`.",
        )
    if len(services) > 1:
        addresses = ", ".join(service.url for service in services)
        raise InputInvalid(
            f"Several services run on this machine: {addresses}.",
            f"Choose one with {URL_VARIABLE} and {TOKEN_VARIABLE}, or stop the others.",
        )
    (service,) = services
    try:
        token = service.token()
    except OSError as error:
        raise NotLoggedIn(f"{service.token_file} cannot be read: {error.strerror}.") from None
    return Connection(service.url, token, LOCAL, service)
