"""Command `pyservice billing record`."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.control.namespace_scenario import Records
from tests.control.test_games import new_developer
from tests.support.command_line import error_output, json_output, output
from tests.support.full_service import Developer
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

TIME = "2030-01-31T12:00:00.250+01:00"
REPORTED = "2030-01-31T11:00:00.250Z"
TIMES = {
    "2030-01-31T12:00:00Z": "2030-01-31T12:00:00.000Z",
    "2030-01-31t12:00:00.5z": "2030-01-31T12:00:00.500Z",
    "2030-01-31T00:30:00.123456789+23:59": "2030-01-30T00:31:00.123Z",
    "2030-01-31T12:00:00-00:00": "2030-01-31T12:00:00.000Z",
}
EVENTS = ("payment_failed", "payment_method_attached", "payment_method_valid", "payment_succeeded")


async def _record(developer: Developer, group_id: str, *words: str) -> str:
    return await output(
        developer.full_service.data_dir, "billing", "record", "--group", group_id, *words
    )


@pytest.mark.parametrize("event", EVENTS)
async def test_each_time_has_its_field(owner: Developer, records: Records, event: str) -> None:
    me, group_id = await new_developer(owner, records)
    flag = f"--{event.replace('_', '-')}"
    assert await _record(owner, group_id, flag, TIME) == ""
    answer = await me.good("get_billing", group_id=group_id)
    assert answer["group"] == {f"{event}_ts": REPORTED}


async def test_time_follows_rfc_3339(owner: Developer, records: Records) -> None:
    me, group_id = await new_developer(owner, records)
    for time, stored in TIMES.items():
        await _record(owner, group_id, "--payment-failed", time)
        answer = await me.good("get_billing", group_id=group_id)
        assert answer["group"] == {"payment_failed_ts": stored}


async def test_watch_wakes_on_a_record(developer: Developer, records: Records) -> None:
    me, group_id = await new_developer(developer, records)
    other, other_id = await new_developer(developer, records)
    index = (await me.good("get_billing", group_id=group_id))["watch"]["index"]
    fields = {"group_id": group_id, "watch_index": index}
    waiting = asyncio.create_task(me.good("get_billing", **fields))
    await _record(developer, other_id, "--payment-failed", TIME)
    done, _ = await asyncio.wait({waiting}, timeout=0.25)
    assert not done
    await _record(developer, group_id, "--payment-succeeded", TIME)
    answer = await asyncio.wait_for(waiting, PATIENCE_S)
    assert answer["group"] == {"payment_succeeded_ts": REPORTED}
    assert (await other.good("get_billing", group_id=other_id))["group"] == {
        "payment_failed_ts": REPORTED
    }


async def test_invalid_record_is_refused_with_a_reason(owner: Developer) -> None:
    data_dir, group_id = owner.full_service.data_dir, owner.full_service.group_id
    record = ("billing", "record", "--group")
    assert "GROUP_NOT_FOUND" in await error_output(
        data_dir, *record, str(uuid4()), "--payment-failed", TIME
    )
    assert "group_id" in await error_output(
        data_dir, *record, "developers", "--payment-failed", TIME
    )
    for time in ("yesterday", "2030-01-31", "2030-W05-1T12:00:00Z", "1969-01-01T00:00:00Z"):
        problem = await error_output(data_dir, *record, group_id, "--payment-failed", time)
        assert "such as 2030-01-31T12:00:00Z" in problem
    assert "exactly one" in await error_output(data_dir, *record, group_id)
    both = ("--payment-failed", TIME, "--payment-succeeded", TIME)
    assert "exactly one" in await error_output(data_dir, *record, group_id, *both)
    assert (await owner.good("get_billing", group_id=group_id))["group"] == {}


async def test_json_output_is_an_object(owner: Developer, records: Records) -> None:
    _, group_id = await new_developer(owner, records)
    words = ("billing", "record", "--group", group_id, "--payment-failed", TIME)
    assert await json_output(owner.full_service.data_dir, *words) == {}
