"""Problems of the settings of TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyservice.settings import SettingsError, load
from pyservice.settings.model import unapplied_changes


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, str]:
    for name in ("cert", "key"):
        (tmp_path / name).touch()
    return {name: str(tmp_path / name) for name in ("cert", "key")}


def problems_of(tls: dict[str, Any], **flags: Any) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load({"tls": tls, **flags}, environ={})
    return {problem.name: problem.message for problem in caught.value.problems}


def test_pair_of_files_turns_tls_on(pair: dict[str, str]) -> None:
    without, with_tls = load({}, environ={}), load({"tls": pair}, environ={})
    assert (without.has_tls, without.http_scheme) == (False, "http")
    assert (with_tls.has_tls, with_tls.http_scheme) == (True, "https")


@pytest.mark.parametrize(("name", "other"), [("cert", "key"), ("key", "cert")])
def test_certificate_and_key_belong_together(pair: dict[str, str], name: str, other: str) -> None:
    message = f"must be set beside tls.{other}: TLS needs a certificate and its key"
    assert problems_of({other: pair[other]}) == {f"tls.{name}": message}


def test_files_must_be_readable(tmp_path: Path) -> None:
    missing = {"cert": str(tmp_path / "a"), "key": str(tmp_path / "b")}
    message = "cannot be read: No such file or directory"
    problems = {f"tls.{name}": f"{path} {message}" for name, path in missing.items()}
    assert problems_of(missing) == problems


def test_tls_needs_the_front(pair: dict[str, str]) -> None:
    message = "off cannot serve TLS: remove the settings of tls"
    assert problems_of(pair, front="off") == {"front": message}


def test_listener_with_tls_is_an_https_origin(pair: dict[str, str]) -> None:
    url = "https://127.0.0.1:8080"
    assert "same origin" in problems_of(pair, cdn_url=url)["cdn_url"]
    assert load({"cdn_url": url}, environ={}).cdn_url == url


def test_other_files_need_no_restart_but_the_first_ones_do(
    pair: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "new").touch()
    without, first = load({}, environ={}), load({"tls": pair}, environ={})
    other = load({"tls": {**pair, "cert": str(tmp_path / "new")}}, environ={})
    assert unapplied_changes(first, other) == []
    assert unapplied_changes(without, first) == unapplied_changes(first, without) == ["tls"]


ACME = {"domains": "api.example.com,Play.example.com", "contact": "ops@example.com"}


def test_domains_and_contact_turn_tls_on() -> None:
    settings = load({"tls": {"acme": ACME}}, environ={})
    assert settings.has_tls
    assert settings.tls.acme.domains == ("api.example.com", "play.example.com")


def test_domains_and_contact_belong_together() -> None:
    contact = "must be set beside tls.acme.domains: give an e-mail address for notices"
    assert problems_of({"acme": {"domains": ["a"]}}) == {"tls.acme.contact": contact}
    domains = "must be set beside tls.acme.contact: give the names of the certificate"
    assert problems_of({"acme": {"contact": "a@b"}}) == {"tls.acme.domains": domains}


def test_files_and_domains_exclude_each_other(pair: dict[str, str]) -> None:
    message = "cannot be set beside tls.cert: remove one of the two"
    assert problems_of({**pair, "acme": ACME}) == {"tls.acme.domains": message}


def test_wrong_values_of_acme_are_refused(tmp_path: Path) -> None:
    name = (
        "must be a host name such as api.example.com, without a wildcard: no such certificate can be "
        "ordered"
    )
    email = "must be an e-mail address such as ops@example.com"
    problems = problems_of({"acme": {"domains": ["*.a.example", "127.0.0.1"], "contact": "ops"}})
    assert problems == {
        "tls.acme.domains.0": name,
        "tls.acme.domains.1": name,
        "tls.acme.contact": email,
    }
    root = tmp_path / "root.pem"
    assert problems_of({"acme": {**ACME, "directory": "http://acme", "root": str(root)}}) == {
        "tls.acme.directory": "must begin with https://",
        "tls.acme.root": f"{root} cannot be read: No such file or directory",
    }
