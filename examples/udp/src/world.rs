//! The game: players fly over a torus and gather stars. Pure: time comes as steps, chance as dice.
//!
//! Both coordinates are 16 bit numbers that wrap, so the torus needs no rule of its own, and the difference of two of
//! them as a signed number is the shortest way.

use crate::protocol::{PLAYERS_SEEN_MAX, Place, Player, STARS_SEEN_MAX, State};
use crate::system::Dice;

/// Steps in a second.
pub const TICKS_PER_SECOND: u32 = 20;
/// Players that there is room for.
pub const PLAYERS_MAX: usize = 256;
/// Stars at any time: a gathered one appears elsewhere.
pub const STARS: usize = 32;
/// How far a player goes in a step: around the world in 8 s.
pub const SPEED: i16 = 400;
/// How far a player reaches.
pub const REACH: u32 = 1500;
/// How far a player sees in each direction: half of the world in all.
pub const SIGHT: u16 = 16_384;

/// Length of a diagonal step's parts.
const SLANT: i16 = 283;
/// What is added in a step; no direction, then north and clockwise.
const STEPS: [(i16, i16); 9] = [
    (0, 0),
    (0, -SPEED),
    (SLANT, -SLANT),
    (SPEED, 0),
    (SLANT, SLANT),
    (0, SPEED),
    (-SLANT, SLANT),
    (-SPEED, 0),
    (-SLANT, -SLANT),
];

/// All of it.
#[derive(Debug)]
pub struct World {
    tick: u32,
    here: u16,
    bodies: Vec<Option<Body>>,
    stars: Vec<Place>,
    dice: Dice,
    near: Vec<(u32, usize)>,
}

#[derive(Debug, Clone, Copy)]
struct Body {
    place: Place,
    direction: u8,
    score: u16,
}

impl World {
    /// Stars, and nobody.
    pub fn new(mut dice: Dice) -> Self {
        let stars = (0..STARS).map(|_| anywhere(&mut dice)).collect();
        Self { tick: 0, here: 0, bodies: vec![None; PLAYERS_MAX], stars, dice, near: Vec::new() }
    }

    /// Steps since the beginning.
    pub fn tick(&self) -> u32 {
        self.tick
    }

    /// A player appears somewhere, and stands. `id` is below `PLAYERS_MAX` and nobody's.
    pub fn enter(&mut self, id: u16) {
        let body = Body { place: anywhere(&mut self.dice), direction: 0, score: 0 };
        if self.bodies[usize::from(id)].replace(body).is_none() {
            self.here += 1;
        }
    }

    /// A player is gone; its score.
    pub fn leave(&mut self, id: u16) -> u16 {
        let left = self.bodies[usize::from(id)].take();
        self.here -= u16::from(left.is_some());
        left.map_or(0, |body| body.score)
    }

    /// Which way a player goes from the next step on.
    pub fn steer(&mut self, id: u16, direction: u8) {
        if let Some(body) = &mut self.bodies[usize::from(id)] {
            body.direction = direction.min(8);
        }
    }

    /// Everybody moves, then each star goes to the nearest player that reaches it.
    pub fn step(&mut self) {
        self.tick = self.tick.wrapping_add(1);
        for body in self.bodies.iter_mut().flatten() {
            let (east, south) = STEPS[usize::from(body.direction)];
            body.place.x = body.place.x.wrapping_add_signed(east);
            body.place.y = body.place.y.wrapping_add_signed(south);
        }
        for star in &mut self.stars {
            let reaching = self.bodies.iter_mut().flatten().map(|body| (distance_squared(*star, body.place), body));
            let nearest = reaching.filter(|(far, _)| *far <= REACH * REACH).min_by_key(|(far, _)| *far);
            if let Some((_, body)) = nearest {
                body.score = body.score.saturating_add(1);
                *star = anywhere(&mut self.dice);
            }
        }
    }

    /// What a player sees, into `state`; `seq` stays as it is.
    pub fn look(&mut self, id: u16, state: &mut State) {
        state.tick = self.tick;
        state.here = self.here;
        state.players.clear();
        state.stars.clear();
        let Some(own) = self.bodies[usize::from(id)] else { return };
        state.players.push(seen(id, &own));
        let others = self.bodies.iter().enumerate().filter(|(other, _)| *other != usize::from(id));
        let places = others.filter_map(|(other, body)| Some((other, (*body)?.place)));
        nearest_first(&mut self.near, own.place, places, PLAYERS_SEEN_MAX - 1);
        for (_, other) in &self.near {
            state.players.extend(self.bodies[*other].iter().map(|body| seen(*other as u16, body)));
        }
        nearest_first(&mut self.near, own.place, self.stars.iter().copied().enumerate(), STARS_SEEN_MAX);
        state.stars.extend(self.near.iter().map(|(_, star)| self.stars[*star]));
    }
}

