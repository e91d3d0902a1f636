//! Who is found, who goes, and who stays.

use std::net::UdpSocket;

use super::*;

fn begin(sessions: &mut Sessions, last: u8, now_ms: u64) -> usize {
    begin_at(sessions, 0, last, now_ms)
}

fn begin_at(sessions: &mut Sessions, port: usize, last: u8, now_ms: u64) -> usize {
    let client = SocketAddr::from(([127, 0, 0, last], 1));
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into());
    sessions.insert(port, (client, None), socket, Rank::Begun, now_ms)
}

/// So many who speak, are answered, and speak again.
fn speak_at(sessions: &mut Sessions, port: usize, lasts: std::ops::Range<u8>, now_ms: u64) -> Vec<usize> {
    let begin = |last| {
        let place = begin_at(sessions, port, last, now_ms);
        sessions.answered(place, now_ms);
        sessions.heard(place, now_ms);
        place
    };
    lasts.map(begin).collect()
}

#[test]
fn the_oldest_of_the_lowest_rank_goes_first() {
    let mut sessions = Sessions::default();
    let spoken = begin(&mut sessions, 1, 0);
    sessions.answered(spoken, 0);
    sessions.heard(spoken, 0);
    let answered = begin(&mut sessions, 2, 0);
    sessions.answered(answered, 0);
    let first = begin(&mut sessions, 3, 1);
    let second = begin(&mut sessions, 4, 2);
    sessions.heard(first, 3);
    for expected in [second, first, answered] {
        assert_eq!(sessions.displaceable_at(0, 100), Some(expected));
        assert_eq!(sessions.displaceable_for(0, 100), Some(expected));
        sessions.remove(expected);
    }
    for (now_ms, expected) in [(IN_USE_MS - 1, None), (IN_USE_MS, Some(spoken))] {
        assert_eq!(sessions.displaceable_at(0, now_ms), expected);
        assert_eq!(sessions.displaceable_for(0, now_ms), expected);
    }
}

#[test]
fn a_port_that_has_all_that_it_may_have_takes_nothing_of_another() {
    let mut sessions = Sessions::default();
    let _of_another = begin_at(&mut sessions, 1, 1, 0);
    assert_eq!((sessions.of_port(0), sessions.displaceable_at(0, IN_USE_MS)), (0, None));
    let own = speak_at(&mut sessions, 0, 2..5, 7);
    assert_eq!(sessions.of_port(0), 3);
    assert_eq!(sessions.displaceable_at(0, IN_USE_MS), None, "they are in use");
    assert_eq!(sessions.displaceable_at(0, 7 + IN_USE_MS), Some(own[0]));
    sessions.remove(own[0]);
    assert_eq!(sessions.of_port(0), 2);
}

#[test]
fn a_full_thread_takes_of_the_port_that_has_most_who_did_not_speak_again() {
    let mut sessions = Sessions::default();
    let first = begin_at(&mut sessions, 0, 1, 0);
    let crowd: Vec<usize> = (2..6).map(|last| begin_at(&mut sessions, 1, last, 10)).collect();
    sessions.answered(crowd[0], 20);
    for expected in [crowd[1], crowd[2], crowd[3]] {
        assert_eq!(sessions.displaceable_for(0, 100), Some(expected), "not {first}, which is older");
        sessions.remove(expected);
    }
}

#[test]
fn in_a_full_thread_players_who_come_do_not_push_out_each_other_for_a_flood_that_spoke_again() {
    let mut sessions = Sessions::default();
    let flood = speak_at(&mut sessions, 0, 0..200, 0);
    let player = flood[0];
    let newcomer = begin_at(&mut sessions, 1, 201, 500);
    sessions.heard(player, 500);
    assert_eq!(sessions.displaceable_for(2, 999), None, "all others speak, and who comes is let in");
    assert_eq!(sessions.displaceable_for(1, 999), Some(newcomer), "it is of the same port");
    assert_eq!(sessions.displaceable_for(2, 1_000), Some(flood[1]), "it is silent for longest");
    assert_eq!(sessions.displaceable_for(0, 1_000), None, "the flood takes nothing of others");
    assert_eq!(sessions.displaceable_for(0, IN_USE_MS), Some(flood[1]));
}

