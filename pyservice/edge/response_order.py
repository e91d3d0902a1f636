"""Responses of one connection, in the order of its requests."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from pyservice.edge.body_budget import ConnectionBodyBudget
from pyservice.edge.client_connection import ConnectionContext, ConnectionStage
from pyservice.edge.edge_app import Open
from pyservice.edge.http_messages import Answer, Request, part_to_bytes
from pyservice.edge.paced_reading import PacedReadingConnection
from pyservice.edge.parked_requests import ParkedRequest
from pyservice.edge.watch_batch_endpoint import WatchBatchExchange
from pyservice.errors import ServiceError


class OrderedResponseConnection(PacedReadingConnection):
    """Answers the requests in `_waiting` one after the other. `_current` is in progress.

    A parked request is answered at once when another request waits behind it.
    """

    def __init__(self, serving: ConnectionContext) -> None:
        super().__init__(serving)
        self._loans = ConnectionBodyBudget(self.app)
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._held: ParkedRequest | None = None
        self._is_behind = False
        self._is_stopping = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_deaf()
        if self._task is not None:
            # Cancelling releases the hold of a request that waits for a lobby.
            self._task.cancel()
        if self._held is not None:
            self._held.abandon()
            self._held = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._is_stopping = True
        if self._current is None:
            self.transport.close()
        elif self._held is not None:
            self._held.hurry()

    def refuse_current(self) -> None:
        self._is_stopping = True
        if self._task is not None:
            self._task.cancel()
        elif self._held is not None:
            self._on_held(self._held.refuse(ServiceError("SHUTTING_DOWN")))

    def _go_deaf(self) -> None:
        self._stage = ConnectionStage.DEAF
        self._waiting.clear()
        self._drop_rest()
        self._loans.end_all()

    def _go_on(self) -> None:
        waiting = self._waiting
        while waiting and self._current is None and not self._is_write_paused:
            self._answer(waiting.popleft())
        if bool(waiting) != self._is_behind:
            self._is_behind = bool(waiting)
            self._pace()
            if waiting and self._held is not None:
                # The disconnect of its client would go unnoticed now.
                self._held.hurry()
        if (
            self._current is None
            and self._stage == ConnectionStage.IDLE
            and not self._is_write_paused
        ):
            self._expect_within(self._keep_alive_timeout_s)

    def _answer(self, request: Request) -> None:
        self._current = request
        exchange = self.app.open(request)
        if isinstance(exchange, Answer):
            self._write(request, exchange)
        elif isinstance(exchange, WatchBatchExchange):
            self._task = self.loop.create_task(self._run_in_parts(request, exchange))
        else:
            self._task = self.loop.create_task(self._run(request, exchange))

    async def _run(self, request: Request, exchange: Open) -> None:
        try:
            answer = await exchange.finish()
        except asyncio.CancelledError:
            if self.transport.is_closing():
                exchange.abandon()
                raise
            answer = exchange.refuse(ServiceError("SHUTTING_DOWN"))
        self._task = None
        if self.transport.is_closing():
            if isinstance(answer, ParkedRequest):
                answer.abandon()
        elif isinstance(answer, Answer):
            self._write(request, answer)
            self._go_on()
        else:
            self._hold(answer)

    async def _run_in_parts(self, request: Request, exchange: WatchBatchExchange) -> None:
        is_begun = False
        try:
            async with aclosing(exchange.parts()) as parts:
                async for part in parts:
                    self.transport.write(part_to_bytes(part, is_first=not is_begun))
                    is_begun = True
        except asyncio.CancelledError:
            if self.transport.is_closing():
                exchange.abandon()
                raise
            self._task = None
            refusal = exchange.refuse(ServiceError("SHUTTING_DOWN"))
            if is_begun:
                # Closing shows the other side that the rest will not follow.
                self.transport.abort()
            else:
                self._write(request, refusal)
                self._go_on()
            return
        self._task = None
        if self.transport.is_closing():
            return
        self.transport.write(part_to_bytes(b"", is_first=not is_begun))
        self._answered(request, keep_alive=request.keep_alive and not self._is_stopping)
        self._go_on()

    def _hold(self, held: ParkedRequest) -> None:
        self._held = held
        if self._loans.answering and self._current is not None:
            self._loans.end(self._current)
        held.begin(self._on_held)
        if self._is_stopping or self._waiting:
            held.hurry()

    def _on_held(self, answer: Answer) -> None:
        self._held = None
        request = self._current
        if request is not None and not self.transport.is_closing():
            self._write(request, answer)
            self._go_on()

    def _write(self, request: Request, answer: Answer) -> None:
        keep_alive = request.keep_alive and not self._is_stopping
        self.transport.write(
            answer.to_bytes(keep_alive=keep_alive, with_body=request.method != b"HEAD")
        )
        self._answered(request, keep_alive=keep_alive)

    def _answered(self, request: Request, *, keep_alive: bool) -> None:
        self._current = None
        if self._loans.answering:
            self._loans.end(request)
        if not keep_alive:
            # This was the last response.
            self._go_deaf()
            self._let_go(is_refused=request.failure is not None)
