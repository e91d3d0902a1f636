"""A change of the records, as the kill tests request it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.faults.control.game_fixture import Fields, GameFixture
from tests.support.full_service import ServiceResponse
from tests.support.killed_service import MOMENTS, RECORDS, Step

Ask = Callable[[GameFixture, Fields, str], Awaitable[ServiceResponse]]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the records. `fields` builds the request from earlier responses."""

    name: str
    operation: str
    ask: Ask
    fields: Callable[[GameFixture, Fields], Fields]
    prepare: Callable[[GameFixture], Awaitable[Any]] | None = None
    steps: tuple[Step, ...] = ()
    """Kill steps at calls on files outside of the database."""
    in_records: tuple[Step, ...] = RECORDS
    is_repeatable: bool = True
    """False if a retry creates another record."""

    def __str__(self) -> str:
        return self.name

    def all_steps(self, kind: str) -> Iterator[Step]:
        if kind == "sqlite":
            yield from self.in_records
        yield from self.steps
        yield from MOMENTS


def by_operation(slug: str, fields: Callable[[GameFixture, Fields], Fields], **more: Any) -> Change:
    async def ask(fixture: GameFixture, request_fields: Fields, key: str) -> ServiceResponse:
        return await fixture.developer.call(slug, key, **request_fields)

    return Change(more.pop("name", slug), slug, ask, fields, **more)


def by_command(
    name: str, method: str, fields: Callable[[GameFixture, Fields], Fields], **more: Any
) -> Change:
    async def ask(fixture: GameFixture, request_fields: Fields, _: str) -> ServiceResponse:
        return await fixture.command(method, **request_fields)

    return Change(name, method, ask, fields, **more)
