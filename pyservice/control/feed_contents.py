"""Whether the data plane holds of a namespace what the records say, where both say the same revision.

Records of a backup count on from their own time: what they call a revision then, the data plane may hold as another
change. Each namespace is looked at when the data plane says what it holds, a few at a time beside all else; one whose
records cannot be read is told once, and looked at again later. What is done about a difference is `feeder`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Final

from pyservice.control.batches import Batches
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
_AGAIN_S: Final = 30.0
"""What could not be composed is looked at again after this time."""

Message = configuration_pb2.NamespaceConfiguration
Held = feed_pb2.HeldConfiguration
Compose = Callable[[Sequence[Wish]], Awaitable[Sequence[Message | None]]]


class Contents:
    """What is left to be looked at."""

    def __init__(self, compose: Compose, differs: Callable[[str], None], going: GoingOn) -> None:
        """`differs` hears of a namespace that is held otherwise; of some it may hear although they are not."""
        # Of its own: what the feeder sends does not wait for these.
        self._messages = Batches(compose, is_of_one=lambda error: not going.is_foreseen(error))
        self._differs = differs
        self._going = going
        self._left: dict[str, Held] = {}
        self._aside: dict[str, Held] = {}
        """They could not be composed."""
        self._told: set[str] = set()
        """Namespaces of which that was said."""
        self._is_any = asyncio.Event()

    def compare(self, held: Iterable[Held]) -> None:
        """These, and not those any more of which it was said before."""
        self._left = {one.namespace_id: one for one in held}
        self._aside = {}
        self._is_any.set()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        pauses = self._going.pauses()
        while True:
            await self._until_any()
            began_s = loop.time()
            if await self._going.attempt(self._some) is not None:
                await pauses.pause()
                continue
            pauses.begin_anew()
            await asyncio.sleep((loop.time() - began_s) * _REST)

    async def _until_any(self) -> None:
        try:
            async with asyncio.timeout(_AGAIN_S if self._aside else None):
                await self._is_any.wait()
        except TimeoutError:
            self.compare(self._aside.values())

    async def _some(self) -> None:
        left = self._left
        some = list(islice(left.values(), _AT_ONCE))
        composing = (self._messages.add(Wish(one.namespace_id)) for one in some)
        composed = await asyncio.gather(*composing, return_exceptions=True)
        broken: dict[str, Exception] = {}
        for held, found in zip(some, composed, strict=True):
            if isinstance(found, BaseException):
                broken[held.namespace_id] = self._of_one(found)
                self._aside[held.namespace_id] = held
            # What was changed since is on its way, and what has another order is wanted already.
            elif found is not None and await _is_other(found, held):
                self._differs(held.namespace_id)
            left.pop(held.namespace_id, None)
        self._tell(broken, {one.namespace_id for one in some})
        if not self._left:
            self._is_any.clear()

    def _of_one(self, error: BaseException) -> Exception:
        """What a namespace alone is to blame for. Raises the others."""
        if not isinstance(error, Exception) or self._going.is_foreseen(error):
            raise error
        return error

    def _tell(self, broken: Mapping[str, Exception], looked_at: Set[str]) -> None:
        """Once, as long as they are broken, and of several together: a traceback takes the loop for long."""
        news = [name for name in broken if name not in self._told]
        self._told -= looked_at
        self._told |= broken.keys()
        if news:
            self._going.met(broken[news[0]], namespace_ids=news)


async def _is_other(message: Message, held: Held) -> bool:
    if (message.source_epoch, message.revision) != (held.source_epoch, held.revision):
        return False
    if message.ByteSize() <= _ON_LOOP_BYTES_MAX:
        return digest_of(message) != held.content
    return await asyncio.to_thread(digest_of, message) != held.content
