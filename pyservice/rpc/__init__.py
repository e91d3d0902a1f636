"""The gRPC transport: public server, internal server and client. No other package imports grpc."""

from pyservice.rpc.forwarding import RpcForwarder
from pyservice.rpc.grpc_server import RpcServer
from pyservice.rpc.internal_grpc import (
    NEXT_CHANGES,
    ChangesPoll,
    Handler,
    InternalClient,
    InternalServer,
    Unreachable,
    next_changes,
)

__all__ = [
    "NEXT_CHANGES",
    "ChangesPoll",
    "Handler",
    "InternalClient",
    "InternalServer",
    "RpcForwarder",
    "RpcServer",
    "Unreachable",
    "next_changes",
]
