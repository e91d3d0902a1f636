"""How a configuration is kept: as the bytes of its message, and as the JSON text that answers give.

Both are of the same configuration whenever they were made: the bytes are deterministic, maps of the
text come in the order of their keys.
"""

from __future__ import annotations

from typing import Final

import orjson

from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.methods import descriptor_of
from pyservice.schema.prepared import Prepared
from pyservice.schema.writing import compile_writer

_write: Final = compile_writer(descriptor_of(pb.CloudConfig))


def encode(config: pb.CloudConfig) -> bytes:
    """The configuration as it is kept."""
    return config.SerializeToString(deterministic=True)


def decode(kept: bytes) -> pb.CloudConfig:
    """What `encode` made. Raises google.protobuf.message.DecodeError for what it did not make."""
    return pb.CloudConfig.FromString(kept)


def json_of(config: pb.CloudConfig) -> bytes:
    """The JSON text of the configuration, as the doors would write it."""
    return orjson.dumps(_write(config))


def version_answer(
    kept: bytes, config_json: bytes, create_ts: str, display_name: str, version_id: str
) -> Prepared:
    """A `GetVersionResponse` of what `encode` and `json_of` made of one configuration. Writing 4 KB of
    JSON from a message takes a hundred times as long as putting kept text into an answer.
    """

    def make() -> pb.GetVersionResponse:
        version = pb.GameVersion(
            config=decode(kept),
            create_ts=create_ts,
            display_name=display_name,
            version_id=version_id,
        )
        return pb.GetVersionResponse(version=version)

    rest = orjson.dumps(
        {"create_ts": create_ts, "display_name": display_name, "version_id": version_id}
    )
    return Prepared(b'{"version":{"config":' + config_json + b"," + rest[1:] + b"}", make)
