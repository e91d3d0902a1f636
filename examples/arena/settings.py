"""Settings of the server from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PORT_NAME = "game"


class SettingsError(Exception):
    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Settings:
    api_url: str
    lobby_id: str
    lobby_token: str = field(repr=False)
    port: int
    max_players: int


def read_settings(environment: Mapping[str, str]) -> Settings:
    problems: list[str] = []
    api_url = environment.get("HOSTING_API_URL", "").rstrip("/")
    if urlsplit(api_url).scheme not in ("http", "https") or not urlsplit(api_url).hostname:
        problems.append("HOSTING_API_URL must be an http or https address")
    for name in ("HOSTING_LOBBY_ID", "HOSTING_LOBBY_TOKEN"):
        if not environment.get(name):
            problems.append(f"{name} must be set")
    port_variable = f"PORT_{PORT_NAME.upper()}"
    if port_variable not in environment:
        port_variable = "PORT"
    port = _integer(environment, port_variable, "0", range(65536), problems)
    # The limits for joins of one player and of a party can exceed the limit of find.
    max_players = _integer(environment, "HOSTING_MAX_PLAYERS", "32", range(1, 65536), problems)
    limits = [
        _integer(environment, name, str(max_players), range(1, 65536), problems)
        for name in ("HOSTING_MAX_PLAYERS_DIRECT", "HOSTING_MAX_PLAYERS_PARTY")
    ]
    if problems:
        raise SettingsError(problems)
    return Settings(
        api_url=api_url,
        lobby_id=environment["HOSTING_LOBBY_ID"],
        lobby_token=environment["HOSTING_LOBBY_TOKEN"],
        port=port,
        max_players=max(max_players, *limits),
    )


def _integer(
    environment: Mapping[str, str], name: str, default: str, allowed: range, problems: list[str]
) -> int:
    text = environment.get(name, default)
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(allowed.stop))
    if is_number and int(text) in allowed:
        return int(text)
    problems.append(f"{name} must be an integer from {allowed.start} to {allowed.stop - 1}")
    return allowed.start
