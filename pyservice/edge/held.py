"""Parked requests of the HTTP door (decisions 8.12): held without a task, sent again, answered.

Owns what of a request is kept while it waits, and that equal ones that wake together are asked for
once. When they wake is `watch.Waiters`' matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pyservice.calls import Park
from pyservice.doors.addresses import Address
from pyservice.edge import relayed
from pyservice.edge.exchanges import Answer, Headers, problem
from pyservice.edge.relayed import Wish
from pyservice.edge.upstream import Reply
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED, Meter
from pyservice.watch import Parked, Waiters

_AT_ONCE: Final = 32
"""Parked requests that are sent again at one time; the others wait for their turn."""
_ANSWERS_A_TURN: Final = 64
"""Answers that are written before others have their turn."""

Ask = Callable[[bytes], Awaitable[Reply]]
"""Sends a request, given its head. Raises ServiceError."""
Count = Callable[[Meter, str, float], None]
"""Counts an answered request: its operation's meter, its code, when it came."""
Deliver = Callable[[Answer], None]

log = get_logger("pyservice.edge")


class Sender:
    """Who has to be answered, and how."""

    __slots__ = ("_count", "_headers", "_meter", "_started", "client", "ray_id")

    def __init__(
        self,
        client: Address,
        ray_id: str,
        headers: Headers | None,
        count: Count,
        meter: Meter,
        started: float,
    ) -> None:
        """`client` is its address; `headers` are the door's own of the answer."""
        self.client = client
        self.ray_id = ray_id
        self._headers = headers
        self._count = count
        self._meter = meter
        self._started = started

    def answer(self, reply: Reply, asked: str | None = None) -> Answer:
        """The answer that a reply is for this client; counted. `asked`: see `relayed.answer_of`."""
        self._count(self._meter, relayed.code_of(reply), self._started)
        return relayed.answer_of(reply, self.ray_id, self._headers, asked)

    def refuse(self, error: ServiceError) -> Answer:
        """The answer to a request that fails with this error; counted."""
        self._count(self._meter, error.code, self._started)
        return problem(error, self.ray_id, self._headers)

    def abandon(self) -> None:
        """Nobody is there to be answered."""
        self._count(self._meter, CANCELLED, self._started)


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
        self._requests.waiters.hold(self, park)

    def woken(self, *, is_over: bool) -> None:
        self._requests.send(self, is_over=is_over)

    def hurry(self) -> None:
        """Take what there is: the door is being closed."""
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


class HeldRequests:
    """Sends parked requests again when they wake."""

    def __init__(self, ask: Ask, waiters: Waiters) -> None:
        self._ask = ask
        self.waiters = waiters
        self._woken: dict[tuple[Wish, bool], dict[Held, None]] = {}
        """What is to be sent, in the order of waking; equal ones once."""
        self._is_scheduled = False
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, held: Held, *, is_over: bool) -> None:
        """Send a request again, soon, with those that are equal and wake with it."""
        self._woken.setdefault((held.wish, is_over), {})[held] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_sending)

    def _start_sending(self) -> None:
        self._is_scheduled = False
        while self._woken and len(self._sending) < _AT_ONCE:
            key = next(iter(self._woken))
            group = [held for held in self._woken.pop(key) if held.is_waiting]
            if group:
                task = asyncio.get_running_loop().create_task(self._send(group, is_over=key[1]))
                self._sending.add(task)
                task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._start_sending()

    async def _send(self, group: list[Held], *, is_over: bool) -> None:
        """Ask once for all of a group, whose first speaks for all."""
        wish, asking = group[0].wish, group[0].sender
        fields = relayed.fields_of(wish)
        fields.append((relayed.HELD, relayed.OVER if is_over else relayed.WOKEN))
        trace = relayed.traceparent(asking.ray_id)
        try:
            reply = await self._ask(relayed.head(wish, asking.client, trace, fields, None))
            park = relayed.park_of(reply)
        except ServiceError as error:
            failure = error
        except Exception:
            log.exception("a parked request failed", ray_id=asking.ray_id)
            failure = ServiceError("INTERNAL")
        else:
            await _for_each(group, lambda held: self._settle(held, reply, park, asking.ray_id))
            return
        await _for_each(group, lambda held: held.answer(held.sender.refuse(failure)))

    def _settle(self, held: Held, reply: Reply, park: Park | None, asked: str) -> None:
        if park is not None:
            self.waiters.hold(held, park)
        else:
            held.answer(held.sender.answer(reply, asked))

    async def close(self) -> None:
        """Send nothing any more; the door has stopped, and nobody waits."""
        self._woken.clear()
        sending = tuple(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def _for_each(group: list[Held], work: Callable[[Held], None]) -> None:
    """Do it for all whose client is still there, and let others have their turn in between."""
    for done, held in enumerate(group, 1):
        if held.is_waiting:
            work(held)
        if done % _ANSWERS_A_TURN == 0:
            await asyncio.sleep(0)
