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
from pyservice.edge import forwarding_headers, watch_batch_format
from pyservice.edge.forwarding_headers import RequestKey
from pyservice.edge.http_messages import Answer, Headers, problem
from pyservice.edge.unix_http_client import Reply, Take
from pyservice.edge.watch_batch_format import BatchedRequest
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, Meter
from pyservice.observability.rays import Rays, Trace
from pyservice.transport.client_address import Address
from pyservice.watch import LongPolls, WaitingRequest

_AT_ONCE: Final = 3
"""Batches in flight."""
_SLOW_S: Final = 0.1
"""Age of a batch at which another one may start beside it, because its rest is slow."""
_UNANSWERED_MAX: Final = 512
"""Upper bound of unanswered requests, with equal ones counted once."""
_PORTION: Final = 128
"""Woken requests in one message, with equal ones counted once."""
_PORTION_BYTES: Final = 256 * 1024
"""Bytes of one message after which it gets no more requests."""
_ANSWERS_A_TURN: Final = 16
"""Responses written before other work gets a turn."""
_UNWRITTEN_MAX: Final = 384
"""Unwritten responses at which no more batches are sent: the responses of three batches."""

Ask = Callable[[bytes, bytes, Take], Awaitable[Reply]]
"""Sends a head and a body, and passes the body of the response on as it arrives. Repeats the message only before the
first response. Raises ServiceError."""
Count = Callable[[Meter, str, Trace], None]
"""Counts an answered request: meter of its operation, error code, trace."""
Deliver = Callable[[Answer], None]

log = get_logger("pyservice.edge")


class ParkedSender:
    """The client of a parked request, with the data that its response and its metrics need."""

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

    def answer(self, reply: Reply, asked: str | None = None) -> Answer:
        self._count(self._meter, forwarding_headers.code_of(reply), self.trace)
        return forwarding_headers.answer_of(reply, self.ray_id, self._headers, asked)

    def refuse(self, error: ServiceError) -> Answer:
        self._count(self._meter, error.code, self.trace)
        return problem(error, self.ray_id, self._headers)

    def abandon(self) -> None:
        self._count(self._meter, CANCELLED, self.trace)


class ParkedRequest(WaitingRequest):
    """One parked request. It ends with one call of `answer`, `refuse` or `abandon`."""

    __slots__ = ("_deliver", "_park", "_requests", "sender", "wish")

    def __init__(
        self, requests: ParkedRequests, sender: ParkedSender, wish: RequestKey, park: WaitForChange
    ) -> None:
        super().__init__()
        self._requests = requests
        self._deliver: Deliver | None = None
        self._park: WaitForChange | None = park
        self.sender = sender
        self.wish = wish

    @property
    def is_waiting(self) -> bool:
        return self._deliver is not None

    def begin(self, deliver: Deliver) -> None:
        park, self._park = self._park, None
        if park is None:
            raise RuntimeError("a request is parked once")
        self._deliver = deliver
        self.sender.trace.is_held = True
        self._requests.long_polls.hold(self, park)

    def woken(self, *, is_over: bool) -> None:
        self._requests.send(self, is_over=is_over)

    def answer_now(self) -> None:
        self._requests.long_polls.drop(self)
        self.woken(is_over=True)

    def answer(self, answer: Answer) -> None:
        deliver = self._deliver
        # A request that was woken early is sent twice, and the other response may have parked it.
        self._end()
        if deliver is not None:
            deliver(answer)

    def refuse(self, error: ServiceError) -> Answer:
        self._end()
        return self.sender.refuse(error)

    def abandon(self) -> None:
        self._end()
        self.sender.abandon()

    def _end(self) -> None:
        self._deliver = None
        self._requests.long_polls.drop(self)


class _Group(NamedTuple):
    """Equal requests that woke together. One response answers all of them."""

    wish: RequestKey
    is_over: bool
    parked: list[ParkedRequest]


class _Portion:
    """Groups of equal requests that are sent in one message.

    `unanswered` has the groups without a response, by their number in the message.
    """

    def __init__(self, groups: list[_Group]) -> None:
        self.groups = groups
        self.asking = [group.parked[0].sender for group in groups]
        self.unanswered = dict(enumerate(groups))
        self.is_slow = False
        self.is_broken = False
        self._replies = watch_batch_format.BatchReplyReader()

    @property
    def is_begun(self) -> bool:
        return len(self.unanswered) < len(self.groups)

    def read(self, data: bytes) -> Iterator[tuple[_Group, ParkedSender, Reply]]:
        for number, reply in self._replies.feed(data):
            group = self.unanswered.pop(number, None)
            if group is None:
                raise ValueError(f"unexpected reply number {number} to {len(self.groups)} requests")
            yield group, self.asking[number], reply

    def end(self) -> None:
        self._replies.end()
        if not self.is_begun:
            raise ValueError(f"no replies to {len(self.groups)} requests")


Work = Callable[[ParkedRequest], None]
"""Delivers a response to a request."""


