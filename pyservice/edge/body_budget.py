"""What the bodies of one connection hold of the door's budget: the one that comes, and large ones that are answered."""

from __future__ import annotations

from typing import Final

from pyservice.edge.edge_app import Edge
from pyservice.edge.http_messages import Request
from pyservice.transport.server_budgets import SMALL_BYTES, BodyReservation


class ConnectionBodyBudget:
    """Of a connection. A small body is counted only while it is not whole, so most are never counted."""

    __slots__ = ("_app", "answering", "receiving")

    def __init__(self, app: Edge) -> None:
        self._app: Final = app
        self.receiving: BodyReservation | None = None
        self.answering: dict[Request, BodyReservation] = {}

    def grow(self, request: Request, size_bytes: int) -> None:
        """The body that comes, of this request, holds so much. Raises OVERLOADED."""
        if self.receiving is None:
            self.receiving = self._app.loan(request)
        self.receiving.grow_to(size_bytes)

    def keep(self, request: Request) -> None:
        """It is whole. A large one counts until `end`."""
        loan, self.receiving = self.receiving, None
        if loan is None:
            return
        if len(request.body) > SMALL_BYTES:
            self.answering[request] = loan
        else:
            loan.give_back()

    def drop(self) -> None:
        """What came of it is not held any more."""
        loan, self.receiving = self.receiving, None
        if loan is not None:
            loan.give_back()

    def end(self, request: Request) -> None:
        """The request is answered, or goes on without its body."""
        loan = self.answering.pop(request, None)
        if loan is not None:
            loan.give_back()

    def end_all(self) -> None:
        """Nothing of this connection is held any more."""
        self.drop()
        for request in tuple(self.answering):
            self.end(request)
