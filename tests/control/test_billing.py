"""Command `pyservice billing record`."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.control.new_developers import new_developer
from tests.support.command_line import error_output, json_output, output
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

TIME = "2030-01-31T12:00:00.250+01:00"
REPORTED = "2030-01-31T11:00:00.250Z"
EVENTS = ("payment_failed", "payment_method_attached", "payment_method_valid", "payment_succeeded")


async def _record(developer: Developer, group_id: str, *words: str) -> None:
    data_dir = developer.full_service.data_dir
    assert await output(data_dir, "billing", "record", "--group", group_id, *words) == ""


async def test_recorded_times_are_returned_in_utc(owner: Developer, records: Records) -> None:
    member, group_id = await new_developer(owner, records)
    expected = {}
    for event in EVENTS:
        await _record(owner, group_id, f"--{event.replace('_', '-')}", TIME)
        expected[f"{event}_ts"] = REPORTED
        assert (await member.good("get_billing", group_id=group_id))["group"] == expected
    for time, stored in (
        ("2030-01-31T12:00:00Z", "2030-01-31T12:00:00.000Z"),
        ("2030-01-31t12:00:00.5z", "2030-01-31T12:00:00.500Z"),
        ("2030-01-31T00:30:00.123456789+23:59", "2030-01-30T00:31:00.123Z"),
        ("2030-01-31T12:00:00-00:00", "2030-01-31T12:00:00.000Z"),
    ):
        await _record(owner, group_id, "--payment-failed", time)
        expected["payment_failed_ts"] = stored
        assert (await member.good("get_billing", group_id=group_id))["group"] == expected
    words = ("billing", "record", "--group", group_id, "--payment-failed", TIME)
    assert await json_output(owner.full_service.data_dir, *words) == {}


async def test_watch_wakes_on_a_record(developer: Developer, records: Records) -> None:
    member, group_id = await new_developer(developer, records)
    other, other_id = await new_developer(developer, records)
    index = (await member.good("get_billing", group_id=group_id))["watch"]["index"]
    waiting_task = asyncio.create_task(
        member.good("get_billing", group_id=group_id, watch_index=index)
    )
    await _record(developer, other_id, "--payment-failed", TIME)
    done, _ = await asyncio.wait({waiting_task}, timeout=0.25)
    assert not done
    await _record(developer, group_id, "--payment-succeeded", TIME)
    answer = await asyncio.wait_for(waiting_task, PATIENCE_S)
    assert answer["group"] == {"payment_succeeded_ts": REPORTED}
    others = (await other.good("get_billing", group_id=other_id))["group"]
    assert others == {"payment_failed_ts": REPORTED}


async def test_invalid_record_is_refused_with_a_reason(owner: Developer, records: Records) -> None:
    member, group_id = await new_developer(owner, records)
    failed = ("--payment-failed", TIME)
    for group, words, reason in (
        (str(uuid4()), failed, "GROUP_NOT_FOUND"),
        ("developers", failed, "group_id"),
        (group_id, (), "exactly one"),
        (group_id, (*failed, "--payment-succeeded", TIME), "exactly one"),
        *(
            (group_id, ("--payment-failed", time), "such as 2030-01-31T12:00:00Z")
            for time in ("yesterday", "2030-01-31", "2030-W05-1T12:00:00Z", "1969-01-01T00:00:00Z")
        ),
    ):
        record = ("billing", "record", "--group", group, *words)
        assert reason in await error_output(owner.full_service.data_dir, *record), words
    assert (await member.good("get_billing", group_id=group_id))["group"] == {}
