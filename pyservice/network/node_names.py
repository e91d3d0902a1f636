"""Names of the service and of its nodes in their certificates."""

from __future__ import annotations

import re
from typing import Final

SERVICE_HOST: Final = "service.hosting"
"""Name in the certificate of the service."""

_NODE_SUFFIX: Final = ".node.hosting"
_HOST_NAME_MAX: Final = 253
NODE_NAME_MAX: Final = _HOST_NAME_MAX - len(_NODE_SUFFIX)

_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NODE_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def is_node_name(name: str) -> bool:
    """Returns whether a node can have this name: words as in host names, at most 240 characters."""
    return len(name) <= NODE_NAME_MAX and _NODE_NAME.fullmatch(name) is not None


def host_of_node(node: str) -> str:
    """Returns the name in the certificate of a node."""
    return f"{node}{_NODE_SUFFIX}"


def node_of_host(host: str) -> str | None:
    """Returns the node with this name in its certificate. Returns None for any other name."""
    node = host.removesuffix(_NODE_SUFFIX)
    return node if node != host and is_node_name(node) else None
