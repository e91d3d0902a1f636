"""A runner image that does not exist: the lobby ends at once with the sentence of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice_cli.failures import Refused
from tests.cluster.cluster import Cluster, Object
from tests.cluster.hosted_service import GAMES, HostedService, PublishedGame
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MISSING = "localhost/missing:1"


class WithoutRunner(HostedService):
    @property
    def values(self) -> Object:
        values = super().values
        return {**values, "image": {**values["image"], "runner": MISSING}}


def test_missing_image_ends_the_lobby_with_its_name(
    cluster: Cluster, service_image: str, tmp_path: Path
) -> None:
    hosted = WithoutRunner(cluster, service_image, tmp_path)
    try:
        hosted.install()
        with cluster.network():
            game = PublishedGame(hosted)
            with pytest.raises(Refused) as refused:
                game.find()
            assert refused.value.code == "MATCHMAKER_LOBBY_START_FAILED"
            [lobby_id] = game.records()
            record = game.record_with_problem(lobby_id)
            assert record["failure"] == "BUILD_UNUSABLE"
            assert MISSING in record["problem"]
            assert game.log(lobby_id, "service") == [record["problem"]]
            until(lambda: cluster.get(f"{GAMES}/{lobby_id}") is None)
    finally:
        hosted.remove()
