"""What a change is of which planes die in the middle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.faults.control.game_fixture import Fields, GameFixture
from tests.faults.control.killed_service import MOMENTS, RECORDS, Step
from tests.support.full_service import Answer

Ask = Callable[[GameFixture, Fields, str], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked for. `fields` makes a request that changes something, given what was seen before."""

    name: str
    operation: str
    """Its slug; of a command the method that it calls."""
    ask: Ask
    """Of fields and a key."""
    fields: Callable[[GameFixture, Fields], Fields]
    prepare: Callable[[GameFixture], Awaitable[Any]] | None = None
    """Makes what is changed."""
    steps: tuple[Step, ...] = ()
    """Those of files beside the records."""
    in_records: tuple[Step, ...] = RECORDS
    is_repeatable: bool = True
    """Whether a repetition changes nothing; otherwise it makes one more: where the answer is a secret that is not kept,
    and where there is no key.
    """

    def __str__(self) -> str:
        return self.name

    def all_steps(self, kind: str) -> Iterator[Step]:
        """With records in a database of this kind."""
        if kind == "sqlite":
            yield from self.in_records
        yield from self.steps
        yield from MOMENTS


def asked(slug: str, fields: Callable[[GameFixture, Fields], Fields], **more: Any) -> Change:
    """At the public door; `name` of several with one slug."""

    async def ask(fixture: GameFixture, wanted: Fields, key: str) -> Answer:
        return await fixture.developer.call(slug, key, **wanted)

    return Change(more.pop("name", slug), slug, ask, fields, **more)


def commanded(
    name: str, method: str, fields: Callable[[GameFixture, Fields], Fields], **more: Any
) -> Change:
    """`pyservice …` asks the control plane for it; there are no keys."""

    async def ask(fixture: GameFixture, wanted: Fields, _: str) -> Answer:
        return await fixture.command(method, **wanted)

    return Change(name, method, ask, fields, **more)
