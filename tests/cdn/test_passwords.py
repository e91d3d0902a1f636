"""Sites with passwords: who is let in, how often that is checked, and what guessing costs others."""

from __future__ import annotations

import asyncio
import time

import bcrypt
import httpx
import pytest

from pyservice.cdn.sites import Site
from tests.cdn.arena import FILES, SCRIPT, make_site
from tests.cdn.listener import Listener
from tests.cdn.wire import Wire

pytestmark = pytest.mark.anyio


async def test_a_password_is_asked_for_where_one_is_set(
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
    # What is not there is not told either.
    assert (await client.get("/arena/closed/nothing")).status_code == 401
    assert (await client.get("/arena/locked/")).status_code == 401
    for auth in (("ann", "right:one"), ("bob", "ü"), ("ann", "right:one")):
        answer = await client.get("/arena/closed/app.js", auth=auth)
        assert (answer.status_code, answer.content) == (200, SCRIPT)
        assert answer.headers["cache-control"] == "private, no-cache"
    changed = {"ann": bcrypt.hashpw(b"new", bcrypt.gensalt(4))}
    listener.sites.by_name["arena", "closed"] = make_site(FILES, users=changed)
    assert (await client.get("/arena/closed/", auth=("ann", "right:one"))).status_code == 401


async def test_a_password_is_checked_once_and_then_known(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(13))}
    listener.sites.by_name["arena", "slow"] = make_site(FILES, users=users)
    started = time.perf_counter()
    assert (await client.get("/arena/slow/tiny.js", auth=("ann", "right"))).status_code == 200
    first_s = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(5):
        answer = await client.get("/arena/slow/tiny.js", auth=("ann", "right"))
        assert answer.status_code == 200
    assert (time.perf_counter() - started) / 5 < first_s / 3


async def test_who_guesses_passwords_does_not_hold_up_others(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(9))}
    listener.sites.by_name["arena", "guessed"] = make_site(FILES, users=users)
    wires = [await Wire.open(listener.url) for _ in range(80)]
    for number, wire in enumerate(wires):
        guess = httpx.BasicAuth("ann", str(number))._auth_header
        head = f"GET /arena/guessed/ HTTP/1.1\r\nHost: x\r\nAuthorization: {guess}\r\n\r\n"
        await wire.send(head.encode())
    assert (await client.get("tiny.js")).content == b"1"
    answers = await asyncio.gather(*(wire.answer(60) for wire in wires))
    for wire in wires:
        await wire.close()
    statuses = [status for status, _, _ in answers]
    # 64 wait their turn at most; the first ones are through before the last ones come.
    assert statuses.count(401) >= 64
    assert statuses.count(503) == 80 - statuses.count(401) > 0
    assert all("retry-after" in headers for status, headers, _ in answers if status == 503)
