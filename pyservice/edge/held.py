"""Parked requests of the HTTP door (decisions 8.12): held without a task, sent again, answered.

Owns what of a request is kept while it waits, and that many that wake together are neither many
messages nor a long time for all others: equal ones are asked for once, the rest go in portions, and
answers are written a few at a time. When they wake is `watch.Waiters`' matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, NamedTuple

from pyservice.calls import Park
from pyservice.doors.addresses import Address
from pyservice.edge import crowds, relayed
from pyservice.edge.crowds import Asked
from pyservice.edge.exchanges import Answer, Headers, problem
from pyservice.edge.relayed import Wish
from pyservice.edge.upstream import Reply
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, Meter
from pyservice.observability.rays import Rays, Trace
from pyservice.watch import Parked, Waiters

_AT_ONCE: Final = 3
"""Portions that are under way at one time; what else is woken waits for its turn."""
_PORTION: Final = 128
"""Woken requests that are sent in one message, equal ones counted once."""
_PORTION_BYTES: Final = 256 * 1024
"""No more of them, once what they ask for is so long."""
_ANSWERS_A_TURN: Final = 16
"""Answers that are written before others have their turn."""

Ask = Callable[[bytes, bytes], Awaitable[Reply]]
"""Sends a message, given its head and body; it may be sent twice. Raises ServiceError."""
Count = Callable[[Meter, str, Trace], None]
"""Counts an answered request: its operation's meter, its code, what was noted of it."""
Deliver = Callable[[Answer], None]

log = get_logger("pyservice.edge")


class Sender:
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
        """The answer that a reply is for this client; counted. `asked`: see `relayed.answer_of`."""
        self._count(self._meter, relayed.code_of(reply), self.trace)
        return relayed.answer_of(reply, self.ray_id, self._headers, asked)

    def refuse(self, error: ServiceError) -> Answer:
        """The answer to a request that fails with this error; counted."""
        self._count(self._meter, error.code, self.trace)
        return problem(error, self.ray_id, self._headers)

    def abandon(self) -> None:
        """Nobody is there to be answered."""
        self._count(self._meter, CANCELLED, self.trace)


class Held(Parked):
    """One parked request. After `begin` it ends with one call of `deliver`, or `refuse`, or `abandon`."""

    __slots__ = ("_deliver", "_park", "_requests", "sender", "wish")

    def __init__(self, requests: HeldRequests, sender: Sender, wish: Wish, park: Park) -> None:
        super().__init__()
        self._requests = requests
        self._deliver: Deliver | None = None
        self._park: Park | None = park
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
        deliver, self._deliver = self._deliver, None
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

    wish: Wish
    is_over: bool
    held: list[Held]


class HeldRequests:
    """Sends parked requests again when they wake."""

    def __init__(self, ask: Ask, waiters: Waiters, rays: Rays) -> None:
        self._ask = ask
        self._rays = rays
        self.waiters = waiters
        self._woken: dict[tuple[Wish, bool], dict[Held, None]] = {}
        """What is to be sent, in the order of waking; equal ones once."""
        self._is_scheduled = False
        self._sending: set[asyncio.Task[None]] = set()
        # However many portions are answered, so many answers are written in a turn.
        self._settling = asyncio.Lock()

    def send(self, held: Held, *, is_over: bool) -> None:
        """Send a request again, soon, with those that are woken with it."""
        self._woken.setdefault((held.wish, is_over), {})[held] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_sending)

    def _start_sending(self) -> None:
        self._is_scheduled = False
        while self._woken and len(self._sending) < _AT_ONCE:
            portion = self._take_portion()
            if portion:
                task = asyncio.get_running_loop().create_task(self._send(portion))
                self._sending.add(task)
                task.add_done_callback(self._on_sent)

    def _take_portion(self) -> list[_Group]:
        portion: list[_Group] = []
        size_bytes = 0
        for key in tuple(islice(self._woken, _PORTION)):
            held = [one for one in self._woken.pop(key) if one.is_waiting]
            if held:
                group = _Group(*key, held)
                portion.append(group)
                size_bytes += len(group.wish.target) + len(group.wish.authorization or b"")
                if size_bytes > _PORTION_BYTES:
                    break
        return portion

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._start_sending()

    async def _send(self, portion: list[_Group]) -> None:
        """Ask once for all of a group, whose first speaks for all."""
        asking = [group.held[0].sender for group in portion]
        try:
            replies = await self._replies(portion, asking)
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("parked requests failed", ray_id=asking[0].ray_id)
            failure = ServiceError("INTERNAL")
        else:
            await self._settle(portion, asking, replies)
            return
        async with self._settling:
            await _for_each(portion, lambda _, held: held.answer(held.sender.refuse(failure)))

    async def _replies(self, portion: list[_Group], asking: list[Sender]) -> list[Reply]:
        """What the other side says to the first ones of a portion, one at least. Raises ServiceError, ValueError."""
        body = crowds.write_asked(
            Asked(group.wish, str(one.client), self._rays.pass_on(one.trace), group.is_over)
            for group, one in zip(portion, asking, strict=True)
        )
        reply = await self._ask(crowds.head(body), body)
        if reply.status != 200:
            raise ServiceError(relayed.code_of(reply))
        replies = crowds.read_replies(reply.body)
        if not 0 < len(replies) <= len(portion):
            raise ValueError(f"{len(replies)} answers to {len(portion)} requests")
        return replies

    async def _settle(
        self, portion: list[_Group], asking: list[Sender], replies: list[Reply]
    ) -> None:
        """Give the answers; what was left out for its length is sent once more.

        Who is parked in words that nobody can read fails as INTERNAL, and the others are answered.
        """
        for group in portion[len(replies) :]:
            for held in group.held:
                self.send(held, is_over=group.is_over)
        parks = [_park_of(reply, one) for reply, one in zip(replies, asking, strict=False)]

        def settle(number: int, held: Held) -> None:
            park = parks[number]
            if isinstance(park, Park):
                self.waiters.hold(held, park)
            elif park is not None:
                held.answer(held.sender.refuse(park))
            else:
                held.answer(held.sender.answer(replies[number], asking[number].ray_id))

        async with self._settling:
            await _for_each(portion[: len(replies)], settle)

    async def close(self) -> None:
        """Send nothing any more; the door has stopped, and nobody waits."""
        self._woken.clear()
        sending = tuple(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


def _park_of(reply: Reply, asking: Sender) -> Park | ServiceError | None:
    """What a reply parks its requests for, None when it is an answer, or what they fail with."""
    try:
        return relayed.park_of(reply)
    except ValueError:
        log.exception("a request is parked in words that nobody reads", ray_id=asking.ray_id)
        return ServiceError("INTERNAL")


async def _for_each(portion: list[_Group], work: Callable[[int, Held], None]) -> None:
    """Do it for all whose client is still there, given the number of their group, and let others have their turn in
    between."""
    done = 0
    for number, group in enumerate(portion):
        for held in group.held:
            if held.is_waiting:
                work(number, held)
            done += 1
            if done % _ANSWERS_A_TURN == 0:
                await asyncio.sleep(0)
