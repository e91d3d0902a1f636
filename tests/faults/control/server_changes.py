"""Changes that start and end game servers, from old and new builds and in containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.faults.control.change import by_operation
from tests.faults.control.game_fixture import Fields, GameFixture
from tests.support import container_images
from tests.support.killed_service import (
    ENDED,
    ENDED_IN_RECORDS,
    IN_CONTAINER,
    RECORDS,
    STARTED,
    STARTED_IN_RECORDS,
    UNPACKED,
    Step,
)


def _new_server(fixture: GameFixture, _: Fields) -> Fields:
    return fixture.servers.request()


def _the_server(timeout_ms: int) -> Callable[[GameFixture, Fields], Fields]:
    def fields(fixture: GameFixture, _: Fields) -> Fields:
        named = {"server_id": fixture.server_id, "override_kill_timeout": timeout_ms}
        return {**fixture.environment, **named}

    return fields


_IN_ITS_TIME_MS: Final = 400
_WHILE_IT_ENDS: Final = tuple(
    Step(f"{delay_ms} ms after the stop command", "control", delay_ms=delay_ms)
    for delay_ms in (100, _IN_ITS_TIME_MS - 10, _IN_ITS_TIME_MS + 10)
)

_OF_ARCHIVES: Final = (
    by_operation(
        "create_server",
        _new_server,
        prepare=lambda fixture: fixture.servers.prepare(),
        steps=STARTED,
        in_records=(*RECORDS, *STARTED_IN_RECORDS),
    ),
    by_operation(
        "destroy_server",
        _the_server(0),
        prepare=GameFixture.new_server,
        steps=ENDED,
        in_records=(*RECORDS, *ENDED_IN_RECORDS),
    ),
    by_operation(
        "destroy_server",
        _the_server(_IN_ITS_TIME_MS),
        name="destroy a server in its time",
        prepare=GameFixture.new_server,
        steps=(*ENDED, *_WHILE_IT_ENDS),
        in_records=(*RECORDS, *ENDED_IN_RECORDS),
    ),
    by_operation(
        "create_server",
        _new_server,
        name="create a server of a new build",
        prepare=lambda fixture: fixture.servers.prepare_new(),
        steps=UNPACKED,
        in_records=(),
    ),
)
_IN_CONTAINERS: Final = (
    by_operation(
        "create_server",
        _new_server,
        name="create a server in a container",
        prepare=lambda fixture: fixture.servers.prepare_contained(),
        steps=(*STARTED, *IN_CONTAINER),
        in_records=STARTED_IN_RECORDS,
    ),
    by_operation(
        "destroy_server",
        _the_server(0),
        name="destroy a server in a container",
        prepare=lambda fixture: fixture.new_server(is_contained=True),
        steps=ENDED,
        in_records=ENDED_IN_RECORDS,
    ),
)
SERVER_CHANGES: Final = (
    *_OF_ARCHIVES,
    *(_IN_CONTAINERS if container_images.has_oci_runtime() else ()),
)
