"""Kills of either plane during `pyservice namespace remove-orphans`.

Each namespace without a record is unchanged or removed. The repeated command removes the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from pyservice.cli.admin_requests import admin_socket
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.rpc import InternalClient
from tests.faults.control.game_fixture import GameFixture, open_game_fixture
from tests.support.databases import KINDS, Databases
from tests.support.full_service import ServiceResponse, eventually
from tests.support.killed_service import FED, MOMENTS, Step, answer_of, kill_at_step
from tests.support.namespace_configurations import configuration

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

COUNT: Final = 3
_FEED: Final = "hosting.internal.v1.Feed"
REMOVED: Final = tuple(
    Step(f"{step.name}, of the {name}", "data", step.calls, step.files, at, step.after)
    for at, name in ((1, "first"), (COUNT, "last"))
    for step in FED
)
FEW: Final = {"sqlite": (REMOVED[2], REMOVED[9], REMOVED[5]), "postgresql": (REMOVED[8],)}
HeldConfigurations = dict[str, feed_pb2.HeldConfiguration]


def _ids(answer: ServiceResponse) -> list[str]:
    return [one["namespace_id"] for several in answer.body.values() for one in several]


class OrphanedNamespaces:
    def __init__(self, fixture: GameFixture) -> None:
        self.fixture = fixture

    async def _feed(self, method: str, request: Any) -> Any:
        async with InternalClient(admin_socket(self.fixture.full_service.data_dir)) as client:
            return await client.call(f"{_FEED}.{method}", request)

    async def leave(self) -> HeldConfigurations:
        game_id = str(uuid4())
        game = {"game_id": game_id, "name_id": f"g{uuid4().hex[:20]}", "display_name": "Lost"}
        ids = [str(uuid4()) for _ in range(COUNT)]
        for number, one in enumerate(ids):
            fields = {"namespace_id": one, "name_id": f"n{number}", "game": game}
            request = feed_pb2.ApplyRequest(configuration=configuration(source_epoch=1, **fields))
            answer = await self._feed("Apply", request)
            assert answer.HasField("applied"), answer
        namespaces = await self.fed_namespaces()
        return {one: namespaces[one] for one in ids}

    async def fed_namespaces(self) -> HeldConfigurations:
        answer = await self._feed("Held", feed_pb2.HeldRequest())
        return {one.namespace_id: one for one in answer.configurations}

    async def commanded(self, method: str, **fields: Any) -> list[str]:
        async def answered() -> ServiceResponse | None:
            answer = await self.fixture.command(method, **fields)
            return None if answer.code == "CONTROL_PLANE_UNAVAILABLE" else answer

        answer = await eventually(answered)
        assert answer.code == "OK", answer
        return _ids(answer)

    async def kill_at(self, step: Step) -> None:
        fixture = self.fixture
        orphaned, before = await self.leave(), await self.fed_namespaces()
        records = await fixture.state_reader.records()
        assert await self.commanded("ListOrphans") == list(orphaned)
        answer = await kill_at_step(
            fixture.full_service,
            step,
            lambda: answer_of(fixture.command("RemoveOrphans", all=True)),
        )
        await fixture.state_reader.wait_until_fed()
        after = await self.fed_namespaces()
        removed = orphaned.keys() - after.keys()
        assert removed == set(list(orphaned)[: len(removed)])
        assert after == {one: held_one for one, held_one in before.items() if one not in removed}
        rest = [one for one in orphaned if one not in removed]
        assert await self.commanded("ListOrphans") == rest
        if answer is not None:
            assert answer.code == "OK", answer
            assert (_ids(answer), rest) == (list(orphaned), [])
        assert await self.commanded("RemoveOrphans", all=True) == rest
        fixture.full_service.kill("data")
        await fixture.state_reader.wait_until_fed()
        assert (await self.fed_namespaces()).keys() == before.keys() - orphaned.keys()
        assert await self.commanded("ListOrphans") == []
        assert await fixture.state_reader.records() == records
        await fixture.check_effects(await fixture.read_all())


@pytest.fixture(params=KINDS)
async def orphaned_namespaces(
    request: pytest.FixtureRequest, tmp_path: Path, shim_library: Path, databases: Databases
) -> AsyncIterator[tuple[str, OrphanedNamespaces]]:
    kind = request.param
    async with open_game_fixture(tmp_path / "s", shim_library, databases.url(kind)) as fixture:
        yield kind, OrphanedNamespaces(fixture)


async def test_kill_during_orphan_removal_removes_each_orphan_or_none_of_it(
    orphaned_namespaces: tuple[str, OrphanedNamespaces],
) -> None:
    kind, one = orphaned_namespaces
    for step in FEW[kind]:
        await one.fixture.full_service.refresh()
        await one.kill_at(step)


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_kill_at_every_step_of_an_orphan_removal(
    orphaned_namespaces: tuple[str, OrphanedNamespaces],
) -> None:
    _, one = orphaned_namespaces
    for step in (*REMOVED, *MOMENTS):
        await one.fixture.full_service.refresh()
        await one.kill_at(step)
