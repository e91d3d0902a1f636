"""Fetches of the images of versions, with the records of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final, NoReturn

import pytest

from pyservice.control.configuration_encoding import encode
from pyservice.control.version_images import VersionImages
from pyservice.errors import ServiceError
from pyservice.kubernetes.image_pulls import PullProblem
from pyservice.kubernetes.pod_manifest import ImageBuild
from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.storage import builds as build_records
from pyservice.storage import games, namespaces
from tests.control.build_uploads import IDS, NOW_MS, BuildUploads
from tests.control.build_uploads import builds as builds
from tests.control.service_fixtures import each_database
from tests.support.waiting import cancel, until_met

pytestmark = pytest.mark.anyio

IMAGE: Final = f"registry.example.com/team/game@sha256:{'ab' * 32}"


class Pulls:
    def __init__(self) -> None:
        self.fetched: list[tuple[str, Collection[str]]] = []

    async def run(self) -> NoReturn:
        await asyncio.Future()
        raise AssertionError

    async def pull(self, build: ImageBuild, regions: Collection[str]) -> list[PullProblem]:
        self.fetched.append((build.reference, regions))
        return []


async def add_version(builds: BuildUploads, image: str, *name_ids: str) -> str:
    """Adds a version that runs an image, and namespaces with this version. Returns its id."""
    build_id, version_id = (await builds.register(image)).build_id, IDS.new()
    config = versions_pb2.CloudConfig()
    config.matchmaker.game_modes.entries["duel"].docker.image_id = build_id
    version = games.NewVersion(
        version_id, builds.game_id, image, NOW_MS, encode(config), build_ids=[build_id]
    )
    several = [namespaces.NewNamespace(IDS.new(), name, name, IDS.new()) for name in name_ids]
    async with builds.database.write() as tx:
        await games.add_version(tx, version)
        if several:
            await namespaces.add(tx, builds.game_id, version_id, several, (512, 256), NOW_MS)
    return version_id


@each_database
async def test_images_of_active_versions_are_fetched_at_the_start(builds: BuildUploads) -> None:
    await builds.restart("image")
    await add_version(builds, IMAGE, "prod", "staging")
    await add_version(builds, IMAGE.replace("game", "inactive"))
    later = await add_version(builds, IMAGE.replace("game", "later"))
    pulls: Any = Pulls()
    images = VersionImages(builds.database, ["local"])
    running = asyncio.create_task(images.run(pulls))
    await until_met(lambda: pulls.fetched)
    images.activate(later)
    await until_met(lambda: len(pulls.fetched) > 1)
    await cancel(running)
    assert [image for image, _ in pulls.fetched] == [IMAGE, IMAGE.replace("game", "later")]


@each_database
async def test_images_are_fetched_once_the_database_answers(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builds.restart("image")
    await add_version(builds, IMAGE, "prod")
    pulls: Any = Pulls()
    away = ServiceError("CONTROL_PLANE_UNAVAILABLE")
    read = build_records.active_versions_with_images
    answers = iter([away, away])

    async def answer(tx: Any) -> Any:
        if (error := next(answers, None)) is not None:
            raise error
        return await read(tx)

    monkeypatch.setattr(build_records, "active_versions_with_images", answer)
    running = asyncio.create_task(VersionImages(builds.database, ["local"]).run(pulls))
    await until_met(lambda: pulls.fetched)
    await cancel(running)
