"""Warnings of settings that are open to the network without protection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyservice.settings import exposure_warnings, load

OPEN = "0.0.0.0:8080"
OPEN_GRPC = "0.0.0.0:8081"


def warned(settings: dict[str, Any]) -> list[str]:
    """Returns the first words of the warnings: the names of settings."""
    return [warning.split()[0] for warning in exposure_warnings(load(settings, environ={}))]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, []),
        ({"http": OPEN}, ["http"]),
        ({"http": "[::]:8080", "grpc": "192.168.1.2:8081"}, ["http", "grpc"]),
        ({"http": "games.example:8080"}, ["http"]),
        ({"http": "localhost:8080", "grpc": "[::1]:8081"}, []),
        ({"http": OPEN, "trusted_proxies": "10.0.0.1"}, []),
        # A proxy of this machine needs no open listener.
        ({"http": OPEN, "trusted_proxies": "127.0.0.1"}, ["http"]),
        ({"http": OPEN, "grpc": OPEN_GRPC, "trusted_proxies": "::1,127.0.0.0/8"}, ["http", "grpc"]),
        ({"http": OPEN, "trusted_proxies": "127.0.0.1,10.0.0.1"}, []),
        ({"http": "127.0.0.1:8080", "trusted_proxies": "127.0.0.1"}, []),
        ({"http": OPEN, "front": "off", "trusted_proxies": "10.0.0.1"}, ["http"]),
        ({"cdn": OPEN, "http": "127.0.0.1:1"}, ["cdn"]),
        ({"cdn": OPEN, "http": "127.0.0.1:1", "cdn_url": "https://files.example"}, []),
        ({"metrics": OPEN, "http": "127.0.0.1:1"}, ["metrics"]),
        ({"metrics": "8.8.8.8:8090"}, ["metrics"]),
        ({"metrics": "192.168.1.2:8090"}, []),
        ({"metrics": "games.example:8090"}, ["metrics"]),
        ({"metrics": "localhost:8090"}, []),
        ({"domains": {"main": "api.example"}, "edge": {"http": "0.0.0.0:80"}}, ["edge.http"]),
        (
            {
                "domains": {"main": "api.example"},
                "edge": {"http": "0.0.0.0:80", "is_fronted": "true"},
            },
            [],
        ),
        ({"edge": {"address": "203.0.113.5"}}, ["edge.address"]),
        ({"edge": {"address": "play.example"}}, ["edge.address"]),
        ({"edge": {"address": "203.0.113.5", "bind": "0.0.0.0"}}, []),
        ({"edge": {"address": "203.0.113.5", "proxies": "127.0.0.1"}}, []),
        ({"runtime": {"isolation": "none"}}, ["runtime.isolation"]),
        ({"runtime": {"egress": "any"}}, ["runtime.egress"]),
        ({"runtime": {"allow_shared_network": "true"}}, ["runtime.allow_shared_network"]),
        ({"runtime": {"host_network": "all"}}, ["runtime.host_network"]),
        ({"runtime": {"egress_networks": "::/0"}}, ["runtime.egress_networks"]),
        ({"edge": {"proxies": "0.0.0.0/0"}}, ["edge.proxies"]),
        ({"trusted_proxies": "10.0.0.0/8,0.0.0.0/0"}, ["trusted_proxies"]),
        ({"verification_allowed_networks": "0.0.0.0/0"}, ["verification_allowed_networks"]),
        ({"rate_limits": {"client": {"per_second": 0}}}, []),
        (
            {
                "http": OPEN,
                "trusted_proxies": "10.0.0.1",
                "rate_limits": {"client": {"per_second": 0}},
            },
            ["rate_limits"],
        ),
    ],
)
def test_warnings_name_the_settings(settings: dict[str, Any], names: list[str]) -> None:
    assert warned(settings) == names


def test_warning_says_how_the_proxy_of_this_machine_reaches_the_service() -> None:
    flags = {"http": OPEN, "trusted_proxies": "127.0.0.1"}
    [warning] = exposure_warnings(load(flags, environ={}))
    assert "set http to 127.0.0.1, where the proxies of trusted_proxies reach it" in warning


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("postgresql://me:secret@db.example/games", "db.example"),
        ("postgresql+asyncpg://me:secret@192.168.1.2:5433/games", "192.168.1.2"),
        ("postgresql://me:secret@[2001:db8::1]/games?sslmode=prefer", "2001:db8::1"),
        ("postgresql://me:secret@localhost,db.example:5433/games", "db.example"),
        ("postgresql://me:secret@/games?host=db.example:5433", "db.example"),
        ("postgresql://me@/games?host=%2Frun,db.example&sslmode=disable", "db.example"),
        ("postgresql://db.example/games?sslmode=require&sslmode=allow", "db.example"),
        ("postgresql://me:secret@db.example/games?sslmode=require", None),
        ("postgresql://db.example/games?user=me&sslmode=verify-ca", None),
        ("postgresql://db.example/games?sslmode=verify-full", None),
        ("postgresql://me@localhost/games", None),
        ("postgresql://me@127.0.0.1:5433,[::1]/games", None),
        ("postgresql://me@/games?host=/run/postgresql", None),
        ("postgresql://me@%2Frun%2Fpostgresql/games", None),
        ("postgresql:///games", None),
    ],
)
def test_database_on_another_machine_needs_tls(url: str, host: str | None) -> None:
    warnings = exposure_warnings(load({"database_url": url}, environ={}))
    if host is None:
        assert warnings == []
        return
    [warning] = warnings
    assert warning.startswith(f"database_url has {host} without sslmode=require, so the network")
    assert "secret" not in warning


def test_listener_with_tls_is_protected(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).touch()
    tls = {name: str(tmp_path / name) for name in ("cert", "key")}
    assert warned({"http": OPEN, "grpc": "0.0.0.0:8081", "tls": tls}) == []
    acme = {"domains": "api.example", "contact": "ops@example.com"}
    assert warned({"http": OPEN, "tls": {"acme": acme}}) == []
