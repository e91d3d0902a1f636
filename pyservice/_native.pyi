"""The native part: engine, journal and their metrics behind frozen handles.

Values cross the boundary, no Python object is kept inside and nothing inside calls back. Ids are 16 bytes, times and
durations milliseconds, LSNs positive integers where 0 means "nothing to wait for". An answer whose ``wait`` is not 0
may leave the process only when ``Engine.durable()`` has reached it. Methods that do work in proportion to the data
(``open``, ``heartbeat``, ``list_lobbies``, ``live_versions``, ``starts_of_version``, ``lobbies_of_version``,
``render_metrics``, ``keys_in_use``, ``drop_key``, ``compact``, ``close``, ``change_files``) release the GIL.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Final, Self, final

__all__ = [
    "SLUGS",
    "EmptyLobby",
    "Engine",
    "Fact",
    "Facts",
    "LeasedPort",
    "Lobby",
    "Make",
    "OpenFailed",
    "Placed",
    "Port",
    "Refused",
    "Resolved",
    "Route",
    "Routes",
    "Servers",
    "Status",
    "SupplyGroup",
    "build_profile",
    "change_files",
    "compact",
    "version",
]

SLUGS: Final[tuple[str, ...]]
"""Every ``Refused.slug``; each is a code of the error table (decisions 2)."""

build_profile: Final[str]
"""``release`` or ``debug``: nothing is measured on a debug build."""

version: Final[str]
"""Version of the extension module."""

class OpenFailed(Exception):
    """The data directory cannot be opened; the message names file and offset and says what to do."""

@final
class Refused(Exception):
    """A command that the engine refused. Nothing was changed by it."""

    def __new__(
        cls, slug: str, wait: int, context: dict[str, str | int | tuple[int, ...]]
    ) -> Self: ...
    @property
    def slug(self) -> str:
        """Wire code, one of ``SLUGS``."""
    @property
    def wait(self) -> int:
        """LSN that must be durable before the refusal may be told."""
    @property
    def context(self) -> dict[str, str | int | tuple[int, ...]]:
        """``reason`` and, when it is known, ``exit_code`` (start failed), ``limit`` (party too large), ``indexes`` (bad
        tokens of a heartbeat list).

        Indexes ascend; of more than 256 they are the first 256.
        """

@final
class Port:
    """One port of an attached lobby."""

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
    """A lobby as answers need it. Only ``is_*`` and the counts change after it was made."""

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
        """Ready, not closed and not silent."""
    @property
    def players(self) -> tuple[int, int, int, int]:
        """Held, reserved, connected, kept."""
    @property
    def create_ts_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
    @property
    def is_ours(self) -> bool:
        """The service starts it: its ports are ``leased``. Else it was attached with ``ports``."""
    @property
    def is_public(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    @property
    def tags(self) -> dict[str, str]: ...
    @property
    def leased(self) -> tuple[LeasedPort, ...]: ...
    @property
    def lobby_config(self) -> bytes | None:
        """JSON text that create was given."""

@final
class Placed:
    """What find and join give: reserved places, or a hold on a starting lobby."""

    @property
    def lobby(self) -> bytes:
        """While held: the starting lobby that the hold waits for."""
    @property
    def tokens(self) -> tuple[str, ...]:
        """One player token per player; empty while held."""
    @property
    def hold(self) -> int:
        """0 when reserved; else wait for ``Resolved`` with this number or call ``release_hold`` once."""
    @property
    def wait(self) -> int: ...

@final
class Resolved:
    """A hold that ended: places, or a refusal."""

    @property
    def hold(self) -> int: ...
    @property
    def placed(self) -> Placed | None: ...
    @property
    def refusal(self) -> Refused | None: ...

@final
class Make:
    """A lobby that the service is to start. Its ports are (name, protocol, ``number`` | ``host`` | ``range``, first,
    last of the range or 0). Raises ValueError for words that there are not.
    """

    def __new__(
        cls,
        mode: str,
        region: str,
        ports: Sequence[tuple[str, str, str, int, int]],
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
    ) -> Self: ...

@final
class LeasedPort:
    """A port that a lobby or a server has."""

    @property
    def name(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def number(self) -> int:
        """The public number; 0: it is reached by host name, or by its range."""
    @property
    def range(self) -> tuple[int, int] | None: ...
    @property
    def backend(self) -> tuple[str, int] | None:
        """Address and port of its process, once it is there."""

@final
class Route:
    """One way in, as edge-guard is told."""

    @property
    def owner(self) -> bytes: ...
    @property
    def is_server(self) -> bool: ...
    @property
    def region(self) -> str: ...
    @property
    def port(self) -> LeasedPort: ...

@final
class Routes:
    """What is new of routes, and durable."""

    @property
    def version(self) -> int: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def changed(self) -> list[Route]:
        """Of each owner all of its ports."""
    @property
    def removed(self) -> list[bytes]:
        """Owners whose routes have to go, until ``Servers.ports_returned``."""

@final
class EmptyLobby:
    """A ready lobby that nobody is in and that is not stopping."""

    @property
    def lobby(self) -> bytes: ...
    @property
    def empty_ms(self) -> int:
        """For how long."""
    @property
    def was_used(self) -> bool:
        """Somebody was in it before."""
    @property
    def is_findable(self) -> bool:
        """Public and open."""
    @property
    def is_ours(self) -> bool: ...

@final
class SupplyGroup:
    """Lobbies of one namespace, version, mode and region."""

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
        """Public ones that start and that nobody waits for."""
    @property
    def live(self) -> int:
        """All, without those that are stopping."""
    @property
    def failed(self) -> int:
        """Of ours: ended by the engine, not ready in time or silent, since ``take_touched`` told of the group last."""
    @property
    def empty(self) -> list[EmptyLobby]:
        """Empty longest first."""

@final
class Servers:
    """Commands around processes: lobbies of ours, ports. They return the LSN to wait for, last, and raise Refused."""

    def start_idle(self, namespace: bytes, version: bytes, make: Make) -> tuple[bytes, int]:
        """A lobby for nobody: its id."""
    def stop(self, lobby: bytes, only_if_idle: bool) -> tuple[bool, int]:
        """Whether it is stopping now: nobody gets in any more."""
    def exited(self, lobby: bytes, exit_code: int | None = None) -> tuple[bool, int]:
        """Its process is over; whether this ended the lobby."""
    def lobby_token(self, lobby: bytes) -> str | None:
        """``lobby_`` token of a lobby that has not ended."""
    def wanted_since(self, after: int) -> tuple[int, bool, list[tuple[bytes, bool]], list[bytes]]:
        """(sequence, whether these are all, (lobby, is stopping) each, lobbies that ended); after 0: all."""
    def take_touched(self) -> list[SupplyGroup]:
        """Groups that changed since the last call."""
    def supply_groups(self, namespace: bytes) -> list[SupplyGroup]: ...
    def starts_of_version(self, namespace: bytes, version: bytes) -> bool:
        """Whether one of ours of it is neither ready nor told to stop; what is decided, durable or not."""
    def lobbies_of_version(self, namespace: bytes, version: bytes) -> list[bytes]:
        """Those that have not ended, stopping or not, oldest first; what is decided, durable or not."""
    def lease(
        self,
        owner: bytes,
        namespace: bytes,
        region: str,
        ports: Sequence[tuple[str, str, str, int, int]],
    ) -> tuple[tuple[LeasedPort, ...], int]:
        """Ports of a dynamic server, as in ``Make``; the same server gets the same ones."""
    def set_backends(self, owner: bytes, backends: Sequence[tuple[str, str, int]]) -> int:
        """Where its process listens: (port name, address, port) each."""
    def end_lease(self, owner: bytes) -> tuple[bool, int]:
        """The server is over; whether it had a lease until now."""
    def replace_port(self, owner: bytes, name: str, refused: int) -> tuple[int | None, int]:
        """Edge-guard cannot have that number: the one that the port has now."""
    def ports_returned(self, owner: bytes) -> tuple[bool, int]:
        """Edge-guard has closed its sockets; whether they were waited for."""
    def routes_since(self, after: int) -> Routes:
        """What changed after a version; 0: all."""
    def leased_servers(self) -> list[bytes]:
        """Dynamic servers whose leases have not ended."""

@final
class Status:
    """Where journal and engine are."""

    @property
    def epoch(self) -> int:
        """Grows with each opening of the directory."""
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
    """What became of one lobby, for the control plane's records.

    ``version`` to ``create_ts_ms`` are of ``made`` and ``ended``, what follows is of ``ended`` alone; else None.
    """

    @property
    def lsn(self) -> int:
        """Its name: facts come in this order, each once."""
    @property
    def kind(self) -> str:
        """``made``, ``ready``, ``closed``, ``opened``, ``stopping`` (it drains) or ``ended``."""
    @property
    def ts_ms(self) -> int:
        """Milliseconds since the Unix epoch; 0 when an earlier build did not write it."""
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
    def max_players(self) -> tuple[int, int, int] | None:
        """Limits of find, join and party."""
    @property
    def create_ts_ms(self) -> int | None: ...
    @property
    def reason(self) -> str | None:
        """``exited``, ``start_timeout``, ``silent`` or ``removed``."""
    @property
    def exit_code(self) -> int | None:
        """None also when nobody knows it."""
    @property
    def player_ms(self) -> int | None:
        """Sum of the times that players were connected."""
    @property
    def peak_players(self) -> int | None:
        """Most players connected at one time."""
    @property
    def connections(self) -> int | None:
        """How often somebody connected."""
    @property
    def players(self) -> tuple[int, int, int] | None:
        """Places at its end: reserved, connected, kept."""

@final
class Facts:
    """A part of the facts, in order of LSN; all of it is durable."""

    @property
    def facts(self) -> list[Fact]: ...
    @property
    def oldest(self) -> int:
        """LSN of the oldest fact that is there, 0 when there is none."""
    @property
    def lost(self) -> int:
        """At most so many facts after the ones read before are gone for good, all older than ``oldest``."""

@final
class Engine:
    """One shard: engine, journal and timer. Thread safe."""

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
        port_rest_ms: int = 60000,
    ) -> Engine:
        """Recover the directory and go on, or an empty engine without a journal when it is None (measurements).

        ``mac_keys``: (key id, 32 bytes) each; ``hash_key``: 32 bytes, never rotated. Raises OpenFailed, or OSError
        with ENOSPC.
        """
    def close(self) -> None:
        """Sync what is pending and stop the threads. Repeats do nothing."""

    # Waiting
    def wake_fd(self) -> int:
        """Eventfd that becomes readable when a batch is durable. The engine owns it; -1 without a journal."""
    def durable(self) -> int: ...
    def take_resolved(self) -> list[Resolved]:
        """Holds that ended since the last call. They come with a batch, so ``wake_fd`` tells of them."""

    # Tokens and hashes
    def lobby_of_token(self, lobby_token: str) -> bytes | None:
        """Lobby id of an authentic ``lobby_`` token, None otherwise."""
    def public_token(self, namespace: bytes, token_id: bytes) -> str: ...
    def namespace_of_public_token(self, public_token: str) -> tuple[bytes, bytes] | None:
        """(namespace, token id) of an authentic ``pub_`` token, None otherwise."""
    def development_token(self, namespace: bytes, token_id: bytes, expires_ms: int) -> str:
        """A ``dev_`` token, the same for the same arguments under the same key."""
    def namespace_of_development_token(
        self, development_token: str
    ) -> tuple[bytes, bytes, int] | None:
        """(namespace, token id, expires_ms) of an authentic ``dev_`` token, None otherwise."""
    def mock_player_token(self, namespace: bytes, token_id: bytes, nonce: bytes) -> str:
        """A player token for a ``dev_`` token; the same 16 bytes in the same hour give the same."""
    def consume_mock(self, namespace: bytes, token_id: bytes, player_token: str) -> int:
        """Use a mock player token up; returns the LSN. Good once, for one to two hours.

        Raises Refused: ``PLAYER_TOKEN_INVALID``, ``_CONSUMED``, ``_EXPIRED``, ``STORAGE_FULL``.
        """
    def source(self, namespace: bytes, address: bytes) -> int:
        """Keyed hash of a client address; never 0."""
    def idempotency(self, caller: bytes, key: bytes, operation: str, message: bytes) -> bytes:
        """32 bytes to hand to a command."""

    def channel(self, secret: bytes) -> bytes:
        """16 bytes, the keyed hash of the secret of an event channel."""

    # MAC keys
    def add_key(self, key_id: int, secret: bytes) -> None:
        """Sign with this key from now on. It must be on disk already. Raises ValueError."""
    def drop_key(self, key_id: int) -> bool:
        """Forget a key; False, and nothing changed, when it signs or something names it."""
    def key_ids(self) -> list[int]:
        """All keys of the ring, in the order in which they came."""
    def keys_in_use(self) -> list[int]:
        """Keys that lobbies, slots, remembered requests or channels name, ascending."""

    # Captcha standings of client addresses
    def standing(self, namespace: bytes, address: bytes) -> tuple[int | None, int]:
        """(ms since it passed, requests since); None: not within 12 h."""
    def note_human(self, namespace: bytes, address: bytes) -> int:
        """It passed now; returns the LSN. Raises Refused (``STORAGE_FULL``)."""
    def note_request(self, namespace: bytes, address: bytes) -> None:
        """One request more of an address that passed."""

    # Matchmaker clients. All raise Refused.
    def find(
        self,
        namespace: bytes,
        version: bytes,
        modes: Sequence[str],
        regions: Sequence[str],
        tags: Sequence[tuple[str, str]],
        *,
        party_size: int = 1,
        source: int = 0,
        source_limit: int = 4294967295,
        idempotency: bytes | None = None,
        channels: Sequence[bytes] | None = None,
        creation: Make | int | None = None,
    ) -> Placed:
        """``channels``: the i-th gets the (i+1)-th token (see ``channel``). ``creation``: what is made when no lobby
        fits; ``lobby_count_max`` where nothing can be made, None where nothing is to be.
        """
    def create(
        self,
        namespace: bytes,
        version: bytes,
        creation: Make | int,
        *,
        party_size: int = 1,
        source: int = 0,
        source_limit: int = 4294967295,
        idempotency: bytes | None = None,
        channels: Sequence[bytes] | None = None,
    ) -> Placed:
        """A lobby for this caller alone; ``creation`` as in ``find``."""
    def servers(self) -> Servers:
        """The commands around processes, of the same engine."""
    def join(
        self,
        namespace: bytes,
        lobby: bytes,
        *,
        party_size: int = 1,
        rejoin_token: str | None = None,
        source: int = 0,
        source_limit: int = 4294967295,
        idempotency: bytes | None = None,
        channels: Sequence[bytes] | None = None,
    ) -> Placed: ...
    def recall(self, idempotency: bytes) -> Placed | None:
        """What find or join gave under this key, None when it is not known. A hold is waited for by
        one request more.
        """
    def release_hold(self, hold: int) -> None:
        """One request that waited for it went away; the last one drops it."""

    def channel_events(self, channel: bytes) -> tuple[list[tuple[int, bytes, str]], int]:
        """((Unix ms, lobby, player token) of each event, oldest first; LSN to wait for)."""
    def take_delivered(self) -> list[bytes]:
        """Channels that something durable was sent to since the last call."""

    # Lobby servers. All return the LSN to wait for and raise Refused.
    def connected(
        self, lobby: bytes, player_token: str, idempotency: bytes | None = None
    ) -> int: ...
    def disconnected(
        self,
        lobby: bytes,
        player_token: str,
        hold_ms: int | None = None,
        idempotency: bytes | None = None,
    ) -> int: ...
    def ready(self, lobby: bytes) -> int: ...
    def set_closed(self, lobby: bytes, is_closed: bool) -> int: ...
    def set_state(self, lobby: bytes, state: bytes) -> int:
        """An empty state clears."""
    def heartbeat(self, lobby: bytes, player_tokens: Sequence[str] | None = None) -> int: ...
    def state(
        self, namespaces: Sequence[bytes], lobby: bytes, speaker: bytes | None = None
    ) -> tuple[bytes | None, int]:
        """(state, LSN to wait for), for who may see these namespaces.

        ``speaker``: the lobby whose token the call came with. It must not have ended, and the call
        counts as its speaking.
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
        """(lobby id, lobby token, LSN). Ports: (name, address, port, is_tls)."""
    def recall_attach(self, idempotency: bytes) -> tuple[bytes, str, int] | None:
        """What attach gave under this key, None when it is not known."""
    def detach(self, namespaces: Sequence[bytes], lobby: bytes) -> tuple[bool, int]:
        """(did_remove, LSN)."""

    # The control plane, which reads at its own pace. 100,000 facts wait; of more, the oldest go.
    def read_facts(self, after_lsn: int, limit: int) -> Facts:
        """Durable facts after an LSN, at most so many."""
    def acknowledge_facts(self, lsn: int) -> None:
        """The reader has stored all facts up to this LSN: they go.

        Journalled, but nobody need wait for it: after a crash they may come again, under their LSNs.
        """
    def counts(self, after_generation: int) -> tuple[int, bool, list[tuple[bytes, int, int]]]:
        """(generation, is_all, [(namespace, connected players, live lobbies)]) of what changed since a generation.

        ``is_all`` when ``after_generation`` is 0 or not of this engine: a namespace that is not told has nothing
        then. Counts of what is decided, durable or not.
        """

    # Reads that wait for nothing
    def lobby(self, lobby: bytes) -> Lobby | None: ...
    def list_lobbies(self, namespace: bytes, version: bytes) -> list[Lobby]:
        """Public, open lobbies of the version, oldest first."""
    def namespace_that_had(self, lobby: bytes) -> bytes | None:
        """Whose a lobby is, or was as long as its end is remembered."""
    def live_versions(self, namespace: bytes) -> list[bytes]:
        """Versions of its lobbies that have not ended, each once; what is decided, durable or not."""
    def player_counts(self, namespace: bytes) -> list[tuple[str, str, int]]:
        """(mode, region, connected players)."""
    def status(self) -> Status: ...
    def render_metrics(self, namespace_labels: Mapping[bytes, str]) -> bytes:
        """Prometheus text of the engine and journal families; labels are ``game/namespace``."""

    # Compaction (run by a child process, see ``compact``)
    def is_compaction_due(self) -> bool: ...
    def image_written(self) -> None:
        """A child finished: segments that its image covers are used again.

        Raises OpenFailed, or OSError (ENOSPC).
        """
    def image_failed(self, reason: str, is_no_space: bool) -> None:
        """A child failed. Without space new places get no credit until an image is written."""

def compact(
    journal_dir: str,
    *,
    mac_keys: Sequence[tuple[int, bytes]],
    current_key: int,
    boot_id_path: str = "/proc/sys/kernel/random/boot_id",
    segment_bytes: int = 67108864,
    shard: int = 1,
    parent_pid: int = 0,
) -> int:
    """Write an image of all closed segments; returns its LSN. Lowers its own priority and ends with ``parent_pid``.

    Raises OpenFailed, or OSError with ENOSPC when there is no room for the image.
    """

def change_files(steps: Sequence[tuple[str, PathLike[str] | str, int, bytes]]) -> None:
    """Change files. A step: ``folder``, ``group``, ``file``, ``put`` or ``try``; where; mode of what is new; content.

    One after the other, until the first that fails; releases the GIL once. Raises OSError with the file, ValueError for
    a step that is none of these, before anything is done.
    """
