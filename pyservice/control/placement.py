"""Interface to the place where game servers run: this machine, or a cluster of several."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pyservice.control.lobby_runs import LobbyProcess, LobbyRuns, RunSupervisor
from pyservice.control.resource_usage import NodeReading, UsedResources
from pyservice.control.server_runs import ServerRuns
from pyservice.pb.hosting.internal.v1 import control_pb2, runtime_pb2
from pyservice.runtime.run_folder import DroppedOutput
from pyservice.runtime.run_requests import Resources


class PlacementUnusable(Exception):
    """No game server can run. The message is a sentence for the operator."""


class Placement(Protocol):
    @property
    def runs(self) -> RunSupervisor | None:
        """Starts and ends runs. None before `start`."""
        ...

    @property
    def dropped_output(self) -> DroppedOutput: ...

    async def start(
        self, lobbies: LobbyRuns, servers: ServerRuns, on_log_growth: Callable[[str], None]
    ) -> None:
        """Prepares the placement, and recovers the game servers that are still running.

        Reports about runs go to `lobbies` and `servers`.
        """
        ...

    async def wait_until_recovered(self) -> None:
        """Waits until all game servers that are still running are known.

        Until then, nothing may be concluded from a run that is not known.
        """
        ...

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """Returns the background tasks of the placement by name."""
        ...

    async def end_all(self, forced: asyncio.Event) -> None:
        """Stops all game servers, and waits until their ends are reported. No new run starts.

        Setting the event `forced` kills the game servers.
        """
        ...

    async def close(self) -> None: ...

    def kinds(self) -> Sequence[str]:
        """Returns the kinds of builds that run here."""
        ...

    def refusal_reason(self, kind: str) -> str | None:
        """Returns why builds of this kind are refused, or None if they are accepted.

        The reason continues a sentence, such as "no isolation of game servers works here".
        """
        ...

    def version_activated(self, version_id: str) -> None:
        """Prepares the builds of a version that a namespace runs from now on. Does not wait."""
        ...

    def build_problem(self, build_id: str) -> str | None:
        """Returns why a build could not be prepared, as a sentence, or None."""
        ...

    def capacity(self) -> runtime_pb2.Capacity:
        """Returns the capacity for the data plane, without the kinds of builds."""
        ...

    def reserve(self, run_id: str, resources: Resources) -> bool: ...

    def give_back(self, run_id: str) -> None: ...

    def unreachable_lobbies(self) -> Mapping[str, str]:
        """Returns the running lobbies with a port at which nothing listens, with a sentence each."""
        ...

    def started_ms(self, run_id: str) -> int | None:
        """Returns when the game server of a run started, in Unix ms, or None before its start."""
        ...

    def problem(self, run_id: str) -> str | None:
        """Returns the problems of a running game server as one text, or None."""
        ...

    def processes(self, run_ids: Iterable[str]) -> dict[str, LobbyProcess]:
        """Returns the tier and start time of each run that has not ended, by run id. Blocks."""
        ...

    def server_states(self) -> Counter[str]:
        """Returns the number of dynamic servers that have not ended, by state."""
        ...

    def nodes(self) -> Sequence[control_pb2.NodeStatus]:
        """Returns the nodes of a cluster with what runs there. Empty for a single machine."""
        ...

    def follow_log(self, run_id: str, for_ms: int) -> None:
        """Reports each new line of a log for some time."""
        ...

    async def refresh_log(self, run_id: str) -> None:
        """Waits until a log has the output of now, for a second at most."""
        ...

    async def usages(self) -> Mapping[str, NodeReading]:
        """Returns what the game servers have used, by node. A single machine has the name ""."""
        ...

    def render_metrics(self, used: UsedResources) -> bytes: ...
