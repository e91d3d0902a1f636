"""Where this worker's services listen: at a loopback address that no other test process uses.

A service that is started again takes the port it had. At 127.0.0.1 somebody's outgoing connection may have drawn that
number meanwhile: the clients of all tests come from there.
"""

from __future__ import annotations

import os
from typing import Final

_OURS: Final = os.getpid()
OWN_ADDRESS: Final = f"127.{100 + (_OURS >> 16) % 100}.{_OURS >> 8 & 255}.{_OURS & 255}"
FREE_PORT: Final = f"{OWN_ADDRESS}:0"
