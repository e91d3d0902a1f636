"""Gets every change to the data plane: in order, again and again until it is acknowledged (decisions 8.2).

Owns when a namespace is sent and who waits for it. A namespace is wanted (it changed, or the data plane holds another
revision), sent, and settled when the data plane holds it durably. Messages are made by `feeding`; nothing is lost by a
crash of either: what the data plane holds is compared with the records at each start, and looked at again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyservice.control.batches import Batches
from pyservice.control.feeding import Composer, Wish
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.storage import namespaces
from pyservice.storage.database import Database

_AT_ONCE: Final = 64
"""They go in batches."""
_WAIT_S: Final = 1.0
_CHECK_S: Final = 0.3
"""A data plane that takes longer says later what it thinks of a version: when it gets it."""
_LOOK_S: Final = 0.4
_LOOK_MAX_S: Final = 5.0
_LOOK_SHARE: Final = 50
"""Of this time at most one part is spent on looking."""
_RETRY_S: Final = 0.05
_RETRY_MAX_S: Final = 0.5
_REFUSED_RETRY_S: Final = 10.0

_NOTHING_SWITCHED: Final = "The data plane does not take this version; nothing was switched."
_SWITCHED_BACK: Final = (
    "The data plane does not take the version that was set; the namespace runs the one that it ran. Anything else that "
    "was changed is stored and takes effect."
)
_STORED: Final = (
    "The change is stored, but the data plane does not take the namespace as it is now: the namespace runs what it "
    "ran. It takes effect when what the errors name is set right."
)

_log = get_logger("feeder")


class Away(Exception):
    """The data plane does not answer."""


class FeedClient(Protocol):
    """The data plane, as a feeder sees it. Raises Away, and ServiceError when it cannot take anything now."""

    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...
    async def check(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...
    async def held(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse: ...


@dataclass(slots=True)
class _Wanted:
    """A namespace that has to be sent. `number` grows with each change; who waits, waits for one."""

    since: float
    """When it was first wanted, in seconds of the loop's clock."""
    number: int = 0
    parked: asyncio.TimerHandle | None = None
    """It was refused; then it is tried again, if it is not changed before."""
    waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)


