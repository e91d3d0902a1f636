from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyservice.calls import InternalCalls
from pyservice.control.batching import Batcher
from pyservice.edge_guard.admin_socket import OwnerSessions, SessionReading
from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import (
    facts_pb2,
    feed_pb2,
    runtime_pb2,
    signing_pb2,
    trials_pb2,
)

_log = get_logger("service")

_INTERNAL: Final = "hosting.internal.v1"
_SIGN_TIMEOUT_S: Final = 1.0
_RETRY_S: Final = 0.02
_WARN_AFTER: Final = 250
_ITEM_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of one namespace in bytes. The socket accepts four times as much."""
_ITEM_ERRORS: Final = frozenset({"INTERNAL", "BODY_INVALID"})
"""Error codes that one item can cause for a whole batch."""
_TIMEOUT_S: Final = 10.0
_READY_TIMEOUT_S: Final = 15.0
"""The data plane waits up to 10 s for edge-guard."""


class DataPlaneClient:
    def __init__(
        self, client: InternalCalls, address_found: Callable[[str], None] = lambda address: None
    ) -> None:
        self._client = client
        self._address_found = address_found
        # Each batcher has one call in flight, and the data plane applies calls in order of arrival.
        # So a revocation waits for at most one call of configurations.
        self._revocations, self._configurations = self._new_feed(), self._new_feed()
        self._reports = Batcher(self._report_many, is_of_one=_is_item_error)

    def _new_feed(self) -> Batcher[feed_pb2.ManyItem, feed_pb2.ApplyResponse]:
        return Batcher(
            self._apply_many, size_of=feed_pb2.ManyItem.ByteSize, is_of_one=_is_item_error
        )

    async def apply(
        self, request: feed_pb2.ApplyRequest, *, is_revocation: bool = False
    ) -> feed_pb2.ApplyResponse:
        feed = self._revocations if is_revocation else self._configurations
        return await self._feed(feed, feed_pb2.ManyItem(configuration=request.configuration))

    async def check(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse:
        item = feed_pb2.ManyItem(configuration=request.configuration, is_check=True)
        return await self._feed(self._configurations, item)

    async def _feed(
        self, feed: Batcher[feed_pb2.ManyItem, feed_pb2.ApplyResponse], item: feed_pb2.ManyItem
    ) -> feed_pb2.ApplyResponse:
        size = item.ByteSize()
        if size <= _ITEM_BYTES_MAX:
            return await feed.add(item, item.configuration.game.developer_group_id)
        reason = (
            f"takes {size:,} bytes with its tokens and domains, and the data plane accepts at most "
            f"{_ITEM_BYTES_MAX:,}: set a smaller version, revoke tokens or remove domains"
        )
        return feed_pb2.ApplyResponse(
            refused=feed_pb2.Refused(problems=[feed_pb2.Problem(reason=reason)])
        )

    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse:
        response: feed_pb2.RemoveResponse = await self._call("Feed.Remove", request)
        return response

    async def _apply_many(self, items: list[feed_pb2.ManyItem]) -> Sequence[feed_pb2.ApplyResponse]:
        response = await self._call("Feed.ApplyMany", feed_pb2.ApplyManyRequest(items=items))
        answers: Sequence[feed_pb2.ApplyResponse] = response.answers
        return answers

    async def held_configurations(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse:
        """Returns the revision of each namespace configuration that the data plane stores.

        Calls the constructor's `address_found` with the data plane's HTTP address, which the
        response contains.
        """
        response: feed_pb2.HeldResponse = await self._call("Feed.Held", request)
        if response.http_address:
            self._address_found(response.http_address)
        return response

    async def find_http_address(self) -> None:
        """Waits until the data plane has reported the address of its public HTTP server."""
        for tries in itertools.count():
            try:
                await self.held_configurations(feed_pb2.HeldRequest())
            except (Unreachable, ServiceError) as error:
                if tries == _WARN_AFTER:
                    _log.warning(
                        "address of the public HTTP server not known yet", error=str(error)
                    )
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def read_facts(self, request: facts_pb2.ReadRequest) -> facts_pb2.ReadResponse:
        response: facts_pb2.ReadResponse = await self._call(
            "Facts.Read", request, request.wait_ms / 1000 + _TIMEOUT_S
        )
        return response

    async def read_counts(self, request: facts_pb2.CountsRequest) -> facts_pb2.CountsResponse:
        response: facts_pb2.CountsResponse = await self._call(
            "Facts.Counts", request, request.wait_ms / 1000 + _TIMEOUT_S
        )
        return response

    async def slot_counts(
        self, lobby_ids: Sequence[str], sessions: SessionReading | None = None
    ) -> dict[str, facts_pb2.LobbySlots]:
        """Returns the slot counts of the lobbies that exist, by id. Accepts at most 1,000 ids.

        With the sessions of edge-guard, the counts have the suspect slots too.
        """
        request = facts_pb2.LobbiesRequest(lobby_ids=lobby_ids)
        if sessions is not None:
            request.sessions_age_ms = sessions.age_ms
            request.sessions.extend(_lobby_sessions(*one) for one in sessions.by_owner.items())
        response = await self._call("Facts.Lobbies", request)
        return {lobby.lobby_id: lobby for lobby in response.lobbies}

    async def desired_lobbies(
        self, request: runtime_pb2.WantedRequest
    ) -> runtime_pb2.WantedResponse:
        response: runtime_pb2.WantedResponse = await self._call(
            "Runtime.Wanted", request, request.wait_ms / 1000 + _TIMEOUT_S
        )
        return response

    async def start_trial(
        self, request: trials_pb2.StartTrialRequest
    ) -> trials_pb2.StartTrialResponse:
        response: trials_pb2.StartTrialResponse = await self._call("Trials.StartTrial", request)
        return response

    async def lease(self, request: runtime_pb2.LeaseRequest) -> runtime_pb2.LeaseResponse:
        response: runtime_pb2.LeaseResponse = await self._call("Runtime.Lease", request)
        return response

    async def place_server(self, request: runtime_pb2.PlaceServerRequest) -> None:
        await self._call("Runtime.PlaceServer", request)

    async def end_lease(self, server_id: str) -> None:
        await self._call("Runtime.EndLease", runtime_pb2.EndLeaseRequest(server_id=server_id))

    async def bind_ports(
        self, owner_id: str, node: str, host: str
    ) -> Mapping[str, runtime_pb2.PublicPort]:
        """Gives the lease of a lobby or server its ports at a node, and returns them by name.

        `host` is the address at which players reach the node.
        """
        request = runtime_pb2.BindPortsRequest(owner_id=owner_id, node=node, host=host)
        response: runtime_pb2.BindPortsResponse = await self._call("Runtime.BindPorts", request)
        return response.ports

    async def node_gone(self, node: str) -> None:
        """Returns the ports of a node that no longer exists."""
        await self._call("Runtime.NodeGone", runtime_pb2.NodeGoneRequest(node=node))

    async def empty_lobbies(self, empty_ms: int) -> Sequence[str]:
        """Returns the lobbies of the service that are ready, and empty for at least this time."""
        request = runtime_pb2.EmptyLobbiesRequest(empty_ms=empty_ms)
        response: runtime_pb2.EmptyLobbiesResponse = await self._call(
            "Runtime.EmptyLobbies", request
        )
        return response.lobby_ids

    async def leased_servers(self) -> Sequence[str]:
        response: runtime_pb2.LeasesResponse = await self._call(
            "Runtime.Leases", runtime_pb2.LeasesRequest()
        )
        return response.server_ids

    async def report(self, report: runtime_pb2.LobbyReport) -> None:
        await self._reports.add(report)

    async def report_alone(self, report: runtime_pb2.LobbyReport) -> None:
        """Sends a report that other reports must not wait for."""
        request = runtime_pb2.ReportRequest(reports=[report])
        await self._call("Runtime.Report", request, _READY_TIMEOUT_S)

    async def _report_many(self, reports: list[runtime_pb2.LobbyReport]) -> Sequence[None]:
        await self._call("Runtime.Report", runtime_pb2.ReportRequest(reports=reports))
        return [None] * len(reports)

    async def public_token(self, namespace_id: str, token_id: str) -> str:
        return await self._sign(
            signing_pb2.SignTokenRequest(
                kind=signing_pb2.SIGNED_KIND_PUBLIC, namespace_id=namespace_id, token_id=token_id
            )
        )

    async def development_token(self, namespace_id: str, token_id: str, expires_ms: int) -> str:
        return await self._sign(
            signing_pb2.SignTokenRequest(
                kind=signing_pb2.SIGNED_KIND_DEVELOPMENT,
                namespace_id=namespace_id,
                token_id=token_id,
                expires_ms=expires_ms,
            )
        )

    async def _sign(self, request: signing_pb2.SignTokenRequest) -> str:
        try:
            response = await self._call("Signing.SignToken", request, _SIGN_TIMEOUT_S)
        except Unreachable:
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "The data plane signs tokens and does not answer; try again.",
            ) from None
        token: str = response.token
        return token

    async def _call(self, name: str, request: Any, timeout_s: float = _TIMEOUT_S) -> Any:
        return await self._client.call(f"{_INTERNAL}.{name}", request, timeout_s)


def _lobby_sessions(lobby_id: str, sessions: OwnerSessions) -> facts_pb2.LobbySessions:
    return facts_pb2.LobbySessions(
        lobby_id=lobby_id,
        clients=(
            facts_pb2.ClientSessions(address=address, count=count)
            for address, count in sessions.by_address.items()
        ),
        others=sessions.others,
    )


def _is_item_error(error: Exception) -> bool:
    return isinstance(error, ServiceError) and error.code in _ITEM_ERRORS