class ParkedRequests:
    """Parked requests of one public server. When requests wake, sends them to the control plane
    again.
    """

    def __init__(self, ask: Ask, long_polls: LongPolls, rays: Rays) -> None:
        self._ask = ask
        self._rays = rays
        self.long_polls = long_polls
        self._woken: dict[tuple[RequestKey, bool], dict[ParkedRequest, None]] = {}
        self._is_scheduled = False
        self._sending: dict[asyncio.Task[None], _Portion] = {}
        # Bounds the responses that are written in one turn, over all batches.
        self._unwritten: deque[tuple[ParkedRequest, Work]] = deque()

    def send(self, parked: ParkedRequest, *, is_over: bool) -> None:
        self._woken.setdefault((parked.wish, is_over), {})[parked] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_sending)

    def _start_sending(self) -> None:
        self._is_scheduled = False
        while self._woken and (room := self._room()) > 0:
            groups = self._take_portion(min(room, _PORTION))
            if groups:
                self._begin(_Portion(groups))

    def _room(self) -> int:
        sending = self._sending.values()
        if sum(not portion.is_slow for portion in sending) >= _AT_ONCE:
            return 0
        if len(self._unwritten) > _UNWRITTEN_MAX:
            return 0
        return _UNANSWERED_MAX - sum(len(portion.unanswered) for portion in sending)

    def _take_portion(self, count: int) -> list[_Group]:
        portion: list[_Group] = []
        size_bytes = 0
        for key in tuple(islice(self._woken, count)):
            parked = [one for one in self._woken.pop(key) if one.is_waiting]
            if parked:
                group = _Group(*key, parked)
                portion.append(group)
                size_bytes += len(group.wish.target) + len(group.wish.authorization or b"")
                if size_bytes > _PORTION_BYTES:
                    break
        return portion

    def _begin(self, portion: _Portion) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._send(portion))
        self._sending[task] = portion
        timer = loop.call_later(_SLOW_S, self._make_room, portion)

        def end(task: asyncio.Task[None]) -> None:
            timer.cancel()
            del self._sending[task]
            self._start_sending()

        task.add_done_callback(end)

    def _make_room(self, portion: _Portion) -> None:
        portion.is_slow = True
        self._start_sending()

    async def _send(self, portion: _Portion) -> None:
        failure: ServiceError | None = None
        try:
            body = watch_batch_format.write_asked(
                BatchedRequest(
                    group.wish, str(one.client), self._rays.pass_on(one.trace), group.is_over
                )
                for group, one in zip(portion.groups, portion.asking, strict=True)
            )
            reply = await self._ask(
                watch_batch_format.head(body), body, partial(self._take, portion)
            )
            if reply.status != 200:
                failure = ServiceError(forwarding_headers.code_of(reply))
            elif portion.is_broken:
                failure = ServiceError("INTERNAL")
            else:
                portion.end()
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("parked requests failed", ray_id=portion.asking[0].ray_id)
            failure = ServiceError("INTERNAL")
        self._settle_rest(portion, failure)

    def _take(self, portion: _Portion, data: bytes) -> None:
        if portion.is_broken:
            return
        try:
            for group, asking, reply in portion.read(data):
                self._settle(group, self._work_of(reply, asking))
        except ValueError:
            log.exception("parked requests failed", ray_id=portion.asking[0].ray_id)
            portion.is_broken = True

    def _work_of(self, reply: Reply, asking: ParkedSender) -> Work:
        park = _park_of(reply, asking)
        if park is None:
            return lambda parked: parked.answer(parked.sender.answer(reply, asking.ray_id))
        if isinstance(park, ServiceError):
            return _refusing(park)
        return lambda parked: self.long_polls.hold(parked, park)

    def _settle_rest(self, portion: _Portion, failure: ServiceError | None) -> None:
        is_cut_off = failure is not None and failure.code == "CONTROL_PLANE_UNAVAILABLE"
        for group in portion.unanswered.values():
            if failure is not None and not (is_cut_off and portion.is_begun):
                self._settle(group, _refusing(failure))
                continue
            for parked in group.parked:
                self.send(parked, is_over=group.is_over)

    def _settle(self, group: _Group, work: Work) -> None:
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write_some)
        self._unwritten.extend((parked, work) for parked in group.parked)

    def _write_some(self) -> None:
        for _ in range(min(len(self._unwritten), _ANSWERS_A_TURN)):
            parked, work = self._unwritten.popleft()
            try:
                if parked.is_waiting:
                    work(parked)
            except Exception:
                # Other work waits behind this loop.
                log.exception("response to a parked request failed", ray_id=parked.sender.ray_id)
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


def _park_of(reply: Reply, asking: ParkedSender) -> WaitForChange | ServiceError | None:
    try:
        return forwarding_headers.park_of(reply)
    except ValueError:
        log.exception(
            "the internal server parked a request in an unknown form", ray_id=asking.ray_id
        )
        return ServiceError("INTERNAL")


def _refusing(error: ServiceError) -> Work:
    return lambda parked: parked.answer(parked.sender.refuse(error))
