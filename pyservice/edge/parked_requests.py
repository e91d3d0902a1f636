"""Parked requests of the HTTP door (decisions 8.12): held without a task, sent again, answered.

Owns what of a request is kept while it waits, and that many that wake together are neither many
messages nor a long time for all others: equal ones are asked for once, the rest go in portions, and
answers are written a few at a time. When they wake is `watch.Waiters`' matter.
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
"""Portions that are under way at one time; what else is woken waits for its turn."""
_SLOW_S: Final = 0.1
"""After so long a portion makes room for another one: what it still waits for is slow, and not everybody's matter."""
_UNANSWERED_MAX: Final = 512
"""But no more is asked for at one time, equal requests counted once."""
_PORTION: Final = 128
"""Woken requests that are sent in one message, equal ones counted once."""
_PORTION_BYTES: Final = 256 * 1024
"""No more of them, once what they ask for is so long."""
_ANSWERS_A_TURN: Final = 16
"""Answers that are written before others have their turn."""
_UNWRITTEN_MAX: Final = 384
"""With more answers to write nothing is asked for: they are as many as three portions bring."""

Ask = Callable[[bytes, bytes, Take], Awaitable[Reply]]
"""Sends a message, given its head and body, and who takes the body of its answer as it comes; it may be sent twice, but
not when something was taken. Raises ServiceError."""
Count = Callable[[Meter, str, Trace], None]
"""Counts an answered request: its operation's meter, its code, what was noted of it."""
Deliver = Callable[[Answer], None]

log = get_logger("pyservice.edge")


class ParkedSender:
    """Who has to be answered, and how."""

    __slots__ = ("_count", "_headers", "_meter", "client", "ray_id", "trace")

    def __init__(
        self,
        client: Address,
        trace: Trace,
        headers: Headers | None,
        count: Count,
        meter: Meter,
    ) -> None:
        """`client` is its address; `headers` are the door's own of the answer."""
        self.client = client
        self.trace = trace
        self.ray_id = trace.ray_id
        self._headers = headers
        self._count = count
        self._meter = meter

    def answer(self, reply: Reply, asked: str | None = None) -> Answer:
        """The answer that a reply is for this client; counted. `asked`: see `forwarding_headers.answer_of`."""
        self._count(self._meter, forwarding_headers.code_of(reply), self.trace)
        return forwarding_headers.answer_of(reply, self.ray_id, self._headers, asked)

    def refuse(self, error: ServiceError) -> Answer:
        """The answer to a request that fails with this error; counted."""
        self._count(self._meter, error.code, self.trace)
        return problem(error, self.ray_id, self._headers)

    def abandon(self) -> None:
        """Nobody is there to be answered."""
        self._count(self._meter, CANCELLED, self.trace)


class ParkedRequest(WaitingRequest):
    """One parked request. After `begin` it ends with one call of `deliver`, or `refuse`, or `abandon`."""

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
        """Whether somebody still wants the answer."""
        return self._deliver is not None

    def begin(self, deliver: Deliver) -> None:
        """Wait from now on, once. `deliver` gets the answer, never before this returns."""
        park, self._park = self._park, None
        if park is None:
            raise RuntimeError("a request is held once")
        self._deliver = deliver
        self.sender.trace.is_held = True
        self._requests.waiters.hold(self, park)

    def woken(self, *, is_over: bool) -> None:
        self._requests.send(self, is_over=is_over)

    def hurry(self) -> None:
        """Take what there is: the door is being closed, or the client wants something else."""
        self._requests.waiters.drop(self)
        self.woken(is_over=True)

    def answer(self, answer: Answer) -> None:
        """Give the client its answer."""
        deliver = self._deliver
        # Who was hurried is asked for twice, and the other answer may have parked it.
        self._end()
        if deliver is not None:
            deliver(answer)

    def refuse(self, error: ServiceError) -> Answer:
        """It ends with this error; the answer is for the caller to deliver."""
        self._end()
        return self.sender.refuse(error)

    def abandon(self) -> None:
        """The client went away."""
        self._end()
        self.sender.abandon()

    def _end(self) -> None:
        self._deliver = None
        self._requests.waiters.drop(self)


class _Group(NamedTuple):
    """Equal requests that woke together. Those of `held` that are still wanted get the answer to one of them."""

    wish: RequestKey
    is_over: bool
    held: list[ParkedRequest]


