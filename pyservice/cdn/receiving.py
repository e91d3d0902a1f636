"""The body of an upload, from the connection to the disk: nothing between but a few blocks.

The connection hands itself over when the head of a PUT was read. The kernel copies into a block,
a thread writes it while the next one fills, and reading pauses while no block is free: so 1 GB goes
as fast as the disk, and memory is the same for every length.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import time
from collections.abc import Callable
from typing import Final

from pyservice.cdn.answers import RAY_ID, Answer, problem
from pyservice.cdn.signed import CORS
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage.incoming import Incoming
from pyservice.storage.local_objects import Folder
from pyservice.storage.objects import ObjectCounts
from pyservice.storage.signatures import InvalidSignature, UrlSigner

AT_ONCE_MAX: Final = 64
BLOCK_BYTES: Final = 512 << 10
BLOCKS: Final = 2
"""What every upload has: one fills while the other is written."""

SPARE_BLOCKS: Final = 32
"""What all share beyond that: an upload that is faster than its thread is woken takes of them. So
all uploads together hold 80 MiB at most, and one alone 17.
"""

_WINDOW_S: Final = 30.0
_WINDOW_BYTES: Final = 64 << 10

log = get_logger("pyservice.cdn")


class Uploads:
    """What is being received now. Only with a folder: S3 receives by itself."""

    def __init__(self, folder: Folder, signer: UrlSigner, counts: ObjectCounts) -> None:
        self._folder = folder
        self._signer = signer
        self._open: set[Reception] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._are_over = asyncio.Event()
        self.spare_blocks = SPARE_BLOCKS
        self.counts = counts

    @property
    def now(self) -> int:
        """How many are being received."""
        return len(self._open)

    def begin(self, path: str, query: bytes, length: int | None, ray_id: str) -> Reception:
        """A PUT; `length` is its Content-Length, None without one; `ray_id` is for its answer.

        Raises UPLOAD_URL_INVALID, UPLOAD_LENGTH_MISMATCH, UPLOAD_ALREADY_COMPLETE, STORAGE_FULL,
        OVERLOADED.
        """
        try:
            grant = self._signer.verify("PUT", path, query, time.time())
        except InvalidSignature:
            raise ServiceError("UPLOAD_URL_INVALID") from None
        if length != grant.length:
            raise ServiceError(
                "UPLOAD_LENGTH_MISMATCH",
                f"Send exactly {grant.length} bytes, with Content-Length and not chunked.",
            )
        if len(self._open) >= AT_ONCE_MAX:
            raise ServiceError("OVERLOADED")
        reception = Reception(self, self._folder.receive(grant), ray_id)
        self._open.add(reception)
        return reception

    def end(self, reception: Reception, *, finish: bool) -> None:
        """All of it is there (`finish`), or no more of it comes: the rest is done in a task."""
        self._open.discard(reception)
        if not self._open:
            self._are_over.set()
        task = asyncio.ensure_future(reception.finish() if finish else reception.give_up())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop_slow(self) -> None:
        """Cuts off whoever sends too little; asked every few seconds."""
        for reception in list(self._open):
            reception.drop_if_slow()

    async def stop(self, grace_s: float) -> None:
        """Lets uploads finish for so long, cuts off the others, and waits for the disk."""
        if self._open:
            self._are_over.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._are_over.wait(), grace_s)
        for reception in list(self._open):
            reception.cut()
        while self._tasks:
            await asyncio.wait(list(self._tasks))


class Reception(asyncio.BufferedProtocol):
    """One upload; the protocol of its connection from `take_over` until it is answered."""

    def __init__(self, uploads: Uploads, incoming: Incoming, ray_id: str) -> None:
        self._uploads = uploads
        self._incoming = incoming
        self._ray_id = ray_id
        self._missing = incoming.length
        self._block_bytes = min(BLOCK_BYTES, max(incoming.length, 1))
        self._free: list[memoryview] = []
        self._blocks = 0
        self._block = self._next_block()
        self._filled = 0
        self._early: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._answer: Callable[[Answer], None] = lambda _: None
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._window_ends_s = self._loop.time() + _WINDOW_S
        self._window_missing = self._missing

    def _next_block(self) -> memoryview | None:
        """A block to fill: a free one, else a new one as long as we may have more."""
        if self._free:
            return self._free.pop()
        if self._blocks >= BLOCKS:
            if not self._uploads.spare_blocks:
                return None
            self._uploads.spare_blocks -= 1
        self._blocks += 1
        # Mapped, so that it goes back to the system with the upload.
        return memoryview(mmap.mmap(-1, self._block_bytes))

    @property
    def length(self) -> int:
        """Bytes of the whole body."""
        return self._incoming.length

    def feed(self, body: bytes) -> None:
        """The beginning of the body, which came with its head."""
        self._early.append(body)

    def take_over(self, transport: asyncio.Transport, answer: Callable[[Answer], None]) -> None:
        """Reads the rest of the body from the connection; `answer` is called when all is done, and
        gives the connection another protocol.
        """
        self._transport = transport
        self._answer = answer
        transport.pause_reading()
        transport.set_protocol(self)
        self._fill_early()
        if not self._missing and not self._is_over:
            self._advance(0)

    def _fill_early(self) -> None:
        while self._early and self._block is not None:
            piece = self._early[0][: len(self._block) - self._filled]
            self._block[self._filled : self._filled + len(piece)] = piece
            self._early[0] = self._early[0][len(piece) :]
            if not self._early[0]:
                del self._early[0]
            self._advance(len(piece))
        if self._missing and not self._early and self._block is not None and self._transport:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: never behind the end of the body."""
        assert self._block is not None
        return self._block[self._filled : min(len(self._block), self._filled + self._missing)]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
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
            self._incoming.take(block[: self._filled], lambda: self._written(block))
            self._filled = 0
        if not self._missing:
            self._end(finish=True)

    def _written(self, block: memoryview) -> None:
        """A block may be used again."""
        if self._is_over:
            return
        if self._incoming.failure is not None:
            # The client should not send the rest for nothing.
            self._end(finish=True)
        elif self._block is None:
            self._block = block
            self._fill_early()
        else:
            self._free.append(block)

    def eof_received(self) -> None:
        """The client went away before all was there."""
        self._end(finish=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Also the end of a connection that waits for its answer; then it has no effect."""
        self._transport = None
        self._end(finish=False)

    def drop_if_slow(self) -> None:
        """Cuts the connection when too little came in the last half minute."""
        now_s = self._loop.time()
        if self._block is None:
            # The disk is slow, not the client.
            self._window_ends_s = now_s + _WINDOW_S
        elif now_s >= self._window_ends_s:
            if self._window_missing - self._missing < min(_WINDOW_BYTES, self._missing):
                self._uploads.counts.failed("REQUEST_TIMEOUT")
                self.cut()
            self._window_ends_s, self._window_missing = now_s + _WINDOW_S, self._missing

    def cut(self) -> None:
        """Ends it and its connection."""
        transport = self._transport
        self._end(finish=False)
        if transport is not None:
            transport.abort()

    def _end(self, *, finish: bool) -> None:
        if not self._is_over:
            self._is_over = True
            if self._transport is not None and not self._transport.is_closing():
                # Whoever speaks to the connection after us hears the rest.
                self._transport.pause_reading()
            self._uploads.spare_blocks += max(self._blocks - BLOCKS, 0)
            self._uploads.end(self, finish=finish)

    async def give_up(self) -> None:
        """Nothing is left of it."""
        await self._incoming.abort()

    async def finish(self) -> None:
        """Makes it durable and answers."""
        counts = self._uploads.counts
        try:
            await self._incoming.commit()
        except ServiceError as error:
            counts.failed(error.code)
            answer = problem(error, self._ray_id)
        except Exception:
            log.exception("an upload could not be stored", ray_id=self._ray_id)
            counts.failed("INTERNAL")
            answer = problem(ServiceError("INTERNAL"), self._ray_id)
        else:
            counts.puts += 1
            counts.put_bytes += self._incoming.length
            answer = Answer(200, {RAY_ID: self._ray_id})
        answer.headers |= CORS
        if self._transport is not None:
            self._answer(answer)
