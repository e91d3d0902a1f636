"""Check of the setting `database_url`, and the part of it that logs may show."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

_DEFAULT_PORT: Final = 5432
_SCHEME: Final = re.compile(r"postgresql(\+[a-z0-9]+)?://")
_PARTS: Final = re.compile(r"(?P<authority>[^/?]*)(?P<path>[^?]*)(\?(?P<query>.*))?", re.DOTALL)
_HOSTS: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?(,(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?)*")


def database_url_problem(url: str) -> str | None:
    """Returns what is wrong with the URL of a PostgreSQL database, or None.

    The text contains no part of the URL, because that part could be a password.
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        return "must be a URL such as postgresql://user:password@host/name"
    rest = url[scheme.end() :]
    if "#" in rest:
        return "has a #: write %23"
    parts = _PARTS.fullmatch(rest)
    assert parts is not None
    authority, path, query = parts["authority"], parts["path"], parts["query"] or ""
    # Libraries disagree about the host if the part before it has an @.
    if authority.count("@") > 1:
        return "has an @ in the user name or password: write %40"
    is_host_cut = authority and "@" in path
    is_query_cut = "@" in query.partition("&")[0].partition("=")[0]
    is_host = _HOSTS.fullmatch(authority.rpartition("@")[2])
    if is_host_cut or is_query_cut or (not is_host and "@" not in authority):
        return "has a / or ? in the user name or password, or a wrong port: write %2F or %3F"
    return None if is_host else "has a host or port that is not valid"


def database_location(url: str) -> str:
    """Returns `host:port/name` of a database URL, without user and password."""
    parts = urlsplit(url)
    query = {name: ",".join(values) for name, values in parse_qs(parts.query).items()}
    # Unlike `hostname` and `port`, this accepts several hosts.
    authority = parts.netloc.rpartition("@")[2]
    name = unquote(parts.path.removeprefix("/")) or query.get("dbname", "")
    if "," in authority:
        return f"{authority}/{name}"
    host = unquote(parts.hostname or "") or query.get("host") or "localhost"
    port = parts.port or query.get("port") or _DEFAULT_PORT
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port}/{name}"
