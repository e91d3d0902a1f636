"""Copies of the Python helper, each without one feature: a text of its source and the replacement."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.tracked_files import ROOT

SOURCE: Final = ROOT / "clients/python/hosting_game.py"
DRIVER: Final = ROOT / "clients/python/conformance_driver.py"

NO_REPEAT: Final = ("if not error.is_temporary or time", "if True or time")
MUTATIONS: Final[dict[str, tuple[str, str]]] = {
    "find": ('self._reserve("find"', 'self._reserve("search"'),
    "join": ('self._reserve("join"', 'self._reserve("enter"'),
    "create": ('self._reserve("create"', 'self._reserve("make"'),
    "idempotency_keys": (
        "self.attempt(method, path, body, key,",
        "self.attempt(method, path, body, str(uuid.uuid4()),",
    ),
    "new_keys": ("str(uuid.uuid4()), _pauses()", '"one key", _pauses()'),
    "party": ('[player["token"] for player in players]', '[answer["player"]["token"]]'),
    "fields": ('{"game_modes": list(game_modes), **fields}', '{"game_modes": list(game_modes)}'),
    "error_codes": ('problem.get("code", "UNKNOWN")', '"UNKNOWN"'),
    "error_details": ("problem = problem or {}", "problem = {}"),
    "final_errors": (
        "return self.status in TEMPORARY_STATUSES or",
        "return self.status > 200 or",
    ),
    "attempt_timeout": ("MATCH_ATTEMPT_S = 60.0", "MATCH_ATTEMPT_S = 0.01"),
    "retries": NO_REPEAT,
    "cancellation": (
        "raw = await _within(self._exchange(self._head(method, path, content, key)), timeout_s)",
        "sent = self._exchange(self._head(method, path, content, key))\n"
        "            raw = await asyncio.shield(asyncio.ensure_future(sent))",
    ),
    "total_timeout": ("time.monotonic() + total_s", "time.monotonic() + 3600"),
    "retry_after": (
        "max(next(pauses), error.retry_after_s)\n                if",
        "next(pauses)\n                if",
    ),
    "rate_limit": (' or self.code == "RATE_LIMITED"', ""),
    "source_limit": ('self.code == "RATE_LIMITED"', "self.status == 429"),
    "temporary_statuses": ("{0, 408, 500, 502, 503, 504}", "{0, 503}"),
    "growing_pauses": ("min(pause_s * 2, PAUSE_LONGEST_S)", "PAUSE_FIRST_S"),
    "rejoin_token": (", rejoin_token=reservation.player_token", ""),
    "list": ('_get("lobbies/list"', '_get("lobbies/all"'),
    "list_state": ('{"include_state": "true"} if include_state else {}', "{}"),
    "list_pages": ('if not page.get("cursor")', "if True"),
    "tls": ('"wss" if target.is_tls else "ws"', '"ws"'),
    "port_range": ('(limits["min"], limits["max"]) if limits else None', "None"),
    "environment": ('self.environ.get("HOSTING_LOBBY_ID", "")', '""'),
    "environment_check": ("if bool(api_url) != bool(token)", "if False"),
    "local_mode": ("self.is_local = not api_url", "self.is_local = False"),
    "signal": ("(signal.SIGTERM, signal.SIGINT):", "():"),
    "outage": ("                continue\n", "                return\n"),
    "ready": ('await self._send("POST", "lobbies/ready", {})', "pass"),
    "connected": (
        'await self._http.call("POST", path, body, CONFIRM_ATTEMPT_S, CONFIRM_TOTAL_S)',
        "pass",
    ),
    "release": ("self._release(token, hold_ms)\n\n", "pass\n\n"),
    "duplicate_tokens": ("if token in self._confirming or", "if False and"),
    "release_only_own": (
        "or error.is_temporary:\n                self._release",
        "or True:\n                self._release",
    ),
    "release_unknown": ("self._release(token, 0)", "pass"),
    "hold": ('**({"hold_ms": hold_ms} if hold_ms else {})', ""),
    "release_on_close": ("for token in list(self._players):", "for token in ():"),
    "close_on_exit": ('        self.stop("close")\n', ""),
    "heartbeat": ("if now_s >= self._heartbeat_due_s:", "if False:"),
    "heartbeat_list": ('{"player_tokens": list(self._players)}', "{}"),
    "state": ('await self._send("PUT", "lobbies/state", state)', "pass"),
    "state_rate": ("STATE_INTERVAL_S = 1.0", "STATE_INTERVAL_S = 0.0"),
    "state_error": ("if error.is_temporary or error.status in LOBBY", "if True or LOBBY"),
    "closed": ('await self._send("PUT", "lobbies/closed", {"is_closed": is_closed})', "pass"),
    "redeclare": ("                self._is_declared = False\n", ""),
    "drain": ("self.stop_reason, self._is_closed = reason, True", "self.stop_reason = reason"),
    "drain_wait": ("while self._players and time", "while False and time"),
    "drain_limit": (
        "time.monotonic() < deadline_s:\n            self._left",
        "True:\n            self._left",
    ),
    "stop_at_end": ("if error.status in LOBBY_ENDED_STATUSES:\n", "if False:\n"),
    "logs": ("print(json.dumps(entry, default=str)", "print(entry"),
}


def write_mutation(feature: str, folder: Path) -> Path:
    """Writes the helper without this feature, with its driver. Returns the path of the driver."""
    old, new = MUTATIONS[feature]
    source = SOURCE.read_text()
    assert source.count(old) == 1, f"{feature}: {old!r} occurs {source.count(old)} times"
    (folder / SOURCE.name).write_text(source.replace(old, new))
    driver = folder / DRIVER.name
    driver.write_text(DRIVER.read_text())
    return driver