class Feeder:
    """Sends namespaces that are wanted, as long as `run` runs."""

    def __init__(
        self,
        database: Database,
        composer: Composer,
        client: FeedClient,
        taken_back: Callable[[str], None] = lambda game_id: None,
    ) -> None:
        """`taken_back` hears of a game of which a namespace went back to the version that it ran."""
        self._taken_back = taken_back
        self._database = database
        self._composer = composer
        self._messages = Batches(self._compose)
        self._client = client
        self._wanted: dict[str, _Wanted] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._held: dict[str, feed_pb2.HeldConfiguration] = {}
        """What the data plane said that it holds."""
        self._is_connected = asyncio.Event()
        self._doubt = asyncio.Event()
        self.refused: dict[str, str] = {}
        """Namespace to the first reason: what the data plane does not take."""
        self.refusals = 0
        self.acknowledged = 0

    @property
    def waiting(self) -> int:
        """Namespaces that the data plane does not hold as the records have them."""
        return len(self._wanted)

    @property
    def lag_s(self) -> float:
        """How long the one that waits longest has waited."""
        oldest = next(iter(self._wanted.values()), None)
        return 0.0 if oldest is None else asyncio.get_running_loop().time() - oldest.since

    @property
    def is_connected(self) -> bool:
        return self._is_connected.is_set()

    def changed(self, *namespace_ids: str) -> None:
        """These are to be sent, soon. Call it after the commit."""
        for namespace_id in namespace_ids:
            wanted = self._wanted.get(namespace_id)
            if wanted is None:
                wanted = self._wanted[namespace_id] = _Wanted(asyncio.get_running_loop().time())
                self._queue.put_nowait(namespace_id)
            elif wanted.parked is not None:
                self._unpark(namespace_id)
            wanted.number += 1

    async def settled(self, namespace_id: str) -> None:
        """Sends the namespace as it is now and returns when the data plane holds it.

        Raises CONTROL_PLANE_UNAVAILABLE after 1 s: the change is stored and will take effect.
        Raises VALIDATION_FAILED when the data plane refuses it; then the version is as it was, and anything else that
        was changed is stored.
        """
        self.changed(namespace_id)
        wanted = self._wanted[namespace_id]
        future = asyncio.get_running_loop().create_future()
        waiter = (wanted.number, future)
        wanted.waiting.append(waiter)
        try:
            async with asyncio.timeout(_WAIT_S):
                await future
        except TimeoutError:
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "The change is stored and will take effect; the data plane has not said so yet. "
                "Repeating the request is harmless and answers 200 once it has.",
            ) from None
        finally:
            if waiter in wanted.waiting:
                wanted.waiting.remove(waiter)

    async def check(self, namespace_id: str, version_id: str) -> None:
        """Raises VALIDATION_FAILED when the data plane would not take this version. When it is away or slow, nobody
        knows.
        """
        message = await self._messages.add(Wish(namespace_id, version_id))
        if message is None or not self._is_connected.is_set():
            return
        try:
            async with asyncio.timeout(_CHECK_S):
                answer = await self._client.check(feed_pb2.ApplyRequest(configuration=message))
        except (Away, ServiceError, TimeoutError):
            return
        if answer.HasField("refused"):
            raise _refusal(message, answer.refused, _NOTHING_SWITCHED)

    async def _compose(
        self, wishes: Sequence[Wish]
    ) -> list[configuration_pb2.NamespaceConfiguration | None]:
        async with self._database.read() as tx:
            return await self._composer.compose_all(tx, wishes)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(self._send_all())
            while True:
                await self._compare()
                await self._until_doubt()

    def doubt(self) -> None:
        """The data plane was away: it may hold something else than it did."""
        self._is_connected.clear()
        self._doubt.set()

    async def _until_doubt(self) -> None:
        """Looks whether it still holds what it said: one that was started again may have lost its disk."""
        pause_s = _LOOK_S
        loop = asyncio.get_running_loop()
        while not self._doubt.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._doubt.wait()
                    break
            began_s = loop.time()
            try:
                answer = await self._client.held(feed_pb2.HeldRequest())
            except (Away, ServiceError):
                self.doubt()
            else:
                if self._lacks_something(answer):
                    self._doubt.set()
            pause_s = min(max(_LOOK_S, (loop.time() - began_s) * _LOOK_SHARE), _LOOK_MAX_S)
        self._doubt.clear()

    def _lacks_something(self, answer: feed_pb2.HeldResponse) -> bool:
        held = {one.namespace_id: _order(one) for one in answer.configurations}
        return any(_order(said) > held.get(name, (0, 0)) for name, said in self._held.items())

    async def _compare(self) -> None:
        """What the data plane holds against what the records have; what differs is wanted."""
        pause_s = _RETRY_S
        while True:
            try:
                answer = await self._client.held(feed_pb2.HeldRequest())
                async with self._database.read() as tx:
                    rows = await namespaces.revisions(tx)
            except (Away, ServiceError):
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RETRY_MAX_S)
                continue
            self._is_connected.set()
            held = {one.namespace_id: one for one in answer.configurations}
            self._held = held
            epoch = self._composer.source_epoch
            for row in rows:
                one = held.get(row.namespace_id)
                if one is None or _order(one) != (epoch, row.revision):
                    self.changed(row.namespace_id)
            return

    async def _send_all(self) -> None:
        pause_s = _RETRY_S
        while True:
            namespace_id = await self._queue.get()
            wanted = self._wanted[namespace_id]
            number = wanted.number
            try:
                is_done = await self._send(namespace_id)
            except (Away, ServiceError) as error:
                _log.debug("namespace not sent", namespace_id=namespace_id, error=str(error))
                if isinstance(error, Away):
                    self.doubt()
                self._queue.put_nowait(namespace_id)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RETRY_MAX_S)
                continue
            except Exception:  # noqa: BLE001 — one namespace must not end the feeding of the others
                _log.exception("namespace not sent", namespace_id=namespace_id)
                self._later(namespace_id)
                continue
            pause_s = _RETRY_S
            if is_done:
                self._done(namespace_id, number)
            elif wanted.number > number:
                self._queue.put_nowait(namespace_id)
            else:
                self._later(namespace_id)

    def _done(self, namespace_id: str, number: int) -> None:
        wanted = self._wanted[namespace_id]
        still = []
        for awaited, future in wanted.waiting:
            if awaited > number:
                still.append((awaited, future))
            elif not future.done():
                future.set_result(None)
        wanted.waiting = still
        if wanted.number > number:
            self._queue.put_nowait(namespace_id)
        else:
            del self._wanted[namespace_id]

    def _later(self, namespace_id: str) -> None:
        """What the data plane does not take may be taken when its operator changed something."""
        loop = asyncio.get_running_loop()
        wanted = self._wanted[namespace_id]
        wanted.parked = loop.call_later(_REFUSED_RETRY_S, self._unpark, namespace_id)

    def _unpark(self, namespace_id: str) -> None:
        wanted = self._wanted[namespace_id]
        if wanted.parked is not None:
            wanted.parked.cancel()
            wanted.parked = None
            self._queue.put_nowait(namespace_id)

    async def _send(self, namespace_id: str) -> bool:
        """Sends it as it is; whether the data plane holds it now. Raises Away, ServiceError."""
        while True:
            message = await self._messages.add(Wish(namespace_id))
            if message is None:
                return True
            answer = await self._client.apply(feed_pb2.ApplyRequest(configuration=message))
            match answer.WhichOneof("outcome"):
                case "applied":
                    self.acknowledged += 1
                    self.refused.pop(namespace_id, None)
                    self._held[namespace_id] = feed_pb2.HeldConfiguration(
                        namespace_id=namespace_id,
                        source_epoch=message.source_epoch,
                        revision=message.revision,
                        current_version_id=message.current_version_id,
                    )
                    return True
                case "stale":
                    if not await self._catch_up(message, answer.stale.held):
                        return False
                case _:
                    if not await self._take_back(message, answer.refused):
                        return False

    async def _catch_up(
        self, message: configuration_pb2.NamespaceConfiguration, held: feed_pb2.HeldConfiguration
    ) -> bool:
        """The data plane knows a greater revision: of these records as they were before a backup was restored. True:
        send again.
        """
        if held.source_epoch > message.source_epoch:
            self._note(message, "the data plane holds the configuration of a newer database")
            return False
        async with self._database.write() as tx:
            await namespaces.raise_revision(tx, message.namespace_id, held.revision)
        return True

    async def _take_back(
        self, message: configuration_pb2.NamespaceConfiguration, refused: feed_pb2.Refused
    ) -> bool:
        """Back to the version that runs, when another was wanted; whoever waits is told why. True: send again."""
        namespace_id = message.namespace_id
        self.refusals += 1
        self._note(message, refused.problems[0].reason if refused.problems else "refused")
        held = self._held.get(namespace_id)
        running = held.current_version_id if held else ""
        is_back = False
        if running and running != message.current_version_id:
            async with self._database.write() as tx:
                newest = await namespaces.history(tx, namespace_id, None, 1)
                entry = newest[0].entry_id if newest else ""
                is_back = await namespaces.take_back_version(
                    tx, namespace_id, message.current_version_id, running, entry
                )
            self._taken_back(message.game.game_id)
        wanted = self._wanted[namespace_id]
        error = _refusal(message, refused, _SWITCHED_BACK if is_back else _STORED)
        for _, future in wanted.waiting:
            if not future.done():
                future.set_exception(error)
        wanted.waiting = []
        return is_back

    def _note(self, message: configuration_pb2.NamespaceConfiguration, reason: str) -> None:
        name = f"{message.game.name_id}/{message.name_id}"
        self.refused[message.namespace_id] = f"{name}: {reason}"
        _log.error("configuration refused by the data plane", namespace=name, reason=reason)

    def problems(self) -> Mapping[str, str]:
        """What the data plane does not take, by namespace."""
        return dict(self.refused)


def _order(held: feed_pb2.HeldConfiguration) -> tuple[int, int]:
    return held.source_epoch, held.revision


def _refusal(
    message: configuration_pb2.NamespaceConfiguration, refused: feed_pb2.Refused, detail: str
) -> ServiceError:
    """The data plane's problems, with the paths that the version's author knows."""
    problems: list[FieldProblem] = []
    for problem in refused.problems:
        path = list(problem.path)
        if path[:1] == ["versions"] and len(path) > 2:
            path = ["config", *path[2:]]
        problems.append(field_problem(path, "not-allowed", problem.reason))
    return ServiceError("VALIDATION_FAILED", detail, errors=problems)
