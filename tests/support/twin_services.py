"""Services with equal records, the twins, one for each way to the control plane."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from tests.support.data_plane_clients import PlaneHttpClient
from tests.support.four_ways import WAYS, Ways
from tests.support.full_service import FullService, running
from tests.support.loopback import FREE_PORT
from tests.support.twin import UUID, Twin

_WITHOUT_FRONT: Final[dict[str, Any]] = {"front": "off", "control_http": FREE_PORT}
_OF_ONE_RESPONSE: Final = (
    (re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]+Z"), b"time"),
    (re.compile(rb"\b(cloud|env|pub|dev|link)_[A-Za-z0-9._-]{20,}"), rb"\1 token"),
    (re.compile(rb"\b127(?:\.\d+){3}(?::\d+)?"), b"address"),
    (re.compile(rb'("(?:cursor|index)": ?)"[^"]+"'), rb'\1"position"'),
)


class ServiceTwin(Twin):
    def with_names(self, body: bytes) -> bytes:
        """Replaces also times, tokens and addresses. A new id is named by its number."""
        for value in UUID.findall(body):
            if (text := value.decode()) not in self._names:
                self.put(f"id-{len(self.values)}", text)
        named = super().with_names(body)
        for pattern, word in _OF_ONE_RESPONSE:
            named = pattern.sub(word, named)
        return named


@contextlib.asynccontextmanager
async def twin_services(folder: Path) -> AsyncIterator[tuple[Ways, Sequence[Twin]]]:
    """Starts a service for each way. The names are `owner.token` and `owner.group`."""
    twins: list[Twin] = []
    grpc_addresses = {}
    async with AsyncExitStack() as stack:
        for way in WAYS:
            has_front = way.startswith("front")
            settings = {} if has_front else _WITHOUT_FRONT
            service = FullService(folder / str(len(twins)), **settings)
            ready = stack.enter_context(running(service)).ready
            client = PlaneHttpClient(ready["http" if has_front else "control_http"])
            # Without the front, the control plane serves gRPC at its unix socket alone.
            socket = f"unix:{service.data_dir}/control/grpc.sock"
            grpc_addresses[way] = ready["grpc"] if has_front else socket
            twin = ServiceTwin(name=way, client=client)
            twin.put("owner.token", service.cloud_token)
            twin.put("owner.group", service.group_id)
            twins.append(twin)
            stack.push_async_callback(client.close)
        ways = Ways(twins, grpc_addresses)
        stack.push_async_callback(ways.close)
        yield ways, twins
