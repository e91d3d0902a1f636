"""A service that runs game servers as Pods of a real cluster."""

from __future__ import annotations

import os
import signal
import time
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.cluster.cluster import Object, is_ready
from tests.cluster.control_groups import group_of
from tests.cluster.hosted_service import RELEASE, HostedService
from tests.cluster.machines import START_S
from tests.support.game_placement import SETTINGS
from tests.support.service_process import set_variables

_GROUPS: Final = Path("/sys/fs/cgroup/memory")
_PENDING_MS: Final = 8_000
"""Time after which a Pod without a node ends. The scheduler says within a second what is missing."""


class ClusterPlacement(HostedService):
    name: Final = "kubernetes"

    @property
    def values(self) -> Object:
        values = super().values
        settings = {**SETTINGS, "kubernetes": {"pending_ms": _PENDING_MS}}
        variables = [
            {"name": name, "value": text} for name, text in set_variables(settings).items()
        ]
        return {**values, "service": {**values["service"], "env": variables}}

    @property
    def owner_token(self) -> str:
        return self._owner_token

    def network(self) -> AbstractContextManager[None]:
        return self.cluster.network()

    def pause(self) -> None:
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        killed_s = int(time.time())
        for pid in self._processes():
            os.kill(pid, signal.SIGKILL)

        def is_back(pod: Object) -> bool:
            return _started_s(pod) >= killed_s and is_ready(pod)

        self.cluster.wait_for(f"{self.pods}/{RELEASE}-0", is_back, START_S)

    def _pod(self) -> Object:
        pod = self.cluster.get(f"{self.pods}/{RELEASE}-0")
        assert pod is not None
        return pod

    def _processes(self) -> list[int]:
        """Returns the processes of the service. Their ids are those of this machine."""
        uid = self._pod()["metadata"]["uid"]
        [group] = (_GROUPS / group_of(self.node)).rglob(f"pod{uid}")
        pids = [pid for path in group.rglob("cgroup.procs") for pid in path.read_text().split()]
        # The first process of the Pod holds its network.
        return [int(pid) for pid in pids if Path(f"/proc/{pid}/comm").read_text() != "pause\n"]


def _started_s(pod: Object) -> float:
    """Returns the Unix time at which the running container began, or 0 if none runs."""
    [container] = pod["status"]["containerStatuses"]
    running = container["state"].get("running")
    return datetime.fromisoformat(running["startedAt"]).timestamp() if running else 0.0
