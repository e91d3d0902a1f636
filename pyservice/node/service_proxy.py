"""Requests of the edge-guard of a node to the data plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import routes_pb2
from pyservice.rpc import Handler
from pyservice.rpc.node_grpc import NodeClient

_FOLLOW: Final = "hosting.internal.v1.Routes.Follow"
_COUNT_SESSIONS: Final = "hosting.internal.v1.Routes.CountSessions"
_MARGIN_S: Final = 5.0
"""Time for a response beyond the requested wait."""

_log = get_logger("node")


class ServiceProxy:
    """Passes the requests of edge-guard on to the service, with the name of this node."""

    def __init__(self, client: NodeClient, node: str) -> None:
        self._client = client
        self._node = node
        self.problem: str | None = "has not answered yet"
        """Why the service does not answer, or None."""
        self._is_reached: bool | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {_FOLLOW: self._follow, _COUNT_SESSIONS: self._count_sessions}

    async def _follow(self, request: routes_pb2.FollowRequest) -> routes_pb2.FollowResponse:
        timeout_s = request.wait_ms / 1000 + _MARGIN_S
        response: routes_pb2.FollowResponse = await self._pass_on(_FOLLOW, request, timeout_s)
        return response

    async def _count_sessions(
        self, request: routes_pb2.CountSessionsRequest
    ) -> routes_pb2.CountSessionsResponse:
        response: routes_pb2.CountSessionsResponse
        response = await self._pass_on(_COUNT_SESSIONS, request, _MARGIN_S)
        return response

    async def _pass_on(self, name: str, request: Any, timeout_s: float) -> Any:
        request.node = self._node
        try:
            response = await self._client.call(name, request, timeout_s)
        except Unreachable as error:
            self._note_problem(str(error))
            # Edge-guard serves its last routes, and repeats the request.
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", str(error)) from None
        except ServiceError as error:
            self._note_problem(str(error))
            raise
        self._note_problem(None)
        return response

    def _note_problem(self, problem: str | None) -> None:
        self.problem = problem
        is_reached = problem is None
        if is_reached == self._is_reached:
            return
        self._is_reached = is_reached
        if is_reached:
            _log.info("service reached", node=self._node)
        else:
            _log.error("service not reached", node=self._node, problem=problem)
