"""Times of Pods, as a watch of the API server sees them."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Final, Self

from tests.cluster.cluster import Cluster

_WATCH_S: Final = 5
"""Length of one watch. The next one goes on from its last version, so no event is missed."""


class PodEvents:
    """Follows the Pods of a namespace in a thread, in the network of the caller."""

    def __init__(self, cluster: Cluster, collection: str) -> None:
        self._client = cluster.api()
        self._collection = collection
        self._times: dict[str, dict[str, Any]] = {}
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_stopping.set()
        self._thread.join()
        self._client.close()

    def of(self, name: str) -> dict[str, Any]:
        """Returns `created` and `addressed` in seconds of Unix time, and `address`, as far as known."""
        return self._times.get(name, {})

    def _follow(self) -> None:
        query = {"watch": "true", "timeoutSeconds": str(_WATCH_S)}
        while not self._is_stopping.is_set():
            with self._client.stream("GET", self._collection, params=query) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    now_s, pod = time.time(), json.loads(line)["object"]
                    query["resourceVersion"] = pod["metadata"]["resourceVersion"]
                    self._note(pod, now_s)

    def _note(self, pod: dict[str, Any], now_s: float) -> None:
        times = self._times.setdefault(pod["metadata"]["name"], {"created": now_s})
        if "addressed" not in times and (address := pod.get("status", {}).get("podIP")):
            times |= {"addressed": now_s, "address": address}
