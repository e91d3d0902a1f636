"""Streaming methods: each repeats a long poll until the client disconnects. Every repetition counts as one call."""

from __future__ import annotations

from typing import Any

import grpc

from pyservice.schema.methods import Stream

Context = grpc.aio.ServicerContext[bytes, bytes]


def stream_handler(
    repeated: grpc.RpcMethodHandler[bytes, bytes], stream: Stream
) -> grpc.RpcMethodHandler[bytes, bytes]:
    serve: Any = repeated.unary_unary

    async def serve_stream(data: bytes, context: Context) -> None:
        last_index = None
        while True:
            reply = await serve(data, context)
            index = stream.index_of(reply)
            if index != last_index:
                await context.write(reply)
            last_index = index
            data = stream.next_request(data, reply)

    return grpc.unary_stream_rpc_method_handler(serve_stream)
