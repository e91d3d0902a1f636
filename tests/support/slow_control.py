from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from google.protobuf.message import Message

from pyservice.calls import Caller, WaitForChange
from pyservice.pb.hosting.v1 import groups_pb2
from tests.support.forwarding_pair import SmallControl


@dataclass
class SlowRecords(SmallControl):
    """Reads for the tokens and groups in `slow` wait for `may_end`."""

    slow: set[str] = field(default_factory=set)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    reading: int = 0

    async def get_billing(
        self, message: groups_pb2.GetGroupBillingRequest, caller: Caller
    ) -> Message | WaitForChange:
        answer = await super().get_billing(message, caller)
        if not self.slow.isdisjoint((message.group_id, caller.identity.decode())):
            self.reading += 1
            try:
                await self.may_end.wait()
            finally:
                self.reading -= 1
        return answer
