"""A service with planes that a test kills at a named step of a change or after a delay.

`StateReader` checks that the data plane agrees with the records when both planes run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from sqlalchemy import select

from pyservice.cli.admin_requests import control_socket
from pyservice.control.feed_messages import FeedComposer
from pyservice.control.resource_summaries import PublicUrls
from pyservice.dataplane.feed_files import _read
from pyservice.errors import Unreachable
from pyservice.pb.hosting.internal.v1 import control_admin_pb2, feed_pb2
from pyservice.rpc import InternalClient
from pyservice.storage import service_state, uploads
from pyservice.storage.database import Transaction, open_database
from pyservice.storage.tables import metadata
from tests.support.fault_shim import Rule, Shim
from tests.support.full_service import FullService, ServiceClient, ServiceResponse
from tests.support.namespace_scenario import MOVING, still
from tests.support.stored_use import check_stored_use
from tests.support.waiting import PATIENCE_S

_OF_REQUESTS: Final = {"audit_log", "idempotent_answers", "rays"}
"""Tables that keep the requests about a record, also after its deletion."""
_HELD: Final = "hosting.internal.v1.Feed.Held"
_IDENTITIES: Final = "hosting.internal.v1.ControlAdmin.ListIdentities"
UNPACKER: Final = "unpacker"
"""Unpacks builds for the control plane, and ends with the control plane."""
HALF: Final = 20
"""Bytes that a write keeps if the plane is killed in the middle of the write."""
UP_S: Final = 60.0
LOCKS: Final = {"data": "LOCK", "control": "control/LOCK"}
Result = TypeVar("Result")
Rows = dict[str, frozenset[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Step:
    """Where a plane is killed: before, after or during a call on a file of the data directory.

    Without a call, the plane is killed `delay_ms` after the request.
    """

    name: str
    role: str
    calls: str = ""
    files: str = ""
    at: int = 1
    after: bool = False
    delay_ms: float = 0.0
    is_half: bool = False
    other: str = ""
    """The process that makes the call, if the killed plane does not make it."""
    patience_s: float = PATIENCE_S
    """Maximum wait for the call."""

    def __str__(self) -> str:
        return f"{self.role}: {self.name}"


LOG: Final = "control/records.db-wal"
RECORDS: Final = (
    Step("before the first write", "control", "pwrite", LOG),
    Step("after the first database page", "control", "pwrite", LOG, at=3),
    Step("before the sync of the writes", "control", "fdatasync fsync", LOG),
    Step("after the commit", "control", "fdatasync fsync", LOG, after=True),
)
ONE_PAGE: Final = (
    RECORDS[0],
    Step("after the page header, before its page", "control", "pwrite", LOG, at=2),
    *RECORDS[2:],
)
"""Kill steps of a change with fewer than three database writes."""
KEPT_FILES: Final = "control/objects/kept/*"
KEPT: Final = (
    Step("before the file is renamed", "control", "rename", KEPT_FILES),
    Step("after the file is renamed", "control", "rename", KEPT_FILES, after=True),
    Step("before the sync of the file's folder", "control", "fsync", KEPT_FILES),
    Step("before the file's record", "control", "fsync", KEPT_FILES, after=True),
)
REMOVED: Final = (
    Step("after the file is removed, before the sync", "control", "fsync", KEPT_FILES),
    Step("before the upload is removed", "control", "fsync", KEPT_FILES, after=True),
)
FED: Final = (
    Step("before the sync of the new file", "data", "fsync", "feed/.*.tmp"),
    Step("after the sync of the new file", "data", "fsync", "feed/.*.tmp", after=True),
    Step("before the new file replaces the old one", "data", "rename", "feed/*.cfg"),
    Step("after the new file replaces the old one", "data", "rename", "feed/*.cfg", after=True),
    Step("before the sync of the folder", "data", "fsync", "feed"),
    Step("before the acknowledgement", "data", "fsync", "feed", after=True),
)
JOURNAL: Final = "journal/seg-*"
STARTED: Final = (
    Step("before the port lease is durable", "control", "fdatasync", JOURNAL, other="data"),
    Step("after the server record, before the run folder", "control", "mkdir", "servers/*"),
    Step("after the run folder is created", "control", "mkdir", "servers/*", after=True),
    Step("before the spec is created", "control", "make", "servers/*/spec"),
    Step("after half of the spec", "control", "write", "servers/*/spec", is_half=True),
    Step("after the spec, before the routes", "control", "write", "servers/*/spec", after=True),
    Step("before the routes are durable", "control", "fdatasync", JOURNAL, at=2, other="data"),
    Step("before the start request", "control", "ask", "servers/*"),
    Step("after the start request", "control", "ask", "servers/*", after=True),
)
UNPACKED: Final = (
    Step("before the build folder", "control", "mkdir", "builds/*"),
    Step("after the empty build folder", "control", "mkdir", "builds/*", at=3, after=True),
    Step("before the first build file", "control", "make", "builds/*/root/*", other=UNPACKER),
    Step(
        "after one write of the build", "control", "write", "builds/*/root/*", at=2, other=UNPACKER
    ),
    Step("after the build files, before the boot ID", "control", "make", "builds/*/boot_id"),
    Step("before the build is renamed", "control", "rename", "builds/*"),
    Step("after the build is renamed", "control", "rename", "builds/*", after=True),
    *(Step(f"after {delay_ms} ms", "control", delay_ms=delay_ms) for delay_ms in (40, 80, 160)),
)
BUNDLE: Final = "servers/*/bundle"
UPLOAD_MARKER: Final = "control/objects/pending/*"
CONTENTS_REMOVED: Final = (
    Step("before the ends of the lobbies are durable", "data", "fdatasync", JOURNAL),
    Step("after the ends of the lobbies are durable", "data", "fdatasync", JOURNAL, after=True),
    Step("before the uploads are refused", "control", "make", UPLOAD_MARKER),
    Step("after the uploads are refused", "control", "make", UPLOAD_MARKER, after=True),
    *REMOVED,
    Step("after the first files are removed", "control", "fsync", KEPT_FILES, at=2),
)
"""Kill steps of the removal of lobbies and objects after the deletion of a game."""
REMOVAL_RECORDS: Final = tuple(
    Step(f"{moment} record {at - 1} of the removals", "control", "fdatasync fsync", LOG, at, after)
    for at in (2, 3, 4)
    for moment, after in (("before", False), ("after", True))
)
IN_CONTAINER: Final = (
    Step("before the bundle folder", "control", "mkdir", BUNDLE),
    Step("after the empty bundle folder", "control", "mkdir", BUNDLE, after=True),
    Step("after half of the bundle", "control", "write", f"{BUNDLE}/*", is_half=True),
    Step("before the bundle is renamed", "control", "rename", f"{BUNDLE}/*"),
    Step("after the bundle, before the spec", "control", "make", "servers/*/spec"),
    *(Step(f"after {delay_ms} ms", "control", delay_ms=delay_ms) for delay_ms in (40, 80, 160)),
)
STARTED_IN_RECORDS: Final = (
    Step("after the placement, before its record", "control", "fdatasync fsync", LOG, at=2),
    Step("after the record of the placement", "control", "fdatasync fsync", LOG, at=2, after=True),
    Step("before the record of the process", "control", "fdatasync fsync", LOG, at=3),
    Step("after the record of the process", "control", "fdatasync fsync", LOG, at=3, after=True),
)
ENDED: Final = (
    Step("before the stop command", "control", "write", "servers/*/control"),
    Step("after the stop command", "control", "write", "servers/*/control", after=True),
    Step("before the end of the lease is durable", "control", "fdatasync", JOURNAL, other="data"),
    Step("before the marker file of the end", "control", "make", "servers/*/told"),
    Step("after the marker file of the end", "control", "make", "servers/*/told", after=True),
)
ENDED_IN_RECORDS: Final = (
    Step("before the record of the end", "control", "fdatasync fsync", LOG, at=2),
    Step("after the record of the end", "control", "fdatasync fsync", LOG, at=2, after=True),
)
_RUN_FOLDER: Final = "servers/????????-????-????-????-????????????"
REMOVAL_S: Final = 90.0
"""Maximum wait for the removal of a run folder, which stays for a minute after the end of its server."""
_SECOND_END: Final = "before the second end in the journal is durable"
SERVER_REMOVED: Final = (
    *ENDED[:2],
    Step(_SECOND_END, "control", "fdatasync", JOURNAL, at=2, other="data"),
    *ENDED[3:],
    *(
        Step(f"{moment} removed", "control", "remove", files, after=after, patience_s=REMOVAL_S)
        for moment, files, after in (
            ("before the first file of the run folder is", f"{_RUN_FOLDER}/*", False),
            ("after the first file of the run folder is", f"{_RUN_FOLDER}/*", True),
            ("before the empty run folder is", _RUN_FOLDER, False),
            ("after the empty run folder is", _RUN_FOLDER, True),
        )
    ),
)
"""Kill steps of the end of a server, and of the removal of its folder, after the deletion of a game.

