"""Names that the kubelet gives to the control groups of Pods."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"(?:[a-z-]+-)?pod([0-9a-f_-]{36})(?:\.slice)?")
"""Name with the UID of the Pod: that of the driver `cgroupfs`, and that of `systemd`."""


def pod_uid(name: str) -> str | None:
    """Returns the UID of the Pod with a control group of this name. None: it is not that of a Pod."""
    match = _NAME.fullmatch(name)
    return None if match is None else match[1].replace("_", "-")
