"""When a node of a cluster is silent.

A node always has a request open at the service, so an open request shows that the node is alive. The
listener for nodes ends the requests of a node that does not answer its pings.
"""

from __future__ import annotations

from typing import Final

PING_INTERVAL_S: Final = 1.0
"""Time between two pings of the listener on one connection."""

PING_TIMEOUT_S: Final = 1.5
"""The requests of a node end if it has not answered a ping for this time."""

SILENT_AFTER_S: Final = 4.5
"""A node without a request for this time is silent.

So a node that is cut off is silent 6 to 7 s after its last sign, and a part that crashes has 4.5 s to start
again.
"""
