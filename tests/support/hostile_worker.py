"""Program that tries what a hostile build could do to a build worker.

Usage: `python -c <this text> <JSON goals>`. Prints the error name of each attempt as JSON, or
`done` if the attempt succeeded.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

goals = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
TOO_MUCH_BYTES = 3 << 30
FAMILIES = 46
PTRACE_ATTACH = 16
CLONE_NEWUSER = 0x10000000


def error_of(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except (MemoryError, RuntimeError) as error:
        return type(error).__name__
    return "done"


def call(name: str, *arguments: int) -> None:
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def overwrite(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))


def read(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


service, files = goals["service"], goals["files"]
attempts: dict[str, Callable[[], Any]] = {
    "socket pair": socket.socketpair,
    "create beside the target": partial(overwrite, goals["beside"]),
    "list beside the target": partial(os.listdir, os.path.dirname(goals["beside"])),
    "environment of the service": partial(read, f"/proc/{service}/environ"),
    "descriptor of the service": partial(os.fstat, goals["descriptor"]),
    "signal": partial(os.kill, service, 0),
    "trace": partial(call, "ptrace", PTRACE_ATTACH, service, 0, 0),
    "priority": partial(os.setpriority, os.PRIO_PROCESS, service, 19),
    "priority of all": partial(os.setpriority, os.PRIO_USER, 0, 19),
    "limits": partial(resource.prlimit, service, resource.RLIMIT_CPU, (1, 1)),
    "process": os.fork,
    "thread": threading.Thread(target=print).start,
    "namespace": partial(call, "unshare", CLONE_NEWUSER),
    "root": partial(os.setuid, 0),
    "memory": partial(bytearray, TOO_MUCH_BYTES),
    "change the package": partial(overwrite, goals["package"]),
    "change the target": partial(overwrite, goals["target"]),
}
for family in range(FAMILIES):
    attempts[f"socket {family}"] = partial(call, "socket", family, socket.SOCK_STREAM, 0)
for name, path in files.items():
    attempts[f"read {name}"] = partial(read, path)
    attempts[f"overwrite {name}"] = partial(overwrite, path)
    attempts[f"chmod {name}"] = partial(os.chmod, path, 0o777)
    attempts[f"chown {name}"] = partial(os.chown, path, 1, 1)
    attempts[f"remove {name}"] = partial(os.unlink, path)
print(
    json.dumps(
        {
            "environment": sorted(os.environ),
            "groups": os.getgroups(),
            "user": os.geteuid(),
            "errors": {name: error_of(attempt) for name, attempt in attempts.items()},
        }
    )
)
