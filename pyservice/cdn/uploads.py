"""Receiver of uploaded objects. It limits concurrent uploads and requires a minimum speed."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import time
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Final, NamedTuple

from pyservice.cdn.responses import CDN_METRIC_LABEL, RAY_ID, Response, error_response
from pyservice.cdn.signed_objects import CORS, upload_of
from pyservice.cdn.sites import is_of_sites
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED
from pyservice.observability.rays import Rays, Trace
from pyservice.storage.local_objects import FolderBlobStore, UploadWriter
from pyservice.storage.objects import ObjectCounts
from pyservice.storage.signed_urls import InvalidSignature, UrlSigner

WINDOW_S: Final = 30.0
WINDOW_BYTES: Final = 64 << 10

LEAST_S: Final = 600.0
"""Shortest time limit of an upload in seconds, also if its URL expires earlier."""
_FREE_PART: Final = 4
"""Divisor for the first part of the time limit, which has no minimum pace."""


class UploadPace:
    """Minimum speed of one upload, which began at `now_s`.

    The upload must end within `valid_s` seconds, when its URL expires, or within 10 minutes if that
    is longer.
    """

    def __init__(self, length: int, now_s: float, valid_s: float) -> None:
        self._length = length
        lasts_s = max(valid_s, LEAST_S)
        self._checked_s = now_s
        self._starts_s = now_s + lasts_s / _FREE_PART
        self._ends_s = now_s + lasts_s
        self._window_ends_s = now_s + WINDOW_S
        self._window_missing = length

    def restart_window(self, now_s: float) -> None:
        """Restarts the speed measurement. The time since the last check does not count, because the
        upload waited for the disk.
        """
        late_s, self._checked_s = now_s - self._checked_s, now_s
        self._starts_s += late_s
        self._ends_s += late_s
        self._window_ends_s = now_s + WINDOW_S

    def is_fast_enough(self, now_s: float, missing: int) -> bool:
        """Returns whether the upload has its minimum speed. `missing` is the number of bytes not
        yet received.
        """
        self._checked_s = now_s
        is_moving = True
        if now_s >= self._window_ends_s:
            is_moving = self._window_missing - missing >= min(WINDOW_BYTES, missing)
            self._window_ends_s, self._window_missing = now_s + WINDOW_S, missing
        part = (now_s - self._starts_s) / (self._ends_s - self._starts_s)
        return is_moving and self._length - missing >= self._length * part


UPLOADS_MAX: Final = 64
_SHARES: Final = 8
"""Divisor for the permits that one upload or address may hold while half of all permits are in use.
"""
_WAIT: Final = "Send less at a time, and try again after Retry-After."


class UploadOwner(NamedTuple):
    """Upload id and binary client address. Concurrent PUT requests are limited for each of the two."""

    upload: str
    address: bytes


class UploadSlots:
    def __init__(self, at_once: int = UPLOADS_MAX) -> None:
        self._at_once = at_once
        self._share = max(1, at_once // _SHARES)
        self._in_use = 0
        self._of: Counter[str | bytes] = Counter()

    def take(self, owner: UploadOwner, instead_of: UploadOwner | None = None) -> None:
        """Takes a permit for one PUT request, or raises OVERLOADED and changes nothing.

        If the request replaces an earlier one, `instead_of` is the owner of the earlier request.
        Its permit is given to the new request.
        """
        if instead_of is not None:
            self.give_back(instead_of)
        refusal = self._refusal(owner)
        holder = owner if refusal is None else instead_of
        if holder is not None:
            self._in_use += 1
            self._of.update(holder)
        if refusal is not None:
            raise ServiceError("OVERLOADED", refusal)

    def give_back(self, owner: UploadOwner) -> None:
        self._in_use -= 1
        for tenant in owner:
            self._of[tenant] -= 1
            if not self._of[tenant]:
                del self._of[tenant]

    def _refusal(self, owner: UploadOwner) -> str | None:
        if self._in_use >= self._at_once:
            return f"{self._at_once} files of all clients are being received. {_WAIT}"
        if self._in_use < self._at_once // 2:
            return None
        if self._of[owner.upload] >= self._share:
            return f"{self._of[owner.upload]} files of this upload are being received. {_WAIT}"
        if self._of[owner.address] >= self._share:
            return f"{self._of[owner.address]} files from your address are being received. {_WAIT}"
        return None


BLOCK_BYTES: Final = 512 << 10
BLOCKS: Final = 2
"""Blocks of each upload. One is filled while the other is written."""

SPARE_BLOCKS: Final = 32
"""Blocks that fast uploads share. All uploads together hold at most 80 MiB, and one upload at most
17 MiB.
"""

_SLOW: Final = "The body arrived too slowly: send it without a pause, in parts when it is large."
_REPLACED: Final = "A newer PUT of the same URL replaced this one."

log = get_logger("pyservice.cdn")


class _Target(NamedTuple):
    key: str
    offset: int


class UploadReceiver:
    """Receives uploads and writes them to the object folder.

    It is not used with S3, because clients then upload to the bucket.
    """

    def __init__(
        self,
        folder: FolderBlobStore,
        signer: UrlSigner,
        counts: ObjectCounts,
        domain: str | None = None,
        rays: Rays | None = None,
    ) -> None:
        self._domain = domain.lower() if domain else None
        # Without a domain, the connection closes after an upload.
        self._rays = rays or Rays(CDN_METRIC_LABEL, queued_max=0)
        self._folder = folder
        self._signer = signer
        self._open: dict[_Target, Reception] = {}
        self._slots = UploadSlots()
        self._tasks: set[asyncio.Task[None]] = set()
        self._no_uploads = asyncio.Event()
        self.spare_blocks = SPARE_BLOCKS
        self.counts = counts

    @property
    def open_count(self) -> int:
        return len(self._open)

    def accepts(self, host: str) -> bool:
        """Returns whether a PUT request to this host may be an upload. Hosts of sites accept no
        uploads.
        """
        return not is_of_sites(host, self._domain)

    def begin(
        self, path: str, query: bytes, length: int | None, client: bytes, trace: Trace
    ) -> Reception:
        """Begins an upload. `length` is the Content-Length, and `client` is the binary client
        address.

        An unfinished upload to the same URL is replaced, because clients retry early after a lost
        connection. Raises UPLOAD_URL_INVALID, UPLOAD_LENGTH_MISMATCH, UPLOAD_ALREADY_COMPLETE,
        STORAGE_FULL or OVERLOADED. On an error nothing changes.
        """
        try:
            grant = self._signer.verify("PUT", path, query, time.time())
        except InvalidSignature:
            raise ServiceError("UPLOAD_URL_INVALID") from None
        trace.upload_id = upload_of(grant)
        if length != grant.length:
            raise ServiceError(
                "UPLOAD_LENGTH_MISMATCH",
                f"Send exactly {grant.length} bytes, with Content-Length and not chunked.",
            )
        incoming = self._folder.receive(grant)
        target, owner = _Target(grant.key, grant.offset), UploadOwner(trace.upload_id, client)
        previous = self._open.get(target)
        now_s = asyncio.get_running_loop().time()
        pace = UploadPace(length, now_s, (grant.expires_at_s or 0) - time.time())
        reception = Reception(self, target, owner, incoming, pace, trace)
        # The permit is taken last, so that earlier failures need not return it.
        self._slots.take(owner, None if previous is None else previous.owner)
        self._open[target] = reception
        if previous is not None:
            previous.refuse(ServiceError("IN_USE", _REPLACED))
        return reception

    def end_trace(self, trace: Trace, code: str) -> None:
        """Ends the trace of an upload. `code` is OK, CANCELLED or an error code."""
        self._rays.end(trace, CDN_METRIC_LABEL, "upload", code, perf_counter())

    def end(self, reception: Reception, *, finish: bool) -> None:
        """Ends an upload in a background task. `finish` is False to give it up."""
        has_slot = self._open.get(reception.target) is reception
        if has_slot:
            del self._open[reception.target]
        if not self._open:
            self._no_uploads.set()
        task = asyncio.ensure_future(reception.finish() if finish else reception.give_up())
        self._tasks.add(task)

        def on_done(task: asyncio.Task[None]) -> None:
            # The blocks are in memory until the disk has their content, so they are returned here.
            self._tasks.discard(task)
            self.spare_blocks += reception.spare_blocks
            if has_slot:
                self._slots.give_back(reception.owner)

        task.add_done_callback(on_done)

    def drop_slow(self) -> None:
        for reception in list(self._open.values()):
            reception.drop_if_slow()

    async def stop(self, grace_s: float) -> None:
        if self._open:
            self._no_uploads.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._no_uploads.wait()
        for reception in list(self._open.values()):
            reception.abort()
        while self._tasks:
            await asyncio.wait(list(self._tasks))


class Reception(asyncio.BufferedProtocol):
    """Receives the body of one upload from `take_over` until the response."""

    def __init__(
        self,
        uploads: UploadReceiver,
        target: _Target,
        owner: UploadOwner,
        incoming: UploadWriter,
        pace: UploadPace,
        trace: Trace,
    ) -> None:
        self.target = target
        self.owner = owner
        self._uploads = uploads
        self._incoming = incoming
        self._pace = pace
        self.trace = trace
        self._refusal: ServiceError | None = None
        self._missing = incoming.length
        self._block_bytes = min(BLOCK_BYTES, max(incoming.length, 1))
        self._free: list[memoryview] = []
        self._blocks = 0
        self._block = self._next_block()
        self._filled = 0
        self._unplaced: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._answer: Callable[[Response], None] = lambda _: None
        self._when_lost: Callable[[], None] = lambda: None
        self._has_ended = False
        self._loop = asyncio.get_running_loop()

    def _next_block(self) -> memoryview | None:
        if self._free:
            return self._free.pop()
        is_spare = self._blocks >= BLOCKS
        if is_spare and not self._uploads.spare_blocks:
            return None
        try:
            block = memoryview(mmap.mmap(-1, self._block_bytes))
        except OSError:
            if not self._blocks:
                raise
            return None
        self._blocks += 1
        self._uploads.spare_blocks -= is_spare
        return block

    @property
    def spare_blocks(self) -> int:
        return max(self._blocks - BLOCKS, 0)

    @property
    def length(self) -> int:
        return self._incoming.length

    def feed(self, body: bytes) -> None:
        self._unplaced.append(body)

    def take_over(
        self,
        transport: asyncio.Transport,
        respond: Callable[[Response], None],
        when_lost: Callable[[], None],
    ) -> None:
        """Takes over the connection and receives the rest of the body.

        Calls `respond` with the response, or `when_lost` if the connection is lost.
        """
        self._transport = transport
        self._answer = respond
        self._when_lost = when_lost
        transport.pause_reading()
        transport.set_protocol(self)
        self._place_rest()
        if not self._missing and not self._has_ended:
            self._advance(0)

    def _place_rest(self) -> None:
        while self._unplaced and self._block is not None:
            piece = self._unplaced[0][: len(self._block) - self._filled]
            self._block[self._filled : self._filled + len(piece)] = piece
            self._unplaced[0] = self._unplaced[0][len(piece) :]
            if not self._unplaced[0]:
                del self._unplaced[0]
            self._advance(len(piece))
        if self._missing and not self._unplaced and self._block is not None and self._transport:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._block is not None
        return self._block[self._filled : min(len(self._block), self._filled + self._missing)]

    def buffer_updated(self, nbytes: int) -> None:
        self._advance(nbytes)
        if self._transport is not None and (self._block is None or not self._missing):
            self._transport.pause_reading()

    def _advance(self, nbytes: int) -> None:
        assert self._block is not None
        self._filled += nbytes
        self._missing -= nbytes
        if self._filled == len(self._block) or not self._missing:
            block = self._block
            self._block = self._next_block() if self._missing else None
            self._incoming.write(block[: self._filled], lambda: self._on_block_written(block))
            self._filled = 0
        if not self._missing:
            self._end(finish=True)

    def _on_block_written(self, block: memoryview) -> None:
        if self._has_ended:
            return
        if self._incoming.failure is not None:
            # An early response saves the client the rest of the body.
            self._end(finish=True)
        elif self._block is None:
            self._block = block
            self._place_rest()
        else:
            self._free.append(block)

    def eof_received(self) -> None:
        self._end(finish=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._when_lost()
        self._end(finish=False)

    def drop_if_slow(self) -> None:
        now_s = self._loop.time()
        if self._block is None:
            self._pace.restart_window(now_s)
        elif not self._pace.is_fast_enough(now_s, self._missing):
            self.refuse(ServiceError("REQUEST_TIMEOUT", _SLOW))

    def refuse(self, error: ServiceError) -> None:
        if not self._has_ended:
            self._refusal = error
            self._end(finish=False)

    def abort(self) -> None:
        transport = self._transport
        self._end(finish=False)
        if transport is not None:
            transport.abort()

    def _end(self, *, finish: bool) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.trace.note("receiving", self.trace.started)
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()
            self._uploads.end(self, finish=finish)

    async def give_up(self) -> None:
        error, code = self._refusal, CANCELLED
        if error is not None:
            code = error.code
            self._uploads.counts.count_failure(code)
            self._respond(error_response(error, self.trace.ray_id))
        self._uploads.end_trace(self.trace, code)
        await self._incoming.abort()

    def _respond(self, response: Response) -> None:
        response.headers |= CORS
        if self._transport is not None:
            self._answer(response)

    async def finish(self) -> None:
        counts, trace = self._uploads.counts, self.trace
        began = perf_counter()
        try:
            await self._incoming.commit()
        except ServiceError as error:
            counts.count_failure(error.code)
            response = error_response(error, trace.ray_id)
        except Exception:
            log.exception("upload not stored", ray_id=trace.ray_id)
            counts.count_failure("INTERNAL")
            response = error_response(ServiceError("INTERNAL"), trace.ray_id)
        else:
            counts.puts += 1
            counts.put_bytes += self._incoming.length
            response = Response(200, {RAY_ID: trace.ray_id})
        trace.note("disk", began)
        self._respond(response)
        self._uploads.end_trace(trace, response.code)
