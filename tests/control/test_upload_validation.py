"""Validation of an uploaded build: in a worker process, with an error for a worker that fails."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import zlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pyservice.control import upload_validation
from pyservice.control.upload_validation import check_contents
from pyservice.errors import ServiceError
from pyservice.runtime import archive_reader, build_unpacking
from tests.support.build_workers import workers
from tests.support.upload_files import packed, tar
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class UploadedFile:
    def __init__(self, content: bytes, before_end: Callable[[], object] = lambda: None) -> None:
        self._content = content
        self._before_end = before_end

    async def read(self, _key: str) -> AsyncIterator[bytes]:
        yield self._content[:10]
        await asyncio.to_thread(self._before_end)
        yield self._content[10:]

    async def check(self) -> bytes:
        file: Any = SimpleNamespace(
            path="server.tar", content_length=len(self._content), sha256=None
        )
        objects: Any = self
        build = ("archive", "gzip", None)
        findings = await check_contents(
            objects, not_in_this_process, "build", build, [file], {"server.tar": "key"}
        )
        return findings.digests["server.tar"]


def not_in_this_process(*_: object, **__: object) -> Any:
    raise AssertionError("the server process reads the archive")


async def test_no_archive_is_read_in_the_server_process(monkeypatch: pytest.MonkeyPatch) -> None:
    content = packed(tar(), "gzip")
    monkeypatch.setattr(zlib, "decompressobj", not_in_this_process)
    for module in (archive_reader, build_unpacking):
        monkeypatch.setattr(module, "read_archive", not_in_this_process)
    pids = list[int]()
    digest = await UploadedFile(content, lambda: pids.extend(until(workers))).check()
    assert digest == hashlib.sha256(content).digest()
    assert len(pids) == 1
    with pytest.raises(ServiceError) as refused:
        await UploadedFile(packed(tar({"/x": b""}), "gzip")).check()
    assert [problem.path for problem in refused.value.errors] == [("image_file", "not-allowed")]


async def test_worker_that_dies_is_an_internal_error_and_logged() -> None:
    def kill() -> None:
        (pid,) = until(workers)
        os.kill(pid, signal.SIGKILL)

    with capture_logs() as logs, pytest.raises(ServiceError) as failed:
        await UploadedFile(packed(tar(), "gzip"), kill).check()
    assert failed.value.code == "INTERNAL"
    (logged,) = [one for one in logs if one["event"] == "check of an upload failed"]
    assert (logged["key"], logged["log_level"]) == ("key", "error")


async def test_check_past_its_deadline_is_ended_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_validation, "CHECK_TIMEOUT_S", 0.05)
    with capture_logs() as logs, pytest.raises(ServiceError) as late:
        await UploadedFile(packed(tar(), "gzip"), lambda: asyncio.run(asyncio.sleep(0.2))).check()
    assert late.value.code == "DEADLINE_EXCEEDED"
    assert "upload not checked in time" in [one["event"] for one in logs]
    assert workers() == []
