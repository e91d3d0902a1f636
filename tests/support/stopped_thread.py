"""Stops one thread of a process, as SIGSTOP stops all threads, or runs it in single steps."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SINGLE_STEP: Final = 9
_DETACH: Final = 17
_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_ANY_THREAD: Final = 0x4000_0000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@contextmanager
def stopped_thread(thread_id: int) -> Iterator[None]:
    """Stops a thread while the context is open. The main thread has the id of its process."""
    _trace(_SEIZE, thread_id)
    try:
        _trace(_INTERRUPT, thread_id)
        os.waitpid(thread_id, _ANY_THREAD)
        yield
    finally:
        _trace(_DETACH, thread_id)


def thread_named(process_id: int, name: str) -> int:
    """Returns the id of the only thread with this name."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    (thread,) = (task for task in tasks if (task / "comm").read_text().strip() == name)
    return int(thread.name)


def count_instructions(thread_id: int, work: Callable[[], object]) -> int:
    """Runs `work` in another thread, and the given thread in single steps meanwhile.

    Returns the number of instructions until the thread waits again after `work` has returned. The
    number is exact, whatever else runs on the machine.
    """
    with stopped_thread(thread_id), ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        steps = 0
        while not done.done():
            _trace(_SINGLE_STEP, thread_id)
            os.waitpid(thread_id, _ANY_THREAD)
            steps += 1
        done.result()
    return steps


def _trace(request: int, thread_id: int) -> None:
    if _libc.ptrace(request, thread_id, None, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")
