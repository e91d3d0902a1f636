"""The engine as the event loop sees it: commands whose answers are awaited until they are durable.

What a call means is the handlers' matter, deciding is the engine's; how waiting works is in `waiting`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

from pyservice.dataplane.commands import Commands
from pyservice.dataplane.native import (
    Fact,
    Facts,
    Lobby,
    NativeEngine,
    OpenFailed,
    Placed,
    Refused,
    Resolved,
    Status,
    module,
)
from pyservice.dataplane.opening import Keys, Limits
from pyservice.dataplane.placing import Placing
from pyservice.dataplane.records import Records
from pyservice.dataplane.servers import Servers
from pyservice.dataplane.waiting import Waiting
from pyservice.observability.rays import note

__all__ = [
    "REFUSAL_SLUGS",
    "Engine",
    "Fact",
    "Facts",
    "Limits",
    "Lobby",
    "OpenFailed",
    "Placed",
    "Status",
    "build_profile",
    "compact",
    "open_engine",
    "version",
]

build_profile: Final = module.build_profile
REFUSAL_SLUGS: Final = module.SLUGS
version: Final = module.version


def open_engine(journal_dir: Path | None, keys: Keys, limits: Limits) -> Engine:
    """Recovers the directory; blocks meanwhile. Raises OpenFailed, OSError without room for it."""
    native = NativeEngine.open(
        None if journal_dir is None else str(journal_dir),
        mac_keys=keys.mac_keys,
        current_key=keys.current_key,
        hash_key=keys.hash_key,
        boot_id_path=str(limits.boot_id_path),
        segment_bytes=limits.segment_bytes,
        start_limit_ms=limits.start_limit_ms,
        port_rest_ms=limits.port_rest_ms,
    )
    stream = hashlib.blake2s(b"facts", key=keys.hash_key, digest_size=16).hexdigest()
    return Engine(native, limits.find_wait_ms, stream)


def compact(journal_dir: Path, keys: Keys, limits: Limits, parent_pid: int) -> int:
    """Writes an image of all closed segments and returns its LSN. Raises OpenFailed, OSError."""
    return module.compact(
        str(journal_dir),
        mac_keys=keys.mac_keys,
        current_key=keys.current_key,
        boot_id_path=str(limits.boot_id_path),
        segment_bytes=limits.segment_bytes,
        parent_pid=parent_pid,
    )


class Engine:
    """Commands answer when what they tell is durable; what the engine refuses is a ServiceError.

    `deadline` is in seconds of the loop's clock. When it passes the answer is DEADLINE_EXCEEDED and
    the change stands.
    """

    def __init__(self, native: NativeEngine, find_wait_ms: int, facts_stream: str) -> None:
        """`facts_stream` names the data directory: LSNs mean something within it alone."""
        self._native = native
        self.facts_stream: Final = facts_stream
        self._waiting: Waiting[Resolved] = Waiting(native, find_wait_ms, self._tell_delivered)
        self.on_delivered: Callable[[bytes], None] = _nobody
        """Told of each channel that something was sent to, when that is durable."""
        self._commands = Commands(self._waiting)
        self.records = Records(native, self._commands.done, self._waiting.settled)
        self.servers = Servers(native.servers(), self._commands)
        placing = Placing(native, self._commands)
        self.find = placing.find
        self.create = placing.create
        self.join = placing.join
        self.recalled = placing.recalled
        # Asked as they are; they wait for nothing.
        self.lobby = native.lobby
        self.lobby_of_token = native.lobby_of_token
        self.public_token = native.public_token
        self.namespace_of_public_token = native.namespace_of_public_token
        self.development_token = native.development_token
        self.namespace_of_development_token = native.namespace_of_development_token
        self.list_lobbies = native.list_lobbies
        self.live_versions = native.live_versions
        self.namespace_that_had = native.namespace_that_had
        self.player_counts = native.player_counts
        self.status = native.status
        self.source = native.source
        self.add_key = native.add_key
        self.drop_key = native.drop_key
        self.key_ids = native.key_ids
        self.keys_in_use = native.keys_in_use
        self.is_compaction_due = native.is_compaction_due
        self.image_written = native.image_written
        self.image_failed = native.image_failed
        self.render_metrics = native.render_metrics
        self.read_facts = native.read_facts
        self.acknowledge_facts = native.acknowledge_facts
        self.counts = native.counts
        self.progressed = self._waiting.progressed

    def start(self) -> None:
        """Begins to hear of the journal; called on the loop that awaits the answers."""
        self._waiting.start()

    def give_up_holds(self) -> None:
        """Who waits for a lobby that starts is sent away: the service stops."""
        self._waiting.give_up_holds()

    async def close(self) -> None:
        """Syncs what is pending and stops. Repeats do nothing."""
        self._waiting.stop()
        await asyncio.to_thread(self._native.close)

    def namespace_of_lobby(self, lobby_id: bytes) -> bytes | None:
        """Whose the lobby is, None when there is none (any more)."""
        lobby = self.lobby(lobby_id)
        return lobby.namespace if lobby else None

    def idempotency(
        self, identity: bytes, key: str | None, operation: str, message: bytes
    ) -> bytes | None:
        """What a command takes for a call with an idempotency key (decisions 1.8)."""
        if key is None:
            return None
        return self._native.idempotency(identity, key.encode(), operation, message)

    # Matchmaker clients

    # Lobby servers

    async def connected(
        self, lobby: bytes, player_token: str, idempotency: bytes | None, deadline: float | None
    ) -> None:
        """The player of the token is there."""
        began = perf_counter()
        try:
            wait = self._native.connected(lobby, player_token, idempotency)
        except Refused as refused:
            raise await self._commands.told(refused, deadline, began=began) from None
        note("engine", began)
        if wait > self._waiting.durable:
            await self._waiting.settled(wait, deadline)

    async def disconnected(
        self,
        lobby: bytes,
        player_token: str,
        hold_ms: int | None,
        idempotency: bytes | None,
        deadline: float | None,
    ) -> None:
        """The player of the token is gone."""
        await self._commands.done(
            lambda: self._native.disconnected(lobby, player_token, hold_ms, idempotency), deadline
        )

    async def ready(self, lobby: bytes, deadline: float | None) -> None:
        """The lobby takes players."""
        await self._commands.done(lambda: self._native.ready(lobby), deadline)

    async def set_closed(self, lobby: bytes, is_closed: bool, deadline: float | None) -> None:
        """Whether the lobby takes more players."""
        await self._commands.done(lambda: self._native.set_closed(lobby, is_closed), deadline)

    async def set_state(self, lobby: bytes, state: bytes, deadline: float | None) -> None:
        """What the lobby keeps; empty clears."""
        await self._commands.done(lambda: self._native.set_state(lobby, state), deadline)

    async def heartbeat(
        self, lobby: bytes, player_tokens: Sequence[str] | None, deadline: float | None
    ) -> None:
        """The lobby lives; with the list of its players."""
        await self._commands.done(lambda: self._native.heartbeat(lobby, player_tokens), deadline)

    async def state(
        self,
        namespaces: Sequence[bytes],
        lobby: bytes,
        deadline: float | None,
        speaker: bytes | None = None,
    ) -> bytes:
        """What the lobby keeps, empty when nothing. `speaker`: the lobby whose token asked for it.

        That one must not have ended, and it has spoken by asking (decisions 5.11).
        """
        state, wait = await self._commands.decided(
            lambda: self._native.state(namespaces, lobby, speaker), deadline
        )
        await self._waiting.settled(wait, deadline)
        return state or b""

    def listed_state(self, namespace: bytes, lobby: bytes) -> bytes | None:
        """The same for lists, which never wait; None also when the lobby is gone."""
        try:
            return self._native.state([namespace], lobby)[0]
        except Refused:
            return None

    async def all_settled(self, deadline: float | None) -> None:
        """Returns when everything decided so far is durable."""
        await self._waiting.settled(self._native.status().last, deadline)

    # Operators

    async def attach(
        self,
        namespace: bytes,
        version: bytes,
        mode: str,
        region: str,
        ports: Sequence[tuple[str, str, int, bool]],
        *,
        tags: Sequence[tuple[str, str]],
        max_players: tuple[int, int, int],
        player_token_ttl_ms: int,
        heartbeat_timeout_ms: int,
        heartbeat_grace_ms: int,
        is_join_enabled: bool,
        create_ts_ms: int,
        lobby_count_max: int,
        idempotency: bytes | None,
        deadline: float | None,
    ) -> tuple[bytes, str]:
        """(lobby id, lobby token) of a server that somebody else started."""
        lobby, token, wait = await self._commands.decided(
            lambda: self._native.attach(
                namespace,
                version,
                mode,
                region,
                ports,
                tags=tags,
                max_players=max_players,
                player_token_ttl_ms=player_token_ttl_ms,
                heartbeat_timeout_ms=heartbeat_timeout_ms,
                heartbeat_grace_ms=heartbeat_grace_ms,
                is_join_enabled=is_join_enabled,
                create_ts_ms=create_ts_ms,
                lobby_count_max=lobby_count_max,
                idempotency=idempotency,
            ),
            deadline,
        )
        await self._waiting.settled(wait, deadline)
        return lobby, token

    async def recalled_attach(
        self, idempotency: bytes | None, deadline: float | None
    ) -> tuple[bytes, str] | None:
        """What an attach under this key got before, None when the engine does not know the key."""
        if idempotency is None:
            return None
        recalled = await self._commands.decided(
            lambda: self._native.recall_attach(idempotency), deadline
        )
        if recalled is None:
            return None
        lobby, token, wait = recalled
        await self._waiting.settled(wait, deadline)
        return lobby, token

    async def detach(
        self, namespaces: Sequence[bytes], lobby: bytes, deadline: float | None
    ) -> bool:
        """Whether this call ended the lobby."""
        did_remove, wait = await self._commands.decided(
            lambda: self._native.detach(namespaces, lobby), deadline
        )
        await self._waiting.settled(wait, deadline)
        return did_remove

    def _tell_delivered(self) -> None:
        for channel in self._native.take_delivered():
            self.on_delivered(channel)


def _nobody(channel: bytes) -> None:
    """Hears of deliveries when nobody else wants to."""
