"""Name of the person that runs a command."""

from __future__ import annotations

import getpass
import os


def login_name() -> str:
    """Returns the login name, also behind sudo."""
    name = os.environ.get("SUDO_USER")
    if name:
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may have no name for its user.
        return f"user {os.getuid()}"
