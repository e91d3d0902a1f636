"""A running service with a game, and scenarios that create the state for one request.

Modules of `tests.contract.areas` register values of placeholders (`placeholder`), tokens of a kind
(`credential`) and preparations of an operation's example (`before`).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from pyservice.openapi import FilledExample, fill_example
from pyservice.schema.methods import METHODS, Method
from tests.contract.admission_servers import AdmissionServers, open_admission_servers
from tests.support import game_programs
from tests.support.data_plane_service import GAME, UNLIMITED, document
from tests.support.full_service import REPEATED_S, SHARED_QUOTAS, may_be_repeated
from tests.support.supervised_service import SupervisedService

Result = TypeVar("Result")

PORTS: Final = {"game": {"protocol": "tcp"}}
MODES: Final[dict[str, dict[str, Any]]] = {
    "duel": {"max_players": 64, "taggable": True},
    "pair": {"max_players": 2, "taggable": True},
    "large": {"max_players": 256, "taggable": True},
    "quick": {"max_players": 2, "player_token_ttl": 5_000},
    "empty": {"max_players": 2, "actions": {"create": {"enabled": True}}},
    "quiet": {"max_players": 2, "taggable": False, "actions": {"create": {"enabled": True}}},
    "invited": {"max_players": 2, "actions": {"find": {"enabled": False}}},
    "public": {"max_players": 2, "actions": {"join": {"enabled": False}}},
    "elsewhere": {
        "max_players": 2,
        "regions": {"far": {}},
        "actions": {"create": {"enabled": True}},
    },
}
HOSTED: Final[dict[str, dict[str, str]]] = {
    "hosted": {},
    "mute": {"PLAY": "mute"},
    "broken": {"PLAY": "exit:3"},
    "unstoppable": {"PLAY": "guests ignore-sigterm"},
}
"""Modes with lobbies that the service starts, and the environment of their server
(`tests.programs.server`).
"""
VERIFIED: Final = {"allowed": 200, "denied": 403, "unanswered": 500}
"""Modes with the status that their verification server returns."""
REGIONS: Final = [
    {"name_id": "local", "region_display_name": "Local", "latitude": 50.1, "longitude": 8.7},
    {"name_id": "far", "region_display_name": "Far away", "latitude": -33.9, "longitude": 151.2},
]
SOURCE_LIMIT: Final = 64
SETTINGS: Final[dict[str, Any]] = {
    **UNLIMITED,
    "regions": REGIONS,
    "trusted_proxies": ["127.0.0.1"],
    "find_wait_ms": 8_000,
    "empty_lobby_grace_ms": 0,
    "runtime": game_programs.SETTINGS,
    "quotas": SHARED_QUOTAS,
}
ORIGIN: Final = "https://play.example.com"
CLAIMED: Final = "claimed.example.com"
"""Domain of a namespace that exists only in the data plane."""
OTHER_GAME: Final = document(
    game={
        "game_id": "0192f000-0000-7000-8000-0000000000a9",
        "name_id": "other-game",
        "display_name": "Other game",
    },
    access={"domains": [CLAIMED]},
)
BY_SLUG: Final[dict[str, Method]] = {method.slug: method for method in METHODS.values()}


@dataclass(repr=False)
class ServedGame:
    """A running service with one game. Namespace `small` allows one lobby, `guarded` requires a
    captcha.

    `database_url` None means a SQLite file.
    """

    service: SupervisedService
    admission_servers: AdmissionServers
    cloud_token: str
    group_id: str
    database_url: str | None = None
    version_id: str = ""
    environment_id: str = ""
    public_token: str = ""
    guarded_public_token: str = ""
    service_tokens: dict[str, str] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)
    _results: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], Result]) -> Result:
        if name not in self._results:
            self._results[name] = make()
        result: Result = self._results[name]
        return result

    def scenario(self) -> Scenario:
        return Scenario(self)

    def cloud(self, method: str, path: str, body: Any = None) -> Any:
        return self.service.good(method, path, body, self.cloud_token)


@contextlib.contextmanager
def open_served_game(
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    make: Callable[..., SupervisedService] = SupervisedService,
    limits: Mapping[str, Any] | None = None,
    database_url: str | None = None,
) -> Iterator[ServedGame]:
    """Starts a service with one game in a folder. `changes` are added to its settings.

    With rate limits, the service restarts after its setup. `make` creates the service from the
    folder and `settings`. The database of the URL must be empty.
    """
    stored = {} if database_url is None else {"database_url": database_url}
    with open_admission_servers() as admission_servers:
        settings = {**SETTINGS, **admission_servers.settings, **stored, **(changes or {})}
        service = make(folder, settings=settings)
        service.feed_file.write_text(json.dumps({"namespaces": [OTHER_GAME]}))
        try:
            service.start()
            output = service.ready()
            token = service.host_path(output["cloud_token_file"]).read_text().strip()
            served_game = ServedGame(
                service, admission_servers, token, output["owner_group_id"], database_url
            )
            _furnish(served_game)
            if limits:
                service.stop()
                service.settings["rate_limits"] = limits
                service.start()
            served_game.document = service.good("GET", "/openapi.json")
            yield served_game
        finally:
            service.close()


def _furnish(served_game: ServedGame) -> None:
    game = {"developer_group_id": served_game.group_id, "display_name": GAME.capitalize()}
    served_game.cloud("POST", "/cloud/games", game)
    build_id = game_programs.upload_build(served_game.cloud, GAME, game_programs.server_archive())
    hosted = {name: _hosted(build_id, env) for name, env in HOSTED.items()}
    requested = {
        name: {**_hosted(build_id), "actions": served_game.admission_servers.actions(status)}
        for name, status in VERIFIED.items()
    }
    served_game.version_id = _version(served_game, "1.0.0", {**MODES, **hosted, **requested})
    guarded = {"duel": MODES["duel"], "hosted": hosted["hosted"]}
    guarded_id = _version(
        served_game, "guarded", guarded, captcha=served_game.admission_servers.captcha
    )
    base = f"/cloud/games/{GAME}"
    for name, lobbies in (("prod", 10_000), ("small", 1), ("lab", 10_000), ("guarded", 10_000)):
        namespace_path = f"{base}/namespaces/{name}"
        if name == "prod":
            served_game.cloud(
                "PUT", f"{namespace_path}/version", {"version_id": served_game.version_id}
            )
        else:
            version_id = guarded_id if name == "guarded" else served_game.version_id
            namespace_fields = {"display_name": name, "name_id": name, "version_id": version_id}
            served_game.cloud("POST", f"{base}/namespaces", namespace_fields)
        sizes = {"lobby_count_max": lobbies, "max_players": SOURCE_LIMIT}
        served_game.cloud("POST", f"{namespace_path}/mm-config", sizes)
        tokens = f"/games/{GAME}/environments/{name}/tokens/service"
        served_game.service_tokens[name] = served_game.cloud("POST", tokens, {})["token"]
    served_game.cloud("POST", f"{base}/namespaces/prod/domains", {"domain": "play.example.com"})
    served_game.public_token, served_game.guarded_public_token = (
        served_game.cloud("POST", f"{base}/namespaces/{name}/tokens/public", {})["token"]
        for name in ("prod", "guarded")
    )


def _hosted(build_id: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {
        "max_players": 64,
        "taggable": True,
        "allow_dynamic_max_players": True,
        "player_token_ttl": 5_000,
        "tier": "basic-1d16",
        "actions": {"create": {"enabled": True, "enable_public": True}},
        "docker": {"image_id": build_id, "env": dict(env or {}), "ports": PORTS},
    }


def _version(
    served_game: ServedGame, name: str, modes: dict[str, dict[str, Any]], **level: Any
) -> str:
    entries = {mode: {"docker": {"ports": PORTS}, **values} for mode, values in modes.items()}
    config = {"matchmaker": {"game_modes": entries, **level}}
    response = served_game.cloud(
        "POST", f"/cloud/games/{GAME}/versions", {"display_name": name, "config": config}
    )
    return str(response["version_id"])


Of = Callable[["Scenario"], str]
_PLACEHOLDERS: Final[dict[tuple[str, str], Of]] = {}
_ANY: Final = ""
_CREDENTIALS: Final[dict[str, Of]] = {}
_BEFORE: Final[dict[str, Callable[[Scenario], object]]] = {}


def placeholder(name: str, service: str = _ANY) -> Callable[[Of], Of]:
    """Registers the value of the placeholder `{name}` in examples, for one service or for all
    services.
    """
    return lambda make: _PLACEHOLDERS.setdefault((name, service), make)


def credential(kind: str) -> Callable[[Of], Of]:
    """Registers the function that returns a token of a kind (its prefix)."""
    return lambda make: _CREDENTIALS.setdefault(kind, make)


def before(*slugs: str) -> Callable[[Callable[[Scenario], object]], None]:
    """Registers the preparation that the example of an operation needs."""

    def register(make: Callable[[Scenario], object]) -> None:
        for slug in slugs:
            _BEFORE[slug] = make

    return register


@dataclass(frozen=True, repr=False)
class Lobby:
    id: str
    token: str


class Scenario:
    def __init__(self, served_game: ServedGame) -> None:
        self.served_game = served_game
        self.service = served_game.service
        self.name = secrets.token_hex(4)
        # A client address of its own, so that scenarios do not share rate limits.
        self.address = ".".join(["10", *(str(part) for part in secrets.token_bytes(3))])
        self._results: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._results:
            self._results[name] = make()
        return self._results[name]

    def value(self, name: str, service: str = _ANY) -> str:
        """Returns the value of a placeholder. Raises KeyError for an unknown placeholder."""
        key = (name, service) if (name, service) in _PLACEHOLDERS else (name, _ANY)
        make = _PLACEHOLDERS[key]
        return str(self.once(str(key), lambda: make(self)))

    def example(self, slug: str) -> FilledExample:
        self.prepare(slug)
        method = BY_SLUG[slug]
        service = method.name.rsplit(".", 2)[1]
        return fill_example(method, lambda name: self.value(name, service))

    def bearer(self, kind: str) -> str:
        return str(self.once(f"token {kind}", lambda: _CREDENTIALS[kind](self)))

    @staticmethod
    def kinds() -> list[str]:
        return sorted(_CREDENTIALS)

    @staticmethod
    def can_fill(name: str) -> bool:
        return (name, _ANY) in _PLACEHOLDERS

    def prepare(self, slug: str) -> None:
        if slug in _BEFORE:
            self.once(f"before {slug}", lambda: _BEFORE[slug](self))

    def headers(self, kind: str | None) -> dict[str, str]:
        headers = {"x-forwarded-for": self.address}
        if kind == "origin":
            headers["origin"] = ORIGIN
        elif kind is not None:
            headers["authorization"] = f"Bearer {self.bearer(kind)}"
        return headers

    def call(self, slug: str, **changes: Any) -> httpx.Response:
        """Sends the example of an operation with changes.

        `fields` replace members of the body (None removes one). `body` or `content` (bytes) replace
        the whole body. `path` and `query` replace parameters. `token` is a kind, `bearer` is a
        token. `headers` are added.
        """
        request = self.request(slug, **changes)
        return self.service.client.send(request)

    def request(
        self,
        slug: str,
        *,
        token: str | None = "example",
        bearer: str | None = None,
        fields: Mapping[str, Any] | None = None,
        body: Any = ...,
        content: bytes | None = None,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        method = BY_SLUG[slug]
        example = self.example(slug)
        request_headers = self.headers(example.token if token == "example" else token)
        if bearer is not None:
            request_headers["authorization"] = f"Bearer {bearer}"
        if content is None and method.body_field:
            content = (example.body or "").encode()
            if body is not ...:
                content = json.dumps(body).encode()
            if fields:
                merged = {**json.loads(content or b"{}"), **fields}
                content = json.dumps(
                    {name: value for name, value in merged.items() if value is not None}
                ).encode()
        target = method.template.format(**{**example.path, **(path or {})})
        return self.service.client.build_request(
            method.http_method,
            f"http://{self.service.addresses['http']}{target}",
            params={**example.query, **(query or {})} or None,
            content=content,
            headers={**request_headers, **(headers or {})},
        )

    def good(self, slug: str, **changes: Any) -> Any:
        """Repeats the call while its 503 allows a repetition, as on a busy machine."""
        deadline = time.monotonic() + REPEATED_S
        while True:
            answer = self.call(slug, **changes)
            if answer.status_code != 503 or not may_be_repeated(answer.json().get("detail")):
                break
            assert time.monotonic() < deadline, f"{slug}: {answer.text}"
        assert answer.status_code == 200, f"{slug}: {answer.text}"
        return answer.json()

    def attach(self, mode: str = "duel", *, is_ready: bool = True, **fields: Any) -> Lobby:
        """Attaches a new lobby, tagged with the scenario's name if the mode allows tags."""
        if mode not in MODES or MODES[mode].get("taggable"):
            fields.setdefault("tags", {"scenario": self.name})
        response = self.good("attach", fields={"game_mode": mode, **fields})
        lobby = Lobby(response["lobby_id"], response["lobby_token"])
        if is_ready:
            self.good("ready", bearer=lobby.token, token=None)
        return lobby

    @property
    def lobby(self) -> Lobby:
        lobby: Lobby = self.once("lobby", self.attach)
        return lobby


@credential("cloud")
def _(scenario: Scenario) -> str:
    return scenario.served_game.cloud_token


@placeholder("game_id")
def _(scenario: Scenario) -> str:
    return GAME


@placeholder("namespace_id")
def _(scenario: Scenario) -> str:
    """The example changes the namespace, so it needs a namespace without players."""
    return "lab"


@placeholder("namespace_id", "Matchmaker")
def _(scenario: Scenario) -> str:
    return "prod"


@placeholder("environment_id")
def _(scenario: Scenario) -> str:
    return "lab"
