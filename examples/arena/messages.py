"""Messages of the game's WebSocket, their limits, and close codes. README.md lists them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .world import DIRS_MAX, GEM_RADIUS, HEIGHT, PLAYER_RADIUS, TICK_HZ, WALLS, WIDTH, Player, World

MESSAGE_BYTES_MAX = 256
SEQ_MAX = 2**31 - 1

# The page sends at most 30 inputs a second.
MESSAGES_PER_S = 60.0
MESSAGES_BURST = 120.0
# Limit of all received bytes, which include pings and empty fragments.
BYTES_PER_S = MESSAGES_PER_S * MESSAGE_BYTES_MAX
BYTES_BURST = MESSAGES_BURST * MESSAGE_BYTES_MAX


class End(Enum):
    """Close code and reason of a socket."""

    SERVER_STOPPING = (1001, "the server is going away")
    TOKEN_MISSING = (4001, "connect with ?token=<player token>")
    TOKEN_INVALID = (4002, "this is not a player token")
    TOKEN_OF_OTHER_LOBBY = (4003, "this player token is for another lobby")
    TOKEN_EXPIRED = (4004, "this player token has expired; find again")
    PLAYER_REMOVED = (4005, "this player was removed; find again")
    TOKEN_IN_USE = (4006, "this player token is in use or was used")
    UNCONFIRMED = (4007, "the hosting service did not confirm the player in time")
    REFUSED = (4008, "the hosting service refused the player")
    BUSY = (4009, "too many players are waiting to be confirmed; try again")
    MALFORMED = (4010, 'send {"seq": <growing integer>, "dirs": <0 to 15>}')
    NOT_YOURS_TO_SAY = (4011, "only seq and dirs are yours; the server decides the rest")
    TOO_EARLY = (4012, "wait for the welcome before you send")
    TOO_MANY_MESSAGES = (4013, "at most 60 messages a second")
    TOO_SLOW = (4014, "you read too slowly to follow the game")
    LOBBY_ENDED = (4020, "this lobby has ended; find another")

    @property
    def code(self) -> int:
        return self.value[0]

    @property
    def reason(self) -> str:
        return self.value[1]


END_OF_REFUSAL = {
    "PLAYER_TOKEN_INVALID": End.TOKEN_INVALID,
    "PLAYER_TOKEN_WRONG_LOBBY": End.TOKEN_OF_OTHER_LOBBY,
    "PLAYER_TOKEN_CONSUMED": End.TOKEN_IN_USE,
    "PLAYER_TOKEN_EXPIRED": End.TOKEN_EXPIRED,
    "PLAYER_REMOVED": End.PLAYER_REMOVED,
}


class Unacceptable(Exception):
    def __init__(self, end: End) -> None:
        super().__init__(end.reason)
        self.end = end


@dataclass(frozen=True, slots=True)
class Input:
    seq: int
    dirs: int


def parse_input(message: str | bytes, last_seq: int) -> Input:
    """Parses an input. Raises `Unacceptable` unless its `seq` is greater than `last_seq`."""
    if isinstance(message, bytes):
        raise Unacceptable(End.MALFORMED)
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError):
        raise Unacceptable(End.MALFORMED) from None
    if not isinstance(fields, dict):
        raise Unacceptable(End.MALFORMED)
    if fields.keys() - {"seq", "dirs"}:
        raise Unacceptable(End.NOT_YOURS_TO_SAY)
    return Input(
        seq=_integer(fields.get("seq"), last_seq + 1, SEQ_MAX),
        dirs=_integer(fields.get("dirs"), 0, DIRS_MAX),
    )


def _integer(value: Any, lowest: int, highest: int) -> int:
    if type(value) is int and lowest <= value <= highest:
        return value
    raise Unacceptable(End.MALFORMED)


class TokenBucket:
    """Rate limiter with a burst."""

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._filled_s = now_s
        self._level = burst

    def take(self, amount: float, now_s: float) -> bool:
        self._level = min(self._burst, self._level + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        if self._level < amount:
            return False
        self._level -= amount
        return True


def welcome(player: Player, lobby_id: str) -> str:
    return _compact(
        {
            "type": "welcome",
            "id": player.id,
            "name": player.name,
            "lobby_id": lobby_id,
            "tick_hz": TICK_HZ,
            "width": WIDTH,
            "height": HEIGHT,
            "player_radius": PLAYER_RADIUS,
            "gem_radius": GEM_RADIUS,
            "walls": [[wall.x, wall.y, wall.width, wall.height] for wall in WALLS],
        }
    )


def roster(players: Iterable[Player]) -> str:
    return _compact(
        {"type": "roster", "players": [[player.id, player.name, player.hue] for player in players]}
    )


def snapshot(world: World) -> str:
    """Returns the message of one tick.

    Players are `[id, x, y, score, input seq, shaken 0/1]`, gems `[id, x, y, value]`.
    """
    players = [
        [
            player.id,
            round(player.x),
            round(player.y),
            player.score,
            player.input_seq,
            int(world.tick < player.shaken_until_tick),
        ]
        for player in world.players.values()
    ]
    gems = [[gem.id, gem.x, gem.y, gem.value] for gem in world.gems.values()]
    return _compact({"type": "state", "tick": world.tick, "players": players, "gems": gems})


def lobby_state(world: World) -> bytes:
    best = [{"name": player.name, "score": player.score} for player in world.best(5)]
    return _compact({"players": len(world.players), "best": best}).encode()


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
