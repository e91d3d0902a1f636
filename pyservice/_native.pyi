"""Native module: engine, journal and their metrics behind frozen classes.

Ids are 16 bytes. Times and durations are milliseconds. An LSN is the number of a journal event. A result with an LSN
(also `wait`) may leave the process when `Engine.durable()` has reached the LSN. LSN 0 needs no wait.

The module calls no Python code, except the constructor of errors. These methods release the GIL: `open`,
`Matchmaker.decide` with a large body, the methods of `Reply`, `live_versions`, `starts_of_version`,
`lobbies_of_version` and `lobbies_to_drain`. So do `render_metrics`, `unused_keys`, `drop_key`, `close`, `change_files`
and `Front.stop`.
"""

from collections.abc import Collection, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from os import PathLike
from pathlib import Path
from typing import Final, Protocol, Self, final, type_check_only

from pyservice.calls import EncodedRequest, Need
from pyservice.errors import ServiceError

__all__ = [
    "MATCHED_LENGTH",
    "Buckets",
    "Caller",
    "ConnectionAdmission",
    "ConnectionBudget",
    "Decision",
    "EmptyLobby",
    "Engine",
    "Fact",
    "Facts",
    "Front",
    "FrontCounts",
    "FrontMeasurements",
    "FrontRecord",
    "IdleLobbyGroup",
    "LeasedPort",
    "Lobby",
    "LobbyTemplate",
    "LogPattern",
    "Matchmaker",
    "Namespace",
    "Namespaces",
    "OpenFailed",
    "OperationLimits",
    "Placed",
    "PlacementRequest",
    "PlayerAddresses",
    "Port",
    "PublicCertificate",
    "Refused",
    "Reply",
    "Resolved",
    "Route",
    "RouteChanges",
    "Routes",
    "Servers",
    "Status",
    "TrustedProxies",
    "acked_bytes",
    "bearer_token",
    "broken_rules",
    "build_profile",
    "callers_of",
    "change_files",
    "check_body_form",
    "check_idempotency_key",
    "coordinates",
    "grpc_status",
    "mock_placement",
    "packed_client",
    "problem_json",
    "read_trace",
    "version",
]

build_profile: Final[str]
"""`release` or `debug`. Only release builds are measured."""

version: Final[str]

MATCHED_LENGTH: Final[int]
"""Longer texts are not matched with their pattern, because a match can take a hundred times the text's memory."""

class OpenFailed(Exception):
    """The data directory cannot be opened. The message names file, offset and remedy."""

@final
class Refused(Exception):
    """The engine refused a command and changed nothing."""

    error: Final[ServiceError]
    wait: Final[int]
    """LSN that must be durable before the error may be sent."""

@final
class Port:
    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def is_tls(self) -> bool: ...

