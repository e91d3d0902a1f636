"""Minimal grpcio server for `connected`: an asyncio handler parses the message and returns an empty one.

Uses the service's event loop and generated messages, without interceptors.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop

from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb


async def connected(request: Any, _context: Any) -> Any:
    assert request.player_token
    return pb.PlayerConnectedResponse()


async def serve(say_address: Callable[[str], object]) -> None:
    """Runs the gRPC server until SIGTERM."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        connected,
        request_deserializer=pb.PlayerConnectedRequest.FromString,
        response_serializer=pb.PlayerConnectedResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler(
        "hosting.v1.Matchmaker", {"PlayerConnected": handler}
    )
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    say_address(f"127.0.0.1:{port}")
    await stop.wait()
    await server.stop(0)


def main() -> None:
    """Runs `bare_grpc READY_FILE`: listens on a free port and writes the address."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1]).write_text))


if __name__ == "__main__":
    main()
