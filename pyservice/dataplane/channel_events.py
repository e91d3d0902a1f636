"""Events of event channels. An event delivers the player token of a find, join or create to a
member of a party.
"""

from __future__ import annotations

import re
from typing import Final

from pyservice.calls import Call, Caller, Operation, TokenKind, WaitForChange
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.engine_commands import ChannelToken
from pyservice.dataplane.native import NativeMatchmaker
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import events_pb2 as pb
from pyservice.pb.hosting.v1 import matchmaker_pb2
from pyservice.watch import Topics

_GET: Final = "hosting.v1.Events.GetLiveEvents"
_BEARER: Final = re.compile(r"bearer +([A-Za-z0-9_-]{22,64}) *", re.IGNORECASE)


class ChannelEvents:
    def __init__(self, native: NativeMatchmaker, engine: Engine, topics: Topics) -> None:
        self._native = native
        self._engine = engine
        self._topics = topics
        engine.on_delivered = self._delivered

    def operations(self) -> dict[str, Operation]:
        return {_GET: Operation(_GET, self.authorize, self.get)}

    def authorize(self, call: Call) -> Caller:
        """Returns the caller for the event channel that the bearer secret identifies."""
        if not call.authorization:
            raise ServiceError("TOKEN_MISSING", "Send the secret of the event channel as bearer.")
        secret = _BEARER.fullmatch(call.authorization)
        if secret is None:
            raise ServiceError(
                "TOKEN_INVALID",
                "Send Authorization: Bearer <secret>, 22 to 64 characters of A-Z, a-z, 0-9, _ and -.",
            )
        channel = self._engine.player_records.channel(secret[1].encode())
        return Caller(TokenKind.CHANNEL, b"", b"", channel, call)

    async def get(
        self, request: pb.GetLiveEventsRequest, caller: Caller
    ) -> pb.GetLiveEventsResponse | WaitForChange:
        """Returns the unexpired events of the channel."""
        channel, topic = caller.identity, _topic(caller.identity)
        index = self._topics.index_of(topic)
        watch_index = request.watch_index if request.HasField("watch_index") else None
        wait = self._topics.wait_unless_changed(watch_index, caller.call, topic)
        if wait is not None:
            return wait
        response = pb.GetLiveEventsResponse()
        response.watch.index = index
        for channel_token in await self._engine.player_records.channel_events(
            channel, caller.call.deadline
        ):
            self._add(response, channel_token)
        return response

    def _add(self, answer: pb.GetLiveEventsResponse, channel_token: ChannelToken) -> None:
        reply = self._native.reply(channel_token.lobby, [channel_token.token])
        if reply is None:
            # The lobby has ended.
            return
        response = matchmaker_pb2.FindLobbyResponse.FromString(reply.proto())
        event = answer.events.add()
        event.ts.FromMilliseconds(channel_token.ts_ms)
        join = event.kind.matchmaker_lobby_join
        join.lobby.CopyFrom(response.lobby)
        join.player.CopyFrom(response.player)
        for name, port in response.ports.items():
            join.ports[name].CopyFrom(port)

    def _delivered(self, channel: bytes) -> None:
        self._topics.bump(_topic(channel))


def _topic(channel: bytes) -> str:
    return f"events:{channel.hex()}"
