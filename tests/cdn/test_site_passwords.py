from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import bcrypt
import httpx
import pytest

from pyservice.cdn.site_passwords import (
    PasswordChecksBusy,
    SitePasswords,
    Source,
    TooManyWrongPasswords,
)
from pyservice.cdn.sites import Site
from pyservice.control.namespace_access import BCRYPT_ROUNDS
from tests.cdn.example_site import FILES, SCRIPT, Browser, make_site
from tests.cdn.raw_http import Wire
from tests.support.cdn_listener import Listener, running_listener
from tests.support.reset_connection import send_and_reset

pytestmark = pytest.mark.anyio


async def test_protected_site_requires_a_password(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    users = {
        "ann": bcrypt.hashpw(b"right:one", bcrypt.gensalt(4)),
        "bob": bcrypt.hashpw("ü".encode(), bcrypt.gensalt(4)),
    }
    site = make_site(FILES, users=users)
    listener.sites.by_name["arena", "closed"] = site
    listener.sites.by_name["arena", "locked"] = Site({}, users={})
    for auth in (
        None,
        ("ann", "wrong"),
        ("eve", "right:one"),
        ("bob", "right:one"),
        ("ann", "x" * 99),
    ):
        answer = await client.get("/arena/closed/app.js", auth=auth)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
    for header in ("Basic", "Basic !", "Basic YQ==", "Bearer x", "Basic " + "A" * 9):
        answer = await client.get("/arena/closed/app.js", headers={"authorization": header})
        assert answer.status_code == 401
    assert (await client.get("/arena/closed/nothing")).status_code == 401
    assert (await client.get("/arena/locked/")).status_code == 401
    for auth in (("ann", "right:one"), ("bob", "ü"), ("ann", "right:one")):
        answer = await client.get("/arena/closed/app.js", auth=auth)
        assert (answer.status_code, answer.content) == (200, SCRIPT)
        assert answer.headers["cache-control"] == "private, no-cache"
    changed = {"ann": bcrypt.hashpw(b"new", bcrypt.gensalt(4))}
    listener.sites.by_name["arena", "closed"] = make_site(FILES, users=changed)
    assert (await client.get("/arena/closed/", auth=("ann", "right:one"))).status_code == 401


async def test_password_is_checked_once_and_cached(
    listener: Listener, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []
    check = bcrypt.checkpw

    def record_call(password: bytes, expected: bytes) -> bool:
        checked.append(password)
        return check(password, expected)

    monkeypatch.setattr(bcrypt, "checkpw", record_call)
    # All other hashes have the same cost, so one comparison is enough.
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(10))}
    listener.sites.by_name["arena", "slow"] = make_site(FILES, users=users)
    for _ in range(6):
        answer = await client.get("/arena/slow/tiny.js", auth=("ann", "right"))
        assert answer.status_code == 200
    assert checked == [b"right"]


@pytest.mark.full
async def test_password_guessing_does_not_delay_others(
    listener: Listener, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, check = threading.Event(), bcrypt.checkpw

    def slow(password: bytes, expected: bytes) -> bool:
        assert let_go.wait(60)
        return check(password, expected)

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(9))}
    listener.sites.by_name["arena", "guessed"] = make_site(FILES, users=users)
    wires = [await Wire.open(listener.url, f"127.0.2.{number + 1}") for number in range(80)]
    for number, wire in enumerate(wires):
        guess = httpx.BasicAuth("ann", str(number))._auth_header
        head = f"GET /arena/guessed/ HTTP/1.1\r\nHost: x\r\nAuthorization: {guess}\r\n\r\n"
        await wire.send(head.encode())
    assert (await client.get("tiny.js")).content == b"1"
    answering = [asyncio.ensure_future(wire.answer(60)) for wire in wires]
    # At most 64 checks wait.
    while sum(one.done() for one in answering) < 80 - 64:
        await asyncio.sleep(0.01)
    let_go.set()
    answers = await asyncio.gather(*answering)
    for wire in wires:
        await wire.close()
    statuses = [status for status, _, _ in answers]
    assert (statuses.count(401), statuses.count(503)) == (64, 80 - 64)
    assert all("retry-after" in headers for status, headers, _ in answers if status == 503)


async def ask(listener: Listener, client: str, user: str, password: str, *fields: str) -> int:
    wire = await Wire.open(listener.url, client)
    authorization = httpx.BasicAuth(user, password)._auth_header
    lines = [
        "GET /arena/guessed/tiny.js HTTP/1.1",
        "Host: x",
        f"Authorization: {authorization}",
        *fields,
    ]
    await wire.send("\r\n".join([*lines, "", ""]).encode())
    status, headers, _ = await wire.answer(30)
    assert ("retry-after" in headers) == (status == 429)
    await wire.close()
    return status


def guessed_site(listener: Listener, name: str = "guessed") -> None:
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(4))}
    listener.sites.by_name["arena", name] = make_site(FILES, users=users)


