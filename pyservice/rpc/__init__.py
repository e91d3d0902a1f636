"""The gRPC transport: server, internal server and client. No other package imports grpc."""

from pyservice.rpc.grpc_server import RpcServer
from pyservice.rpc.internal_grpc import (
    NEXT_CHANGES,
    ChangesPoll,
    Handler,
    InternalClient,
    InternalServer,
    next_changes,
)

__all__ = [
    "NEXT_CHANGES",
    "ChangesPoll",
    "Handler",
    "InternalClient",
    "InternalServer",
    "RpcServer",
    "next_changes",
]
