from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from pyservice.runtime.adapters import Adapter
from pyservice.runtime.process_environment import BACKEND_ADDRESS, ProcessPort

OwnerKind = Literal["lobby", "server"]
Backend = tuple[str, int]

KILL_TIMEOUT_MS: Final = 30_000


class Resources(NamedTuple):
    cpu_millicores: int
    memory_mb: int

    def fits(self, free: Resources) -> bool:
        return self.cpu_millicores <= free.cpu_millicores and self.memory_mb <= free.memory_mb

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu_millicores - other.cpu_millicores, self.memory_mb - other.memory_mb
        )

    def plus(self, other: Resources) -> Resources:
        """Returns the sum of both resources. The operator `+` would concatenate the tuples."""
        return Resources(
            self.cpu_millicores + other.cpu_millicores, self.memory_mb + other.memory_mb
        )


@dataclass(frozen=True, slots=True)
class PortRequest:
    protocol: str
    """As in the configuration. Ports of udp and tcp_udp have a UDP socket."""
    span: tuple[int, int] | None = None
    """First and last port that players reach directly. None: edge-guard forwards."""
    fixed: int = 0
    """Port that the process must bind and players reach directly. 0: any port."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    id: str
    owner: OwnerKind
    game_id: str
    build_id: str
    resources: Resources
    tier: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    own_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of the service except the ports. They may contain a token."""
    ports: Mapping[str, PortRequest] = field(default_factory=dict)
    kill_timeout_ms: int = KILL_TIMEOUT_MS
    has_host_network: bool = False
    """Whether the network mode is `host`, which removes the network isolation."""
    disk_mb: int = 0
    """Limit of the scratch folder by the tier. 0: the tier has no limit."""
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class RunPlacement:
    owner: OwnerKind
    build_id: str
    resources: Resources
    tier: str = ""
    ports: Mapping[str, ProcessPort] = field(default_factory=dict)
    uid: int = 0
    kill_timeout_ms: int = KILL_TIMEOUT_MS
    adapter: Adapter | None = None

    @property
    def backends(self) -> dict[str, Backend]:
        return {
            name: (BACKEND_ADDRESS, port.number)
            for name, port in self.ports.items()
            if port.number and not port.is_direct
        }

    def fields(self) -> dict[str, Any]:
        """Returns the fields for `json.dumps`. `of` reads them."""
        # `asdict` would copy each value.
        adapter = None if self.adapter is None else asdict(self.adapter)
        return {name: getattr(self, name) for name in self.__slots__} | {"adapter": adapter}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> RunPlacement:
        return cls(
            fields["owner"],
            fields["build_id"],
            Resources(*fields["resources"]),
            fields["tier"],
            {name: ProcessPort(*port) for name, port in fields["ports"].items()},
            int(fields["uid"]),
            int(fields["kill_timeout_ms"]),
            # Absent in runs of an earlier service.
            Adapter(**adapter) if (adapter := fields.get("adapter")) else None,
        )


class RunEnd(NamedTuple):
    reason: str
    """One of: exited, killed, stopped, exec_failed, out_of_memory, out_of_disk, build_unusable,
    capacity, no_ports, tier_unknown, lost.
    """
    exit_code: int | None = None
    """For a signal n, 128 + n. None if the process never ran or its exit code is unknown."""
    message: str = ""
    started_ms: int | None = None
    """Start of the process in Unix ms. None: the process never ran."""
    kind: str = ""
    """Kind of the problem that `message` explains, such as that of a `RunProblem`. Empty: none is
    known.
    """
    node: str = ""
    """Node of the process. Empty: this machine, or no node."""


class LobbyProgress(NamedTuple):
    """Progress of a lobby at the end of its program."""

    is_ready: bool
    start_timeout_s: float | None = None
    """Time after which the service ended the lobby, because it was not ready."""


class ReportUndelivered(Exception):
    pass


class RunReporter(Protocol):
    """Receives reports on all runs of lobbies, or on those of dynamic servers. Its methods raise
    ReportUndelivered.
    """

    async def report_placement(self, run_id: str, backends: Mapping[str, Backend]) -> None: ...

    @property
    def report_running(self) -> Callable[[str], Awaitable[None]] | None: ...

    @property
    def lobby_progress(self) -> Callable[[str], Awaitable[LobbyProgress | None]] | None: ...

    async def report_end(self, run_id: str, end: RunEnd, tier: str) -> None: ...
