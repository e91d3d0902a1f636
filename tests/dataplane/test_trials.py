"""Start of trials: their configuration, quotas and capacity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane.configuration_feed import ConfigurationFeed
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.feed_files import FeedFiles
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.resolved_namespace import TIER, raw_id
from pyservice.dataplane.trials import Trials
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import trials_pb2 as pb
from pyservice.settings.quotas import QuotaSettings
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import (
    GAME_ID,
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    configuration,
    version,
)
from tests.support.runtime_scene import DOCKER, MODES, RuntimeScene

pytestmark = pytest.mark.anyio

NEW_VERSION_ID = "0192f000-0000-7000-8000-0000000000e9"
GROUP_ID = "0192f000-0000-7000-8000-0000000000f1"
GAME = {
    "game_id": GAME_ID,
    "name_id": "arena",
    "display_name": "Arena",
    "developer_group_id": GROUP_ID,
}
NEW_DOCKER = {**DOCKER, "env": {"MAP": "lake"}}


class TrialScene(RuntimeScene):
    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine)
        limits = OperatorLimits(
            player_limit_max=256, regions={"north", "south"}, configuration_bytes=1 << 26
        )
        self.feed_of_plane = ConfigurationFeed(
            FeedFiles(folder), self.namespaces, limits, FeedMetrics()
        )
        self.trials = Trials(
            self.feed_of_plane,
            engine.processes,
            self.lobby_templates,
            self.runtime,
            ["north", "south"],
        )

    async def start(self, mode: str = "new", **changes: Any) -> pb.StartTrialResponse:
        new = version(version_id=NEW_VERSION_ID, new={"docker": NEW_DOCKER})
        fields = {"versions": [new], "current_version_id": NEW_VERSION_ID, **changes}
        message = configuration(revision=9, game=GAME, **fields)
        return await self.trials.start(
            pb.StartTrialRequest(configuration=message, game_mode=mode, timeout_ms=60_000)
        )


@pytest.fixture
async def scene(engine: Engine, tmp_path: Path) -> TrialScene:
    scene = TrialScene(engine, tmp_path / "feed")
    scene.feed(game=GAME, versions=[version(**MODES)])
    await scene.desired_lobbies()
    return scene


async def test_trial_has_the_program_of_its_version(scene: TrialScene) -> None:
    lobby_id = (await scene.start()).lobby_id
    [wanted] = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
    assert (wanted.lobby_id, wanted.version_id) == (lobby_id, NEW_VERSION_ID)
    assert (dict(wanted.spec.env), wanted.spec.game_mode) == ({"MAP": "lake"}, "new")
    # The namespace keeps its version, also if the runtime asks again.
    namespace = scene.namespaces.resolved(raw_id(NAMESPACE_ID))
    assert namespace.version_id == raw_id(VERSION_ID)
    scene.run, scene.sequence = "", 0
    [wanted] = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
    assert dict(wanted.spec.env) == {"MAP": "lake"}


async def test_crash_of_a_trial_delays_no_start(scene: TrialScene) -> None:
    lobby_id = (await scene.start()).lobby_id
    lobby = scene.engine.lobby(raw_id(lobby_id))
    assert lobby is not None
    scene.lobby_scaler.lobby_crashed(lobby)
    key = (lobby.namespace, lobby.version, lobby.mode, lobby.region)
    assert scene.lobby_scaler._backoff.remaining_s(key) == 0.0


async def test_trial_counts_for_the_quotas_of_the_group(scene: TrialScene) -> None:
    scene.quota.defaults = QuotaSettings(lobbies=1)
    await scene.start()
    assert (await expect_error(scene.start())).code == "QUOTA_EXCEEDED"
    assert (await expect_error(scene.create())).code == "QUOTA_EXCEEDED"


async def test_trial_without_capacity_says_why(scene: TrialScene) -> None:
    scene.free = (1, 1)
    await scene.desired_lobbies()
    error = await expect_error(scene.start())
    assert (error.code, error.metadata["reason"]) == ("CAPACITY_EXHAUSTED", "capacity")
    assert error.metadata["tier"] == TIER


async def test_unusable_configuration_starts_nothing(scene: TrialScene) -> None:
    refused = await scene.start(
        versions=[version(version_id=NEW_VERSION_ID, new={"regions": {"west": {}}})]
    )
    assert refused.WhichOneof("outcome") == "refused"
    assert (await expect_error(scene.start("absent"))).code == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    unknown = scene.start(namespace_id=OTHER_NAMESPACE_ID, name_id="other")
    assert (await expect_error(unknown)).code == "NAMESPACE_NOT_FOUND"
    assert (await scene.desired_lobbies()).lobbies == []
