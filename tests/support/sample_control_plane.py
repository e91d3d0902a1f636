"""Internal servers on real sockets, with a few control plane operations.

They have a change counter for each topic.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message

from pyservice.calls import Call, Caller, Operation, Run, Share, TokenKind, WaitForChange
from pyservice.edge.http_application import HttpApplication
from pyservice.edge.http_server import HttpServer, listen_unix
from pyservice.errors import ServiceError
from pyservice.observability.metrics import RequestMetrics
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.pb.hosting.v1 import games_pb2, groups_pb2
from pyservice.rpc import NEXT_CHANGES, Handler, RpcServer, next_changes
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import LongPolls, Topics

GROUP = "00000000-0000-4000-8000-00000000000a"
OTHER_GROUP = "00000000-0000-4000-8000-00000000000b"
CLOUD = {"authorization": "Bearer cloud_c"}
BILLING = f"/cloud/groups/{GROUP}/billing"
VALIDATE = "/cloud/games/validate"
GROUPS = "hosting.v1.Groups"
GAMES = "hosting.v1.Games"


@dataclass
class SmallControl:
    """Control plane operations that record their calls."""

    calls: list[Call] = field(default_factory=list)
    topics: Topics = field(default_factory=Topics)
    paid: dict[str, str] = field(default_factory=dict)
    """Time of the last payment of each group, which the watch returns."""
    revoked: set[str] = field(default_factory=set)
    is_slow: bool = False
    waiting: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    reads: int = 0
    parks: int = 0
    polls: int = 0
    parked: asyncio.Condition = field(default_factory=asyncio.Condition)

    def operations(self) -> dict[str, Operation]:
        runs: dict[str, Run] = {
            f"{GROUPS}.GetGroupBilling": self.get_billing,
            f"{GROUPS}.GetGroup": self.get_group,
            f"{GROUPS}.CreateGroup": self.create_group,
            f"{GAMES}.ValidateGame": self.validate_game,
        }
        return {name: Operation(name, self.authorize, run) for name, run in runs.items()}

    async def authorize(self, call: Call) -> Caller:
        """Yields to the loop, as a database query does, so a later request may overtake this one."""
        self.calls.append(call)
        await asyncio.sleep(0)
        token = (call.authorization or "").removeprefix("Bearer ")
        if not token:
            raise ServiceError("TOKEN_MISSING")
        if token in self.revoked:
            raise ServiceError("TOKEN_REVOKED")
        return Caller(TokenKind.CLOUD, b"", b"", token.encode(), call)

    def pay(self, group_id: str, ts: str) -> None:
        self.paid[group_id] = ts
        self.topics.bump(f"group/{group_id}")

    async def get_billing(
        self, message: groups_pb2.GetGroupBillingRequest, caller: Caller
    ) -> Message | WaitForChange:
        topic = f"group/{message.group_id}"
        index = self.topics.index_of(topic)
        self.reads += 1
        caller.share = Share("key", (f"token/{caller.identity.decode()}", "tokens"))
        park = self.topics.wait_unless_changed(
            message.watch_index, caller.call, topic, rights=caller.share.rights
        )
        if park is not None:
            self.parks += 1
            return park
        answer = groups_pb2.GetGroupBillingResponse()
        if message.group_id in self.paid:
            answer.group.payment_succeeded_ts = self.paid[message.group_id]
        answer.group.SetInParent()
        answer.watch.index = index
        return answer

    async def get_group(self, message: groups_pb2.GetGroupRequest, caller: Caller) -> Message:
        raise ServiceError("GROUP_NOT_FOUND")

    async def create_group(self, message: groups_pb2.CreateGroupRequest, caller: Caller) -> Message:
        self.begun.set()
        if self.is_slow:
            self.waiting += 1
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.disconnected.set()
                raise
            finally:
                self.waiting -= 1
        return groups_pb2.CreateGroupResponse(group_id=GROUP)

    def next_changes(self) -> Handler:
        """Handles polls for changes. `polls` counts them when they arrive."""
        answer = next_changes(self.topics)

        async def counted(request: control_pb2.NextChangesRequest) -> Message:
            self.polls += 1
            return await answer(request)

        return counted

    async def validate_game(
        self, message: games_pb2.ValidateGameRequest, caller: Caller
    ) -> Message:
        answer = games_pb2.ValidateGameResponse()
        answer.errors.add(path=[str(len(message.display_name))], message="as long as this")
        return answer


class ControlServers:
    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.http_path = folder / "http.sock"
        self.grpc_path = folder / "grpc.sock"
        self._limits = limits or Limits()
        self._servers: tuple[HttpServer, RpcServer] | None = None

    async def start(self, control: SmallControl) -> None:
        api = TransportSettings(is_internal=True)
        metrics, limits, table = RequestMetrics(), self._limits, control.operations()
        long_polls = LongPolls(control.topics)
        app = HttpApplication(
            table, api, metrics, limits.control_plane_limit, long_polls=long_polls
        )
        http = HttpServer(app, [listen_unix(self.http_path)])
        await http.start()
        internal = {NEXT_CHANGES: control.next_changes()}
        address = f"unix:{self.grpc_path}"
        rpc = RpcServer(table, api, metrics, limits.control_plane_limit, address, internal=internal)
        await rpc.start()
        self._servers = (http, rpc)

    async def stop(self) -> None:
        if self._servers is not None:
            http, rpc = self._servers
            self._servers = None
            await asyncio.gather(http.stop(0.0), rpc.stop(0.0))
