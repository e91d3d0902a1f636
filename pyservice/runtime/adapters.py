"""Adapters: how the service watches a lobby server that does not call it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyservice._native import LogPattern

READY: Final = ("calls", "port", "log", "query")
PLAYERS: Final = ("calls", "edge", "query")
UNKNOWN_PLAYERS: Final = ("refuse", "accept")
QUERIES: Final = ("a2s", "quake3", "minecraft", "http")

LOG_MATCH_MAX_BYTES: Final = 256
QUERY_PATH_MAX_BYTES: Final = 1024

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "ready": READY,
    "players": PLAYERS,
    "unknown_players": UNKNOWN_PLAYERS,
    "query": QUERIES,
}
_DATAGRAM_QUERIES: Final = ("a2s", "quake3")
_DATAGRAMS: Final = ("udp", "tcp_udp")
_PATH: Final = re.compile(r"/[\x21-\x7e]*")


@dataclass(frozen=True, slots=True)
class Adapter:
    """Settings with every default filled in. `port` and `query_port` are names of ports."""

    ready: str = "calls"
    port: str = ""
    log_match: str = ""
    query: str = ""
    query_port: str = ""
    query_path: str = "/"
    players: str = "calls"
    unknown_players: str = "refuse"

    @classmethod
    def of(cls, settings: Any, ports: Mapping[str, Any]) -> Adapter:
        """Returns the adapter of a valid configuration message. `ports` are those of the mode."""
        fields = {
            field: getattr(settings, field)
            for field in cls.__dataclass_fields__
            if settings.HasField(field)
        }
        port = fields.setdefault("port", next(iter(ports)) if len(ports) == 1 else "")
        fields.setdefault("query_port", port)
        return cls(**fields)

    @property
    def counting(self) -> str:
        """Returns how edge-guard counts sessions at `counted_port`.

        uncounted, compared with the count of a query, counted as players, or required of a player.
        """
        match self.players:
            case "calls":
                return "uncounted"
            case "query":
                return "compared"
            case _:
                return "required" if self.unknown_players == "refuse" else "counted"

    @property
    def counted_port(self) -> str:
        return self.port or self.query_port


class AdapterProblem(NamedTuple):
    field: str
    word: str
    """Code of the problem, such as `required`."""
    reason: str
    """Continues a sentence about the field."""


def adapter_problems(settings: Any, ports: Mapping[str, Any]) -> Iterator[AdapterProblem]:
    """Returns the problems of an adapter in a configuration message.

    `ports` has the port messages of the game mode by name.
    """
    invalid = [
        field
        for field, allowed in _CHOICES.items()
        if settings.HasField(field) and getattr(settings, field) not in allowed
    ]
    for field in invalid:
        yield AdapterProblem(field, "not-allowed", f"must be one of {', '.join(_CHOICES[field])}")
    if invalid:
        return
    yield from _log_problems(settings)
    yield from _query_problems(settings)
    if settings.HasField("unknown_players") and settings.players != "edge":
        yield AdapterProblem("unknown_players", "not-allowed", "requires players edge")
    yield from _port_problems(settings, ports)


def _log_problems(settings: Any) -> Iterator[AdapterProblem]:
    if settings.ready != "log":
        if settings.HasField("log_match"):
            yield AdapterProblem("log_match", "not-allowed", "requires ready log")
    elif not settings.log_match:
        yield AdapterProblem("log_match", "required", "is required, because ready is log")
    elif len(settings.log_match.encode()) > LOG_MATCH_MAX_BYTES:
        reason = f"must have at most {LOG_MATCH_MAX_BYTES} bytes"
        yield AdapterProblem("log_match", "too-long", reason)
    else:
        try:
            LogPattern(settings.log_match)
        except ValueError as error:
            problem = str(error).rpartition("error: ")[2].splitlines()[0]
            reason = f"must be a regular expression of RE2 syntax: {problem}"
            yield AdapterProblem("log_match", "invalid", reason)


def _query_problems(settings: Any) -> Iterator[AdapterProblem]:
    needs_query = "query" in (settings.ready, settings.players)
    if needs_query and not settings.query:
        reason = "is required, because ready or players is query"
        yield AdapterProblem("query", "required", reason)
    for field in ("query", "query_port", "query_path"):
        if settings.HasField(field) and not needs_query:
            yield AdapterProblem(field, "not-allowed", "requires ready query or players query")
    if needs_query and settings.HasField("query_path"):
        path = settings.query_path
        if settings.query != "http":
            yield AdapterProblem("query_path", "not-allowed", "requires query http")
        elif len(path.encode()) > QUERY_PATH_MAX_BYTES:
            reason = f"must have at most {QUERY_PATH_MAX_BYTES} bytes"
            yield AdapterProblem("query_path", "too-long", reason)
        elif not _PATH.fullmatch(path):
            reason = "must begin with / and have visible ASCII characters only"
            yield AdapterProblem("query_path", "invalid", reason)


def _port_problems(settings: Any, ports: Mapping[str, Any]) -> Iterator[AdapterProblem]:
    needs_query = "query" in (settings.ready, settings.players)
    needs_port = settings.ready == "port" or settings.players == "edge"
    needs_port = needs_port or (needs_query and not settings.HasField("query_port"))
    for field, is_needed in (("port", needs_port), ("query_port", False)):
        if settings.HasField(field):
            name = getattr(settings, field)
            if name not in ports:
                yield AdapterProblem(field, "not-found", "is not a port of this game mode")
            elif ports[name].proxy == "none":
                reason = "must be a port behind edge-guard, and this one has proxy none"
                yield AdapterProblem(field, "not-allowed", reason)
        elif is_needed and len(ports) != 1:
            reason = f"is required, because the game mode has {len(ports) or 'no'} ports"
            yield AdapterProblem(field, "required", reason)
    if needs_query and settings.query:
        yield from _queried_port_problems(settings, ports)


def _queried_port_problems(settings: Any, ports: Mapping[str, Any]) -> Iterator[AdapterProblem]:
    field = "query_port" if settings.HasField("query_port") else "port"
    port = ports.get(Adapter.of(settings, ports).query_port)
    if port is None:
        return
    is_datagram = settings.query in _DATAGRAM_QUERIES
    protocol = port.protocol or "https"
    has_protocol = protocol in _DATAGRAMS if is_datagram else protocol != "udp"
    if not has_protocol:
        over = "UDP" if is_datagram else "TCP"
        yield AdapterProblem(field, "not-allowed", f"must be a port of {over} for {settings.query}")
    if port.proxy_protocol == "v2":
        reason = "has proxy_protocol v2, and a query begins with no PROXY header"
        yield AdapterProblem(field, "not-allowed", reason)
