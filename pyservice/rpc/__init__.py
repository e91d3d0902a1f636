"""The gRPC door, the internal gRPC on a unix socket, and its client. The only importer of grpc."""

from pyservice.rpc.internal import Handler, InternalClient, InternalServer, Unreachable
from pyservice.rpc.server import RpcServer

__all__ = ["Handler", "InternalClient", "InternalServer", "RpcServer", "Unreachable"]
