"""Whether the data plane holds of a namespace what the records say, where both say the same revision.

Records of a backup count on from their own time: what they call a revision then, the data plane may hold as another
change. Each namespace is looked at when the data plane says what it holds, a few at a time beside all else. What is
done about a difference is `feeder`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from pyservice.control.feeding import Wish
from pyservice.control.going_on import GoingOn
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.schema.digests import digest_of

_AT_ONCE: Final = 16
"""They take the loop a few milliseconds."""
_ON_LOOP_BYTES_MAX: Final = 16 * 1024
"""A larger one is digested in a thread."""
_REST: Final = 4
"""So many times as long as it took, others have the loop."""

Message = configuration_pb2.NamespaceConfiguration
Compose = Callable[[Sequence[Wish]], Awaitable[Sequence[Message | None]]]


class Contents:
    """What is left to be looked at."""

    def __init__(self, compose: Compose, differs: Callable[[str], None], going: GoingOn) -> None:
        """`differs` hears of a namespace that is held otherwise; of some it may hear although they are not."""
        self._compose = compose
        self._differs = differs
        self._going = going
        self._left: dict[str, feed_pb2.HeldConfiguration] = {}
        self._is_any = asyncio.Event()

    def compare(self, held: Iterable[feed_pb2.HeldConfiguration]) -> None:
        """These, and not those any more of which it was said before."""
        self._left = {one.namespace_id: one for one in held}
        self._is_any.set()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._is_any.wait()
            began_s = loop.time()
            await self._going.until_done(self._some)
            await asyncio.sleep((loop.time() - began_s) * _REST)

    async def _some(self) -> None:
        left = self._left
        some = list(islice(left.values(), _AT_ONCE))
        messages = await self._compose([Wish(one.namespace_id) for one in some]) if some else ()
        for held, message in zip(some, messages, strict=True):
            # What was changed since is on its way, and what has another order is wanted already.
            if message is not None and await _is_other(message, held):
                self._differs(held.namespace_id)
            left.pop(held.namespace_id, None)
        if not self._left:
            self._is_any.clear()


async def _is_other(message: Message, held: feed_pb2.HeldConfiguration) -> bool:
    if (message.source_epoch, message.revision) != (held.source_epoch, held.revision):
        return False
    if message.ByteSize() <= _ON_LOOP_BYTES_MAX:
        return digest_of(message) != held.content
    return await asyncio.to_thread(digest_of, message) != held.content
