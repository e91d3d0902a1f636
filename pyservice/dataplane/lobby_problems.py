"""Problems of lobby processes, for the errors of requests that wait for such a lobby."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.runtime.adapters import Adapter
from pyservice.runtime.start_problems import start_timeout_problem

_KEPT_MAX: Final = 1_000
"""Lobbies of each kind that are remembered."""
_START_FAILED: Final = "MATCHMAKER_LOBBY_START_FAILED"
_NOT_READY: Final = "lobby_not_ready"

_Kept = TypeVar("_Kept")


class LobbyProblems:
    """Problems that the runtime has reported.

    Every caller gets the kind of a problem. Only a back end of the game gets the sentence, which
    can have output of the program, paths and addresses.
    """

    def __init__(self, start_limit_ms: int) -> None:
        self._start_limit_s = start_limit_ms / 1000
        self._ended: dict[str, tuple[str, str]] = {}
        """Kinds and sentences of lobbies after the end of their process."""
        self._unreachable: Mapping[str, str] = {}
        """Sentences of running lobbies with a port at which nothing listens."""
        self._adapters: dict[str, Adapter] = {}
        """Adapters of the lobbies that started last."""

    def set_unreachable(self, sentences: Mapping[str, str]) -> None:
        self._unreachable = sentences

    def record_start(self, lobby_id: bytes, adapter: Adapter | None) -> None:
        if adapter is not None:
            _keep(self._adapters, format_uuid(lobby_id), adapter)

    def record_end(self, lobby_id: bytes, kind: str, sentence: str) -> None:
        _keep(self._ended, format_uuid(lobby_id), (kind, sentence))

    def explain(self, error: ServiceError, *, is_back_end: bool) -> ServiceError:
        """Adds the problem of the lobby to the metadata of an error, if one is known."""
        lobby_id, reason = error.metadata.get("lobby_id", ""), error.metadata.get("reason")
        if error.code != _START_FAILED and reason != _NOT_READY:
            return error
        ports = self._unreachable.get(lobby_id)
        if reason == _NOT_READY:
            # The lobby may still become ready, so only its ports can be a problem.
            kind, sentence = ("nothing-listens", ports) if ports else ("", "")
        elif reason == "start_timeout":
            kind, sentence = start_timeout_problem(
                self._start_limit_s, ports, self._adapters.get(lobby_id)
            )
        else:
            kind, sentence = self._ended.get(lobby_id, ("", ""))
        added = {"kind": kind, "problem": sentence if is_back_end else ""}
        return ServiceError(
            error.code,
            error.detail,
            errors=error.errors,
            metadata={**error.metadata, **{name: text for name, text in added.items() if text}},
            retry_after_s=error.retry_after_s,
        )


def _keep(kept: dict[str, _Kept], lobby_id: str, value: _Kept) -> None:
    kept[lobby_id] = value
    if len(kept) > _KEPT_MAX:
        del kept[next(iter(kept))]
