"""Loopback address of this test process, where its services listen.

A restarted service uses the same port again. At 127.0.0.1, an outgoing connection of any test
client could take this port meanwhile.
"""

from __future__ import annotations

import os
from typing import Final

_OURS: Final = os.getpid()
OWN_ADDRESS: Final = f"127.{100 + (_OURS >> 16) % 100}.{_OURS >> 8 & 255}.{_OURS & 255}"
FREE_PORT: Final = f"{OWN_ADDRESS}:0"
