"""Uploads of builds and sites. An upload that was cut in the middle goes on with its missing parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Final

from pyservice_cli.api import PATIENCE_S, TEMPORARY_STATUSES, Answer, Api
from pyservice_cli.failures import ReadTimedOut, Refused, Unreachable
from pyservice_cli.terminal import Terminal

_PAUSE_S: Final = 0.5
_CHECK_PATIENCE_S: Final = 1800.0
"""Longest check of a build at the service."""

OpenFile = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens a file of an upload by its path."""


def find_stored(api: Api, path: str, field: str, name: str) -> tuple[Answer | None, Answer | None]:
    """Returns the complete and the incomplete record of this name, if they exist."""
    complete, incomplete = None, None
    for record in api.pages(path, field):
        if record["display_name"] == name:
            if record["complete"]:
                return record, None
            incomplete = incomplete or record
    return complete, incomplete


def prepare(api: Api, path: str, body: Mapping[str, Any]) -> Answer:
    """Prepares an upload. A repeat within a day returns the same upload, with new URLs."""
    try:
        return api.post(path, body, key=f"deploy-{body['display_name'].replace(' ', '-')}")
    except Refused as refused:
        # The upload of an earlier run was removed, or belongs to a deleted game of this name.
        if refused.code not in ("UPLOAD_NOT_FOUND", "IDEMPOTENCY_KEY_REUSED"):
            raise
    return api.post(path, body)


def send(
    terminal: Terminal,
    api: Api,
    title: str,
    upload_id: str,
    requests: Iterable[Answer],
    open_file: OpenFile,
    *,
    is_resumed: bool,
) -> None:
    """Sends the files of an upload and completes it. A resumed upload sends only what is missing."""
    try:
        _send_all(terminal, api, title, upload_id, list(requests), open_file, is_resumed=is_resumed)
    except Refused as refused:
        # Another run with the same content was faster.
        if refused.code != "UPLOAD_ALREADY_COMPLETE":
            raise


def _send_all(
    terminal: Terminal,
    api: Api,
    title: str,
    upload_id: str,
    wanted: list[Answer],
    open_file: OpenFile,
    *,
    is_resumed: bool,
) -> None:
    check = f"{title}: the service checks the files. A large build takes minutes."
    if is_resumed:
        with terminal.waiting(check):
            missing = _missing(api, upload_id)
        if missing is None:
            return
        # A list of problems can be cut off. Then every part is sent again.
        if len(missing) < len(wanted):
            wanted = [one for one in wanted if _place(one) in missing] or wanted
            terminal.say(f"{title}: an earlier upload goes on, {len(wanted)} parts are missing.")
    with terminal.progress(title, sum(request["content_length"] for request in wanted)) as progress:
        for request in wanted:
            with open_file(request["path"]) as file:
                _send_part(api, request, file, progress)
    with terminal.waiting(check):
        _complete(api, upload_id)


def _missing(api: Api, upload_id: str) -> set[str] | None:
    """Completes the upload, or returns the parts that it lacks, as path and offset."""
    try:
        _complete(api, upload_id)
    except Refused as refused:
        if refused.code != "UPLOAD_INCOMPLETE":
            raise
        return {problem.place for problem in refused.problems}
    return None


def _complete(api: Api, upload_id: str) -> None:
    """Completes an upload. The service goes on with a check that outlasts the request."""
    until_s = time.monotonic() + _CHECK_PATIENCE_S
    while True:
        try:
            api.post(f"/cloud/uploads/{upload_id}/complete")
        except (ReadTimedOut, Refused) as failure:
            is_slow = isinstance(failure, ReadTimedOut) or failure.code == "DEADLINE_EXCEEDED"
            if time.monotonic() >= until_s or not is_slow:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _place(request: Answer) -> str:
    return f"{request['path']}.{request.get('byte_offset', 0)}"


def _send_part(api: Api, request: Answer, file: BinaryIO, progress: Callable[[int], None]) -> None:
    """Sends a part, and again after a broken connection or while the service restarts."""
    until_s: float | None = None
    while True:
        file.seek(request.get("byte_offset", 0))
        sent = 0

        def count(size: int) -> None:
            nonlocal sent
            sent += size
            progress(size)

        try:
            api.upload(request["url"], file, request["content_length"], count)
        except (Unreachable, Refused) as failure:
            progress(-sent)
            # A slow part can break after a longer time than a restart takes.
            until_s = until_s or time.monotonic() + PATIENCE_S
            if time.monotonic() >= until_s or not _is_temporary(failure):
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _is_temporary(failure: Unreachable | Refused) -> bool:
    return isinstance(failure, Unreachable) or (
        failure.http_status in TEMPORARY_STATUSES and failure.code != "STORAGE_FULL"
    )
