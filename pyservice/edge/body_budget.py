"""Bytes of request bodies that one connection holds of the server's body budget."""

from __future__ import annotations

from typing import Final

from pyservice.edge.edge_app import Edge
from pyservice.edge.http_messages import Request
from pyservice.transport.server_budgets import SMALL_BYTES, BodyReservation


class ConnectionBodyBudget:
    """Counts small bodies only while they arrive, and large ones until they are answered."""

    __slots__ = ("_app", "answering", "receiving")

    def __init__(self, app: Edge) -> None:
        self._app: Final = app
        self.receiving: BodyReservation | None = None
        self.answering: dict[Request, BodyReservation] = {}

    def grow(self, request: Request, size_bytes: int) -> None:
        if self.receiving is None:
            self.receiving = self._app.loan(request)
        self.receiving.grow_to(size_bytes)

    def keep(self, request: Request) -> None:
        loan, self.receiving = self.receiving, None
        if loan is None:
            return
        if len(request.body) > SMALL_BYTES:
            self.answering[request] = loan
        else:
            loan.give_back()

    def drop(self) -> None:
        loan, self.receiving = self.receiving, None
        if loan is not None:
            loan.give_back()

    def end(self, request: Request) -> None:
        loan = self.answering.pop(request, None)
        if loan is not None:
            loan.give_back()

    def end_all(self) -> None:
        self.drop()
        for request in tuple(self.answering):
            self.end(request)
