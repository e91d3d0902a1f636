"""Forwarded long polls over HTTP (docs/reference/control-plane.md#long-polls).

A parked long poll waits without a task. After a change it wakes and is sent to the control plane
again. Many requests may wake together: equal ones are sent once, and the others are sent in
batches. Responses are written a few at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from pyservice.calls import WaitForChange
from pyservice.edge import forwarding_headers, woken_batch_format
from pyservice.edge.forwarding_headers import RequestKey
from pyservice.edge.http_messages import Headers, HttpResponse, problem
from pyservice.edge.unix_http_client import Reply, Take
from pyservice.edge.woken_batch_format import WokenRequest
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, Meter
from pyservice.observability.rays import Rays, Trace
from pyservice.transport.client_address import Address
from pyservice.watch import LongPolls, WaitingRequest

_BATCHES_MAX: Final = 3
_SLOW_S: Final = 0.1
"""Age of a batch at which another one may start beside it, because its rest is slow."""
_UNANSWERED_MAX: Final = 512
"""Upper bound of unanswered requests, with equal ones counted once."""
_BATCH_MAX: Final = 128
"""Woken requests in one message, with equal ones counted once."""
_BATCH_BYTES_MAX: Final = 256 * 1024
"""Bytes of one message after which it gets no more requests."""
_RESPONSES_PER_TURN: Final = 16
"""Responses written before other work gets a turn."""
_UNWRITTEN_MAX: Final = 384
"""Unwritten responses at which no more batches are sent: the responses of three batches."""

SendRequest = Callable[[bytes, bytes, Take], Awaitable[Reply]]
"""Sends a head and a body, and passes the body of the response on as it arrives. Repeats the message only before the
first response. Raises ServiceError."""
Count = Callable[[Meter, str, Trace], None]
"""Counts an answered request: meter of its operation, error code, trace."""
Deliver = Callable[[HttpResponse], None]

log = get_logger("pyservice.edge")


class ParkedSender:
    """The client of a waiting long poll, with the data that its response and its metrics need."""

    __slots__ = ("_count", "_headers", "_meter", "client", "ray_id", "trace")

    def __init__(
        self, client: Address, trace: Trace, headers: Headers | None, count: Count, meter: Meter
    ) -> None:
        self.client = client
        self.trace = trace
        self.ray_id = trace.ray_id
        self._headers = headers
        self._count = count
        self._meter = meter

    def answer(self, reply: Reply, sent_ray_id: str | None = None) -> HttpResponse:
        self._count(self._meter, forwarding_headers.code_of(reply), self.trace)
        return forwarding_headers.answer_of(reply, self.ray_id, self._headers, sent_ray_id)

    def refuse(self, error: ServiceError) -> HttpResponse:
        self._count(self._meter, error.code, self.trace)
        return problem(error, self.ray_id, self._headers)

    def abandon(self) -> None:
        self._count(self._meter, CANCELLED, self.trace)


class ParkedRequest(WaitingRequest):
    """One long poll that waits for a change. It ends with one call of `answer`, `refuse` or
    `abandon`.
    """

    __slots__ = ("_deliver", "_park", "_requests", "request_key", "sender")

    def __init__(
        self,
        requests: ParkedRequests,
        sender: ParkedSender,
        request_key: RequestKey,
        park: WaitForChange,
    ) -> None:
        super().__init__()
        self._requests = requests
        self._deliver: Deliver | None = None
        self._park: WaitForChange | None = park
        self.sender = sender
        self.request_key = request_key

    @property
    def is_waiting(self) -> bool:
        return self._deliver is not None

    def begin(self, deliver: Deliver) -> None:
        park, self._park = self._park, None
        if park is None:
            raise RuntimeError("a request is parked once")
        self._deliver = deliver
        self.sender.trace.has_waited = True
        self._requests.long_polls.add(self, park)

    def resume(self, *, is_over: bool) -> None:
        self._requests.send(self, is_over=is_over)

    def answer_now(self) -> None:
        self._requests.long_polls.drop(self)
        self.resume(is_over=True)

    def answer(self, answer: HttpResponse) -> None:
        deliver = self._deliver
        # A request that was woken early is sent twice, and the other response may have parked it.
        self._end()
        if deliver is not None:
            deliver(answer)

    def refuse(self, error: ServiceError) -> HttpResponse:
        self._end()
        return self.sender.refuse(error)

    def abandon(self) -> None:
        self._end()
        self.sender.abandon()

    def _end(self) -> None:
        self._deliver = None
        self._requests.long_polls.drop(self)


class _Group(NamedTuple):
    """Equal long polls that woke at the same time. One response answers all of them."""

    request_key: RequestKey
    is_over: bool
    parked: list[ParkedRequest]


class _Batch:
    """Groups of equal requests that are sent in one message.

    `unanswered` has the groups without a response, by their number in the message.
    """

    def __init__(self, groups: list[_Group]) -> None:
        self.groups = groups
        self.senders = [group.parked[0].sender for group in groups]
        self.unanswered = dict(enumerate(groups))
        self.is_slow = False
        self.is_broken = False
        self._replies = woken_batch_format.WokenReplyReader()

    @property
    def is_begun(self) -> bool:
        return len(self.unanswered) < len(self.groups)

    def read(self, data: bytes) -> Iterator[tuple[_Group, ParkedSender, Reply]]:
        for number, reply in self._replies.feed(data):
            group = self.unanswered.pop(number, None)
            if group is None:
                raise ValueError(f"unexpected reply number {number} to {len(self.groups)} requests")
            yield group, self.senders[number], reply

    def end(self) -> None:
        self._replies.end()
        if not self.is_begun:
            raise ValueError(f"no replies to {len(self.groups)} requests")


Work = Callable[[ParkedRequest], None]


class ParkedRequests:
    """Waiting long polls of one public server. When a change wakes them, sends them to the control
    plane again.
    """

    def __init__(self, ask: SendRequest, long_polls: LongPolls, rays: Rays) -> None:
        self._ask = ask
        self._rays = rays
        self.long_polls = long_polls
        self._woken: dict[tuple[RequestKey, bool], dict[ParkedRequest, None]] = {}
        self._is_scheduled = False
        self._sending: dict[asyncio.Task[None], _Batch] = {}
        # Bounds the responses that are written in one turn, over all batches.
        self._unwritten: deque[tuple[ParkedRequest, Work]] = deque()

    def send(self, request: ParkedRequest, *, is_over: bool) -> None:
        self._woken.setdefault((request.request_key, is_over), {})[request] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_sending)

    def _start_sending(self) -> None:
        self._is_scheduled = False
        while self._woken and (free_count := self._free_count()) > 0:
            groups = self._next_groups(min(free_count, _BATCH_MAX))
            if groups:
                self._begin(_Batch(groups))

    def _free_count(self) -> int:
        sending = self._sending.values()
        if sum(not batch.is_slow for batch in sending) >= _BATCHES_MAX:
            return 0
        if len(self._unwritten) > _UNWRITTEN_MAX:
            return 0
        return _UNANSWERED_MAX - sum(len(batch.unanswered) for batch in sending)

    def _next_groups(self, count: int) -> list[_Group]:
        groups: list[_Group] = []
        size_bytes = 0
        for key in tuple(islice(self._woken, count)):
            parked = [request for request in self._woken.pop(key) if request.is_waiting]
            if parked:
                group = _Group(*key, parked)
                groups.append(group)
                size_bytes += len(group.request_key.target) + len(
                    group.request_key.authorization or b""
                )
                if size_bytes > _BATCH_BYTES_MAX:
                    break
        return groups

    def _begin(self, batch: _Batch) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._send(batch))
        self._sending[task] = batch
        timer = loop.call_later(_SLOW_S, self._start_beside, batch)

        def end(task: asyncio.Task[None]) -> None:
            timer.cancel()
            del self._sending[task]
            self._start_sending()

        task.add_done_callback(end)

    def _start_beside(self, batch: _Batch) -> None:
        batch.is_slow = True
        self._start_sending()

    async def _send(self, batch: _Batch) -> None:
        failure: ServiceError | None = None
        try:
            body = woken_batch_format.write_requests(
                WokenRequest(
                    group.request_key,
                    str(sender.client),
                    self._rays.pass_on(sender.trace),
                    group.is_over,
                )
                for group, sender in zip(batch.groups, batch.senders, strict=True)
            )
            reply = await self._ask(woken_batch_format.head(body), body, partial(self._take, batch))
            if reply.status != 200:
                failure = ServiceError(forwarding_headers.code_of(reply))
            elif batch.is_broken:
                failure = ServiceError("INTERNAL")
            else:
                batch.end()
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("parked requests failed", ray_id=batch.senders[0].ray_id)
            failure = ServiceError("INTERNAL")
        self._settle_rest(batch, failure)

    def _take(self, batch: _Batch, data: bytes) -> None:
        if batch.is_broken:
            return
        try:
            for group, sender, reply in batch.read(data):
                self._settle(group, self._work_of(reply, sender))
        except ValueError:
            log.exception("parked requests failed", ray_id=batch.senders[0].ray_id)
            batch.is_broken = True

    def _work_of(self, reply: Reply, sender: ParkedSender) -> Work:
        park = _park_of(reply, sender)
        if park is None:
            return lambda parked: parked.answer(parked.sender.answer(reply, sender.ray_id))
        if isinstance(park, ServiceError):
            return _refusal(park)
        return lambda parked: self.long_polls.add(parked, park)

    def _settle_rest(self, batch: _Batch, failure: ServiceError | None) -> None:
        is_cut_off = failure is not None and failure.code == "CONTROL_PLANE_UNAVAILABLE"
        for group in batch.unanswered.values():
            if failure is not None and not (is_cut_off and batch.is_begun):
                self._settle(group, _refusal(failure))
                continue
            for parked in group.parked:
                self.send(parked, is_over=group.is_over)

    def _settle(self, group: _Group, work: Work) -> None:
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write_some)
        self._unwritten.extend((parked, work) for parked in group.parked)

    def _write_some(self) -> None:
        for _ in range(min(len(self._unwritten), _RESPONSES_PER_TURN)):
            request, work = self._unwritten.popleft()
            try:
                if request.is_waiting:
                    work(request)
            except Exception:
                # Other work waits behind this loop.
                log.exception("response to a parked request failed", ray_id=request.sender.ray_id)
        if self._unwritten:
            asyncio.get_running_loop().call_soon(self._write_some)
        elif self._woken:
            self._start_sending()

    async def close(self) -> None:
        self._woken.clear()
        self._unwritten.clear()
        sending = tuple(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def _park_of(reply: Reply, sender: ParkedSender) -> WaitForChange | ServiceError | None:
    try:
        return forwarding_headers.park_of(reply)
    except ValueError:
        log.exception(
            "the internal server parked a request in an unknown form", ray_id=sender.ray_id
        )
        return ServiceError("INTERNAL")


def _refusal(error: ServiceError) -> Work:
    return lambda parked: parked.answer(parked.sender.refuse(error))
