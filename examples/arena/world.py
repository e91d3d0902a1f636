"""Rules of the arena, without clock and I/O. The same seed and calls give the same game."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from .names import fresh_name

TICK_HZ = 20
WIDTH = 1600
HEIGHT = 900

PLAYER_RADIUS = 20
GEM_RADIUS = 10
GEM_COUNT = 16
BIG_GEM_EVERY = 8
BIG_GEM_VALUE = 5

# Units per second. The speed settles at THRUST / (1 - FRICTION) = 321. SPEED_MAX / TICK_HZ is less than a
# wall plus a radius, so that a player cannot pass a wall within one tick.
FRICTION = 0.86
THRUST = 45.0
SPEED_MAX = 440.0
BOUNCE = 0.9
WALL_BOUNCE = 0.4

# A faster collision knocks a gem out of the slower player, at most once in SHAKEN_TICKS.
HARD_BUMP_SPEED = 260.0
SHAKEN_TICKS = 20

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
DIRS_MAX = UP | DOWN | LEFT | RIGHT


@dataclass(frozen=True, slots=True)
class Wall:
    x: int
    y: int
    width: int
    height: int


WALLS = (
    Wall(330, 200, 60, 190),
    Wall(330, 510, 60, 190),
    Wall(1210, 200, 60, 190),
    Wall(1210, 510, 60, 190),
    Wall(640, 150, 320, 50),
    Wall(640, 700, 320, 50),
    Wall(770, 400, 60, 100),
)


@dataclass(slots=True)
class Player:
    id: int
    name: str
    hue: int
    x: float
    y: float
    vx: float = 0.0
    vy: float = 0.0
    dirs: int = 0
    input_seq: int = 0
    score: int = 0
    shaken_until_tick: int = 0


@dataclass(frozen=True, slots=True)
class Gem:
    id: int
    x: int
    y: int
    value: int


class World:
    """State of one arena. Call `step()` TICK_HZ times a second."""

    def __init__(self, seed: int) -> None:
        self.tick = 0
        self.players: dict[int, Player] = {}
        self.gems: dict[int, Gem] = {}
        self._random = random.Random(seed)
        self._last_player_id = 0
        self._last_gem_id = 0
        self._refill_gems()

    def join(self) -> Player:
        """Adds a player at the spot that is farthest from the other players."""
        self._last_player_id += 1
        spots = [self._free_spot(PLAYER_RADIUS) for _ in range(8)]
        x, y = max(spots, key=self._distance_to_nearest_player)
        name = fresh_name(self._random, {player.name for player in self.players.values()})
        hue = int(self._last_player_id * 137.508) % 360
        player = Player(self._last_player_id, name, hue, float(x), float(y))
        self.players[player.id] = player
        return player

    def leave(self, player_id: int) -> None:
        self.players.pop(player_id, None)

    def steer(self, player_id: int, input_seq: int, dirs: int) -> None:
        player = self.players[player_id]
        player.input_seq = input_seq
        player.dirs = dirs & DIRS_MAX

    def step(self) -> None:
        self.tick += 1
        for player in self.players.values():
            _run(player)
        for first, second in self._touching_pairs():
            self._bump(first, second)
        # Walls are last, so that no snapshot shows a player inside a wall.
        for player in self.players.values():
            _keep_out_of_walls(player)
        self._collect_gems()

    def _touching_pairs(self) -> Iterator[tuple[Player, Player]]:
        """Returns overlapping players. The order by x limits the comparisons to neighbours."""
        reach = 2 * PLAYER_RADIUS
        by_x = sorted(self.players.values(), key=lambda player: player.x)
        for index, first in enumerate(by_x):
            for second in by_x[index + 1 :]:
                if second.x - first.x >= reach:
                    break
                if math.hypot(second.x - first.x, second.y - first.y) < reach:
                    yield first, second

    def _bump(self, first: Player, second: Player) -> None:
        dx, dy = second.x - first.x, second.y - first.y
        distance = math.hypot(dx, dy)
        nx, ny = (dx / distance, dy / distance) if distance > 1e-9 else (1.0, 0.0)
        overlap = 2 * PLAYER_RADIUS - distance
        if overlap > 0:
            _move(first, -nx * overlap / 2, -ny * overlap / 2)
            _move(second, nx * overlap / 2, ny * overlap / 2)
        first_speed = first.vx * nx + first.vy * ny
        second_speed = second.vx * nx + second.vy * ny
        closing_speed = first_speed - second_speed
        if closing_speed <= 0:
            return
        impulse = closing_speed * (1 + BOUNCE) / 2
        _push(first, -nx * impulse, -ny * impulse)
        _push(second, nx * impulse, ny * impulse)
        if closing_speed >= HARD_BUMP_SPEED:
            self._knock_gem_out(second if first_speed > -second_speed else first)

    def _knock_gem_out(self, player: Player) -> None:
        if player.score == 0 or self.tick < player.shaken_until_tick:
            return
        player.score -= 1
        player.shaken_until_tick = self.tick + SHAKEN_TICKS
        self._place_gem(self._free_spot_near(player.x, player.y), value=1)

    def _collect_gems(self) -> None:
        reach = PLAYER_RADIUS + GEM_RADIUS
        collected_ids: list[int] = []
        for gem in self.gems.values():
            near = [
                (math.hypot(player.x - gem.x, player.y - gem.y), player.id)
                for player in self.players.values()
                if abs(player.x - gem.x) < reach and abs(player.y - gem.y) < reach
            ]
            if near and min(near)[0] < reach:
                self.players[min(near)[1]].score += gem.value
                collected_ids.append(gem.id)
        for gem_id in collected_ids:
            del self.gems[gem_id]
        self._refill_gems()

    def _refill_gems(self) -> None:
        while len(self.gems) < GEM_COUNT:
            is_big = (self._last_gem_id + 1) % BIG_GEM_EVERY == 0
            self._place_gem(self._free_spot(GEM_RADIUS), BIG_GEM_VALUE if is_big else 1)

    def _place_gem(self, spot: tuple[int, int], value: int) -> None:
        self._last_gem_id += 1
        self.gems[self._last_gem_id] = Gem(self._last_gem_id, *spot, value)

    def _free_spot(self, radius: int) -> tuple[int, int]:
        while True:
            x = self._random.randint(radius, WIDTH - radius)
            y = self._random.randint(radius, HEIGHT - radius)
            if not touches_wall(x, y, radius):
                return x, y

    def _free_spot_near(self, x: float, y: float) -> tuple[int, int]:
        for _ in range(16):
            angle = self._random.uniform(0, math.tau)
            throw = self._random.uniform(60, 110)
            near_x, near_y = round(x + throw * math.cos(angle)), round(y + throw * math.sin(angle))
            inside = (
                GEM_RADIUS <= near_x <= WIDTH - GEM_RADIUS
                and GEM_RADIUS <= near_y <= HEIGHT - GEM_RADIUS
            )
            if inside and not touches_wall(near_x, near_y, GEM_RADIUS):
                return near_x, near_y
        return self._free_spot(GEM_RADIUS)

    def _distance_to_nearest_player(self, spot: tuple[int, int]) -> float:
        distances = (math.hypot(p.x - spot[0], p.y - spot[1]) for p in self.players.values())
        return min(distances, default=math.inf)

    def best(self, count: int) -> list[Player]:
        return sorted(self.players.values(), key=lambda player: (-player.score, player.id))[:count]


def touches_wall(x: float, y: float, radius: float) -> bool:
    """Returns whether a circle overlaps a wall. The border is not a wall."""
    for wall in WALLS:
        dx = x - min(max(x, wall.x), wall.x + wall.width)
        dy = y - min(max(y, wall.y), wall.y + wall.height)
        if dx * dx + dy * dy < radius * radius:
            return True
    return False


def _run(player: Player) -> None:
    player.vx *= FRICTION
    player.vy *= FRICTION
    ax = bool(player.dirs & RIGHT) - bool(player.dirs & LEFT)
    ay = bool(player.dirs & DOWN) - bool(player.dirs & UP)
    thrust = THRUST * (math.sqrt(0.5) if ax and ay else 1.0)
    _push(player, ax * thrust, ay * thrust)
    _move(player, player.vx / TICK_HZ, player.vy / TICK_HZ)


def _push(player: Player, dvx: float, dvy: float) -> None:
    player.vx += dvx
    player.vy += dvy
    speed = math.hypot(player.vx, player.vy)
    if speed > SPEED_MAX:
        player.vx *= SPEED_MAX / speed
        player.vy *= SPEED_MAX / speed


def _move(player: Player, dx: float, dy: float) -> None:
    player.x += dx
    player.y += dy


def _keep_out_of_walls(player: Player) -> None:
    for wall in WALLS:
        _push_out_of(wall, player)
    _keep_inside_border(player)


def _push_out_of(wall: Wall, player: Player) -> None:
    right, bottom = wall.x + wall.width, wall.y + wall.height
    nearest_x = min(max(player.x, wall.x), right)
    nearest_y = min(max(player.y, wall.y), bottom)
    dx, dy = player.x - nearest_x, player.y - nearest_y
    distance = math.hypot(dx, dy)
    if distance >= PLAYER_RADIUS:
        return
    if distance > 1e-9:
        nx, ny = dx / distance, dy / distance
        depth = PLAYER_RADIUS - distance
    else:
        depth, nx, ny = min(
            (player.x - wall.x, -1.0, 0.0),
            (right - player.x, 1.0, 0.0),
            (player.y - wall.y, 0.0, -1.0),
            (bottom - player.y, 0.0, 1.0),
        )
        depth += PLAYER_RADIUS
    _move(player, nx * depth, ny * depth)
    into_wall = player.vx * nx + player.vy * ny
    if into_wall < 0:
        _push(player, -nx * into_wall * (1 + WALL_BOUNCE), -ny * into_wall * (1 + WALL_BOUNCE))


def _keep_inside_border(player: Player) -> None:
    if not PLAYER_RADIUS <= player.x <= WIDTH - PLAYER_RADIUS:
        player.x = min(max(player.x, PLAYER_RADIUS), WIDTH - PLAYER_RADIUS)
        player.vx *= -WALL_BOUNCE
    if not PLAYER_RADIUS <= player.y <= HEIGHT - PLAYER_RADIUS:
        player.y = min(max(player.y, PLAYER_RADIUS), HEIGHT - PLAYER_RADIUS)
        player.vy *= -WALL_BOUNCE
