"""Program that compares the counted bytes of many namespaces with the memory of its process.

`python -m tests.dataplane.measured_namespaces KIND ITEMS NAMESPACES` prints both, in bytes.
"""

from __future__ import annotations

import gc
import os
import sys
from hashlib import sha256

from pyservice.dataplane.namespace_index import NamespaceIndex, prepare_namespace
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from tests.support.namespace_configurations import configuration

_EXPIRES_MS = 1_900_000_000_000
_LONG_NAME = ".".join(["a" * 60] * 4)


def _id(namespace: int, number: int) -> str:
    return f"0192f000-0000-7000-{0x8000 + namespace:04x}-{number:012x}"


def _add(message: pb.NamespaceConfiguration, kind: str, namespace: int, number: int) -> None:
    token_id = _id(namespace, number)
    match kind:
        case "env":
            digest = sha256(token_id.encode()).digest()
            message.environment_tokens.add(
                token_id=token_id, sha256=digest, expires_ms=_EXPIRES_MS + number
            )
        case "dev":
            hostname = f"{_LONG_NAME}.{number:06}"
            token = message.development_tokens.add(
                token_id=token_id, expires_ms=_EXPIRES_MS + number, hostname=hostname
            )
            for port in range(16):
                target = token.ports[f"{port:02}-{'p' * 23}"]
                target.protocol, target.port = "tcp_tls", 10_000 + port
        case "revoked":
            message.revoked_token_ids.append(token_id)
        case "domain":
            message.access.domains.append(f"{number:06}.{_LONG_NAME}")
        case "retained":
            message.retained_versions.add(
                version_id=token_id, display_name="1.0.0", retired_ts_ms=_EXPIRES_MS + number
            )


def _content(kind: str, items: int, namespace: int) -> bytes:
    message = configuration(namespace_id=_id(namespace, 1 << 40), name_id=f"n{namespace}")
    for number in range(items):
        _add(message, kind, namespace, number)
    return message.SerializeToString()


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(kind: str, items: int, namespaces: int) -> None:
    index = NamespaceIndex()

    def put(namespace: int) -> None:
        message = pb.NamespaceConfiguration.FromString(_content(kind, items, namespace))
        index.put_namespace(prepare_namespace(message, index.held_versions))

    # The first one takes memory that all later ones use again.
    put(0)
    resident, counted = _resident_bytes(), index.held_versions.bytes_held
    for namespace in range(1, namespaces + 1):
        put(namespace)
    print(_resident_bytes() - resident, index.held_versions.bytes_held - counted)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