#[test]
fn ports_that_have_as_much_as_each_other_take_nothing_of_each_other() {
    let mut sessions = Sessions::default();
    speak_at(&mut sessions, 0, 0..3, 0);
    let larger = speak_at(&mut sessions, 1, 3..7, 0);
    assert_eq!(sessions.displaceable_for(0, 1_000), Some(larger[0]));
    sessions.remove(larger[0]);
    for port in [0, 1] {
        assert_eq!(sessions.displaceable_for(port, 1_000), None);
    }
}

#[test]
fn speaking_without_an_answer_raises_nobody() {
    let mut sessions = Sessions::default();
    let place = begin(&mut sessions, 1, 0);
    (0..9).for_each(|now_ms| sessions.heard(place, now_ms));
    assert_eq!(sessions.at(place).rank(), Rank::Begun);
}

#[test]
fn sessions_of_an_address_are_counted_while_they_are_there() {
    let mut sessions = Sessions::default();
    let (place, _other) = (begin(&mut sessions, 1, 0), begin(&mut sessions, 2, 0));
    let address = IpAddr::from([127, 0, 0, 1]);
    assert_eq!(sessions.of_address(address), 1);
    sessions.remove(place);
    assert_eq!(sessions.of_address(address), 0);
    assert_eq!(sessions.of_address.len(), 1, "who has none is not remembered");
}

#[test]
fn idle_ones_are_found_in_every_rank_of_every_port_and_used_ones_are_not() {
    let mut sessions = Sessions::default();
    let (a, b) = (begin(&mut sessions, 1, 0), begin(&mut sessions, 2, 0));
    sessions.answered(b, 30);
    let c = begin_at(&mut sessions, 1, 3, 0);
    let d = begin(&mut sessions, 4, 0);
    assert!(sessions.idle(59, 60).is_empty());
    assert_eq!(sessions.idle(60, 60), [a, d, c]);
    [a, d, c].into_iter().for_each(|place| drop(sessions.remove(place)));
    assert!(sessions.idle(60, 60).is_empty());
    assert_eq!(sessions.idle(90, 60), [b]);
}

#[test]
fn more_is_expected_only_of_whom_the_turn_before_had_something() {
    let mut sessions = Sessions::default();
    let place = begin(&mut sessions, 1, 0);
    let expected: Vec<bool> = [5, 7, 8, 9, 11].map(|turn| sessions.has_more(place, turn)).into();
    assert_eq!(expected, [false, false, true, true, false]);
}

#[test]
fn a_place_that_was_used_again_is_not_the_session_before() {
    let mut sessions = Sessions::default();
    let place = begin(&mut sessions, 1, 0);
    let first_use = sessions.at(place).use_of_place;
    sessions.remove(place);
    assert_eq!(begin(&mut sessions, 2, 0), place);
    assert!(sessions.get(place, first_use).is_none());
    assert_eq!(sessions.find(0, SocketAddr::from(([127, 0, 0, 1], 1)), None), None);
}

#[test]
fn a_session_of_no_known_address_of_ours_has_the_first_that_is_spoken_to() {
    let mut sessions = Sessions::default();
    let place = begin(&mut sessions, 1, 0);
    let client = sessions.at(place).client;
    let [one, other] = [1, 2].map(|last| Some(Local { address: IpAddr::from([10, 0, 0, last]), interface: 0 }));
    assert_eq!(sessions.find(0, client, one), Some(place));
    assert_eq!(sessions.at(place).local, one);
    assert_eq!([other, None].map(|local| sessions.find(0, client, local)), [None, None]);
    sessions.remove(place);
    assert_eq!(sessions.find(0, client, one), None);
}
