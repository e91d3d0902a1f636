"""Access to a namespace without a token: its domains, and the users of its site."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import bcrypt
import pytest
from sqlalchemy import select

from pyservice.pb.hosting.v1 import namespaces_pb2 as pb
from pyservice.storage import namespaces
from pyservice.storage.tables import metadata
from tests.control.bulk_records import add_domains
from tests.control.response_shapes import TEXT, TIME, shape
from tests.support.full_service import Developer, FullService, running
from tests.support.namespace_scenario import Records

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
    response = await developer.good("get_namespace", **target)
    cdn_config: dict[str, Any] = response["namespace"]["config"]["cdn"]
    return cdn_config


@pytest.fixture
async def target(developer: Developer) -> dict[str, str]:
    return {"game_id": await developer.arena(), "namespace_id": "prod"}


async def code_of_page(developer: Developer, origin: str) -> str:
    return (await developer.client.call("list", {}, origin=origin)).code


async def test_page_of_a_domain_needs_no_token(
    developer: Developer, target: dict[str, str]
) -> None:
    domain = new_domain()
    assert await code_of_page(developer, f"https://{domain}") == "TOKEN_MISSING"
    assert await developer.good("add_domain", **target, domain=domain) == {}
    cdn = await cdn_of(developer, target)
    assert shape(cdn["domains"]) == [DOMAIN]
    assert cdn["domains"][0]["domain"] == domain
    assert cdn["domains"][0]["verification_status"] == "active"
    response = await developer.client.call("list", {}, origin=f"https://{domain}:8443")
    assert [one["game_mode_id"] for one in response.body["game_modes"]] == ["arena"]
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


async def test_letter_case_last_dot_and_repetition_are_ignored(
    developer: Developer, target: dict[str, str]
) -> None:
    domain = new_domain()
    for text in (f"{domain.upper()}.", domain):
        assert await developer.good("add_domain", **target, domain=text) == {}
    assert [one["domain"] for one in (await cdn_of(developer, target))["domains"]] == [domain]
    for text in (f"{domain.title()}.", domain):
        assert await developer.good("remove_domain", **target, domain=text) == {}
    assert (await cdn_of(developer, target))["domains"] == []


async def test_hosts_and_addresses_are_accepted(
    developer: Developer, target: dict[str, str]
) -> None:
    for host in ("localhost", "127.0.0.1", "::1", "a.b-c.example"):
        await developer.good("add_domain", **target, domain=host)
        literal = f"[{host}]" if ":" in host else host
        assert await code_of_page(developer, f"http://{literal}:3000") == "OK"
        await developer.good("remove_domain", **target, domain=host)


NO_HOSTS = (
    *("", ".", "https://a.example", "a.example:80", "a.example/", "a..example", "-a.example"),
    *("a-.example", "*.example", "a b.example", "é.example", "[::1]", "x" * 64 + ".example"),
    *(".".join(["x" * 60] * 5), "a.example\n", "fe80::1%eth0", "a.example.."),
)


async def test_invalid_host_is_refused(developer: Developer, target: dict[str, str]) -> None:
    for text in NO_HOSTS:
        answer = await developer.call("add_domain", **target, domain=text)
        result = (answer.code, answer.errors)
        assert result == ("VALIDATION_FAILED", (("domain", "invalid"),)), text
    assert (await cdn_of(developer, target))["domains"] == []


async def test_domains_over_the_limit_are_refused(
    developer: Developer, target: dict[str, str], records: Records
) -> None:
    response = await developer.good("get_namespace", **target)
    await add_domains(records, response["namespace"]["namespace_id"], 1_023)
    last = new_domain()
    await developer.good("add_domain", **target, domain=last)
    assert await code_of_page(developer, f"https://{last}") == "OK"
    answer = await developer.call("add_domain", **target, domain=new_domain())
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (("domain", "too-many"),))
    await developer.good("add_domain", **target, domain=last)
    await developer.good("remove_domain", **target, domain=last)
    await developer.good("add_domain", **target, domain=new_domain())


SERVICE_DOMAINS = {name: f"{name}.example.com" for name in ("main", "cdn", "job")}
RESERVED = ("VALIDATION_FAILED", (("domain", "not-allowed"),))


@pytest.mark.full
async def test_service_domains_are_reserved(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "cdn_url": "https://files.example.com",
        "edge": {"is_fronted": True},
    }
    service = FullService(tmp_path, domains=SERVICE_DOMAINS, **settings)
    with running(service):
        async with service.open_client("http") as client:
            owner = Developer(service, client)
            target = {"game_id": await owner.game(), "namespace_id": "prod"}
            for own in SERVICE_DOMAINS.values():
                for domain in (own, f"victim.{own}", f"A.b.{own.upper()}."):
                    answer = await owner.call("add_domain", **target, domain=domain)
                    assert (answer.code, answer.errors) == RESERVED, domain
                for domain in (f"not-{own}", f"{own}.net"):
                    await owner.good("add_domain", **target, domain=domain)


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
    response = await developer.good("get_namespace", **target)
    namespace_id = response["namespace"]["namespace_id"]
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
    """A plain hash of the request would allow guesses without the cost of bcrypt."""
    key, fields = uuid4().hex, {**target, "user": "ada", "password": "hunter2"}
    assert await developer.good("set_auth_user", key, **fields) == {}
    other = {**fields, "password": "hunter3"}
    assert await developer.code("set_auth_user", key, **other) == "IDEMPOTENCY_KEY_REUSED"
    guess = pb.SetAuthUserRequest(**fields)
    message, name = guess.SerializeToString(deterministic=True), guess.DESCRIPTOR.full_name.encode()
    inputs = (message, name + message, name + b"\0" + message)
    digests = [sha256(one).digest() for one in inputs]
    async with records.database.read() as tx:
        rows = [row for table in metadata.sorted_tables for row in await tx.all(select(table))]
    stored_values = [value for row in rows for value in row if isinstance(value, bytes)]
    texts = [value for row in rows for value in row if isinstance(value, str)]
    assert stored_values
    assert not any(digest in value for digest in digests for value in stored_values)
    assert not any(digest.hex() in value for digest in digests for value in texts)


async def test_invalid_user_is_refused(developer: Developer, target: dict[str, str]) -> None:
    for user, password, paths in (
        ("", "x", ["user.too-short"]),
        *((user, "x", ["user.invalid"]) for user in ("a:b", "a b", "é")),
        ("u" * 129, "x", ["user.too-long"]),
        ("u", "", ["password.too-short"]),
        ("u", "é" * 37, ["password.too-long"]),
        ("u", "a\0b", ["password.invalid"]),
        ("a:b", "", ["user.invalid", "password.too-short"]),
    ):
        answer = await developer.call("set_auth_user", **target, user=user, password=password)
        result = (answer.code, [".".join(path) for path in answer.errors])
        assert result == ("VALIDATION_FAILED", paths), (user, password)
    assert (await cdn_of(developer, target))["auth_user_list"] == []
    assert await developer.good("remove_auth_user", **target, user="a\0b") == {}


async def test_longest_and_special_names_are_accepted_and_removed(
    developer: Developer, target: dict[str, str]
) -> None:
    await developer.good("set_auth_user", **target, user="team", password="x")
    names = ("!" + "u" * 126 + "~", "team/alice", "team%2Falice", "/", "a%b?c#d;e&f")
    for user in names:
        await developer.good("set_auth_user", **target, user=user, password="é" * 36)
        assert {"user": user} in (await cdn_of(developer, target))["auth_user_list"]
        await developer.good("remove_auth_user", **target, user=user)
        assert (await cdn_of(developer, target))["auth_user_list"] == [{"user": "team"}]
