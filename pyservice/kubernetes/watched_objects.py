"""Objects of a cluster that are followed with a list and a watch.

After each end of a watch the objects are listed again, and compared with the known ones. So no
change and no deletion is missed, whatever ends a watch.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn, Protocol

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.kubernetes.api import ApiError, Collection, KubernetesApi, Object, pause_after
from pyservice.observability.logging import get_logger

_RETRIES_S: Final = doubling(0.1, 5.0)

_log = get_logger("kubernetes")


class Observer(Protocol):
    """Receives every object and its changes. Its methods must not block."""

    def observe(self, found: Object) -> None:
        """Receives an object that is new, may have changed, or is listed again."""
        ...

    def observe_gone(self, name: str, uid: str, last: Object | None) -> None:
        """Receives the end of an object: it was deleted, or has lost the labels of the watch.

        `last` is its last state, or None if the end was noticed by a list.
        """
        ...


class WatchedObjects:
    def __init__(
        self, api: KubernetesApi, collection: Collection, observer: Observer, selector: str = ""
    ) -> None:
        self._api = api
        self._collection = collection
        self._observer = observer
        self._selector = selector
        self._uids: dict[str, str] = {}
        self._version = ""

    async def list_(self) -> None:
        """Lists all objects as they are now, and reports those that are gone. Raises ApiError."""
        found: dict[str, str] = {}
        version = ""
        async for page in self._api.list_pages(self._collection, selector=self._selector):
            version = version or page.version
            for one in page.objects:
                name, uid = _identity(one)
                found[name] = uid
                self._observe(name, uid, one)
        for name, uid in list(self._uids.items()):
            if name not in found:
                del self._uids[name]
                self._observer.observe_gone(name, uid, None)
        self._version = version

    async def run(self) -> NoReturn:
        """Follows the objects until it is cancelled. Retries every error of the API server."""
        backoff = Backoff(_RETRIES_S)
        while True:
            try:
                if not self._version:
                    await self.list_()
                await self._watch(backoff)
            except ApiError as error:
                self._report(error, backoff)
                await pause_after(error, backoff.next_s())
            else:
                # The API server ends each watch now and then.
                await asyncio.sleep(backoff.next_s())
            finally:
                self._version = ""

    async def _watch(self, backoff: Backoff) -> None:
        watch = self._api.watch(self._collection, self._version, selector=self._selector)
        async for change in watch:
            backoff.reset()
            if change.kind == "BOOKMARK":
                continue
            name, uid = _identity(change.object)
            if change.kind != "DELETED":
                self._observe(name, uid, change.object)
            elif self._uids.get(name) == uid:
                del self._uids[name]
                self._observer.observe_gone(name, uid, change.object)

    def _observe(self, name: str, uid: str, found: Object) -> None:
        earlier = self._uids.get(name)
        self._uids[name] = uid
        if earlier is not None and earlier != uid:
            self._observer.observe_gone(name, earlier, None)
        self._observer.observe(found)

    def _report(self, error: ApiError, backoff: Backoff) -> None:
        # An expired version is usual after a long pause.
        if error.status == 410:
            _log.debug("cluster is listed again", error=str(error))
        elif not backoff.failures or error.is_final:
            _log.warning("cluster is not followed, and tried again", error=str(error))


def _identity(one: Object) -> tuple[str, str]:
    metadata = one["metadata"]
    return metadata["name"], metadata.get("uid", "")
