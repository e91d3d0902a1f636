//! Which versions of a namespace have lobbies: asked when another one is to run (decisions 5.8).

#![allow(clippy::unwrap_used)]

mod world;
use world::*;

#[test]
fn a_version_lives_as_long_as_the_last_lobby_of_it() {
    let mut w = World::new();
    assert_eq!(w.engine.live_versions(NAMESPACE), [], "nobody knows the namespace");
    let starting = w.starting(|c| c.version = NEXT_VERSION);
    let ready = w.lobby(|_| {});
    let again = w.lobby(|_| {});
    w.lobby(|c| (c.namespace, c.version) = (OTHER_NAMESPACE, NEXT_VERSION));
    assert_eq!(w.engine.live_versions(NAMESPACE), [VERSION, NEXT_VERSION]);
    assert_eq!(w.engine.live_versions(OTHER_NAMESPACE), [NEXT_VERSION]);
    w.close(ready, true).unwrap();
    w.run(|e, cx| e.stop(cx, again, true)).result.unwrap();
    assert_eq!(w.engine.live_versions(NAMESPACE), [VERSION, NEXT_VERSION], "closed and stopping ones live");
    w.detach(ready).unwrap();
    w.detach(again).unwrap();
    assert_eq!(w.engine.live_versions(NAMESPACE), [NEXT_VERSION]);
    w.detach(starting).unwrap();
    assert_eq!(w.engine.live_versions(NAMESPACE), []);
}

#[test]
fn of_a_version_all_lobbies_are_told_until_they_end() {
    let mut w = World::new();
    let told = |w: &World, version| w.engine.lobbies_of_version(NAMESPACE, version);
    assert_eq!(told(&w, VERSION), [], "nobody knows the namespace");
    let closed = w.lobby(|_| {});
    let starting = w.starting(|_| {});
    let next = w.lobby(|c| c.version = NEXT_VERSION);
    let stopping = w.lobby(|_| {});
    w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    w.close(closed, true).unwrap();
    w.run(|e, cx| e.stop(cx, stopping, true)).result.unwrap();
    assert_eq!(told(&w, VERSION), [closed, starting, stopping]);
    assert_eq!(told(&w, NEXT_VERSION), [next]);
    w.detach(starting).unwrap();
    assert_eq!(told(&w, VERSION), [closed, stopping]);
}

#[test]
fn whether_lobbies_of_a_version_start_is_told_until_the_last_one_is_ready_or_stops() {
    let mut w = World::new();
    let starts = |w: &World| w.engine.has_starting_lobbies(NAMESPACE, VERSION);
    assert!(!starts(&w), "nobody knows the namespace");
    w.starting(|_| {});
    assert!(!starts(&w), "whoever attached it has started it");
    let [first, second] = [(); 2].map(|()| w.start_idle(|_| {}).result.unwrap());
    assert!(starts(&w));
    assert!(!w.engine.has_starting_lobbies(NAMESPACE, NEXT_VERSION));
    w.ready(first).unwrap();
    assert!(starts(&w));
    w.run(|e, cx| e.stop(cx, second, true)).result.unwrap();
    assert!(!starts(&w));
}

#[test]
fn whose_a_lobby_was_is_known_as_long_as_its_end() {
    let mut w = World::new();
    let lobby = w.lobby(|_| {});
    assert_eq!(w.engine.namespace_of_lobby(lobby), Some(NAMESPACE));
    w.detach(lobby).unwrap();
    assert_eq!(w.engine.namespace_of_lobby(lobby), Some(NAMESPACE));
    assert_eq!(w.engine.namespace_of_lobby(NAMESPACE), None);
}
