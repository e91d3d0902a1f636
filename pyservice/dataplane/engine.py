"""Asyncio interface of the native matchmaker engine: opens it, runs commands, awaits durable
results.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from pyservice.auth.keyring import Keyring
from pyservice.calls import Caller
from pyservice.dataplane.engine_commands import (
    CommandRunner,
    DurabilityWaiter,
    PlayerRecords,
    ProcessCommands,
)
from pyservice.dataplane.lobby_problems import LobbyProblems
from pyservice.dataplane.native import (
    NativeEngine,
    NativeMatchmaker,
    NativePlayerAddresses,
    Placed,
    module,
)
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.network.port_ranges import PUBLIC_PORTS
from pyservice.observability.logging import get_logger
from pyservice.transport.native import Namespaces
from pyservice.transport.rate_limits import ClientBuckets

_NOT_READY: Final = (
    "The lobby started, but the server has not called ready in time. Read the lobby's log, and call"
    " lobbies.ready when the server accepts players."
)

NativeRegion = tuple[str, str, str, float, float]
"""Id, display name of the provider, display name, latitude and longitude."""

_log = get_logger("service")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    find_wait_ms: int = 45_000
    start_limit_ms: int = 300_000
    port_quarantine_ms: int = 60_000
    public_ports: tuple[int, int] = (PUBLIC_PORTS[0], PUBLIC_PORTS[-1])
    binds_ports_later: bool = False
    """True if a lease gets its ports by `ProcessCommands.bind_ports`, when its node is known."""
    segment_bytes: int = 64 << 20
    boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id")


build_profile: Final = module.build_profile
version: Final = module.version


def open_engine(journal_dir: Path | None, keys: Keyring, limits: EngineLimits) -> Engine:
    """Opens the engine and recovers its state from the journal directory. Blocks."""
    native = NativeEngine.open(
        None if journal_dir is None else str(journal_dir),
        mac_keys=keys.mac_keys,
        current_key=keys.current_key,
        hash_key=keys.hash_key,
        boot_id_path=str(limits.boot_id_path),
        segment_bytes=limits.segment_bytes,
        start_limit_ms=limits.start_limit_ms,
        port_quarantine_ms=limits.port_quarantine_ms,
        public_ports=limits.public_ports,
        restored_keys=sorted(keys.restored_keys),
        first_epoch=keys.first_epoch,
        binds_ports_later=limits.binds_ports_later,
    )
    warn_of_uncovered_block(native.uncovered_block())
    of_hash_key = hashlib.blake2s(b"facts", key=keys.hash_key, digest_size=16).hexdigest()
    stream = keys.facts_stream or of_hash_key
    return Engine(native, limits, stream)


def warn_of_uncovered_block(sizes: tuple[int, int] | None) -> None:
    """Logs a disk with blocks that are larger than the alignment of the journal.

    A power failure during a write can then damage acknowledged changes.
    """
    if sizes is not None:
        _log.warning(
            "disk blocks are larger than the alignment of the journal",
            block_bytes=sizes[0],
            alignment_bytes=sizes[1],
        )


class Engine:
    """Commands and queries of the native matchmaker engine.

    A command returns after its result is durable, and raises ServiceError if the engine refuses it.
    `deadline` is in seconds of the event loop's clock. A command that misses its deadline raises
    DEADLINE_EXCEEDED, but its change remains.
    """

    def __init__(self, native: NativeEngine, limits: EngineLimits, facts_stream: str) -> None:
        self._native = native
        self.facts_stream: Final = facts_stream
        self._waiter = DurabilityWaiter(native, limits.find_wait_ms, self._report_deliveries)
        self.on_delivered: Callable[[bytes], None] = _ignore_delivery
        self._commands = CommandRunner(self._waiter)
        self.player_records = PlayerRecords(native, self._commands)
        self.lobby_problems = LobbyProblems(limits.start_limit_ms)
        self.processes = ProcessCommands(native.servers(), self._commands)
        self.create_lobby = native.create
        self.attach_lobby = native.attach
        self.lobby = native.lobby
        self.lobbies_to_drain = native.lobbies_to_drain
        self.suspect_slots = native.suspect_slots
        self.public_token = native.public_token
        self.development_token = native.development_token
        self.live_versions = native.live_versions
        self.namespace_that_had = native.namespace_that_had
        self.status = native.status
        self.add_key = native.add_key
        self.drop_key = native.drop_key
        self.key_ids = native.key_ids
        self.unused_keys = native.unused_keys
        self.failed_compactions = native.failed_compactions
        self.render_metrics = native.render_metrics
        self.state_counts = native.state_counts
        self.read_facts = native.read_facts
        self.acknowledge_facts = native.acknowledge_facts
        self.counts = native.counts
        self.wait_durable = self._waiter.wait_durable
        self.wait_for_change = self._waiter.wait_for_change
        self.cancel_holds = self._waiter.cancel_holds
        self.fail_holds = self._waiter.fail_holds

    @property
    def uncovered_block(self) -> tuple[int, int] | None:
        """Block size of the disk and alignment of the journal, if two batches can share a block."""
        return self._native.uncovered_block()

    def start(self) -> None:
        """Registers the engine's wake-up file descriptor. Call it on the event loop that runs the
        commands.
        """
        self._waiter.start()

    async def close(self) -> None:
        """Closes the native engine. Repeated calls do nothing."""
        self._waiter.stop()
        await asyncio.to_thread(self._native.close)

    def namespace_of_lobby(self, lobby_id: bytes) -> bytes | None:
        lobby = self.lobby(lobby_id)
        return lobby.namespace if lobby else None

    def idempotency(self, caller: Caller, operation: str, message: Message) -> bytes | None:
        """Returns the hash of a request with an idempotency key, or None without a key."""
        key = caller.call.idempotency_key
        if key is None:
            return None
        content = message.SerializeToString(deterministic=True)
        return self._native.idempotency(caller.identity, key.encode(), operation, content)

    async def placed(self, command: Callable[[], Placed], deadline: float | None) -> Placed:
        """Runs a command that places players, and waits if their lobby is still starting."""
        placement = await self._commands.run(command, deadline)
        return await self._wait_for_placement(placement, deadline)

    async def replayed_placement(
        self, idempotency: bytes | None, deadline: float | None
    ) -> Placed | None:
        """Returns the result of an earlier find, create or join with this idempotency key, or None.

        Waits, like the original call, if the lobby is still starting.
        """
        if idempotency is None:
            return None
        placement = await self._commands.run(lambda: self._native.recall(idempotency), deadline)
        return None if placement is None else await self._wait_for_placement(placement, deadline)

    async def _wait_for_placement(self, placement: Placed, deadline: float | None) -> Placed:
        if placement.hold:
            placement = await self.wait_for_hold(placement.hold, placement.lobby, deadline)
        await self._waiter.wait_durable(placement.wait, deadline)
        return placement

    async def wait_for_hold(self, hold: int, lobby: bytes, deadline: float | None) -> Placed:
        """Waits until a starting lobby is ready. Returns the reserved slots, which may not be
        durable yet.

        `lobby` is the starting lobby, if it is known.
        """
        try:
            resolved = await self._waiter.wait_for_hold(hold, deadline, lobby)
        except ServiceError as error:
            raise self._hold_error(error, lobby) from None
        if resolved.refusal is not None:
            raise await self._commands.durable_error(resolved.refusal, deadline, lobby)
        if resolved.placed is None:
            raise RuntimeError("a hold ended without slots and without a refusal")
        return resolved.placed

    def _hold_error(self, error: ServiceError, lobby_id: bytes) -> ServiceError:
        """Returns the error of a wait for a starting lobby, with the lobby that was not ready."""
        lobby = self.lobby(lobby_id)
        if error.code != "DEADLINE_EXCEEDED" or lobby is None or lobby.is_ready:
            return error
        metadata = {"lobby_id": format_uuid(lobby_id), "reason": "lobby_not_ready"}
        return ServiceError(error.code, _NOT_READY, metadata=metadata)

    async def state(
        self,
        namespaces: Sequence[bytes],
        lobby: bytes,
        deadline: float | None,
    ) -> bytes:
        """Returns the state that the lobby's server has set. It is empty if no state is set."""
        state, wait = await self._commands.run(
            lambda: self._native.state(namespaces, lobby, None), deadline
        )
        await self._waiter.wait_durable(wait, deadline)
        return state or b""

    def matchmaker(
        self,
        namespaces: Namespaces,
        regions: Sequence[NativeRegion],
        addresses: NativePlayerAddresses,
        limits: ClientBuckets,
    ) -> NativeMatchmaker:
        """Returns the rules of the matchmaker over this engine. The first region is the default."""
        return NativeMatchmaker(self._native, namespaces, regions, addresses, limits)

    async def wait_all_durable(self, deadline: float | None) -> None:
        await self._waiter.wait_durable(self._native.status().last, deadline)

    async def attached(
        self, command: Callable[[], tuple[bytes, str, int]], deadline: float | None
    ) -> tuple[bytes, str]:
        """Runs a command that attaches a lobby. Returns the lobby id and the lobby token."""
        lobby, token, wait = await self._commands.run(command, deadline)
        await self._waiter.wait_durable(wait, deadline)
        return lobby, token

    async def replayed_attach(
        self, idempotency: bytes | None, deadline: float | None
    ) -> tuple[bytes, str] | None:
        if idempotency is None:
            return None
        before = await self._commands.run(lambda: self._native.recall_attach(idempotency), deadline)
        if before is None:
            return None
        lobby, token, wait = before
        await self._waiter.wait_durable(wait, deadline)
        return lobby, token

    async def detach(
        self, namespaces: Sequence[bytes], lobby: bytes, deadline: float | None
    ) -> bool:
        return await self._commands.run_durable_result(
            lambda: self._native.detach(namespaces, lobby), deadline
        )

    def _report_deliveries(self) -> None:
        for channel in self._native.take_delivered():
            self.on_delivered(channel)


def _ignore_delivery(channel: bytes) -> None: ...
