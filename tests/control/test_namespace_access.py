"""Access to a namespace without a token: its domains, and the users of its site."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from uuid import uuid4

import bcrypt
import pytest
from sqlalchemy import select

from pyservice.pb.hosting.v1 import namespaces_pb2 as pb
from pyservice.storage import namespaces
from pyservice.storage.tables import metadata
from tests.control.bulk_records import add_domains
from tests.control.namespace_scenario import Records
from tests.control.response_shapes import TEXT, TIME, shape
from tests.support.full_service import Developer, FullService

pytestmark = pytest.mark.anyio

DOMAIN = {
    "domain": TEXT,
    "create_ts": TIME,
    "verification_status": TEXT,
    "verification_method": {},
    "verification_errors": [],
}


def new_domain() -> str:
    return f"{uuid4().hex[:16]}.example"


async def cdn_of(developer: Developer, target: dict[str, str]) -> dict[str, Any]:
    got = await developer.good("get_namespace", **target)
    found: dict[str, Any] = got["namespace"]["config"]["cdn"]
    return found


@pytest.fixture
async def target(developer: Developer) -> dict[str, str]:
    return {"game_id": await developer.arena(), "namespace_id": "prod"}


async def code_of_page(developer: Developer, origin: str) -> str:
    return (await developer.door.call("list", {}, origin=origin)).code


# Domains ------------------------------------------------------------------------------------------


async def test_page_of_a_domain_needs_no_token(
    developer: Developer, target: dict[str, str]
) -> None:
    domain = new_domain()
    assert await code_of_page(developer, f"https://{domain}") == "TOKEN_MISSING"
    assert await developer.good("add_domain", **target, domain=domain) == {}
    cdn = await cdn_of(developer, target)
    assert shape(cdn["domains"]) == [DOMAIN]
    (domain_entry,) = cdn["domains"]
    assert (domain_entry["domain"], domain_entry["verification_status"]) == (domain, "active")
    listed = await developer.door.call("list", {}, origin=f"https://{domain}:8443")
    assert [one["game_mode_id"] for one in listed.body["game_modes"]] == ["arena"]
    for origin in (f"https://www.{domain}", "null", f"https://{domain}.example.net"):
        assert await code_of_page(developer, origin) == "TOKEN_MISSING"
    assert await developer.good("remove_domain", **target, domain=domain) == {}
    assert await code_of_page(developer, f"https://{domain}") == "TOKEN_MISSING"
    assert (await cdn_of(developer, target))["domains"] == []


async def test_public_auth_is_switched_off_and_on(
    developer: Developer, target: dict[str, str]
) -> None:
    domain = new_domain()
    await developer.good("add_domain", **target, domain=domain)
    for enabled, code in ((False, "TOKEN_MISSING"), (True, "OK")):
        assert await developer.good("set_domain_public_auth", **target, enabled=enabled) == {}
        assert await code_of_page(developer, f"https://{domain}") == code
        assert (await cdn_of(developer, target))["enable_domain_public_auth"] is enabled


async def test_adding_and_removing_a_domain_are_idempotent(
    developer: Developer, target: dict[str, str]
) -> None:
    domain = new_domain()
    for _ in range(2):
        assert await developer.good("add_domain", **target, domain=domain) == {}
    assert len((await cdn_of(developer, target))["domains"]) == 1
    for _ in range(2):
        assert await developer.good("remove_domain", **target, domain=domain) == {}


async def test_domain_belongs_to_one_namespace(
    developer: Developer, target: dict[str, str]
) -> None:
    domain = new_domain()
    staging = {**target, "namespace_id": "staging"}
    await developer.good("add_domain", **target, domain=domain)
    answer = await developer.call("add_domain", **staging, domain=domain.upper())
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (("domain", "not-unique"),))
    assert await developer.good("remove_domain", **staging, domain=domain) == {}
    assert await code_of_page(developer, f"https://{domain}") == "OK"
    await developer.good("remove_domain", **target, domain=domain)
    await developer.good("add_domain", **staging, domain=domain)


async def test_domain_spellings_match_origins(developer: Developer, target: dict[str, str]) -> None:
    await developer.good("add_domain", **target, domain="2001:DB8:0::7")
    assert await code_of_page(developer, "http://[2001:db8::7]") == "OK"
    await developer.good("remove_domain", **target, domain="2001:db8::0:7")
    assert await code_of_page(developer, "http://[2001:db8::7]") == "TOKEN_MISSING"


async def test_letter_case_and_last_dot_are_ignored(
    developer: Developer, target: dict[str, str]
) -> None:
    domain = new_domain()
    await developer.good("add_domain", **target, domain=f"{domain.upper()}.")
    (domain_entry,) = (await cdn_of(developer, target))["domains"]
    assert domain_entry["domain"] == domain
    await developer.good("remove_domain", **target, domain=f"{domain.title()}.")
    assert (await cdn_of(developer, target))["domains"] == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "a.b-c.example"])
async def test_hosts_and_addresses_are_accepted(
    developer: Developer, target: dict[str, str], host: str
) -> None:
    await developer.good("add_domain", **target, domain=host)
    literal = f"[{host}]" if ":" in host else host
    assert await code_of_page(developer, f"http://{literal}:3000") == "OK"
    await developer.good("remove_domain", **target, domain=host)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "https://a.example",
        "a.example:80",
        "a.example/",
        "a..example",
        "-a.example",
        "a-.example",
        "*.example",
        "a b.example",
        "é.example",
        "[::1]",
        "x" * 64 + ".example",
        ".".join(["x" * 60] * 5),
        "a.example\n",
        "fe80::1%eth0",
        "a.example..",
    ],
)
async def test_invalid_host_is_refused(owner: Developer, text: str) -> None:
    target = {"game_id": await owner.game(), "namespace_id": "prod"}
    answer = await owner.call("add_domain", **target, domain=text)
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (("domain", "invalid"),))


async def test_domains_over_the_limit_are_refused(
    developer: Developer, target: dict[str, str], records: Records
) -> None:
    got = await developer.good("get_namespace", **target)
    await add_domains(records, got["namespace"]["namespace_id"], 1_023)
    last = new_domain()
    await developer.good("add_domain", **target, domain=last)
    assert await code_of_page(developer, f"https://{last}") == "OK"
    answer = await developer.call("add_domain", **target, domain=new_domain())
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (("domain", "too-many"),))
    await developer.good("add_domain", **target, domain=last)
    await developer.good("remove_domain", **target, domain=last)
    await developer.good("add_domain", **target, domain=new_domain())


@pytest.fixture(scope="module")
def named_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    """Service with its own domains. SQLite is enough, because the check reads only settings."""
    domains = {"main": "games.example.com", "cdn": "cdn.example.com", "job": "job.example.com"}
    created = FullService(
        tmp_path_factory.mktemp("named"),
        domains=domains,
        cdn_url="https://files.example.com",
        edge={"is_fronted": True},
    )
    try:
        yield created.start()
    finally:
        created.close()


@pytest.mark.parametrize("of_service", ["games.example.com", "cdn.example.com", "job.example.com"])
async def test_service_domains_are_reserved(named_service: FullService, of_service: str) -> None:
    client = named_service.door("http")
    try:
        owner = Developer(named_service, client)
        target = {"game_id": await owner.game(), "namespace_id": "prod"}
        for domain in (of_service, f"victim.{of_service}", f"A.b.{of_service.upper()}."):
            answer = await owner.call("add_domain", **target, domain=domain)
            expected = ("VALIDATION_FAILED", (("domain", "not-allowed"),))
            assert (answer.code, answer.errors) == expected, domain
        for domain in (f"not-{of_service}", f"{of_service}.net", new_domain()):
            await owner.good("add_domain", **target, domain=domain)
            await owner.good("remove_domain", **target, domain=domain)
    finally:
        await client.close()


# Users of the site --------------------------------------------------------------------------------


async def test_site_asks_for_a_user_when_enabled(
    developer: Developer, target: dict[str, str]
) -> None:
    for auth_type in ("basic", "none"):
        assert await developer.good("set_cdn_auth", **target, auth_type=auth_type) == {}
        assert (await cdn_of(developer, target))["auth_type"] == auth_type
    answer = await developer.call("set_cdn_auth", **target, auth_type="digest")
    assert (answer.code, answer.errors) == ("BODY_INVALID", (("auth_type", "not-allowed"),))


async def test_password_is_stored_as_a_hash(
    developer: Developer, target: dict[str, str], records: Records
) -> None:
    got = await developer.good("get_namespace", **target)
    namespace_id = got["namespace"]["namespace_id"]
    for password in ("first", "sécond"):
        fields = {"user": "ada", "password": password}
        assert await developer.good("set_auth_user", **target, **fields) == {}
        assert (await cdn_of(developer, target))["auth_user_list"] == [{"user": "ada"}]
        async with records.database.read() as tx:
            (row,) = await namespaces.users_of(tx, namespace_id)
        assert bcrypt.checkpw(password.encode(), row.password_hash.encode())
    for _ in range(2):
        assert await developer.good("remove_auth_user", **target, user="ada") == {}
    assert (await cdn_of(developer, target))["auth_user_list"] == []


async def test_stored_request_does_not_reveal_the_password(
    developer: Developer, target: dict[str, str], records: Records
) -> None:
    """All other fields are known to readers of the database. A plain hash would allow guesses without the cost of
    bcrypt.
    """
    key, fields = uuid4().hex, {**target, "user": "ada", "password": "hunter2"}
    assert await developer.good("set_auth_user", key, **fields) == {}
    other = {**fields, "password": "hunter3"}
    assert await developer.code("set_auth_user", key, **other) == "IDEMPOTENCY_KEY_REUSED"
    guess = pb.SetAuthUserRequest(**fields)
    message, name = guess.SerializeToString(deterministic=True), guess.DESCRIPTOR.full_name.encode()
    digests = [
        sha256(domain_entry).digest()
        for domain_entry in (message, name + message, name + b"\0" + message)
    ]
    async with records.database.read() as tx:
        rows = [row for table in metadata.sorted_tables for row in await tx.all(select(table))]
    kept = [value for row in rows for value in row if isinstance(value, bytes)]
    texts = [value for row in rows for value in row if isinstance(value, str)]
    assert kept
    assert not any(digest in value for digest in digests for value in kept)
    assert not any(digest.hex() in value for digest in digests for value in texts)


@pytest.mark.parametrize(
    ("user", "password", "paths"),
    [
        ("", "x", [("user", "too-short")]),
        ("a:b", "x", [("user", "invalid")]),
        ("a b", "x", [("user", "invalid")]),
        ("é", "x", [("user", "invalid")]),
        ("u" * 129, "x", [("user", "too-long")]),
        ("u", "", [("password", "too-short")]),
        ("u", "é" * 37, [("password", "too-long")]),
        ("u", "a\0b", [("password", "invalid")]),
        ("a:b", "", [("user", "invalid"), ("password", "too-short")]),
    ],
)
async def test_invalid_user_is_refused(
    owner: Developer, user: str, password: str, paths: list[tuple[str, ...]]
) -> None:
    target = {"game_id": await owner.game(), "namespace_id": "prod"}
    answer = await owner.call("set_auth_user", **target, user=user, password=password)
    assert (answer.code, list(answer.errors)) == ("VALIDATION_FAILED", paths)
    assert (await cdn_of(owner, target))["auth_user_list"] == []


async def test_longest_names_and_passwords_are_accepted(owner: Developer) -> None:
    target = {"game_id": await owner.game(), "namespace_id": "prod"}
    user = "!" + "u" * 126 + "~"
    await owner.good("set_auth_user", **target, user=user, password="é" * 36)
    assert (await cdn_of(owner, target))["auth_user_list"] == [{"user": user}]
    await owner.good("remove_auth_user", **target, user=user)
    assert (await cdn_of(owner, target))["auth_user_list"] == []


@pytest.mark.parametrize("user", ["team/alice", "team%2Falice", "/", "a%b?c#d;e&f"])
async def test_user_with_special_characters_is_removed(
    developer: Developer, target: dict[str, str], user: str
) -> None:
    other = {"user": "team"}
    for name in (user, "team"):
        await developer.good("set_auth_user", **target, user=name, password="x")
    await developer.good("remove_auth_user", **target, user=user)
    assert (await cdn_of(developer, target))["auth_user_list"] == [other]


@pytest.mark.parametrize(
    ("slug", "more"),
    [
        ("set_domain_public_auth", {"enabled": True}),
        ("add_domain", {"domain": "a.example"}),
        ("remove_domain", {"domain": "a.example"}),
        ("set_cdn_auth", {"auth_type": "none"}),
        ("set_auth_user", {"user": "u", "password": "x"}),
        ("remove_auth_user", {"user": "u"}),
    ],
)
async def test_first_missing_path_part_is_reported(
    developer: Developer, slug: str, more: dict[str, Any]
) -> None:
    game_id, unknown = await developer.game(), str(uuid4())
    for target, code in (
        ({"game_id": unknown, "namespace_id": "prod"}, "GAME_NOT_FOUND"),
        ({"game_id": game_id, "namespace_id": "nowhere"}, "NAMESPACE_NOT_FOUND"),
    ):
        assert await developer.code(slug, **target, **more) == code


async def test_impossible_user_is_not_found(developer: Developer) -> None:
    target = {"game_id": await developer.game(), "namespace_id": "prod"}
    assert await developer.good("remove_auth_user", **target, user="a\0b") == {}
