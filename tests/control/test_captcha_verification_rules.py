"""Validation rules of captcha and verification."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyservice.control.configuration_encoding import to_feed
from pyservice.control.configuration_validation import configuration_problems
from pyservice.dataplane import feed_validation
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from tests.control.configurations import CONTEXT, EVERYTHING, changed, read
from tests.dataplane.configurations import configuration

VERIFICATION = ("matchmaker", "game_modes", "duel", "actions", "join", "verification")
CAPTCHA = ("matchmaker", "captcha")

FieldPath = tuple[str | int, ...]


def paths(document: Any, context: Any = CONTEXT) -> list[tuple[str, ...]]:
    return [problem.path for problem in configuration_problems(read(document), context)]


def headers(count: int) -> dict[str, str]:
    return {f"x-{number}": "x" for number in range(count)}


# Path, value at this path, and the expected problem below this path.
BROKEN_RULES: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
    ((*CAPTCHA, "requests_before_reverify"), 601, ("too-high",)),
    ((*CAPTCHA, "requests_before_reverify"), None, ("required",)),
    ((*CAPTCHA, "verification_ttl"), 43_200_001, ("too-high",)),
    ((*CAPTCHA, "verification_ttl"), None, ("required",)),
    ((*CAPTCHA, "captcha_a", "secret_key"), "", ("too-short",)),
    ((*CAPTCHA, "captcha_b", "site_key"), "", ("too-short",)),
    ((*VERIFICATION, "headers"), headers(33), ("too-many",)),
    ((*VERIFICATION, "headers", "a b"), "x", ("invalid",)),
    ((*VERIFICATION, "headers", "Host"), "x", ("not-allowed",)),
    ((*VERIFICATION, "headers", "content-length"), "1", ("not-allowed",)),
    ((*VERIFICATION, "headers", "TraceParent"), "1", ("not-allowed",)),
    ((*VERIFICATION, "headers", "proxy-x"), "1", ("not-allowed",)),
    ((*VERIFICATION, "headers", "x-game"), "1", ("not-unique",)),
    ((*VERIFICATION, "headers", "x-a"), "a\nb", ("invalid",)),
    ((*VERIFICATION, "headers", "x-a"), "x" * 1025, ("too-long",)),
    ((*VERIFICATION, "url"), "https://example.com/" + "x" * 2048, ("too-long",)),
    *(
        ((*VERIFICATION, "url"), url, ("invalid",))
        for url in (
            "",
            "example.com",
            "ftp://example.com",
            "HTTPS://example.com",
            "https://",
            "https:///x",
            "https://a b.com",
            "https://user:pass@example.com",
            "https://@example.com",
            "https://example.com/#part",
            "https://example.com:0",
            "https://example.com:65536",
            "https://[::1",
            "https://-a.com",
            "https://exämple.com",
            "https://example.com/\n",
            "https://2130706433/",
            "https://127.1/",
            "https://0x7f.0.0.1/",
        )
    ),
    *(
        ((*VERIFICATION, "url"), url, ("not-allowed",))
        for url in (
            "http://127.0.0.1:9000/",
            "http://localhost:9000",
            "http://api.LOCALHOST./",
            "http://10.1.2.3",
            "http://169.254.169.254/latest",
            "http://100.64.0.1",
            "http://0.0.0.0",
            "http://224.0.0.1",
            "http://[::1]:80",
            "http://[fe80::1]",
            "http://[fd00::1]",
            "http://[::ffff:10.0.0.1]",
            "http://[64:ff9b::7f00:1]",
            "http://[2002:7f00:1::]",
        )
    ),
]


@pytest.mark.parametrize(("field_path", "value", "expected_problem"), BROKEN_RULES)
def test_broken_rule_is_reported_at_its_path(
    field_path: FieldPath, value: Any, expected_problem: tuple[str, ...]
) -> None:
    assert paths(changed(field_path, value)) == [
        ("config", *map(str, field_path), *expected_problem)
    ]


@pytest.mark.parametrize(
    ("field_path", "value"),
    [
        ((*CAPTCHA, "requests_before_reverify"), 0),
        (("matchmaker", "captcha"), {"requests_before_reverify": 1}),
        ((*VERIFICATION, "headers"), headers(32)),
        ((*VERIFICATION, "url"), "http://203.0.114.1:1/"),
        ((*VERIFICATION, "url"), "https://[2606:4700::1]/?a=b@c"),
        ((*VERIFICATION, "url"), "http://Game_Server.example.com."),
    ],
)
def test_boundary_value_is_accepted(field_path: FieldPath, value: Any) -> None:
    assert paths(changed(field_path, value)) == []


def test_captcha_without_an_operator_address_is_refused() -> None:
    context = replace(CONTEXT, captcha_providers=("captcha_b",))
    assert paths(EVERYTHING, context) == [("config", *CAPTCHA, "captcha_a", "not-allowed")]


@pytest.mark.parametrize(
    ("url", "network"),
    [
        ("http://127.0.0.1:9000", "127.0.0.0/8"),
        ("http://localhost:9000", "127.0.0.1/32"),
        ("http://[fd00::1]", "fd00::/8"),
        ("http://[::ffff:10.0.0.1]", "10.0.0.0/8"),
    ],
)
def test_allowed_network_is_accepted(url: str, network: str) -> None:
    context = replace(CONTEXT, verification_allowed_networks=(ip_network(network),))
    assert paths(changed((*VERIFICATION, "url"), url), context) == []


_hosts = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.from_regex(r"[a-z0-9_.-]{1,12}", fullmatch=True),
    st.sampled_from(
        ["localhost", "a.localhost.", "[::ffff:127.0.0.1]", "[2002:a00:1::]", "192.88.99.1"]
    ),
)
_urls = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https", "ftp", "HTTP"]),
    _hosts,
    st.sampled_from(["", ":80", ":0", ":65536", ":x", ":"]),
    st.sampled_from(["", "/", "/a b", "/?q#f", "/%20", "@x", "/é", "\\", "/\t"]),
) | st.text(max_size=12)
_names = st.sampled_from(["X-A", "x-a", "Host", "TE", "a b", "", "Proxy-X", "traceparent", "é"])
_values = st.sampled_from(["", "a", " a", "a b", "a\tb", "a\n", "\0", "x" * 1024, "x" * 1025])


@settings(max_examples=400, deadline=None)
@given(_urls, st.dictionaries(_names, _values, max_size=3))
@example("http://[fe80::1%25eth0]/", {})
@example("http://[fe80::1%eth0]/", {})
@example("http://[v1.a]/", {})
@example("http://a..b/", {})
@example("http://a:1:2/", {})
@example("https://a.example:/x?y", {"X-A": "b c"})
def test_data_plane_accepts_accepted_verification(url: str, headers: dict[str, str]) -> None:
    config = pb.CloudConfig()
    find = config.matchmaker.game_modes.entries["duel"].actions.find
    find.enabled = True
    find.verification.url = url
    find.verification.headers.entries.update(headers)
    if configuration_problems(config, CONTEXT):
        return
    namespace = configuration()
    namespace.versions[0].matchmaker.CopyFrom(to_feed(config))
    limits = OperatorLimits(player_limit_max=256, regions=None)
    refused = feed_validation.configuration_problems(namespace, limits, NamespaceIndex())
    assert [(list(problem.path), problem.reason) for problem in refused] == []
