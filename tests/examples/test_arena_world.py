"""The rules of the arena, tick by tick."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.arena.world import (
    BIG_GEM_VALUE,
    DOWN,
    FRICTION,
    GEM_COUNT,
    GEM_RADIUS,
    HEIGHT,
    LEFT,
    PLAYER_RADIUS,
    RIGHT,
    SHAKEN_TICKS,
    SPEED_MAX,
    THRUST,
    TICK_HZ,
    UP,
    WALLS,
    WIDTH,
    Gem,
    Player,
    Wall,
    World,
    touches_wall,
)

RUNNING_SPEED = THRUST / (1 - FRICTION)


def put(world: World, x: float, y: float, **fields: float) -> Player:
    player = world.join()
    player.x, player.y = x, y
    for name, value in fields.items():
        setattr(player, name, value)
    return player


@pytest.fixture
def world() -> World:
    """All gems are in one corner, away from the players of the tests."""
    world = World(seed=1)
    world.gems = {
        number: Gem(number, WIDTH - GEM_RADIUS, GEM_RADIUS, 1) for number in range(1, GEM_COUNT + 1)
    }
    return world


def run(world: World, ticks: int) -> None:
    for _ in range(ticks):
        world.step()


def test_same_seed_and_inputs_give_the_same_game() -> None:
    def game() -> tuple[object, object]:
        world, hands = World(seed=7), random.Random(3)
        for tick in range(1, 400):
            if tick % 25 == 0:
                world.join()
            if tick % 90 == 0:
                world.leave(next(iter(world.players)))
            for player_id in world.players:
                world.steer(player_id, tick, hands.randrange(16))
            world.step()
        return world.players, world.gems

    assert game() == game()


def test_other_seed_gives_another_game() -> None:
    assert World(seed=1).gems != World(seed=2).gems


@pytest.mark.parametrize(
    ("dirs", "dx", "dy"),
    [(UP, 0, -1), (DOWN, 0, 1), (LEFT, -1, 0), (RIGHT, 1, 0), (LEFT | RIGHT, 0, 0)],
)
def test_direction_bits_move_the_player(world: World, dirs: int, dx: int, dy: int) -> None:
    player = put(world, 560, 450)
    world.steer(player.id, 1, dirs)
    run(world, 4)
    assert (player.x - 560) * dx >= 0
    assert (player.y - 450) * dy >= 0
    assert (player.x != 560) == (dx != 0)
    assert (player.y != 450) == (dy != 0)


def test_running_speed_is_the_same_on_a_diagonal(world: World) -> None:
    straight, diagonal = put(world, 60, 60), put(world, 60, 120)
    world.steer(straight.id, 1, RIGHT)
    world.steer(diagonal.id, 1, RIGHT | DOWN)
    run(world, 15)
    assert math.hypot(straight.vx, straight.vy) == pytest.approx(RUNNING_SPEED, rel=0.12)
    assert math.hypot(diagonal.vx, diagonal.vy) == pytest.approx(
        math.hypot(straight.vx, straight.vy)
    )


def test_input_applies_until_the_next_input(world: World) -> None:
    player = put(world, 100, 100)
    world.steer(player.id, 1, RIGHT)
    run(world, 5)
    after_five = player.x
    run(world, 5)
    assert player.x > after_five
    world.steer(player.id, 2, 0)
    run(world, 60)
    resting = player.x
    run(world, 5)
    assert player.x == pytest.approx(resting, abs=0.1)
    assert player.input_seq == 2


def test_unknown_direction_bits_are_ignored(world: World) -> None:
    player = put(world, 560, 450)
    world.steer(player.id, 1, 0xFFF0)
    run(world, 5)
    assert (player.x, player.y) == (560, 450)


@pytest.mark.parametrize("wall", WALLS)
@pytest.mark.parametrize(("dx", "dy"), [(-1, 0), (1, 0), (0, -1), (0, 1), (1, 1), (-1, 1)])
def test_walls_stop_players_at_the_highest_speed(wall: Wall, dx: int, dy: int) -> None:
    world = World(seed=1)
    reach = PLAYER_RADIUS + SPEED_MAX / TICK_HZ
    x = wall.x + wall.width / 2 - dx * (wall.width / 2 + reach)
    y = wall.y + wall.height / 2 - dy * (wall.height / 2 + reach)
    player = put(world, x, y)
    for _ in range(30):
        player.vx, player.vy = dx * SPEED_MAX, dy * SPEED_MAX
        if dx and dy:
            player.vx, player.vy = player.vx * math.sqrt(0.5), player.vy * math.sqrt(0.5)
        before = (player.x, player.y)
        world.step()
        assert not touches_wall(player.x, player.y, PLAYER_RADIUS - 1e-6)
        assert math.dist(before, (player.x, player.y)) <= 2 * reach
    if not (dx and dy):
        past = (player.x - wall.x - wall.width / 2) * dx + (
            player.y - wall.y - wall.height / 2
        ) * dy
        assert past < 0


def test_border_stops_players(world: World) -> None:
    player = put(world, 40, 40)
    world.steer(player.id, 1, LEFT | UP)
    run(world, 40)
    assert player.x >= PLAYER_RADIUS
    assert player.y >= PLAYER_RADIUS
    assert player.x == pytest.approx(PLAYER_RADIUS, abs=5)


def test_small_gem_scores_one_and_is_replaced(world: World) -> None:
    player = put(world, 560, 450)
    world.gems[1] = Gem(1, 570, 450, 1)
    world.step()
    assert player.score == 1
    assert 1 not in world.gems
    assert len(world.gems) == GEM_COUNT


def test_big_gem_scores_five(world: World) -> None:
    player = put(world, 560, 450)
    world.gems[1] = Gem(1, 570, 450, BIG_GEM_VALUE)
    world.step()
    assert player.score == 5


def test_gem_is_taken_by_the_nearer_player(world: World) -> None:
    near, far = put(world, 540, 450), put(world, 590, 450)
    world.gems[1] = Gem(1, 560, 450, 1)
    world.step()
    assert (near.score, far.score) == (1, 0)


def test_gem_out_of_reach_is_not_taken(world: World) -> None:
    player = put(world, 560, 450)
    world.gems[1] = Gem(1, 560 + PLAYER_RADIUS + GEM_RADIUS, 450, 1)
    world.step()
    assert player.score == 0
    assert 1 in world.gems


def test_bump_pushes_the_resting_player(world: World) -> None:
    runner, rester = put(world, 500, 450, vx=300), put(world, 545, 450)
    run(world, 3)
    assert rester.vx > 100
    assert rester.x > 545
    assert runner.vx < 100
    assert math.dist((runner.x, runner.y), (rester.x, rester.y)) >= 2 * PLAYER_RADIUS - 1e-6


def test_hard_bump_knocks_one_gem_out_of_the_slower(world: World) -> None:
    runner, rester = put(world, 500, 450, vx=400, score=3), put(world, 545, 450, score=3)
    run(world, 2)
    assert (runner.score, rester.score) == (3, 2)
    assert len(world.gems) == GEM_COUNT + 1
    dropped = world.gems[max(world.gems)]
    assert dropped.value == 1
    assert math.dist((dropped.x, dropped.y), (rester.x, rester.y)) > PLAYER_RADIUS + GEM_RADIUS


def test_slower_player_loses_a_bump(world: World) -> None:
    fast, slow = put(world, 600, 450, vx=-400, score=1), put(world, 555, 450, vx=100, score=1)
    run(world, 2)
    assert (fast.score, slow.score) == (1, 0)


def test_soft_bump_costs_nothing(world: World) -> None:
    runner, rester = put(world, 500, 450, vx=200, score=3), put(world, 540, 450, score=3)
    run(world, 2)
    assert rester.vx > 0
    assert (runner.score, rester.score) == (3, 3)


def test_bumped_player_is_protected_for_a_second(world: World) -> None:
    rester = put(world, 560, 450, score=5)

    def ram() -> None:
        runner = put(world, rester.x - 45, rester.y, vx=400)
        run(world, 2)
        world.leave(runner.id)
        rester.x, rester.y, rester.vx, rester.vy = 560, 450, 0, 0

    ram()
    assert rester.score == 4
    ram()
    assert rester.score == 4
    run(world, SHAKEN_TICKS)
    ram()
    assert rester.score == 3


def test_player_without_gems_loses_none(world: World) -> None:
    put(world, 500, 450, vx=400)
    rester = put(world, 545, 450)
    run(world, 2)
    assert rester.score == 0
    assert len(world.gems) == GEM_COUNT


def test_players_on_one_spot_are_separated(world: World) -> None:
    first, second = put(world, 560, 450), put(world, 560, 450)
    world.step()
    assert math.dist((first.x, first.y), (second.x, second.y)) == pytest.approx(2 * PLAYER_RADIUS)


def test_removed_player_is_gone_and_removal_is_idempotent(world: World) -> None:
    player = world.join()
    world.leave(player.id)
    world.leave(player.id)
    world.step()
    assert world.players == {}


def test_ids_and_names_of_present_players_are_unique() -> None:
    world = World(seed=5)
    players = [world.join() for _ in range(600)]
    assert len({player.id for player in players}) == len({player.name for player in players}) == 600


def test_best_players_are_sorted_by_score_then_arrival(world: World) -> None:
    for score in (1, 3, 2, 3):
        put(world, 560, 450, score=score)
    assert [(player.id, player.score) for player in world.best(3)] == [(2, 3), (4, 3), (3, 2)]


moves = st.lists(
    st.one_of(
        st.just(("join", 0, 0)),
        st.tuples(st.just("leave"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("steer"), st.integers(0, 40), st.integers(0, 15)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
    ),
    max_size=120,
)


@given(seed=st.integers(0, 1000), moves=moves)
def test_random_play_keeps_players_inside_and_points_equal_to_gems(
    seed: int, moves: list[tuple[str, int, int]]
) -> None:
    world = World(seed)
    for move, number, dirs in moves:
        ids = list(world.players)
        if move == "join" and len(ids) < 40:
            world.join()
        elif move == "leave" and ids:
            world.leave(ids[number % len(ids)])
        elif move == "steer" and ids:
            world.steer(ids[number % len(ids)], 1, dirs)
        elif move == "step":
            for _ in range(number):
                check_one_step(world)


def check_one_step(world: World) -> None:
    gems_before = dict(world.gems)
    score_before = sum(player.score for player in world.players.values())
    world.step()
    for player in world.players.values():
        assert PLAYER_RADIUS <= player.x <= WIDTH - PLAYER_RADIUS
        assert PLAYER_RADIUS <= player.y <= HEIGHT - PLAYER_RADIUS
        assert not touches_wall(player.x, player.y, PLAYER_RADIUS - 0.5)
        assert math.hypot(player.vx, player.vy) <= SPEED_MAX + 1e-6
        assert player.score >= 0
    for gem in world.gems.values():
        assert not touches_wall(gem.x, gem.y, GEM_RADIUS)
    assert len(world.gems) >= GEM_COUNT
    # Points equal the values of taken gems minus the dropped ones. A dropped gem may be taken in
    # the same tick.
    collected_value = sum(gem.value for gem in gems_before.values() if gem.id not in world.gems)
    knocks = sum(
        player.shaken_until_tick == world.tick + SHAKEN_TICKS for player in world.players.values()
    )
    won = sum(player.score for player in world.players.values()) - score_before
    assert collected_value - knocks <= won <= collected_value
