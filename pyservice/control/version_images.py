"""Images of versions that become active: nodes fetch them before the first game server needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.concurrency.fair_queue import FairQueue
from pyservice.control.configuration_encoding import decode
from pyservice.errors import ServiceError
from pyservice.kubernetes.image_pulls import ImagePulls, PullProblem
from pyservice.kubernetes.pod_manifest import ImageBuild
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.storage import builds, uploads
from pyservice.storage.database import Conflict, Database, Record

_IMAGES_AT_ONCE: Final = 16
_IMAGES_OF_GROUP_AT_ONCE: Final = 2
_PROBLEMS_MAX: Final = 10_000
_RETRIES_S: Final = doubling(0.1, 5.0)

_log = get_logger("runtime")


class VersionImages:
    def __init__(self, database: Database, regions: Sequence[str]) -> None:
        self._database = database
        self._regions = regions
        self._activated: asyncio.Queue[str] = asyncio.Queue()
        self._permits = FairQueue(_IMAGES_AT_ONCE, _IMAGES_OF_GROUP_AT_ONCE)
        self._start_permits = FairQueue(_IMAGES_AT_ONCE, _IMAGES_OF_GROUP_AT_ONCE)
        """Limits of the versions that were active at the start."""
        self._problems: dict[str, str] = {}

    def activate(self, version_id: str) -> None:
        """Has the nodes fetch the images of a version. Does not wait."""
        self._activated.put_nowait(version_id)

    def problem(self, build_id: str) -> str | None:
        """Returns why nodes could not fetch the image of a build, as a sentence, or None."""
        return self._problems.get(build_id)

    async def run(self, pulls: ImagePulls) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(pulls.run())
            group.create_task(self._fetch_active(pulls))
            while True:
                version_id = await self._activated.get()
                group.create_task(self._fetch_all(version_id, pulls))

    async def _fetch_active(self, pulls: ImagePulls) -> None:
        """Fetches images again, because an earlier control plane may have ended during a fetch."""
        async with asyncio.TaskGroup() as group:
            for version in await self._active_versions():
                group.create_task(self._fetch_at_start(version, pulls))

    async def _active_versions(self) -> Sequence[Record]:
        backoff = Backoff(_RETRIES_S)
        while True:
            try:
                async with self._database.read() as tx:
                    return await builds.active_versions_with_images(tx)
            except (ServiceError, Conflict) as error:
                if not backoff.failures:
                    _log.warning("images of active versions are fetched later", error=str(error))
            await asyncio.sleep(backoff.next_s())

    async def _fetch_at_start(self, version: Record, pulls: ImagePulls) -> None:
        async with self._start_permits.permit("", version.group_id):
            await self._fetch_all(version.version_id, pulls)

    async def _fetch_all(self, version_id: str, pulls: ImagePulls) -> None:
        try:
            async with self._database.read() as tx:
                images = await builds.images_of_version(tx, version_id)
                content = await uploads.version_config(tx, version_id) if images else b""
        except (ServiceError, Conflict, LookupError) as error:
            # The first game server on each node fetches it.
            _log.warning("images are not fetched", version_id=version_id, error=str(error))
            return
        regions = regions_of_builds(decode(content), self._regions)
        for image in images:
            async with self._permits.permit("", image.group_id):
                await self._fetch(image, regions.get(image.build_id, ()), pulls)

    async def _fetch(self, image: Record, regions: Sequence[str], pulls: ImagePulls) -> None:
        build = ImageBuild(image.image_tag, image.group_id)
        problems = await pulls.pull(build, regions)
        self._problems.pop(image.build_id, None)
        of_image = [problem for problem in problems if problem.is_of_image]
        if of_image:
            self._problems[image.build_id] = _sentence(of_image)
            while len(self._problems) > _PROBLEMS_MAX:
                del self._problems[next(iter(self._problems))]
        if problems:
            [first, *_] = problems
            _log.warning(
                "image is not on all nodes",
                build_id=image.build_id,
                image=build.reference,
                nodes=[problem.node for problem in problems],
                error=first.sentence,
            )


def regions_of_builds(
    config: pb.CloudConfig, all_regions: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """Returns the regions in which the game modes of a version use each build, by id of the build."""
    matchmaker, regions = config.matchmaker, dict[str, list[str]]()
    for mode in matchmaker.game_modes.entries.values():
        docker = mode.docker if mode.HasField("docker") else matchmaker.docker
        named = mode.regions.entries or matchmaker.regions.entries or all_regions
        regions.setdefault(docker.image_id, []).extend(sorted(named))
    return regions


def _sentence(problems: Sequence[PullProblem]) -> str:
    count = len(problems)
    nodes = f"{count} node" if count == 1 else f"{count} nodes"
    return (
        f"{nodes} could not fetch the image when its version became active: {problems[0].sentence}"
    )