class _Portion:
    """Groups that are asked for in one message. `unanswered` are those that still are, by their number in it."""

    def __init__(self, groups: list[_Group]) -> None:
        self.groups = groups
        self.asking = [group.held[0].sender for group in groups]
        """Who speaks for a group."""
        self.unanswered = dict(enumerate(groups))
        self.is_slow = False
        self.is_broken = False
        """What came is no answer."""
        self._replies = watch_batch_format.BatchReplyReader()

    @property
    def is_begun(self) -> bool:
        return len(self.unanswered) < len(self.groups)

    def read(self, data: bytes) -> Iterator[tuple[_Group, ParkedSender, Reply]]:
        """The replies that are whole by this piece of the answer. Raises ValueError."""
        for number, reply in self._replies.feed(data):
            group = self.unanswered.pop(number, None)
            if group is None:
                raise ValueError(f"an answer to request {number} of {len(self.groups)}")
            yield group, self.asking[number], reply

    def end(self) -> None:
        """The answer is whole. Raises ValueError when it is not."""
        self._replies.end()
        if not self.is_begun:
            raise ValueError(f"no answers to {len(self.groups)} requests")


Work = Callable[[ParkedRequest], None]
"""What is done with a request of which the answer came."""


class ParkedRequests:
    """Sends parked requests again when they wake."""

    def __init__(self, ask: Ask, waiters: LongPolls, rays: Rays) -> None:
        self._ask = ask
        self._rays = rays
        self.waiters = waiters
        self._woken: dict[tuple[RequestKey, bool], dict[ParkedRequest, None]] = {}
        """What is to be sent, in the order of waking; equal ones once."""
        self._is_scheduled = False
        self._sending: dict[asyncio.Task[None], _Portion] = {}
        # However many portions are answered, so many answers are written in a turn.
        self._unwritten: deque[tuple[ParkedRequest, Work]] = deque()

    def send(self, held: ParkedRequest, *, is_over: bool) -> None:
        """Send a request again, soon, with those that are woken with it."""
        self._woken.setdefault((held.wish, is_over), {})[held] = None
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
        """How many may be asked for now."""
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
            held = [one for one in self._woken.pop(key) if one.is_waiting]
            if held:
                group = _Group(*key, held)
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
        """Ask once for all of a group, whose first speaks for all."""
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
        """Give the answers that this piece brings, which are not for others to wait for."""
        if portion.is_broken:
            return
        try:
            for group, asking, reply in portion.read(data):
                self._settle(group, self._work_of(reply, asking))
        except ValueError:
            log.exception("parked requests failed", ray_id=portion.asking[0].ray_id)
            portion.is_broken = True

    def _work_of(self, reply: Reply, asking: ParkedSender) -> Work:
        """What a reply to `asking` means for those for whom it speaks.

        Who is parked in words that nobody can read fails as INTERNAL, and the others are answered.
        """
        park = _park_of(reply, asking)
        if park is None:
            return lambda held: held.answer(held.sender.answer(reply, asking.ray_id))
        if isinstance(park, ServiceError):
            return _refusing(park)
        return lambda held: self.waiters.hold(held, park)

    def _settle_rest(self, portion: _Portion, failure: ServiceError | None) -> None:
        """Those without an answer: what was left out for its length is sent once more, and so is what the other side
        did not come to before it went away."""
        is_cut_off = failure is not None and failure.code == "CONTROL_PLANE_UNAVAILABLE"
        for group in portion.unanswered.values():
            if failure is not None and not (is_cut_off and portion.is_begun):
                self._settle(group, _refusing(failure))
                continue
            for held in group.held:
                self.send(held, is_over=group.is_over)

    def _settle(self, group: _Group, work: Work) -> None:
        """Do it for all of a group whose client is still there, soon, and let others have their turn in between."""
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write_some)
        self._unwritten.extend((held, work) for held in group.held)

    def _write_some(self) -> None:
        for _ in range(min(len(self._unwritten), _ANSWERS_A_TURN)):
            held, work = self._unwritten.popleft()
            try:
                if held.is_waiting:
                    work(held)
            except Exception:
                # The others wait behind it.
                log.exception("a parked request is not answered", ray_id=held.sender.ray_id)
        if self._unwritten:
            asyncio.get_running_loop().call_soon(self._write_some)
        elif self._woken:
            self._start_sending()

    async def close(self) -> None:
        """Send nothing any more; the door has stopped, and nobody waits."""
        self._woken.clear()
        self._unwritten.clear()
        sending = tuple(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def _park_of(reply: Reply, asking: ParkedSender) -> WaitForChange | ServiceError | None:
    """What a reply parks its requests for, None when it is an answer, or what they fail with."""
    try:
        return forwarding_headers.park_of(reply)
    except ValueError:
        log.exception("a request is parked in words that nobody reads", ray_id=asking.ray_id)
        return ServiceError("INTERNAL")


def _refusing(error: ServiceError) -> Work:
    return lambda held: held.answer(held.sender.refuse(error))
