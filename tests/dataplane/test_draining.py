"""How long lobbies of a former version go on with somebody in them (decisions 5.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.retained import retain
from pyservice.dataplane.supply import Supply
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from tests.dataplane.configurations import configuration, version
from tests.dataplane.processes import MODES, asking, connected_place
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

OTHER_VERSION_ID = "0192f000-0000-7000-8000-0000000000e9"
SWITCHED_MS = 1_700_000_000_000
DRAIN_MS = 60_000
MODES_WITH_DRAIN: dict[str, Any] = {**MODES, "duel": {**MODES["duel"], "max_drain_ms": DRAIN_MS}}


def switched(
    held: pb.NamespaceConfiguration, now_ms: int, live: Iterable[bytes] = (), **fields: Any
) -> pb.NamespaceConfiguration:
    """Another version as the data plane takes it at a time, over what it holds."""
    wanted = configuration(
        versions=[version(OTHER_VERSION_ID, **MODES_WITH_DRAIN)],
        current_version_id=OTHER_VERSION_ID,
        **fields,
    )
    kept = retain(wanted, held, lambda _: [raw_id(held.current_version_id), *live], now_ms)
    wanted.retained_versions.extend(kept.versions)
    return wanted


async def test_who_is_in_a_lobby_of_a_former_version_stays_for_so_long_and_no_longer(
    engine: Engine,
) -> None:
    place = await connected_place(engine, **MODES_WITH_DRAIN)
    wall_ms = SWITCHED_MS
    supply = Supply(engine, place.namespaces, place.making, ["north"], 30_000, lambda: wall_ms)
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        await place.serve()
        await place.ready(wanted.lobby_id)
        await asyncio.wait_for(finding, PATIENCE_S)
    namespace = place.client().namespace_id
    held = place.namespaces.configuration(namespace)
    assert held is not None
    place.namespaces.put(switched(held, SWITCHED_MS))

    async def is_stopping() -> bool:
        supply.changed(namespace)
        await supply.step()
        return any(lobby.is_stopping for lobby in (await place.wanted()).lobbies)

    assert not await is_stopping()
    wall_ms = SWITCHED_MS + DRAIN_MS - 1
    assert not await is_stopping()
    wall_ms += 1
    assert await is_stopping()


def test_a_version_that_was_retired_before_counts_from_then() -> None:
    first = switched(configuration(versions=[version(**MODES_WITH_DRAIN)]), SWITCHED_MS)
    [retired] = first.retained_versions
    assert retired.retired_ts_ms == SWITCHED_MS
    again = switched(first, SWITCHED_MS + 5_000, [raw_id(retired.version_id)], revision=2)
    assert [one.retired_ts_ms for one in again.retained_versions] == [SWITCHED_MS]
