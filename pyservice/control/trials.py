"""Trials of versions: the operation that starts one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.feed_messages import FeedComposer, refusal_error
from pyservice.control.idempotent_changes import Change, RecordContext
from pyservice.control.name_rules import require_valid
from pyservice.errors import FieldProblem, ServiceError, Unreachable, field_problem
from pyservice.pb.hosting.internal.v1 import configuration_pb2, trials_pb2
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.storage.database import Transaction

TIMEOUT_MS: Final = 60_000

_NOTHING_STARTED: Final = "The data plane refuses this version. No trial was started."


class TrialClient(Protocol):
    async def start_trial(
        self, request: trials_pb2.StartTrialRequest
    ) -> trials_pb2.StartTrialResponse: ...


@dataclass(frozen=True, slots=True)
class TrialOperations:
    records: RecordContext
    composer: FeedComposer
    client: TrialClient

    async def start(self, request: pb.StartTrialRequest, caller: Caller) -> pb.StartTrialResponse:
        async def check_replay(tx: Transaction, _: pb.StartTrialResponse) -> bool:
            await authorization.find_namespace(tx, caller, request)
            return True

        @contextlib.asynccontextmanager
        async def open_change() -> AsyncIterator[Change[pb.StartTrialResponse]]:
            lobby_id = await self._start(request, caller)

            async def change(_: Transaction) -> pb.StartTrialResponse:
                return pb.StartTrialResponse(lobby_id=lobby_id)

            yield change

        return await self.records.changes.apply_with_resource(
            caller, request, pb.StartTrialResponse, open_change, check_replay
        )

    async def _start(self, request: pb.StartTrialRequest, caller: Caller) -> str:
        async with self.records.database.read() as tx:
            row = await authorization.find_namespace(tx, caller, request, request.version_id)
            if not row.has_version:
                raise ServiceError("VERSION_NOT_FOUND")
            message = await self.composer.compose(
                tx, row.namespace_id, version_id=request.version_id
            )
        if message is None or not message.versions:
            raise ServiceError("VERSION_NOT_FOUND")
        require_valid(list(_mode_problems(message, request.game_mode)))
        timeout_ms = request.timeout_ms if request.HasField("timeout_ms") else TIMEOUT_MS
        try:
            response = await self.client.start_trial(
                trials_pb2.StartTrialRequest(
                    configuration=message, game_mode=request.game_mode, timeout_ms=timeout_ms
                )
            )
        except Unreachable:
            raise _unavailable() from None
        except ServiceError as error:
            if error.code == "NAMESPACE_NOT_FOUND":
                # The feed has not sent the new namespace yet.
                raise _unavailable() from None
            raise
        if response.HasField("refused"):
            raise refusal_error(message, response.refused, _NOTHING_STARTED, {})
        return response.lobby_id


def _mode_problems(
    message: configuration_pb2.NamespaceConfiguration, name: str
) -> Iterator[FieldProblem]:
    matchmaker = message.versions[0].matchmaker
    mode = matchmaker.game_modes.get(name)
    if mode is None:
        yield field_problem(["game_mode"], "not-found", "is not a game mode of the version")
        return
    docker = mode.docker if mode.HasField("docker") else matchmaker.docker
    if not docker.HasField("image_id"):
        yield field_problem(
            ["game_mode"], "not-allowed", "has no build, so the service starts nothing"
        )


def _unavailable() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "The data plane, which starts the trial, does not answer yet; try again.",
    )
