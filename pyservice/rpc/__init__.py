"""The gRPC door, the internal gRPC on a unix socket, and its client. The only importer of grpc."""

from pyservice.rpc.changes import NEXT_CHANGES, ChangesPoll, next_changes
from pyservice.rpc.internal import Handler, InternalClient, InternalServer, Unreachable
from pyservice.rpc.passing import RpcPassing
from pyservice.rpc.server import RpcServer

__all__ = [
    "NEXT_CHANGES",
    "ChangesPoll",
    "Handler",
    "InternalClient",
    "InternalServer",
    "RpcPassing",
    "RpcServer",
    "Unreachable",
    "next_changes",
]
