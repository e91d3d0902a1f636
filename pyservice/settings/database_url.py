"""Check of the setting `database_url`, and the parts of it that logs may show."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import parse_qs, unquote

_DEFAULT_PORT: Final = 5432
_SCHEME: Final = re.compile(r"postgresql(\+[a-z0-9]+)?://")
_PARTS: Final = re.compile(r"(?P<authority>[^/?]*)(?P<path>[^?]*)(\?(?P<query>.*))?", re.DOTALL)
_HOST: Final = re.compile(r"(\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\],]*))(:(?P<port>[0-9]{0,5}))?")
_PORTS: Final = range(1, 65_536)
_TLS_MODES: Final = ("require", "verify-ca", "verify-full")


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
    is_host = all(map(_is_host, authority.rpartition("@")[2].split(",")))
    if is_host_cut or is_query_cut or (not is_host and "@" not in authority):
        return "has a / or ? in the user name or password, or a wrong port: write %2F or %3F"
    return None if is_host else "has a host or port that is not valid"


def _is_host(text: str) -> bool:
    host = _HOST.fullmatch(text)
    if host is None or (host["port"] and int(host["port"]) not in _PORTS):
        return False
    if host["v6"] is None:
        return True
    try:
        return isinstance(ip_address(host["v6"]), IPv6Address)
    except ValueError:
        return False


def database_location(url: str) -> str:
    """Returns `host:port/name` of a valid database URL, without user and password."""
    scheme = _SCHEME.match(url)
    parts = _PARTS.fullmatch(url[scheme.end() :] if scheme else url)
    assert parts is not None
    query = {name: ",".join(values) for name, values in parse_qs(parts["query"] or "").items()}
    authority = parts["authority"].rpartition("@")[2]
    name = unquote(parts["path"].removeprefix("/")) or query.get("dbname", "")
    host = _HOST.fullmatch(authority)
    if host is None:
        # Several hosts.
        return f"{authority}/{name}"
    shown = unquote(host["v6"] or host["name"] or "").lower() or query.get("host") or "localhost"
    port = host["port"] or query.get("port") or _DEFAULT_PORT
    return f"[{shown}]:{port}/{name}" if ":" in shown else f"{shown}:{port}/{name}"


def database_hosts(url: str) -> list[str]:
    """Returns the hosts of a valid database URL. A folder of a socket begins with `/`."""
    scheme = _SCHEME.match(url)
    parts = _PARTS.fullmatch(url[scheme.end() :] if scheme else url)
    assert parts is not None
    authority = parts["authority"].rpartition("@")[2]
    listed = unquote(authority) or _query_value(parts["query"], "host")
    return [_host_name(host) for host in listed.split(",") if host]


def requires_tls(url: str) -> bool:
    """Returns whether the client refuses a connection to the database without TLS."""
    return _query_value(url.partition("?")[2], "sslmode") in _TLS_MODES


def _host_name(text: str) -> str:
    host = _HOST.fullmatch(text)
    return text if host is None else host["v6"] or host["name"]


def _query_value(query: str | None, name: str) -> str:
    # The PostgreSQL client takes the last one.
    return parse_qs(query or "").get(name, [""])[-1]
