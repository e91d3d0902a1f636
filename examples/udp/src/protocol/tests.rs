//! Every message is read as it was written, and nothing else is.

use super::*;
use crate::system::Dice;

const PASS: Pass = Pass { id: 7, secret: 0x0102_0304_0506_0708 };

fn said() -> Vec<Said<'static>> {
    vec![
        Said::Hello { token: "player_abc-DEF_123" },
        Said::Input { pass: PASS, cookie: 9, seq: 4_000_000_000, direction: 8 },
        Said::Bye { pass: PASS },
        Said::Ping { payload: b"now" },
        Said::Ping { payload: b"" },
    ]
}

fn told() -> Vec<Told<'static>> {
    let player = Player { id: 3, place: Place { x: 65_535, y: 1 }, score: 12 };
    let star = Place { x: 5, y: 6 };
    let state = State { tick: 8, seq: 9, here: 40, players: vec![player; 3], stars: vec![star; 5] };
    let mut all = vec![
        Told::Welcome { pass: PASS, tick: 77, tick_ms: 50 },
        Told::State(state),
        Told::State(State::default()),
        Told::Path { cookie: u32::MAX },
        Told::Pong { payload: b"now" },
    ];
    all.extend(Refusal::ALL.map(Told::Refused));
    all.extend(Ending::ALL.map(Told::Ended));
    all
}

fn bytes(message: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = b"what was there before".to_vec();
    message(&mut out);
    out
}

#[test]
fn every_message_is_read_as_it_was_written() {
    for message in said() {
        assert_eq!(Said::read(&bytes(|out| message.write(out))), Some(message));
    }
    for message in told() {
        assert_eq!(Told::read(&bytes(|out| message.write(out))), Some(message));
    }
}

#[test]
fn a_message_that_is_cut_or_has_more_at_its_end_is_none() {
    for message in said().into_iter().filter(|one| !matches!(one, Said::Ping { .. })) {
        let whole = bytes(|out| message.write(out));
        assert!((0..whole.len()).all(|length| Said::read(&whole[..length]).is_none()), "{message:?}");
        assert_eq!(Said::read(&[&whole[..], &[1]].concat()), None, "{message:?}");
    }
    for message in told().into_iter().filter(|one| !matches!(one, Told::Pong { .. })) {
        let whole = bytes(|out| message.write(out));
        assert!((0..whole.len()).all(|length| Told::read(&whole[..length]).is_none()), "{message:?}");
        assert_eq!(Told::read(&[&whole[..], &[0]].concat()), None, "{message:?}");
    }
}

#[test]
fn a_hello_is_filled_up_so_that_no_answer_to_it_is_longer() {
    let hello = bytes(|out| Said::Hello { token: "t" }.write(out));
    assert_eq!(hello.len(), HELLO_BYTES_MIN);
    let longest = "t".repeat(TOKEN_BYTES_MAX);
    assert_eq!(
        Said::read(&bytes(|out| Said::Hello { token: &longest }.write(out))),
        Some(Said::Hello { token: &longest })
    );
    for answer in told().into_iter().filter(|one| matches!(one, Told::Welcome { .. } | Told::Refused(_))) {
        assert!(bytes(|out| answer.write(out)).len() <= HELLO_BYTES_MIN, "{answer:?}");
    }
    let input = bytes(|out| said()[1].write(out));
    assert!(bytes(|out| Told::Path { cookie: 1 }.write(out)).len() <= input.len());
}

#[test]
fn a_token_that_would_need_quoting_is_no_token() {
    for token in ["", "a b", "a\"b", "a\\b", "a\r\nb", "ä", &"t".repeat(TOKEN_BYTES_MAX + 1)] {
        assert_eq!(Said::read(&bytes(|out| Said::Hello { token }.write(out))), None, "{token:?}");
    }
}

#[test]
fn a_direction_that_there_is_not_and_another_version_are_no_message() {
    let input = Said::Input { pass: PASS, cookie: 0, seq: 1, direction: 9 };
    assert_eq!(Said::read(&bytes(|out| input.write(out))), None);
    let mut newer = bytes(|out| said()[2].write(out));
    newer[1] = 2;
    assert_eq!(Said::read(&newer), None);
}

#[test]
fn the_fullest_state_fits_and_what_is_too_far_is_left_out() {
    let player = Player { id: 1, place: Place::default(), score: 2 };
    let crowd = State { players: vec![player; 300], stars: vec![Place::default(); 300], ..State::default() };
    let datagram = bytes(|out| Told::State(crowd.clone()).write(out));
    assert!(datagram.len() <= DATAGRAM_BYTES_MAX, "{}", datagram.len());
    let Some(Told::State(seen)) = Told::read(&datagram) else { panic!("it is a state") };
    assert_eq!((seen.players.len(), seen.stars.len()), (PLAYERS_SEEN_MAX, STARS_SEEN_MAX));
}

#[test]
fn noise_is_read_without_harm() {
    let mut dice = Dice(7);
    for _ in 0..100_000 {
        let length = dice.roll() as usize % 600;
        let mut noise: Vec<u8> = (0..length).map(|_| dice.roll() as u8).collect();
        if length > 3 {
            noise[..2].copy_from_slice(&MARK);
            noise[2] = [1, 2, 3, 4, 16, 17, 18, 19, 20, 21][dice.roll() as usize % 10];
        }
        if let Some(message) = Said::read(&noise) {
            assert_eq!(bytes(|out| message.write(out)).len(), noise.len().max(3));
        }
        let _ = Told::read(&noise);
    }
}