async def test_guess_limit_applies_to_one_address_at_one_site(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    guessed_site(listener)
    guessed_site(listener, "other")
    address, other_address = "127.0.3.1", "127.0.3.2"
    assert await ask(listener, address, "ann", "right") == 200
    requests = [
        ask(listener, address, "ann" if number % 2 else "eve", f"guess {number}")
        for number in range(30)
    ]
    began_s = time.monotonic()
    statuses = await asyncio.gather(*requests)
    assert 10 <= statuses.count(401) <= 11 + (time.monotonic() - began_s) / 6
    assert statuses.count(429) == 30 - statuses.count(401)
    assert await ask(listener, address, "ann", "right") == 200
    assert [
        await ask(listener, other_address, *credentials)
        for credentials in (("ann", "no"), ("ann", "right"))
    ] == [
        401,
        200,
    ]
    async with Browser(base_url=listener.url) as at_home:
        answer = await at_home.get("/arena/other/tiny.js", auth=("ann", "right"))
        assert answer.status_code == 200


async def test_correct_passwords_do_not_count_as_guesses(
    listener: Listener,
) -> None:
    users = {f"user-{n}": bcrypt.hashpw(b"%d" % n, bcrypt.gensalt(4)) for n in range(30)}
    listener.sites.by_name["arena", "guessed"] = make_site(FILES, users=users)
    address = "127.0.3.3"
    page = [ask(listener, address, "user-0", "0") for _ in range(40)]
    assert await asyncio.gather(*page) == [200] * 40
    people = [ask(listener, address, f"user-{number}", str(number)) for number in range(30)]
    assert await asyncio.gather(*people) == [200] * 30


async def outcomes(checker: SitePasswords, users: int, wrong: int) -> Counter[bool | str]:
    hashes = {f"user-{n}": bcrypt.hashpw(b"%d" % n, bcrypt.gensalt(4)) for n in range(users)}

    async def outcome(number: int) -> bool | str:
        password = "wrong" if number < wrong else str(number)
        header = httpx.BasicAuth(f"user-{number}", password)._auth_header.encode()
        try:
            return await checker.are_valid(header, hashes, Source("", b"site", b"here"))
        except (PasswordChecksBusy, TooManyWrongPasswords) as error:
            return type(error).__name__

    return Counter(await asyncio.gather(*map(outcome, range(users))))


async def test_correct_password_waits_for_pending_guesses() -> None:
    checker = SitePasswords(clock_s=lambda: 0.0)
    assert await outcomes(checker, users=40, wrong=9) == {False: 9, True: 31}
    # After the last allowed failure, no uncached password is checked, correct or not.
    assert await outcomes(checker, users=40, wrong=1) == {False: 1, "TooManyWrongPasswords": 39}
    checker.close()


async def test_waiting_checks_of_one_source_are_limited() -> None:
    checker = SitePasswords(clock_s=lambda: 0.0)
    assert await outcomes(checker, users=90, wrong=0) == {True: 74, "PasswordChecksBusy": 16}
    assert await outcomes(checker, users=74, wrong=0) == {True: 74}
    checker.close()


async def test_guesses_through_a_proxy_count_for_the_client(tmp_path: Path) -> None:
    checker = SitePasswords(clock_s=lambda: 0.0)
    async with running_listener(
        tmp_path, trusted_proxies=("127.0.0.0/8",), credentials=checker
    ) as listener:
        guessed_site(listener)
        first, second = "X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 192.0.2.2"
        for number in range(10):
            assert await ask(listener, "127.0.0.1", "ann", str(number), first) == 401
        assert await ask(listener, "127.0.0.1", "ann", "x", first) == 429
        assert await ask(listener, "127.0.0.1", "ann", "x", second) == 401


async def test_reset_connection_cannot_guess_as_another_client(tmp_path: Path) -> None:
    checker = SitePasswords(clock_s=lambda: 0.0)
    async with running_listener(tmp_path, credentials=checker) as listener:
        guessed_site(listener)
        client = "127.0.3.9"
        wrong = httpx.BasicAuth("ann", "wrong")._auth_header
        head = (
            f"GET /arena/guessed/ HTTP/1.1\r\nhost: x\r\nauthorization: {wrong}\r\n"
            f"x-forwarded-for: {client}\r\n\r\n"
        )
        for _ in range(20):
            send_and_reset(("127.0.0.1", listener.port), head.encode())
        for number in range(10):
            assert await ask(listener, client, "ann", str(number)) == 401
        assert await ask(listener, client, "ann", "x") == 429


@pytest.mark.full
async def test_unknown_user_takes_as_long_as_a_wrong_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work: list[int] = []
    compare = bcrypt.checkpw

    def record_call(password: bytes, hashed: bytes) -> bool:
        work.append(2 ** int(hashed[4:6]))
        return compare(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", record_call)
    checker = SitePasswords()

    async def cost_of(users: dict[str, bytes], user: str, password: str) -> int:
        work.clear()
        header = httpx.BasicAuth(user, password)._auth_header.encode()
        assert await checker.are_valid(
            header, users, Source("", user.encode(), password.encode())
        ) is (password == "right")
        return sum(work)

    def costing(*costs: int) -> dict[str, bytes]:
        return {f"user-{cost}": bcrypt.hashpw(b"right", bcrypt.gensalt(cost)) for cost in costs}

    async def costs(users: dict[str, bytes], names: Iterable[str]) -> set[int]:
        return {await cost_of(users, name, "wrong") for name in names}

    usual, mixed = costing(BCRYPT_ROUNDS), costing(4, 9, 12)
    assert await costs(usual, [*usual, "nobody"]) == {2**BCRYPT_ROUNDS}
    assert await costs({}, ["nobody"]) == {2**BCRYPT_ROUNDS}
    assert await costs(mixed, [*mixed, "nobody"]) == {2**12}
    assert await cost_of(mixed, "user-4", "right") == 2**4
    checker.close()
