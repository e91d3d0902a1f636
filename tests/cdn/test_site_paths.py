from __future__ import annotations

import pytest

from pyservice.cdn.sites import Address, BadPath, address, decode_path


@pytest.mark.parametrize(
    ("host", "game", "namespace"),
    [
        ("arena--staging.cdn.example.com", "arena", "staging"),
        ("arena.cdn.example.com", "arena", "prod"),
        ("ARENA.CDN.Example.com.", "arena", "prod"),
        ("arena.cdn.example.com:8443", "arena", "prod"),
        ("my-game--my-space.cdn.example.com", "my-game", "my-space"),
    ],
)
def test_host_below_the_domain_names_game_and_namespace(
    host: str, game: str, namespace: str
) -> None:
    assert address(host, "/a/b", "cdn.example.com") == Address(game, namespace, "", "/a/b")


@pytest.mark.parametrize(
    "host",
    [
        *("cdn.example.com", "arena.example.com", "x.arena.cdn.example.com", "", "arena", ":80"),
        *("-a.cdn.example.com", "a-.cdn.example.com", "a--b--c.cdn.example.com"),
        *(
            "a---b.cdn.example.com",
            "arena.cdn.example.com.evil.com",
            "[::1]:80",
            "a_b.cdn.example.com",
        ),
    ],
)
def test_other_hosts_name_no_site(host: str) -> None:
    assert address(host, "/", "cdn.example.com") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/arena/prod/", Address("arena", "prod", "/arena/prod", "/")),
        ("/arena/prod", Address("arena", "prod", "/arena/prod", "")),
        ("/arena/prod/a%20b/%C3%A9", Address("arena", "prod", "/arena/prod", "/a b/é")),
        ("/arena/", None),
        ("/arena", None),
        ("/", None),
        ("/Arena/prod/", None),
    ],
)
def test_local_mode_path_names_game_and_namespace(path: str, expected: Address | None) -> None:
    assert address("127.0.0.1:1", path, None) == expected


@pytest.mark.parametrize(
    "path",
    [
        *("/a/../b", "/..", "/./a", "/a/.", "/%2e%2e/a", "/a/%2E./b", "/a%2fb", "/a%2Fb", "/a%5cb"),
        *("/a\\b", "/a%00", "/a%0d%0a", "/%ff", "/%c3", "/a%", "/a%2", "/a%zz", "/%7f"),
        "/" + "a" * 9000,
    ],
)
def test_path_tricks_are_rejected(path: str) -> None:
    with pytest.raises(BadPath):
        decode_path(path)


def test_path_is_decoded_once() -> None:
    assert decode_path("/%252e%252e/%2541") == "/%2e%2e/%41"