/// The direction from one place to another; 0 when they are as good as the same.
pub fn direction_to(from: Place, to: Place) -> u8 {
    let (east, south) = difference(from, to);
    let part = |way: i32, other: i32| if way.abs() > other.abs() / 2 && way.abs() > 200 { way.signum() } else { 0 };
    let wanted = (part(east, south), part(south, east));
    let found = STEPS.iter().position(|(x, y)| (x.signum().into(), y.signum().into()) == wanted);
    found.map_or(0, |direction| direction as u8)
}

/// The shortest way around the torus.
fn difference(from: Place, to: Place) -> (i32, i32) {
    let along = |from: u16, to: u16| i32::from(to.wrapping_sub(from) as i16);
    (along(from.x, to.x), along(from.y, to.y))
}

fn distance_squared(from: Place, to: Place) -> u32 {
    let (east, south) = difference(from, to);
    // At most 2 * 32768², which is exactly 2^31.
    east.unsigned_abs().pow(2) + south.unsigned_abs().pow(2)
}

/// Which of the places are in sight, as (distance, number), at most `count` of them.
fn nearest_first(
    found: &mut Vec<(u32, usize)>,
    from: Place,
    places: impl Iterator<Item = (usize, Place)>,
    count: usize,
) {
    found.clear();
    found.extend(places.filter_map(|(number, place)| {
        let (east, south) = difference(from, place);
        let is_seen = east.unsigned_abs().max(south.unsigned_abs()) <= SIGHT.into();
        is_seen.then(|| (distance_squared(from, place), number))
    }));
    found.sort_unstable();
    found.truncate(count);
}

fn seen(id: u16, body: &Body) -> Player {
    Player { id, place: body.place, score: body.score }
}

fn anywhere(dice: &mut Dice) -> Place {
    let number = dice.roll();
    Place { x: number as u16, y: (number >> 16) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        let mut world = World::new(Dice(1));
        world.stars.clear();
        world
    }

    fn put(world: &mut World, id: u16, x: u16, y: u16) {
        world.enter(id);
        world.bodies[usize::from(id)].as_mut().unwrap().place = Place { x, y };
    }

    fn look(world: &mut World, id: u16) -> State {
        let mut state = State::default();
        world.look(id, &mut state);
        state
    }

    #[test]
    fn whoever_goes_on_comes_back_around_the_torus() {
        let mut world = world();
        put(&mut world, 0, 10, 10);
        for (direction, x, y) in [(7, 65_146, 10), (3, 10, 10), (1, 10, 65_146), (5, 10, 10), (0, 10, 10)] {
            world.steer(0, direction);
            world.step();
            assert_eq!(look(&mut world, 0).players[0].place, Place { x, y });
        }
    }

    #[test]
    fn a_star_is_gathered_by_the_nearest_who_reaches_it_and_appears_elsewhere() {
        let mut world = world();
        // On both sides of the seam.
        put(&mut world, 0, 65_000, 0);
        put(&mut world, 1, 500, 0);
        world.stars.push(Place { x: 100, y: 0 });
        world.step();
        assert_eq!((world.leave(0), world.leave(1)), (0, 1));
        assert_ne!(world.stars, [Place { x: 100, y: 0 }]);
        assert_eq!(world.stars.len(), 1);
    }

    #[test]
    fn a_star_out_of_reach_stays() {
        let mut world = world();
        put(&mut world, 0, 0, 0);
        world.stars.push(Place { x: 1_501, y: 0 });
        world.step();
        assert_eq!(world.stars, [Place { x: 1_501, y: 0 }]);
        world.steer(0, 3);
        world.step();
        assert_eq!(world.leave(0), 1);
    }

    #[test]
    fn a_player_sees_itself_first_then_the_nearest_in_sight_and_nobody_behind() {
        let mut world = world();
        put(&mut world, 0, 0, 0);
        put(&mut world, 1, 40_000, 0);
        put(&mut world, 2, 60_000, 0);
        put(&mut world, 3, 300, 65_000);
        let state = look(&mut world, 0);
        assert_eq!(state.players.iter().map(|one| one.id).collect::<Vec<_>>(), [0, 3, 2]);
        assert_eq!(state.here, 4);
        world.leave(3);
        world.leave(3);
        assert_eq!(look(&mut world, 0).here, 3);
    }

    #[test]
    fn a_crowd_is_cut_to_what_a_datagram_holds() {
        let mut world = World::new(Dice(2));
        (0..PLAYERS_MAX as u16).for_each(|id| put(&mut world, id, id, id));
        world.stars = vec![Place::default(); 100];
        let state = look(&mut world, 255);
        assert_eq!((state.players.len(), state.stars.len()), (PLAYERS_SEEN_MAX, STARS_SEEN_MAX));
        assert_eq!(state.players[1].id, 254);
    }

    #[test]
    fn whoever_steers_to_the_nearest_star_gathers_them() {
        let mut world = World::new(Dice(3));
        world.enter(0);
        for _ in 0..60 * TICKS_PER_SECOND {
            let state = look(&mut world, 0);
            let direction = state.stars.first().map_or(3, |star| direction_to(state.players[0].place, *star));
            world.steer(0, direction);
            world.step();
        }
        let score = world.leave(0);
        assert!(score > 30, "{score} in a minute");
    }
}
