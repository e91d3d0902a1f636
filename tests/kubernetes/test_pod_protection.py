"""Protection of Pods from evictions: with players, and until the deadline of a drain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from pyservice.kubernetes.api import Object
from pyservice.runtime.run_requests import RunRequest
from pyservice.timestamps import now_ms
from tests.kubernetes.run_scene import Scene, open_scene
from tests.support.kubernetes_api_server import NODES, PODS, ApiServer
from tests.support.kubernetes_nodes import cordon
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

DRAIN_MS: Final = 3_600_000
UNCORDONED: Final[Object] = {"unschedulable": None, "taints": None}


@pytest.fixture
async def scene(server: ApiServer) -> AsyncIterator[Scene]:
    async with open_scene(server, drain_ms=DRAIN_MS) as scene:
        yield scene


def protection(server: ApiServer, request: RunRequest) -> tuple[str | None, str]:
    """Returns the label of the PodDisruptionBudget, and what the autoscaler may do."""
    metadata = server.pods[request.id]["metadata"]
    safe = metadata["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"]
    return metadata["labels"].get("hosting/protected"), safe


PROTECTED: Final = ("true", "false")
EVICTABLE: Final = (None, "true")


async def reaches(server: ApiServer, request: RunRequest, wanted: tuple[str | None, str]) -> None:
    await until_met(lambda: protection(server, request) == wanted)


async def test_lobby_can_be_evicted_while_it_is_empty(scene: Scene, server: ApiServer) -> None:
    request, other = await scene.running(), await scene.running()
    assert protection(server, request) == PROTECTED, "players may be on their way"
    scene.runs.set_empty_lobbies([request.id])
    await reaches(server, request, EVICTABLE)
    scene.runs.set_empty_lobbies([other.id])
    await reaches(server, request, PROTECTED)
    await reaches(server, other, EVICTABLE)

    def protections() -> int:
        return sum("labels" in seen.body["metadata"] for seen in server.seen("patch"))

    earlier = protections()
    scene.runs.set_empty_lobbies([other.id])
    scene.runs.end(request.id)
    await until_met(lambda: scene.deletions(request))
    assert protections() == earlier, "a Pod is changed only if it must be"


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"hosting/protected": None}},
        {"labels": {"hosting/protected": "false"}},
        {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
    ],
)
async def test_changed_protection_is_corrected(
    scene: Scene, server: ApiServer, metadata: Object
) -> None:
    request = await scene.running()
    server.change(PODS, request.id, {"metadata": metadata})
    assert protection(server, request) != PROTECTED
    await reaches(server, request, PROTECTED)


async def test_protection_ends_with_the_time_of_the_drain(scene: Scene, server: ApiServer) -> None:
    lobby = await scene.running()
    back_end = await scene.running(owner="server")
    elsewhere = await scene.running("n2")
    scene.runs.set_empty_lobbies([])
    server.change(NODES, "n1", {"spec": cordon(now_ms() - DRAIN_MS + 500)})
    # The rest of the time passes.
    await reaches(server, lobby, EVICTABLE)
    await reaches(server, back_end, EVICTABLE)
    assert protection(server, elsewhere) == PROTECTED
    server.change(NODES, "n1", {"spec": UNCORDONED})
    await reaches(server, lobby, PROTECTED)
    await reaches(server, back_end, PROTECTED)


async def test_time_of_the_drain_survives_a_restart(scene: Scene, server: ApiServer) -> None:
    late, early = await scene.running("n1"), await scene.running("n2")
    scene.runs.set_empty_lobbies([])
    await scene.drop()
    server.change(NODES, "n1", {"spec": cordon(now_ms() - DRAIN_MS - 1_000)})
    server.change(NODES, "n2", {"spec": cordon(now_ms() - DRAIN_MS + 600_000)})
    await scene.start()
    scene.runs.set_empty_lobbies([])
    await reaches(server, late, EVICTABLE)
    assert protection(server, early) == PROTECTED


async def test_pods_stay_as_they_are_until_the_players_are_known(
    scene: Scene, server: ApiServer
) -> None:
    empty, filled = await scene.running(), await scene.running()
    scene.runs.set_empty_lobbies([empty.id, filled.id])
    await reaches(server, empty, EVICTABLE)
    await reaches(server, filled, EVICTABLE)
    await scene.start_again()
    before = len(server.seen("patch"))
    await scene.reports.wait_for(empty.id, "running")
    assert len(server.seen("patch")) == before
    scene.runs.set_empty_lobbies([empty.id])
    await reaches(server, filled, PROTECTED)
    assert protection(server, empty) == EVICTABLE


async def test_change_that_fails_is_repeated_and_delays_no_stop(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    server.forbidden.add(("patch", "pods"))
    scene.runs.set_empty_lobbies([request.id])
    await until_met(lambda: server.seen("patch"))
    server.forbidden.clear()
    await reaches(server, request, EVICTABLE)
    server.forbidden.add(("patch", "pods"))
    scene.runs.set_empty_lobbies([])
    scene.runs.end(request.id)
    await until_met(lambda: scene.deletions(request))
    server.finish(request.id, 143)
    assert (await scene.end(request)).reason == "stopped"


async def test_another_pod_with_the_name_is_not_changed(scene: Scene, server: ApiServer) -> None:
    request = await scene.running()
    uid = server.pods[request.id]["metadata"]["uid"]
    server.is_silent = True
    server.change(PODS, request.id, {"metadata": {"uid": "another"}})
    scene.runs.set_empty_lobbies([request.id])
    await until_met(lambda: server.seen("patch"))
    assert [one.body["metadata"]["uid"] for one in server.seen("patch")] == [uid]
    assert protection(server, request) == PROTECTED


@pytest.mark.parametrize("ahead_s", [-3_600, 3_600])
async def test_wrong_clock_of_the_service_changes_no_drain(
    scene: Scene, server: ApiServer, ahead_s: int
) -> None:
    """The deadline counts on the clock of the cluster, which set the time of the cordon."""
    server.clock_ahead_s = ahead_s
    lobby, elsewhere = await scene.running(), await scene.running("n2")
    scene.runs.set_empty_lobbies([])
    cluster_ms = now_ms() + ahead_s * 1_000
    server.change(NODES, "n1", {"spec": cordon(cluster_ms - DRAIN_MS + 60_000)})
    server.change(NODES, "n2", {"spec": cordon(cluster_ms - DRAIN_MS)})
    await reaches(server, elsewhere, EVICTABLE)
    assert protection(server, lobby) == PROTECTED
