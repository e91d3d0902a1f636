"""Changes that need the data plane while the data plane does not respond or refuses them.

The tests use the HTTP and gRPC servers of the control plane, because the public servers are in the
data plane.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final
from uuid import uuid4

import pytest

from tests.faults.control.stored_changes import (
    CHANGES,
    TRANSPORTS,
    ChangeFixture,
    Fields,
    suspended_data_plane,
)
from tests.support.full_service import HARMLESS, FullService
from tests.support.unknown_namespace import CLAIMED
from tests.support.unknown_namespace import full_service as full_service
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

WAITED_S: Final = 1.0
"""Time that the control plane waits for the data plane."""


def request(fixture: ChangeFixture, slug: str, fields: Fields) -> Fields:
    if slug == "create_service_token":
        return {"game_id": fixture.game_id, **fields}
    return {**fixture.namespace_fields, **fields}


@pytest.fixture(params=TRANSPORTS)
async def fixture(
    request: pytest.FixtureRequest, full_service: FullService
) -> AsyncIterator[ChangeFixture]:
    created = ChangeFixture(full_service, request.param)
    try:
        yield await created.prepare()
    finally:
        await created.close()


@pytest.mark.parametrize("slug", CHANGES)
async def test_unconfirmed_change_is_stored_and_takes_effect_later(
    slug: str, fixture: ChangeFixture
) -> None:
    fields, effect = await CHANGES[slug].prepare(fixture)
    fields, key = request(fixture, slug, fields), uuid4().hex
    with suspended_data_plane(fixture.full_service):
        for _ in range(2):
            began_s = time.monotonic()
            answer = await fixture.inside.call(slug, key, **fields)
            assert answer.code == "CONTROL_PLANE_UNAVAILABLE", answer
            # A retry cannot return the same env_ token, so the service keeps none.
            is_lost = slug == "create_service_token"
            output = "No token was created" if is_lost else "stored and will take effect"
            assert output in answer.detail
            assert HARMLESS in answer.detail
            assert time.monotonic() - began_s > 0.9 * WAITED_S
            if fixture.inner.name == "http":
                assert int(answer.headers["retry-after"]) > 0
    body = await fixture.developer.good(slug, key, **fields)
    await effect(body)


async def test_stored_change_takes_effect_without_a_retry(fixture: ChangeFixture) -> None:
    page = {"origin": f"https://{fixture.domain}"}
    fields = {**fixture.namespace_fields, "domain": fixture.domain}
    with suspended_data_plane(fixture.full_service):
        answer = await fixture.inside.call("remove_domain", **fields)
        assert answer.code == "CONTROL_PLANE_UNAVAILABLE", answer

    async def is_there() -> bool:
        return await fixture.regions(**page) == "TOKEN_MISSING"

    await eventually(is_there)


@contextlib.asynccontextmanager
async def claimed_domain(fixture: ChangeFixture, code: str) -> AsyncIterator[None]:
    """The records request a domain of another namespace, so the data plane refuses all changes of
    this namespace.
    """
    claim = {**fixture.namespace_fields, "domain": CLAIMED}
    try:
        assert (await fixture.developer.call("add_domain", **claim)).code == code
        yield
    finally:
        await fixture.developer.good("remove_domain", **claim)


@pytest.mark.parametrize("slug", CHANGES)
async def test_refused_change_takes_effect_after_the_conflict_is_resolved(
    slug: str, fixture: ChangeFixture
) -> None:
    fields, effect = await CHANGES[slug].prepare(fixture)
    fields, key = request(fixture, slug, fields), uuid4().hex
    before = await fixture.page()
    # While public authentication is off, the claimed domain causes no conflict.
    is_off = slug == "set_domain_public_auth"
    async with claimed_domain(fixture, "OK" if is_off else "VALIDATION_FAILED"):
        refusal = await fixture.developer.call(slug, key, **fields)
        assert refusal.code == "VALIDATION_FAILED"
        assert refusal.errors == (("domain", "not-unique"),)
        assert await fixture.page() == before
        assert await fixture.regions(origin=f"https://{CLAIMED}") == "OK"
    await effect(await fixture.developer.good(slug, key, **fields))
