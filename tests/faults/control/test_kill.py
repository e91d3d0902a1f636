"""SIGKILL of either plane between any two steps of a change leaves the old or the new state.

A change with a response exists afterwards. A retry with the same key has one effect.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from pyservice.pb.hosting.internal.v1 import control_admin_pb2
from tests.faults.control.change import Change
from tests.faults.control.changes import BY_NAME, CHANGES, COMMANDS, OF_FILES, OF_PEOPLE, OF_SITES
from tests.faults.control.game_fixture import Fields, GameFixture, open_game_fixture
from tests.support.authorization_rows import ROWS
from tests.support.databases import KINDS, Databases
from tests.support.full_service import ServiceResponse
from tests.support.killed_service import (
    CONTENTS_REMOVED,
    ENDED,
    FED,
    KEPT,
    MOMENTS,
    RECORDS,
    REMOVAL_RECORDS,
    REMOVED,
    STARTED,
    UNPACKED,
    Rows,
    Step,
    answer_of,
    kill_at_step,
)
from tests.support.upload_files import without_addresses
from tests.support.waiting import PATIENCE_S, POLL_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

RETRIED: Final = ("OVERLOADED", "CONTROL_PLANE_UNAVAILABLE")
NOT_CREATED: Final = "No token was created"
ELSEWHERE: Final = {
    "RemoveOrphans": "test_orphan_removal",
    "RotateControlKeys": "test_control_key_rotation",
}


@pytest.mark.fast
def test_every_change_has_a_kill_test() -> None:
    operations = {row.slug for row in ROWS if row.changes}
    service = control_admin_pb2.DESCRIPTOR.services_by_name["ControlAdmin"]
    commands = {one.name for one in service.methods if not one.name.startswith("List")}
    assert ELSEWHERE.keys() <= commands
    assert {change.operation for change in CHANGES} == operations | commands - ELSEWHERE.keys()
    for method, module in ELSEWHERE.items():
        assert method in Path(__file__).with_name(f"{module}.py").read_text()


class PendingChange:
    def __init__(self, fixture: GameFixture, change: Change, fields: Fields) -> None:
        self.fixture = fixture
        self.change = change
        self.fields = fields
        self.key = uuid4().hex

    async def first(self) -> ServiceResponse | None:
        answers: list[ServiceResponse] = []

        async def ask() -> ServiceResponse:
            answers.append(await self.change.ask(self.fixture, self.fields, self.key))
            return answers[-1]

        answer = await answer_of(ask())
        return answers[-1] if answers and NOT_CREATED in answers[-1].detail else answer

    async def again(self) -> ServiceResponse:
        answer = await self.change.ask(self.fixture, self.fields, self.key)
        end = time.monotonic() + PATIENCE_S
        # Both codes ask the caller to retry: while edge-guard does not serve the ports yet, and if
        # a deletion takes more than a second.
        while answer.code in RETRIED and time.monotonic() < end:
            await asyncio.sleep(POLL_S)
            answer = await self.change.ask(self.fixture, self.fields, self.key)
        assert answer.code == "OK", (str(self.change), answer)
        self.keep(answer)
        return answer

    def keep(self, answer: ServiceResponse | None) -> None:
        if answer is not None and answer.code == "OK":
            self.fixture.keep(self.key, answer.body)


async def pending_change(
    fixture: GameFixture, change: Change, responses: Fields | None = None
) -> PendingChange:
    if change.prepare is not None:
        await change.prepare(fixture)
    return PendingChange(
        fixture, change, change.fields(fixture, responses or await fixture.read_all())
    )


def footprint(before: Rows, after: Rows) -> Counter[str]:
    changes = {f"+{name}": len(rows - before[name]) for name, rows in after.items()}
    went = {f"-{name}": len(rows - after[name]) for name, rows in before.items()}
    return +Counter({**changes, **went})


def added_rows(change_counts: Counter[str]) -> Counter[str]:
    return Counter(
        {name: n for name, n in change_counts.items() if name[0] == "+" and name != "+namespaces"}
    )


def growth(change_counts: Counter[str]) -> Counter[str]:
    grown = Counter[str]()
    for name, count in change_counts.items():
        grown[name[1:]] += count if name[0] == "+" else -count
    return grown


def same(answer: ServiceResponse, other: ServiceResponse) -> bool:
    return bool(without_addresses(answer.body) == without_addresses(other.body))


async def footprint_without_kill(
    fixture: GameFixture, change: Change, responses: Fields | None = None
) -> Counter[str]:
    asking = await pending_change(fixture, change, responses)
    before = await fixture.state_reader.records()
    await asking.again()
    return footprint(before, await fixture.state_reader.records())


async def settled_responses(fixture: GameFixture) -> Fields:
    """Returns the responses when two reads agree. The other plane may still execute the request."""
    responses = await fixture.read_all()
    while (again := await fixture.read_all()) != responses:
        responses = again
    return responses


async def kill_at(fixture: GameFixture, change: Change, step: Step) -> None:
    fixture.begin()
    expected = await footprint_without_kill(fixture, change)
    asking = await pending_change(fixture, change)
    before = await fixture.read_all()
    answer = await kill_at_step(fixture.full_service, step, asking.first)
    asking.keep(answer)
    await fixture.state_reader.wait_until_fed()
    responses = await settled_responses(fixture)
    await fixture.check_effects(responses)
    again = await asking.again()
    last = await fixture.read_all()
    states = (before, responses, last)
    if change.is_repeatable:
        assert footprint(before["records"], last["records"]) == expected
        await check_one_effect(asking, states, answer, again)
    else:
        check_repeated_creation([state["records"] for state in states], answer, expected)
    await fixture.state_reader.wait_until_fed()
    await fixture.check_effects(last)


async def check_one_effect(
    asking: PendingChange,
    states: Sequence[Fields],
    answer: ServiceResponse | None,
    again: ServiceResponse,
) -> None:
    before, after_kill, last = states
    assert last != before
    if answer is not None:
        assert answer.code == "OK", answer
        assert same(again, answer)
        assert after_kill == last
    records = [state["records"] for state in states]
    assert after_kill in (before, last), [footprint(*pair) for pair in itertools.pairwise(records)]
    assert same(await asking.again(), again)
    assert await asking.fixture.read_all() == last


def check_repeated_creation(
    records: Sequence[Rows], answer: ServiceResponse | None, expected: Counter[str]
) -> None:
    nothing, one = Counter[str](), added_rows(expected)
    created, more = (added_rows(footprint(*pair)) for pair in itertools.pairwise(records))
    assert more == one
    if answer is None:
        assert created in (nothing, one)
    else:
        assert answer.code == "OK" or NOT_CREATED in answer.detail, answer
        assert created == (one if answer.code == "OK" else nothing)


FEW: Final = {
    "sqlite": (
        ("create_game", RECORDS[2]),
        ("set_version", RECORDS[3]),
        ("set_mm_config", FED[2]),
        ("revoke_namespace_token", FED[5]),
        ("set_version", FED[3]),
        ("set_cdn_auth", RECORDS[2]),
        ("complete a build", KEPT[3]),
        ("create_server", RECORDS[3]),
        ("create_server", STARTED[4]),
        ("destroy_server", RECORDS[2]),
        ("destroy a server in its time", ENDED[1]),
        ("create a server of a new build", UNPACKED[3]),
        ("delete_version", RECORDS[2]),
        ("delete_namespace", FED[2]),
        ("delete_namespace", FED[5]),
        ("delete_game", RECORDS[2]),
        ("delete_game", RECORDS[3]),
        ("delete a namespace with a lobby", CONTENTS_REMOVED[0]),
        ("delete a game with contents", CONTENTS_REMOVED[1]),
        ("delete a game with contents", CONTENTS_REMOVED[3]),
        ("delete a game with contents", REMOVAL_RECORDS[3]),
        ("delete a game with contents", FED[2]),
        ("delete_site", REMOVED[0]),
        ("delete_logo", RECORDS[3]),
    ),
    "postgresql": (
        ("set_version", MOMENTS[7]),
        ("delete_game", MOMENTS[3]),
        ("set_domain_public_auth", FED[4]),
        ("remove_domain", FED[3]),
        ("complete_build", KEPT[1]),
        ("create_server", MOMENTS[7]),
        ("create_server", STARTED[-1]),
        ("destroy_server", ENDED[2]),
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
async def test_killed_plane_leaves_the_old_or_the_new_state(
    kind: str, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    async with open_game_fixture(tmp_path / "s", shim_library, databases.url(kind)) as fixture:
        for name, step in FEW[kind]:
            await fixture.full_service.refresh()
            await kill_at(fixture, BY_NAME[name], step)


DEPENDENT_CHANGES: Final = {"delete_banner", "delete_logo", "quota reset"}
"""Changes that undo another change of the test: of the same game's picture, or the same quota."""
CONCURRENT_CHANGES: Final = tuple(
    change
    for change in (*OF_SITES, *OF_FILES, *OF_PEOPLE, *COMMANDS)
    if str(change) not in DEPENDENT_CHANGES
)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("sqlite", RECORDS[3]),
        pytest.param("sqlite", RECORDS[2], marks=pytest.mark.proof),
        *(pytest.param("postgresql", step, marks=pytest.mark.proof) for step in MOMENTS),
    ],
    ids=str,
)
async def test_kill_applies_each_concurrent_change_or_none_of_it(
    kind: str, step: Step, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    async with open_game_fixture(tmp_path / "s", shim_library, databases.url(kind)) as fixture:
        returned = await fixture.read_all()
        expected = [
            await footprint_without_kill(fixture, change, returned) for change in CONCURRENT_CHANGES
        ]
        pending_changes = [
            await pending_change(fixture, change, returned) for change in CONCURRENT_CHANGES
        ]
        before = await fixture.state_reader.records()
        answers = await kill_at_step(
            fixture.full_service,
            step,
            lambda: asyncio.gather(*(one.first() for one in pending_changes)),
        )
        for asking, answer in zip(pending_changes, answers, strict=True):
            asking.keep(answer)
        await fixture.state_reader.wait_until_fed()
        await fixture.check_effects(await fixture.read_all())
        stored = await fixture.state_reader.records()
        for asking, answer in zip(pending_changes, answers, strict=True):
            again = await asking.again()
            last = await fixture.state_reader.records()
            if not asking.change.is_repeatable:
                assert last != stored
            elif answer is not None:
                assert answer.code == "OK", answer
                assert same(again, answer)
                assert stored == last, str(asking.change)
            stored = last
        await fixture.check_effects(await fixture.read_all())
        for asking in pending_changes:
            if asking.change.is_repeatable:
                await asking.again()
        assert await fixture.state_reader.records() == stored
        check_numbers(pending_changes, answers, expected, footprint(before, stored))


def check_numbers(
    pending_changes: Sequence[PendingChange],
    answers: Sequence[ServiceResponse | None],
    expected: Sequence[Counter[str]],
    change_counts: Counter[str],
) -> None:
    least, most = Counter[str](), Counter[str]()
    for asking, answer, one in zip(pending_changes, answers, expected, strict=True):
        more = not asking.change.is_repeatable
        is_there = answer is not None and answer.code == "OK"
        for name, count in growth(one).items():
            least[name] += count * (1 + (more and is_there))
            most[name] += count * (1 + more)
    grown = growth(change_counts)
    for name in {*most, *grown}:
        assert least[name] <= grown[name] <= most[name], (name, least, grown, most)


@pytest.mark.proof
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_kill_at_every_step_of_every_change(
    kind: str, change: Change, tmp_path: Path, shim_library: Path, databases: Databases
) -> None:
    async with open_game_fixture(tmp_path / "s", shim_library, databases.url(kind)) as fixture:
        for step in change.all_steps(kind):
            await fixture.full_service.refresh()
            await kill_at(fixture, change, step)