@final
class Lobby:
    """A lobby at the time of the call."""

    @property
    def id(self) -> bytes: ...
    @property
    def namespace(self) -> bytes: ...
    @property
    def version(self) -> bytes: ...
    @property
    def mode(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def ports(self) -> tuple[Port, ...]: ...
    @property
    def max_players(self) -> tuple[int, int, int]:
        """Limits of find, join and party."""
    @property
    def is_ready(self) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_open(self) -> bool:
        """True if the lobby is ready, not closed, and sends heartbeats."""
    @property
    def players(self) -> tuple[int, int, int, int]:
        """Slot counts: promised to holds, reserved, connected, kept."""
    @property
    def create_ts_ms(self) -> int: ...
    @property
    def is_ours(self) -> bool:
        """True if the service starts the lobby. Then `leased` has its ports, else `ports`."""
    @property
    def is_public(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    @property
    def is_trial(self) -> bool: ...
    @property
    def tags(self) -> dict[str, str]: ...
    @property
    def leased(self) -> tuple[LeasedPort, ...]: ...
    @property
    def lobby_config(self) -> bytes | None: ...

@final
class Placed:
    """Reserved slots, or a hold on a starting lobby."""

    @property
    def lobby(self) -> bytes: ...
    @property
    def tokens(self) -> tuple[str, ...]:
        """One player token per player, empty for a hold."""
    @property
    def hold(self) -> int:
        """0 for reserved slots. Else wait for `Resolved` with this number, or call `release_hold` once."""
    @property
    def wait(self) -> int: ...

@final
class Resolved:
    """Reserved slots or an error after the end of a hold."""

    @property
    def hold(self) -> int: ...
    @property
    def placed(self) -> Placed | None: ...
    @property
    def refusal(self) -> Refused | None: ...

@final
class LobbyTemplate:
    """Template of a lobby that the service starts. Raises ValueError for unknown words.

    A port is (name, protocol, `number` | `host` | `range`, first, last, sends_proxy_header, `uncounted` |
    `counted` | `required`), with 0 for first and last outside of ranges.
    """

    def __new__(
        cls,
        mode: str,
        region: str,
        ports: Sequence[tuple[str, str, str, int, int, bool, str]],
        *,
        tags: Sequence[tuple[str, str]] | None = None,
        max_players: tuple[int, int, int],
        player_token_ttl_ms: int,
        heartbeat_timeout_ms: int,
        heartbeat_grace_ms: int,
        is_join_enabled: bool,
        is_public: bool = True,
        lobby_config: bytes | None = None,
        lobby_count_max: int,
        trial_ms: int | None = None,
    ) -> Self:
        """With `trial_ms`, the lobby is a trial of this lifetime. A trial is private, and joins are refused."""

@final
class LogPattern:
    """Regular expression of RE2 syntax for lines of logs. Each search takes linear time.

    Raises ValueError for an invalid expression, or one that needs more than 1 MiB.
    """

    def __new__(cls, expression: str) -> Self: ...
    def matches(self, line: str) -> bool: ...

@final
class LeasedPort:
    @property
    def name(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def number(self) -> int:
        """Public port, or 0 if players use a host name or the range, or before `Servers.bind_ports`."""
    @property
    def range(self) -> tuple[int, int] | None: ...
    @property
    def sends_proxy_header(self) -> bool: ...
    @property
    def counts_sessions(self) -> bool: ...
    @property
    def requires_slot(self) -> bool: ...
    @property
    def backend(self) -> tuple[str, int] | None:
        """Address and port of the process, or None before it listens."""
    @property
    def node(self) -> str:
        """Name of the node with the port. Empty on a single machine, and before `Servers.bind_ports`."""
    @property
    def host(self) -> str:
        """Where players reach the node. Empty for the address of the service."""

@final
class Route:
    """Route of edge-guard from a player address to a backend."""

    @property
    def lease_owner(self) -> bytes: ...
    @property
    def is_server(self) -> bool: ...
    @property
    def region(self) -> str: ...
    @property
    def port(self) -> LeasedPort: ...

@final
class RouteChanges:
    @property
    def lsn(self) -> int: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def changed(self) -> list[Route]:
        """All routes at the node of each lease owner that has a change."""
    @property
    def removed(self) -> list[bytes]:
        """Lease owners with routes to remove at the node, until `Servers.ports_returned`."""

@final
class EmptyLobby:
    """A ready lobby without players that is not stopping."""

    @property
    def lobby(self) -> bytes: ...
    @property
    def empty_ms(self) -> int: ...
    @property
    def was_used(self) -> bool: ...
    @property
    def is_findable(self) -> bool:
        """True if the lobby is public and open."""
    @property
    def is_ours(self) -> bool: ...

@final
class IdleLobbyGroup:
    """Lobby counts of one namespace, version, mode and region."""

    @property
    def namespace(self) -> bytes: ...
    @property
    def version(self) -> bytes: ...
    @property
    def mode(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def starting(self) -> int:
        """Starting public lobbies without holds."""
    @property
    def live(self) -> int:
        """Lobbies that are not stopping."""
    @property
    def failed(self) -> int:
        """Lobbies of the service that missed a timeout since `take_touched` returned this group."""
    @property
    def empty(self) -> list[EmptyLobby]:
        """Longest empty first."""

@final
class Servers:
    """Commands for processes and ports, with the LSN as last result. All raise Refused."""

    def start_idle(
        self, namespace: bytes, version: bytes, template: LobbyTemplate
    ) -> tuple[bytes, int]:
        """Start a lobby without players."""
    def stop(self, lobby: bytes, only_if_idle: bool) -> tuple[bool, int]:
        """Stop a lobby, so that no player can enter. Returns whether it is stopping."""
    def exited(self, lobby: bytes, exit_code: int | None = None) -> tuple[bool, int]:
        """Report the exit of a process. Returns whether the exit ended the lobby."""
    def ready(self, lobby: bytes) -> int:
        """Mark a lobby ready. Its holds become reservations."""
    def match_presence(
        self,
        lobby: bytes,
        sessions: Sequence[tuple[bytes, int]],
        may_free: bool,
        count: int | None = None,
    ) -> tuple[list[bool], int]:
        """Connect reserved slots, and free surplus connected ones if `may_free`.

        `sessions` are those of client addresses at edge-guard, and `count` the players by a query.
        Returns for each address whether it has a slot.
        """
    def lobby_token(self, lobby: bytes) -> str | None:
        """Return None after the end of the lobby."""
    def wanted_since(self, after: int) -> tuple[int, bool, list[tuple[bytes, bool]], list[bytes]]:
        """Return changes of the lobbies that should run, after a sequence number.

        The result is (sequence, is_complete, [(lobby, is_stopping)], ended lobbies). 0 returns all lobbies.
        """
    def set_unreachable(self, lobbies: Sequence[tuple[bytes, str]]) -> int:
        """Set which lobbies have a port at which nothing listens, with a sentence. Unknown lobbies are ignored."""
    def take_touched(self) -> list[IdleLobbyGroup]:
        """Return the groups that changed since the last call."""
    def idle_lobby_groups(self, namespace: bytes) -> list[IdleLobbyGroup]: ...
    def starts_of_version(self, namespace: bytes, version: bytes) -> bool:
        """Report whether the service is starting a lobby of the version. Includes changes that are not durable yet."""
    def lobbies_of_version(self, namespace: bytes, version: bytes) -> list[bytes]:
        """Return all lobbies that have not ended, oldest first. Includes changes that are not durable yet."""
    def lease(
        self,
        lease_owner: bytes,
        namespace: bytes,
        region: str,
        ports: Sequence[tuple[str, str, str, int, int, bool, str]],
    ) -> tuple[tuple[LeasedPort, ...], int]:
        """Lease ports for a dynamic server, in the format of `LobbyTemplate`. Repeatable."""
    def bind_ports(
        self, lease_owner: bytes, node: str, host: str
    ) -> tuple[tuple[LeasedPort, ...], int]:
        """Bind the lease owner's ports to the node that runs it. Repeatable, with the same ports.

        Raises ValueError for an empty name.
        """
    def set_backends(self, lease_owner: bytes, backends: Sequence[tuple[str, str, int]]) -> int:
        """Set the (port name, address, port) of the lease owner's process."""
    def end_lease(self, lease_owner: bytes) -> tuple[bool, int]:
        """Return whether the lease existed."""
    def replace_port(self, lease_owner: bytes, name: str, refused: int) -> tuple[int | None, int]:
        """Replace a port number that edge-guard could not bind. Returns the current number."""
    def ports_returned(self, lease_owner: bytes, node: str = "") -> tuple[bool, int]:
        """Report that a node's edge-guard closed the lease owner's sockets. Returns whether the report was expected."""
    def return_ports_of_node(self, node: str) -> int:
        """Return the ports of a node that is gone, at once and after the end of each live lease."""
    def nodes(self) -> list[str]:
        """Return the names of the nodes with leases or quarantined ports. The name of a single machine is empty."""
    def nodes_changed_since(self, after: int) -> tuple[int, list[str]]:
        """Return the nodes with durable route changes after an LSN, and the LSN to pass to the next call."""
    def routes_since(self, after: int, node: str = "") -> RouteChanges:
        """Return the durable changes at a node after an LSN, or all its routes for 0.

        A complete set may be used only when its LSN is durable.
        """
    def leased_servers(self) -> list[bytes]: ...

@final
class Status:
    @property
    def epoch(self) -> int:
        """Increases with each opening of the directory."""
    @property
    def durable(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def credit_bytes(self) -> int: ...
    @property
    def reserve_bytes(self) -> int: ...

@final
class Fact:
    """Change of one lobby, for the control plane's records.

    `version` to `create_ts_ms` are set for the kinds `made` and `ended`, later properties for `ended`.
    """

    @property
    def lsn(self) -> int:
        """Unique, ascending number of the fact."""
    @property
    def kind(self) -> str:
        """`made`, `ready`, `closed`, `opened`, `stopping` or `ended`."""
    @property
    def ts_ms(self) -> int:
        """Unix ms, or 0 if an early build stored no time."""
    @property
    def lobby(self) -> bytes: ...
    @property
    def namespace(self) -> bytes: ...
    @property
    def version(self) -> bytes | None: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def region(self) -> str | None: ...
    @property
    def is_public(self) -> bool | None: ...
    @property
    def is_trial(self) -> bool | None: ...
    @property
    def max_players(self) -> tuple[int, int, int] | None: ...
    @property
    def create_ts_ms(self) -> int | None: ...
    @property
    def reason(self) -> str | None:
        """`exited`, `start_timeout`, `silent` or `removed`."""
    @property
    def exit_code(self) -> int | None: ...
    @property
    def player_ms(self) -> int | None: ...
    @property
    def peak_players(self) -> int | None: ...
    @property
    def connections(self) -> int | None: ...
    @property
    def players(self) -> tuple[int, int, int] | None:
        """Slots when the lobby ended: reserved, connected, kept."""

@final
class Facts:
    """Durable facts in order of LSN."""

    @property
    def facts(self) -> list[Fact]: ...
    @property
    def oldest(self) -> int:
        """LSN of the oldest stored fact, or 0."""
    @property
    def lost(self) -> int:
        """Largest possible number of facts that were removed unread, all before `oldest`."""

@final
class Engine:
    """One shard: engine, journal and expiry thread. Thread safe."""

    @staticmethod
    def open(
        journal_dir: str | None,
        *,
        mac_keys: Sequence[tuple[int, bytes]],
        current_key: int,
        hash_key: bytes,
        boot_id_path: str = "/proc/sys/kernel/random/boot_id",
        segment_bytes: int = 67108864,
        shard: int = 1,
        start_limit_ms: int = 300000,
        port_quarantine_ms: int = 60000,
        public_ports: tuple[int, int] = ...,
        restored_keys: Sequence[int] = ...,
        first_epoch: int = ...,
        binds_ports_later: bool = False,
    ) -> Engine:
        """Recover the journal and start. None starts an empty engine without a journal, for measurements.

        `mac_keys` are (key id, 32 bytes). `hash_key` is 32 bytes and never changes. With `binds_ports_later`, a
        lease gets its ports by `Servers.bind_ports`. Raises OpenFailed, or OSError with ENOSPC.
        """
    def close(self) -> None:
        """Sync pending events and stop the threads. Repeatable."""

    def uncovered_block(self) -> tuple[int, int] | None:
        """Return (physical block of the disk, alignment of the journal) if the block is larger, else None."""

    # Waiting
    def wake_fd(self) -> int:
        """Return the eventfd for durable events, or -1 without a journal. The engine closes it."""
    def request_wake(self, lsn: int) -> bool:
        """Request one signal of `wake_fd` when an LSN is durable. Return False if it already is."""
    def change_fd(self) -> int:
        """Return the eventfd for durable changes, or -1 without a journal. The engine closes it.

        It signals changes of holds, channels, facts, routes, desired lobbies, counts and idle groups. Players signal
        changed counts and groups once, until the next call of `counts` and `take_touched`.
        """
    def durable(self) -> int: ...
    def take_resolved(self) -> list[Resolved]:
        """Return the holds that ended since the last call. `change_fd` signals new ones."""

    # Tokens and hashes
    def public_token(self, namespace: bytes, token_id: bytes) -> str: ...
    def development_token(self, namespace: bytes, token_id: bytes, expires_ms: int) -> str:
        """Return a `dev_` token, equal for equal arguments under one key."""
    def mock_player_token(self, namespace: bytes, token_id: bytes, nonce: bytes) -> str:
        """Return a mock player token, equal for an equal nonce (16 bytes) in the same hour."""
    def consume_mock(
        self, group: bytes, namespace: bytes, token_id: bytes, player_token: str
    ) -> int:
        """Consume a mock player token, valid once for one to two hours. Returns the LSN.

        The developer group of the namespace has a limit of used tokens.
        """
    def idempotency(self, caller: bytes, key: bytes, operation: str, message: bytes) -> bytes:
        """Return the 32-byte request key that commands take as `idempotency`."""

    def channel(self, secret: bytes) -> bytes:
        """Return the keyed hash of an event channel's secret, 16 bytes."""

    # MAC keys
    def add_key(self, key_id: int, secret: bytes) -> None:
        """Add a key that is already on disk, and sign with it. Raises ValueError."""
    def drop_key(self, key_id: int) -> bool:
        """Remove a key that the last call of `unused_keys` returned. Returns False for any other key."""
    def key_ids(self) -> list[int]: ...
    def unused_keys(self) -> list[int]:
        """Return the old keys that no stored token refers to, ascending.

        The engine is locked for at most 1 ms at a time. One thread may call this method at a time.
        """

    # Captcha status of client addresses
    def standing(self, namespace: bytes, address: bytes) -> tuple[int | None, int]:
        """Return (time since the last passed captcha or None after 12 h, requests since)."""
    def note_human(self, namespace: bytes, address: bytes) -> int:
        """Record a passed captcha. Returns the LSN."""
    def note_request(self, namespace: bytes, address: bytes) -> None: ...

    # Requests of players. Raise Refused.
    def create(
        self,
        namespace: bytes,
        version: bytes,
        creation: LobbyTemplate | int,
        *,
        party_size: int = 1,
        source: int = 0,
        source_limit: int = 4294967295,
        idempotency: bytes | None = None,
        channels: Sequence[bytes] | None = None,
    ) -> Placed:
        """Create a lobby for this caller. `creation` is its template, or `lobby_count_max` if no lobby can start.

        `channels`: the i-th channel receives the token of player i + 1.
        """
    def servers(self) -> Servers: ...
    def recall(self, idempotency: bytes) -> Placed | None:
        """Return the stored result of find, create or join, or None. A hold gains one waiting request."""
    def release_hold(self, hold: int) -> None:
        """Remove a waiting request from a hold. The last removal ends the hold."""

    def channel_events(self, channel: bytes) -> tuple[list[tuple[int, bytes, str]], int]:
        """Return ([(Unix ms, lobby, player token)], LSN), oldest event first."""
    def take_delivered(self) -> list[bytes]:
        """Return the channels with durable events since the last call."""

    def state(
        self, namespaces: Sequence[bytes], lobby: bytes, speaker: bytes | None = None
    ) -> tuple[bytes | None, int]:
        """Return (state, LSN) of a lobby in one of these namespaces.

        `speaker` is the lobby of the request's token. It must not have ended, and the request counts as its heartbeat.
        """

    # Operators
    def attach(
        self,
        namespace: bytes,
        version: bytes,
        mode: str,
        region: str,
        ports: Sequence[tuple[str, str, int, bool]],
        *,
        tags: Sequence[tuple[str, str]] | None = None,
        max_players: tuple[int, int, int],
        player_token_ttl_ms: int,
        heartbeat_timeout_ms: int,
        heartbeat_grace_ms: int,
        is_join_enabled: bool,
        create_ts_ms: int,
        lobby_count_max: int,
        idempotency: bytes | None = None,
    ) -> tuple[bytes, str, int]:
        """Attach a running lobby. Returns (lobby, lobby token, LSN). Ports are (name, address, port, is_tls)."""
    def recall_attach(self, idempotency: bytes) -> tuple[bytes, str, int] | None: ...
    def detach(self, namespaces: Sequence[bytes], lobby: bytes) -> tuple[bool, int]:
        """Detach a lobby. Returns (did_remove, LSN)."""

    # Facts for the control plane. The engine stores the newest 100,000 facts.
    def read_facts(self, after_lsn: int, limit: int) -> Facts:
        """Return at most `limit` durable facts after an LSN."""
    def acknowledge_facts(self, lsn: int) -> None:
        """Remove the facts up to an LSN. After a crash they can appear again."""
    def counts(self, after_generation: int) -> tuple[int, bool, list[tuple[bytes, int, int]]]:
        """Return (generation, is_all, [(namespace, connected players, live lobbies)]) of changed namespaces.

        `is_all` is set if `after_generation` is 0, of another engine, or too old. Namespaces
        without a row are then empty.
        Includes changes that are not durable yet.
        """

    # Queries without an LSN
    def lobby(self, lobby: bytes) -> Lobby | None: ...
    def lobbies_to_drain(self, limit: int) -> tuple[list[Lobby], int]:
        """Return the oldest lobbies that a drain waits for, and the number of all of them.

        They are the lobbies of the service, and attached ones with connected players.
        """
    def suspect_slots(
        self,
        lobby: bytes,
        sessions: Sequence[tuple[int, int]],
        other_sessions: int,
        ages_ms: tuple[int, int],
    ) -> int | None:
        """Return the number of connected slots without a session of their player.

        `sessions` has pairs of a hashed address and a number. Only slots that connected between `ages_ms` ago are
        compared. None for a lobby that is unknown or attached, or that has a port without edge-guard.
        """
    def namespace_that_had(self, lobby: bytes) -> bytes | None:
        """Return the namespace of a lobby, also for some time after its end."""
    def live_versions(self, namespace: bytes) -> list[bytes]:
        """Return the versions with lobbies that have not ended. Includes changes that are not durable yet."""
    def status(self) -> Status: ...
    def render_metrics(self, namespace_labels: Mapping[bytes, str]) -> bytes:
        """Return Prometheus text. Labels are `game/namespace`."""
    def state_counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, dict[str, int]]]:
        """Return (lobbies by state, slots by state, ports by protocol and state) of all namespaces."""

    # Compaction, in a thread of the engine
    def failed_compactions(self) -> tuple[int, str, int]:
        """Return (failures since the start, reason of the last one, seconds from it to the next attempt)."""

def change_files(steps: Sequence[tuple[str, PathLike[str] | str, int, bytes]]) -> None:
    """Run file changes in order, until the first failure.

    A step is (kind, path, mode, content). `folder` creates a folder, `group` a folder that may exist, `file` a new
    file. `put` writes an existing file, `try` does so without errors. Raises OSError with the path, or ValueError
    for an unknown kind before the first change.
    """

# Clients of Python's own listeners

@final
class ConnectionBudget:
    """Limit on the open connections of all clients, and on those of each network of clients.

    One client, which is an IPv4 address (4 bytes) or a /64 network of IPv6 (8 bytes), has half of them.
    """

    def __new__(cls, most: int) -> Self: ...
    def admit(self, client: bytes | None) -> ConnectionAdmission | None:
        """Count a connection until the admission is freed. Returns None if a limit is reached.

        A connection with client None carries requests of many clients. It counts only towards the total.
        """
    def __len__(self) -> int: ...

@final
class ConnectionAdmission:
    """Place of a connection in a `ConnectionBudget`."""

@final
class TrustedProxies:
    """Networks of trusted proxies."""

    def __new__(cls, networks: Sequence[str]) -> Self:
        """Read networks such as `10.0.0.0/8`. Raises ValueError for another text."""
    def trusts(self, address: IPv4Address | IPv6Address) -> bool: ...
    def client(
        self, peer: IPv4Address | IPv6Address, forwarded_for: Sequence[bytes]
    ) -> IPv4Address | IPv6Address:
        """Return the client of a request: the peer, unless it is a trusted proxy.

        `forwarded_for` has the values of the `X-Forwarded-For` headers. The client is the rightmost address in them
        that is not a trusted proxy. An invalid entry and all entries left of it are ignored.
        """

def packed_client(address: IPv4Address | IPv6Address) -> bytes:
    """Return the key by which a client counts.

    The key is an IPv4 address (4 bytes) or a /64 network of IPv6 (8 bytes).
    """

def coordinates(text: str) -> tuple[float, float] | None:
    """Parse latitude and longitude in degrees from the header `x-coords`. None: the value is invalid."""

def acked_bytes(descriptor: int) -> int | None:
    """Return the bytes that the other side of a TCP connection has acknowledged, or None for another socket."""

# Front

@final
class Buckets:
    """One token bucket for each key. `max_keys` bounds their number; the older half is then dropped."""

    def __new__(cls, per_second: float, burst: int, max_keys: int) -> Self: ...
    def change(self, per_second: float, burst: int) -> None:
        """Change the rate of all buckets, but do not refill them. A rate of 0 means no limit."""
    def take(self, key: bytes, now: float) -> float:
        """Take one token. Returns 0.0, or the seconds until the next token if the bucket is empty.

        `now` is in monotonic seconds.
        """
    def put_back(self, key: bytes) -> None: ...
    def __len__(self) -> int: ...

@final
class OperationLimits:
    """Limits of the requests to an operation, each with its name."""

    def __new__(
        cls,
        tokens: tuple[str, Buckets],
        token_addresses: tuple[str, Buckets],
        client_addresses: tuple[str, Buckets],
        groups: tuple[str, Buckets],
    ) -> Self: ...
    def admit(self, token: bytes | None, address: bytes, group: bytes | None) -> None:
        """Take one token from the bucket of each key. Raises RATE_LIMITED without taking any if one is empty.

        `token` identifies an access token. Other clients count by their address alone.
        """

@type_check_only
class GameMode(Protocol):
    """Attributes of the object that describes a game mode."""

    @property
    def name(self) -> str: ...
    @property
    def max_players(self) -> int: ...
    @property
    def max_players_direct(self) -> int: ...
    @property
    def max_players_party(self) -> int: ...
    @property
    def is_find_enabled(self) -> bool: ...
    @property
    def is_taggable(self) -> bool: ...
    @property
    def is_listable(self) -> bool: ...
    @property
    def is_max_players_dynamic(self) -> bool: ...
    @property
    def regions(self) -> Collection[str] | None:
        """None: all regions."""
    @property
    def create_publicities(self) -> Collection[str]: ...
    @property
    def port_ranges(self) -> Mapping[str, bool]:
        """Whether each port is a range."""

@final
class Namespace:
    """A namespace as the rules of the matchmaker need it, and the tokens of its clients."""

    def __new__(
        cls,
        namespace: bytes,
        *,
        label: str,
        version: bytes,
        group: bytes,
        source_limit: int,
        needs_admission: bool,
        modes: Sequence[GameMode],
        hosts: Sequence[str],
        service_tokens: Sequence[tuple[bytes, bytes, int | None]],
        revoked: Sequence[bytes],
    ) -> Self:
        """`label` names the namespace in errors. `hosts` are those of web pages that need no token.

        `service_tokens` are (SHA-256, token id, expiry in Unix ms). `revoked` are ids of tokens."""
    def service_token_hashes(self) -> list[bytes]: ...

@final
class Namespaces:
    def __new__(cls) -> Self: ...
    def put(self, namespace: Namespace) -> None:
        """Add or replace a namespace."""
    def remove(self, namespace: bytes) -> None: ...
    def of_host(self, host: str) -> bytes | None:
        """Return the namespace of a web origin's host."""
    def of_service_token(self, sha256: bytes) -> bytes | None:
        """Return the namespace of a token, also if it is revoked or expired."""

@final
class PlayerAddresses:
    """Public addresses of ports. Without a domain, every port has its own number at the advertised address."""

    def __new__(
        cls, job_domain: str | None, advertised: str, node: str, has_certificate: bool
    ) -> Self: ...
    def address_of(
        self, port: LeasedPort, lease_owner: bytes, region: str, owner_kind: str
    ) -> tuple[str, int | None, tuple[int, int] | None, bool]:
        """Return (host name, number, range, whether it uses TLS). `owner_kind` is `lobby` or `server`."""

@final
class FrontRecord:
    """A request that the front has answered. Times are seconds before `take_measurements`."""

    @property
    def ray_id(self) -> str: ...
    @property
    def parent_span_id(self) -> str | None:
        """Span of the client, if the request continues its trace."""
    @property
    def operation(self) -> str: ...
    @property
    def lobby(self) -> bytes | None:
        """Lobby of the token, or None for a client of `namespace`."""
    @property
    def namespace(self) -> bytes | None: ...
    @property
    def code(self) -> str: ...
    @property
    def started_s_ago(self) -> float: ...
    @property
    def executed_s_ago(self) -> float: ...
    @property
    def ended_s_ago(self) -> float: ...

@final
class FrontCounts:
    """Number of requests of one operation."""

    @property
    def operation(self) -> str: ...
    @property
    def codes(self) -> dict[str, int]:
        """By code: `OK`, or an error code."""
    @property
    def durations(self) -> list[int]:
        """By duration. The last number counts durations above all bounds."""
    @property
    def duration_sum_s(self) -> float: ...
    @property
    def passed(self) -> dict[str, int]:
        """Number of requests that were passed on to Python, by reason."""
    @property
    def rate_limited(self) -> dict[str, int]:
        """Number of requests that a rate limit refused, by limit."""

@final
class FrontMeasurements:
    """Counts and records of the front since the last call."""

    @property
    def counts(self) -> list[FrontCounts]: ...
    @property
    def records(self) -> list[FrontRecord]:
        """All failed and slow requests, and one of 100 others, up to a bound."""
    @property
    def grpc_counts(self) -> list[FrontCounts]: ...
    @property
    def grpc_records(self) -> list[FrontRecord]: ...
    @property
    def dropped_records(self) -> int: ...
    @property
    def limited_failures(self) -> int:
        """Number of HTTP requests that were refused because of failed authentications."""
    @property
    def grpc_limited_failures(self) -> int: ...
    @property
    def in_flight(self) -> int:
        """Number of HTTP requests that are not answered yet."""
    @property
    def grpc_in_flight(self) -> int: ...
    @property
    def parked(self) -> int:
        """Number of HTTP and gRPC requests that wait for a change."""
    @property
    def body_bytes(self) -> int:
        """Bytes of HTTP request bodies in memory."""
    @property
    def grpc_body_bytes(self) -> int: ...

@type_check_only
class FrontGrpc(Protocol):
    """Attributes of the object that describes how the front serves gRPC."""

    @property
    def listener_fd(self) -> int: ...
    @property
    def connections_max(self) -> int | None: ...
    @property
    def methods(self) -> Sequence[tuple[str, str, bool, int, bool, bool]]:
        """Path, slug, is of the control plane, largest message, needs a token, is a stream."""
    @property
    def data_socket(self) -> Path: ...
    @property
    def control_socket(self) -> Path: ...
    @property
    def streams_per_connection(self) -> int: ...
    @property
    def metadata_bytes_max(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...

@type_check_only
class FrontPassing(Protocol):
    """Attributes of the object that describes how the front checks requests and passes them on."""

    @property
    def routes(self) -> Sequence[tuple[str, str, str, bool, int, bool]]:
        """HTTP method, path template, slug, whether it is of the control plane, largest body, needs a token."""
    @property
    def cors_origins(self) -> Sequence[str]: ...
    @property
    def data_socket(self) -> Path: ...
    @property
    def control_socket(self) -> Path: ...
    @property
    def answer_timeout_ms(self) -> int: ...
    @property
    def url_bytes_max(self) -> int: ...
    @property
    def headers_bytes_max(self) -> int: ...
    @property
    def body_bytes_max(self) -> int: ...
    @property
    def bodies_bytes_max(self) -> int: ...
    @property
    def unread_answers_bytes_max(self) -> int: ...

@final
class PublicCertificate:
    """Certificate of the public listeners, which changes while they serve."""

    @staticmethod
    def read(cert: PathLike[str] | str, key: PathLike[str] | str) -> PublicCertificate:
        """Read PEM files with the chain and with the key. Raises ValueError, which names the file with the problem."""
    @staticmethod
    def judge(
        cert: PathLike[str] | str, key: PathLike[str] | str, server_names: Sequence[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Judge PEM files as clients of these names do now.

        Return problems, why the certificate is not valid at this time, and warnings. Each names its file.
        """
    @staticmethod
    def order(
        domains: Sequence[str],
        contact: str,
        directory: str,
        root: PathLike[str] | str | None,
        folder: PathLike[str] | str,
    ) -> PublicCertificate:
        """Order a certificate from an ACME directory, and renew it, on a thread of its own.

        The directory sends notices to the e-mail address `contact`. `root` is a PEM file with the authority of its own
        certificate; None means those of the system. `folder` keeps accounts and certificates. Raises OSError.
        """
    def reload(self, cert: PathLike[str] | str, key: PathLike[str] | str) -> None:
        """Read the files for new connections. Raises ValueError, and then the old certificate stays."""
    def end_s(self) -> int | None:
        """End of the validity in seconds of Unix time. None without a certificate."""
    def take_notices(self) -> list[tuple[bool, str]]:
        """Outcomes of orders since the last call: whether each is a problem, and a text."""

@final
class Caller:
    """Sender of a request after its authorization."""

    @property
    def kind(self) -> str:
        """`lobby`, `pub`, `env`, `dev`, `cloud`, or `tokenless` if the `Origin` header gave access."""
    @property
    def namespace(self) -> bytes | None: ...
    @property
    def lobby(self) -> bytes | None: ...
    @property
    def identity(self) -> bytes:
        """Key under which idempotency keys are stored."""
    @property
    def group(self) -> bytes | None:
        """Key of the rate limits of a developer group."""

@final
class Reply:
    """Response of a native operation."""

    def json(self) -> bytes: ...
    def proto(self) -> bytes: ...

@final
class Decision:
    """A response, an error, a hold, or what a request needs. Exactly one of them is set."""

    @property
    def reply(self) -> Reply | None:
        """May be sent once the LSN `wait` is durable."""
    @property
    def error(self) -> ServiceError | None:
        """May be sent once the LSN `wait` is durable."""
    @property
    def hold(self) -> int:
        """Number of a wait for the starting lobby `lobby`, or 0."""
    @property
    def need(self) -> Need | None:
        """The engine has not changed. The rate limits are paid, except for `cloud_token`."""
    @property
    def wait(self) -> int: ...
    @property
    def namespace(self) -> bytes | None:
        """Namespace of the caller."""
    @property
    def lobby(self) -> bytes | None:
        """Lobby of the caller, or of a hold."""

@final
class PlacementRequest:
    """A valid find or join."""

    @property
    def namespace(self) -> bytes: ...
    @property
    def is_of_back_end(self) -> bool:
        """Whether a back end calls for the player."""
    @property
    def message(self) -> bytes:
        """The protobuf message."""
    @property
    def idempotency(self) -> bytes | None: ...
    @property
    def modes(self) -> list[str]:
        """Game modes that a find may use."""
    @property
    def regions(self) -> list[str]: ...

@final
class Matchmaker:
    """Rules of the matchmaker. The front and the Python servers share one object.

    Errors are raised as `pyservice.errors.ServiceError`.
    """

    def __new__(
        cls,
        engine: Engine,
        namespaces: Namespaces,
        regions: Sequence[tuple[str, str, str, float, float]],
        addresses: PlayerAddresses,
        client_limits: tuple[Buckets, Buckets, Buckets, Buckets, Buckets],
    ) -> Self:
        """`regions` are (id, display name of the provider, display name, latitude, longitude), the default one first.

        `client_limits` are buckets of tokens, of addresses of token holders, of addresses of other clients, of groups,
        and of lobbies.
        """
    def decide(self, request: EncodedRequest) -> Decision:
        """Decide about a request, which does not wait."""
    def place(
        self,
        request: EncodedRequest,
        new_lobby: tuple[bytes, bytes, LobbyTemplate | int] | None = None,
    ) -> Decision:
        """Decide about a find or join, which may wait for a starting lobby.

        `new_lobby` is (namespace, version, template of a lobby to start), with `lobby_count_max` in place of the
        template if no lobby can start. None prevents the creation.
        """
    def placement(self, request: EncodedRequest) -> PlacementRequest:
        """Return a find or join that needs something. Raises if its token or its game modes are no longer valid."""
    def placed(self, placed: Placed) -> Decision:
        """Return the response for reserved slots."""
    def reply(self, lobby: bytes, tokens: Sequence[str]) -> Reply | None:
        """Return the response for players of a lobby, or None if the lobby has ended."""
    def source(self, namespace: bytes, is_back_end: bool, client: bytes, player: str | None) -> int:
        """Return the keyed hash of a player's address, or 0 if it is not known."""
    def create_target(
        self,
        namespace: bytes,
        mode: str,
        region: str | None,
        publicity: str | None,
        *,
        has_tags: bool,
        max_players: int | None,
        party_size: int,
        coords: tuple[float, float] | None,
    ) -> tuple[str, str]:
        """Return (region, publicity) of a new lobby."""
    def attach_region(
        self, namespace: bytes, mode: str, region: str | None, has_tags: bool, ports: Sequence[str]
    ) -> str:
        """Return the region of a server that becomes a lobby."""
    def check_mode(self, namespace: bytes, mode: str) -> None: ...
    def caller(
        self, operation: str, authorization: str | None, origin: str | None, address: bytes
    ) -> Caller:
        """Authorize a call of an operation."""

def callers_of(operation: str) -> str | None:
    """Return the callers of an operation of the matchmaker: clients, operators or others. None: of another service."""

def mock_placement(
    region: tuple[str, str],
    hostname: str,
    ports: Sequence[tuple[str, int | tuple[int, int], bool]],
    tokens: Sequence[str],
) -> bytes:
    """Return the encoded response to the find, join or create of a `dev_` token.

    `region` is its id and its name. `ports` are (name, number or range, whether it uses TLS).
    """

def problem_json(error: ServiceError, ray_id: str) -> bytes:
    """Return the body of an error response: a `hosting.v1.Problem`, which extends RFC 9457."""

def grpc_status(error: ServiceError) -> bytes:
    """Return the `google.rpc.Status` of an error."""

def read_trace(traceparent: str) -> tuple[str, str] | None:
    """Return (trace id, span id) of a valid header `traceparent` of W3C Trace Context."""

def bearer_token(authorization: str | None, accepted_kinds: Sequence[str]) -> tuple[str, str]:
    """Return the token of an `authorization` header and its kind, such as `env`. Raises ServiceError."""

def broken_rules(operation: str, message: bytes) -> list[tuple[list[str], str, str]]:
    """Return location, word and reason of each problem in the message of a native operation.

    Raises ValueError for bytes of another message.
    """

def check_body_form(media_type: bytes | None, content_encoding: bytes | None) -> None:
    """Check that a body is JSON without an encoding. Raises ServiceError."""

def check_idempotency_key(key: str) -> None:
    """Raises ServiceError."""

@final
class Routes:
    """Operations by HTTP method and path. A path is percent-encoded, and an encoded slash is part of a parameter."""

    def __new__(cls, routes: Sequence[tuple[str, str, str]]) -> Self:
        """`routes` are (HTTP method, path template, operation). Raises ValueError for a template that occurs twice."""
    def find(self, method: str, path: str) -> tuple[str, dict[str, str]] | None:
        """Return (operation, parameters of the path)."""
    def methods(self, path: str) -> list[str]:
        """Return the HTTP methods of a path, sorted."""

@final
class Front:
    """HTTP server in front of the API. It answers matchmaker requests on threads of its own, without the GIL."""

    @staticmethod
    def start(
        matchmaker: Matchmaker,
        listener_fd: int,
        edge_listener_fd: int | None,
        *,
        passing: FrontPassing,
        connections_max: int | None,
        duration_bounds_s: Sequence[float],
        records_per_second: int,
        trusted_proxies: Sequence[str],
        edge_proxies: Sequence[str],
        has_proxy_headers: bool,
        game_servers: Sequence[tuple[int, int]],
        receive_timeout_ms: int,
        keep_alive_timeout_ms: int,
        grpc: FrontGrpc | None,
        certificate: PublicCertificate | None,
    ) -> Front:
        """Start to accept connections. The front uses copies of the descriptors.

        `trusted_proxies` and `edge_proxies` are networks, and `game_servers` are ranges of user ids. With a
        `certificate`, both listeners take TLS only. Raises ValueError for a wrong route, and OSError for an engine
        without a journal.
        """
    def take_changes(
        self,
        is_control: bool,
        run: str,
        sequence: int,
        topics: Sequence[tuple[str, int]],
        is_complete: bool,
    ) -> None:
        """Wake the parked requests that wait for one of these topics, or all of them without `is_complete`."""
    def take_measurements(self) -> FrontMeasurements: ...
    def set_serving(self, is_serving: bool) -> None:
        """Set the status of all services in the health service of gRPC."""
    def stop(self, grace_ms: int) -> None:
        """Close the listener, and wait for the answers of open requests. A second call changes the first's time."""
