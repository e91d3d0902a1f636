"""What is asked of the runtime, and what it tells. Pure data; no records and no transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from pyservice.runtime.process_environment import ProcessPort

OwnerKind = Literal["lobby", "server"]
Backend = tuple[str, int]
"""IP literal and number."""

KILL_TIMEOUT_MS: Final = 30_000
"""Between SIGTERM and SIGKILL, where nobody says otherwise (decisions 5.8)."""


class Resources(NamedTuple):
    """Of a node, or what one run has of it."""

    cpu_millicores: int
    memory_mb: int

    def fits(self, free: Resources) -> bool:
        return self.cpu_millicores <= free.cpu_millicores and self.memory_mb <= free.memory_mb

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu_millicores - other.cpu_millicores, self.memory_mb - other.memory_mb
        )

    def plus(self, other: Resources) -> Resources:
        """Both together: `+` is that of tuples."""
        return Resources(
            self.cpu_millicores + other.cpu_millicores, self.memory_mb + other.memory_mb
        )


@dataclass(frozen=True, slots=True)
class PortRequest:
    """A port that a process needs."""

    is_datagram: bool
    span: tuple[int, int] | None = None
    """First and last that it may bind itself, reached without edge-guard; None: one that edge-guard leads to."""
    fixed: int = 0
    """The one that it has to bind, reached without edge-guard; 0: any."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One game server that ought to run."""

    id: str
    owner: OwnerKind
    game_id: str
    build_id: str
    resources: Resources
    tier: str = ""
    """Name of these resources, where they have one."""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the configuration."""
    own_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Ours, but for the ports; it may hold a token."""
    ports: Mapping[str, PortRequest] = field(default_factory=dict)
    kill_timeout_ms: int = KILL_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class RunPlacement:
    """What of a run has to be known to find it again; kept in its folder."""

    owner: OwnerKind
    build_id: str
    resources: Resources
    tier: str = ""
    ports: Mapping[str, ProcessPort] = field(default_factory=dict)
    uid: int = 0
    kill_timeout_ms: int = KILL_TIMEOUT_MS

    @property
    def backends(self) -> dict[str, Backend]:
        """Where edge-guard leads to, by port name."""
        return {
            name: (LISTEN_ADDRESS, port.number)
            for name, port in self.ports.items()
            if port.number and not port.is_direct
        }

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "owner": self.owner,
            "build_id": self.build_id,
            "resources": list(self.resources),
            "tier": self.tier,
            "ports": {name: list(port) for name, port in self.ports.items()},
            "uid": self.uid,
            "kill_timeout_ms": self.kill_timeout_ms,
        }

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> RunPlacement:
        """The opposite. Raises KeyError, TypeError, ValueError."""
        return cls(
            told["owner"],
            told["build_id"],
            Resources(*told["resources"]),
            told["tier"],
            {name: ProcessPort(*port) for name, port in told["ports"].items()},
            int(told["uid"]),
            int(told["kill_timeout_ms"]),
        )


LISTEN_ADDRESS: Final = "127.0.0.1"
"""Where the process driver's servers are asked to listen."""


class RunEnd(NamedTuple):
    """How a run ended."""

    reason: str
    """exited, killed, stopped, exec_failed, out_of_memory, build_unusable, capacity, no_ports, tier_unknown, lost."""
    exit_code: int | None = None
    """128 + n for signal n; None: it never ran, or nobody knows."""
    message: str = ""
    """A sentence, where there is more to say."""
    started_ms: int | None = None
    """Since the Unix epoch; None: it never ran."""


class ReportUndelivered(Exception):
    """Whoever is told is away: it is told again."""


class RunReporter(Protocol):
    """Whoever wants things run. Raises Unheard."""

    async def placed(self, run_id: str, backends: Mapping[str, Backend]) -> None:
        """Where the process will listen, before it is started."""
        ...

    @property
    def running(self) -> Callable[[str], Awaitable[None]] | None:
        """Tells that this run runs; None: nobody wants to know."""
        ...

    async def over(self, run_id: str, end: RunEnd, tier: str) -> None:
        """It is over, or never ran. Told until it returns."""
        ...
