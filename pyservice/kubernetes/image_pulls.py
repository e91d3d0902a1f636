"""Nodes fetch the images of builds before game servers need them.

For each node and image, one short-lived Pod of a known name starts, and is deleted at its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final, NamedTuple, NoReturn

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.concurrency.fair_queue import FairQueue
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.kubernetes.api import ApiError, KubernetesApi, Object, pause_after, pods_of
from pyservice.kubernetes.cluster_nodes import ClusterNodes
from pyservice.kubernetes.pod_deletion import delete_unneeded
from pyservice.kubernetes.pod_manifest import ImageBuild, PodTemplate
from pyservice.kubernetes.pull_manifest import PULL, PullState, pull_manifest, pull_state
from pyservice.kubernetes.watched_objects import WatchedObjects

PULLS_AT_ONCE: Final = 20
PULLS_OF_GROUP_AT_ONCE: Final = 10
CREATE_S: Final = 60.0
"""Time in which the cluster must take the Pod. Other pulls wait for the permit meanwhile."""
PENDING_S: Final = 60.0
"""Time in which the scheduler must choose the node."""
PULL_TIMEOUT_S: Final = 1_800.0

_RETRIES_S: Final = doubling(0.1, 5.0)


class PullProblem(NamedTuple):
    node: str
    sentence: str
    is_of_image: bool
    """Whether the problem is one of the image, and not of the node or of the service."""


class _Pull:
    """The Pod of one node and image."""

    def __init__(self) -> None:
        self.uid = ""
        self.state = PullState()
        self.bound = asyncio.Event()
        self.over = asyncio.Event()

    def observe(self, state: PullState) -> None:
        if not self.state.is_over:
            self.state = state
        if self.state.is_bound or self.state.is_over:
            self.bound.set()
        if self.state.is_over:
            self.over.set()


class ImagePulls:
    """Use it while `run` is running."""

    def __init__(self, api: KubernetesApi, nodes: ClusterNodes, template: PodTemplate) -> None:
        self._api = api
        self._nodes = nodes
        self._template = template
        self._pods = pods_of(template.settings.namespace)
        selector = f"{PULL}={template.settings.service_name}"
        self._watched = WatchedObjects(api, self._pods, self, selector)
        self._permits = FairQueue(PULLS_AT_ONCE, PULLS_OF_GROUP_AT_ONCE)
        self._flights: SingleFlight[tuple[ImageBuild, str], PullProblem | None] = SingleFlight()
        self._pulls: dict[str, _Pull] = {}
        """Pods at work by name."""
        self._unneeded: set[str] = set()
        """UIDs of Pods of an earlier control plane, until they are gone."""
        self._removals: set[asyncio.Task[None]] = set()

    async def run(self) -> NoReturn:
        """Follows the Pods. Deletes those that an earlier control plane left."""
        try:
            await self._watched.run()
        finally:
            for task in self._removals:
                task.cancel()

    async def pull(self, build: ImageBuild, regions: Collection[str]) -> list[PullProblem]:
        """Has each node of the regions that takes new Pods fetch an image. Returns the problems."""
        targets: dict[str, str] = {}
        for region in regions:
            of_region = self._template.settings.nodes_of(region)
            for node in self._nodes.nodes.values():
                if node.takes_new_pods(of_region):
                    targets.setdefault(node.name, region)
        problems = await asyncio.gather(
            *(self._pull_once(build, region, node) for node, region in targets.items())
        )
        return [problem for problem in problems if problem is not None]

    async def _pull_once(self, build: ImageBuild, region: str, node: str) -> PullProblem | None:
        manifest = pull_manifest(build, region, node, self._template)

        async def work() -> PullProblem | None:
            async with self._permits.permit("", build.group_id):
                return await self._pull(manifest, node)

        return await self._flights.run((build, node), work)

    async def _pull(self, manifest: Object, node: str) -> PullProblem | None:
        name = manifest["metadata"]["name"]
        pull = self._pulls[name] = _Pull()
        try:
            problem = await self._follow(pull, manifest)
            if pull.uid:
                await delete_unneeded(self._api, self._pods, name, pull.uid)
        finally:
            del self._pulls[name]
        return None if not problem else PullProblem(node, problem, pull.state.is_of_image)

    async def _follow(self, pull: _Pull, manifest: Object) -> str:
        """Returns why the node has not fetched the image, or nothing."""
        try:
            pull.uid = await self._create(manifest)
        except ApiError as error:
            return f"the cluster refuses the Pod: {error.message}"
        for event, limit_s in ((pull.bound, PENDING_S), (pull.over, PULL_TIMEOUT_S)):
            try:
                async with asyncio.timeout(limit_s):
                    await event.wait()
            except TimeoutError:
                return pull.state.problem or f"it was not fetched in {limit_s:.0f} s"
        return pull.state.problem

    async def _create(self, manifest: Object) -> str:
        """Creates the Pod, or takes the one of an earlier attempt. Returns its UID.

        Raises ApiError if the cluster refuses the Pod.
        """
        backoff, name = Backoff(_RETRIES_S), manifest["metadata"]["name"]
        end_s = time.monotonic() + CREATE_S
        while True:
            try:
                return str((await self._api.create(self._pods, manifest))["metadata"]["uid"])
            except ApiError as error:
                failure = error
            if failure.reason == "AlreadyExists":
                try:
                    metadata = (await self._api.get(self._pods, name))["metadata"]
                    is_leaving = "deletionTimestamp" in metadata
                    if not is_leaving and metadata["uid"] not in self._unneeded:
                        return str(metadata["uid"])
                except ApiError as error:
                    if error.status != 404:
                        failure = error
            if failure.is_final or time.monotonic() > end_s:
                raise failure
            await pause_after(failure, backoff.next_s())

    # Pods of the cluster.

    def observe(self, found: Object) -> None:
        metadata = found["metadata"]
        pull = self._pulls.get(metadata["name"])
        is_leaving = "deletionTimestamp" in metadata
        if pull is not None:
            # An earlier Pod of this name can still be there.
            if not is_leaving or metadata["uid"] == pull.uid:
                pull.observe(pull_state(found))
        elif not is_leaving:
            self._unneeded.add(metadata["uid"])
            deletion = delete_unneeded(self._api, self._pods, metadata["name"], metadata["uid"])
            task = asyncio.create_task(deletion)
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)

    def observe_gone(self, name: str, uid: str, last: Object | None) -> None:
        self._unneeded.discard(uid)
        pull = self._pulls.get(name)
        if pull is not None and pull.uid == uid:
            pull.observe(PullState(problem="its Pod was deleted", is_over=True))
