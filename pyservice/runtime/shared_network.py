"""Rule for a network without isolation: game servers of only one developer group run at a time."""

from __future__ import annotations

from typing import Final

NETWORK_NOT_ISOLATED: Final = "the network of game servers is not isolated"

_SENTENCE: Final = (
    "this {place} cannot isolate the network, and game servers of another developer group run on it: "
    "ask the operator for network isolation or for runtime.allow_shared_network"
)
NODE_IS_SHARED: Final = _SENTENCE.format(place="node")
CLUSTER_IS_SHARED: Final = _SENTENCE.format(place="cluster")
