"""The supervisor, as a run sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pyservice.runtime.builds import Builds
from pyservice.runtime.nursery import Nursery
from pyservice.runtime.orders import Hearing, Owner
from pyservice.runtime.places import Places
from pyservice.runtime.process import Node
from pyservice.runtime.room import Room

_Result = TypeVar("_Result")


class Home(Protocol):
    """What is there for all runs of a node."""

    @property
    def builds(self) -> Builds: ...
    @property
    def node(self) -> Node: ...
    def hearing(self, owner: Owner) -> Hearing:
        """Who wants this owner's runs."""
        ...

    @property
    def nursery(self) -> Nursery: ...
    @property
    def room(self) -> Room: ...
    @property
    def places(self) -> Places: ...
    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """What blocks for some milliseconds. What has begun is not cut off."""
        ...

    def begun(self, run_id: str) -> None:
        """It was started, and its keeper hears who wants to know of its log."""
