"""Loopback addresses: that of this test process, where its services listen, and that of IPv6.

A restarted service uses the same port again. At 127.0.0.1, an outgoing connection of any test
client could take this port meanwhile.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest

_OURS: Final = os.getpid()
OWN_ADDRESS: Final = f"127.{100 + (_OURS >> 16) % 100}.{_OURS >> 8 & 255}.{_OURS & 255}"
FREE_PORT: Final = f"{OWN_ADDRESS}:0"
HAS_IPV6: Final = Path("/proc/net/if_inet6").exists()
NEEDS_IPV6: Final = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")


def random_address() -> str:
    """Returns an address for a Pod. All Pods have the same port."""
    return f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"
