//! Rules of the game. Coordinates are 16-bit numbers that wrap, so the world is a torus.

use crate::protocol::{Player, Position};

pub const TICKS_PER_SECOND: u64 = 20;
pub const STARS: usize = 32;
/// With all stars, this number of players fits into one datagram.
const PLAYERS_SEEN: usize = 40;
const REACH: u32 = 1500;
/// Movement per step. Direction 0 stays, 1 to 8 are north and then clockwise.
pub const STEPS: [(i16, i16); 9] =
    [(0, 0), (0, -400), (283, -283), (400, 0), (283, 283), (0, 400), (-283, 283), (-400, 0), (-283, -283)];

pub fn step((x, y): Position, direction: u8) -> Position {
    let (east, south) = STEPS.get(usize::from(direction)).copied().unwrap_or_default();
    (x.wrapping_add_signed(east), y.wrapping_add_signed(south))
}

pub fn gather(stars: &mut [Position], mut players: Vec<&mut Player>) {
    for star in stars {
        let Some(nearest) = players.iter_mut().min_by_key(|player| distance(player.position, *star)) else { return };
        if distance(nearest.position, *star) <= REACH * REACH {
            nearest.score = nearest.score.saturating_add(1);
            *star = rand::random();
        }
    }
}

/// Returns players and stars, nearest first. The first player is `own`.
pub fn nearest(own: &Player, mut players: Vec<Player>, mut stars: Vec<Position>) -> (Vec<Player>, Vec<Position>) {
    players.sort_by_key(|player| (player.id != own.id, distance(own.position, player.position)));
    players.truncate(PLAYERS_SEEN);
    stars.sort_by_key(|star| distance(own.position, *star));
    (players, stars)
}

/// Returns the shortest way around the torus, to the east and to the south.
pub fn offset(from: Position, to: Position) -> (i32, i32) {
    let along = |from: u16, to: u16| i32::from(to.wrapping_sub(from) as i16);
    (along(from.0, to.0), along(from.1, to.1))
}

fn distance(from: Position, to: Position) -> u32 {
    let (east, south) = offset(from, to);
    east.unsigned_abs().pow(2) + south.unsigned_abs().pow(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{DATAGRAM_MAX, ServerMessage, write};

    fn player(id: u16, position: Position) -> Player {
        Player { id, position, score: 0 }
    }

    #[test]
    fn player_wraps_around_the_torus() {
        let there = step((10, 10), 7);
        assert_eq!((there, step(there, 3), step((10, 10), 1)), ((65_146, 10), (10, 10), (10, 65_146)));
        assert_eq!(step((10, 10), 200), (10, 10));
    }

    #[test]
    fn star_goes_to_the_nearest_player_and_reappears() {
        let (mut far, mut near, mut stars) = (player(0, (65_000, 0)), player(1, (500, 0)), [(100, 0), (30_000, 0)]);
        gather(&mut stars, vec![&mut far, &mut near]);
        assert_eq!((far.score, near.score, stars[1]), (0, 1, (30_000, 0)));
        assert_ne!(stars[0], (100, 0));
    }

    #[test]
    fn state_has_the_nearest_players_and_fits_a_datagram() {
        let all: Vec<_> = (0..256).map(|id| player(id, (id, id))).collect();
        let (players, stars) = nearest(&all[255], all.clone(), vec![(9, 9); STARS]);
        assert_eq!((players.len(), players[0].id, players[1].id), (PLAYERS_SEEN, 255, 254));
        let state = ServerMessage::State { tick: 0, seq: 0, player_total: 256, players, stars };
        assert!(write(&state).len() <= DATAGRAM_MAX);
    }
}