The journal has the end of the lobbies and the end of the lease, in any order.
"""
MOMENTS: Final = tuple(
    Step(f"after {delay_ms} ms", role, delay_ms=delay_ms)
    for role in LOCKS
    for delay_ms in (1, 3, 6, 10, 20)
)


class KilledService(FullService):
    """A service with the shim preloaded, across all restarts of its planes."""

    def __init__(self, folder: Path, library: Path, database_url: str | None, **more: Any) -> None:
        super().__init__(folder, database_url, **more)
        folder.mkdir(parents=True, exist_ok=True)
        self.shim = Shim(library, folder / "shim", self.data_dir)
        self.kills = 0

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        before = dict(os.environ)
        os.environ.update(self.shim.environment())
        try:
            return super().spawn(*words)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def pid(self, role: str) -> int:
        return int((self.data_dir / LOCKS[role]).read_text().split()[0])

    def kill(self, role: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(role), signal.SIGKILL)

    def unpackers(self) -> set[int]:
        folder, pids = os.fsencode(self.data_dir / "builds"), set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"pyservice.runtime.build_unpacking" in words and any(
                    word.startswith(folder) for word in words
                ):
                    pids.add(int(path.parent.name))
        return pids

    async def refresh(self) -> None:
        """Starts a new supervisor, because the restart delay of the old supervisor has grown."""
        if self.kills % 4 == 3:
            await asyncio.to_thread(self.stop)
            await asyncio.to_thread(self.start_again)
        self.kills += 1

    def arm(self, step: Step) -> Rule:
        if step.is_half:
            return self.shim.tear(step.files, kind=step.calls, at=step.at, keep=HALF)
        return self.shim.kill(step.calls, step.files, at=step.at, after=step.after)


async def answer_of(call: Awaitable[ServiceResponse]) -> ServiceResponse | None:
    """Returns the response, or None if the plane was killed before it responded."""
    try:
        answer = await call
    except (httpx.TransportError, Unreachable, ValueError):
        return None
    return None if answer.code == "CONTROL_PLANE_UNAVAILABLE" else answer


async def kill_at_step(
    full_service: KilledService, step: Step, ask: Callable[[], Awaitable[Result]]
) -> Result:
    """Sends a request and kills the plane at the step. `ask` must accept a missing response."""
    pid = full_service.pid(step.role)
    if not step.calls:
        asking = asyncio.ensure_future(ask())
        await asyncio.sleep(step.delay_ms / 1000)
        full_service.kill(step.role)
        answer = await asking
    elif step.other:
        answer = await _kill_while_stalled(full_service, step, ask)
    else:
        rule = full_service.arm(step)
        try:
            answer = await ask()
            await _reached(step, lambda: bool(rule.hits), answer)
        finally:
            rule.forget()
    async with asyncio.timeout(UP_S):
        while full_service.pid(step.role) == pid:
            await asyncio.sleep(0.005)
    return answer


async def _kill_while_stalled(
    full_service: KilledService, step: Step, ask: Callable[[], Awaitable[Result]]
) -> Result:
    rule = full_service.shim.stall(step.calls, step.files, first=step.at)
    asking = asyncio.ensure_future(ask())
    try:
        await _reached(step, lambda: rule.waiting > 0, asking)
        unpackers = full_service.unpackers() if step.other == UNPACKER else set()
        full_service.kill(step.role)
        await _reached(
            step, lambda: not unpackers & full_service.unpackers(), "an unpacker outlives its plane"
        )
    finally:
        (rule.forget if step.other == UNPACKER else rule.release)()
    return await asking


async def _reached(step: Step, is_there: Callable[[], bool], answer: object) -> None:
    try:
        async with asyncio.timeout(step.patience_s):
            while not is_there():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{step} was never reached: {answer}") from None


class StateReader:
    def __init__(
        self, full_service: KilledService, client: ServiceClient, token: str, game_id: str
    ) -> None:
        self._service = full_service
        self._client = client
        self._token = token
        self._game_id = game_id
        self._admin_client = InternalClient(full_service.data_dir / "admin.sock")
        self._control = InternalClient(control_socket(full_service.data_dir))

    async def close(self) -> None:
        await self._control.close()
        await self._admin_client.close()

    @contextlib.asynccontextmanager
    async def _look(self) -> AsyncIterator[Transaction]:
        """SQLite recovers the log of a killed plane only if no other process has the file open."""
        database = open_database(self._service.database_url, self._service.data_dir / "control")
        try:
            async with database.read() as tx:
                yield tx
        finally:
            await database.close()

    async def both_up(self) -> None:
        end = time.monotonic() + UP_S
        while True:
            fields = {"game_id": self._game_id}
            with contextlib.suppress(httpx.TransportError, Unreachable):
                await self._admin_client.call(_HELD, feed_pb2.HeldRequest())
                await self._control.call(_IDENTITIES, control_admin_pb2.ListIdentitiesRequest())
                if (await self._client.call("get_game", fields, token=self._token)).code == "OK":
                    return
            assert time.monotonic() < end, self._service.log()
            await asyncio.sleep(0.005)

    async def wait_until_fed(self) -> None:
        """Returns when the data plane has the configuration of all namespaces in the records. Fails
        after `PATIENCE_S`.
        """
        await self.both_up()
        end = time.monotonic() + PATIENCE_S
        while differences := await self._differences():
            assert time.monotonic() < end, (differences, self._service.log())
            await asyncio.sleep(0.01)

    async def all_records(self) -> Rows:
        """Returns all rows except the audit log, with the rows that change without a request."""
        async with self._look() as tx:
            tables = [table for table in metadata.sorted_tables if table.name not in _OF_REQUESTS]
            return {
                table.name: frozenset(tuple(row) for row in await tx.all(select(table)))
                for table in tables
            }

    async def check_stored_use(self) -> None:
        async with self._look() as tx:
            await check_stored_use(tx)

    async def records(self) -> Rows:
        rows = {}
        async with self._look() as tx:
            for table in metadata.sorted_tables:
                if table.name not in MOVING:
                    rows[table.name] = await tx.all(still(table))
        abandoned = {row.upload_id for row in rows["uploads"] if row.kind == uploads.ABANDONED}
        for name in ("uploads", "upload_files"):
            rows[name] = [row for row in rows[name] if row.upload_id not in abandoned]
        return {
            name: frozenset(tuple(row) for row in rows_of_table)
            for name, rows_of_table in rows.items()
        }

    async def _differences(self) -> list[Any]:
        links = PublicUrls(
            "http://cdn.invalid", None, "http://hub.invalid", None, lambda upload: upload
        )
        async with self._look() as tx:
            epoch = await service_state.get_int(tx, service_state.SOURCE_EPOCH)
            assert epoch is not None
            composer = FeedComposer(epoch, links)
            ids = await _all_namespaces(tx)
            expected = {one: await composer.compose(tx, one) for one in ids}
        answer = await self._admin_client.call(_HELD, feed_pb2.HeldRequest())
        configurations = {one.namespace_id: one for one in answer.configurations}
        differences: list[Any] = []
        for namespace_id, message in expected.items():
            assert message is not None
            path = self._service.data_dir / "feed" / f"{namespace_id}.cfg"
            one = configurations.get(namespace_id)
            if one is None or (one.revision, one.current_version_id) != (
                message.revision,
                message.current_version_id,
            ):
                differences.append((namespace_id, message.revision, one))
            elif (stored := _fed(path)) != message:
                differences.append((message, stored))
        return differences


def _fed(path: Path) -> Any:
    """Reads a feed file without the retained versions, which the data plane adds."""
    configuration = _read(path).configuration
    if configuration is not None:
        configuration.ClearField("retained_versions")
    return configuration


async def _all_namespaces(tx: Any) -> list[str]:
    from pyservice.storage import namespaces

    return [row.namespace_id for row in await namespaces.revisions(tx)]
