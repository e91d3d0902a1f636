//! Connected slots against the sessions of edge-guard.

use hosting_core::*;

use crate::test_engine::*;

const PORTS: [PortRequest<'_>; 1] = ONE_PORT;

fn lobby_of(w: &mut TestEngine, sources: &[u64]) -> Id {
    let lobby = w.start_idle(|template| template.ports = &PORTS).result.unwrap();
    w.ready(lobby).unwrap();
    for source in sources {
        let token = one_token(w.join_with(lobby, |c| c.source = *source).result.unwrap());
        w.connect(lobby, &token).unwrap();
    }
    lobby
}

fn suspects(w: &TestEngine, lobby: Id, by_source: &[(u64, u32)], others: u32) -> Option<u32> {
    let sessions = LobbySessions { by_source: by_source.to_vec(), others };
    w.engine.suspect_slots(lobby, &sessions, 0..w.now + 1)
}

#[test]
fn slots_are_compared_by_address_and_number() {
    let mut w = TestEngine::new();
    let lobby = lobby_of(&mut w, &[7, 7, 8]);
    for (by_source, others, expected) in [
        (&[(7, 2), (8, 1)][..], 0, 0),
        (&[(7, 1), (8, 1)], 0, 1),
        (&[(7, 1), (8, 5)], 0, 1),
        (&[(7, 9)], 0, 1),
        (&[], 0, 3),
        (&[(7, 2), (9, 1)], 0, 0),
        (&[(7, 2)], 1, 0),
    ] {
        assert_eq!(suspects(&w, lobby, by_source, others), Some(expected), "{by_source:?} and {others} others");
    }
}

#[test]
fn slot_without_an_address_has_any_session_of_another_address() {
    let mut w = TestEngine::new();
    let lobby = lobby_of(&mut w, &[0, 0, 7]);
    for (by_source, expected) in [(&[(7, 3)][..], 2), (&[(7, 1), (5, 1)], 1), (&[(7, 1), (5, 1), (6, 1)], 0)] {
        assert_eq!(suspects(&w, lobby, by_source, 0), Some(expected), "{by_source:?}");
    }
}

#[test]
fn only_slots_that_connected_in_the_time_span_are_compared() {
    let mut w = TestEngine::new();
    let lobby = lobby_of(&mut w, &[7]);
    let none = LobbySessions::default();
    let connected = w.now;
    w.pass(1_000);
    assert_eq!(w.engine.suspect_slots(lobby, &none, connected..w.now), Some(1));
    assert_eq!(w.engine.suspect_slots(lobby, &none, connected + 1..w.now), Some(0));
    assert_eq!(w.engine.suspect_slots(lobby, &none, 0..connected), Some(0));
}

#[test]
fn lobbies_without_edge_guard_have_no_suspect_slots() {
    let mut w = TestEngine::new();
    let attached = w.lobby(|_| {});
    let direct = [PortRequest { exposure: PortExposure::Range(20_000, 20_010), ..ONE_PORT[0] }];
    let direct = w.start_idle(|template| template.ports = &direct).result.unwrap();
    let no_ports = w.start_idle(|template| template.ports = &[]).result.unwrap();
    for lobby in [attached, direct, no_ports, Id([9; 16])] {
        assert_eq!(suspects(&w, lobby, &[], 0), None);
    }
}
