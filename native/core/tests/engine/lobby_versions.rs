//! Versions of live lobbies.

use crate::test_engine::*;

#[test]
fn version_is_live_until_its_last_lobby_ends() {
    let mut w = TestEngine::new();
    assert_eq!(w.engine.live_versions(NAMESPACE), [], "the namespace is unknown");
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
fn lobbies_of_version_returns_live_lobbies() {
    let mut w = TestEngine::new();
    let lobbies_of = |w: &TestEngine, version| w.engine.lobbies_of_version(NAMESPACE, version);
    assert_eq!(lobbies_of(&w, VERSION), [], "the namespace is unknown");
    let closed = w.lobby(|_| {});
    let starting = w.starting(|_| {});
    let next = w.lobby(|c| c.version = NEXT_VERSION);
    let stopping = w.lobby(|_| {});
    w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    w.close(closed, true).unwrap();
    w.run(|e, cx| e.stop(cx, stopping, true)).result.unwrap();
    assert_eq!(lobbies_of(&w, VERSION), [closed, starting, stopping]);
    assert_eq!(lobbies_of(&w, NEXT_VERSION), [next]);
    w.detach(starting).unwrap();
    assert_eq!(lobbies_of(&w, VERSION), [closed, stopping]);
}

#[test]
fn has_starting_lobbies_until_ready_or_stopping() {
    let mut w = TestEngine::new();
    let starts = |w: &TestEngine| w.engine.has_starting_lobbies(NAMESPACE, VERSION);
    assert!(!starts(&w), "the namespace is unknown");
    w.starting(|_| {});
    assert!(!starts(&w), "an attached lobby is not starting");
    let [first, second] = [(); 2].map(|()| w.start_idle(|_| {}).result.unwrap());
    assert!(starts(&w));
    assert!(!w.engine.has_starting_lobbies(NAMESPACE, NEXT_VERSION));
    w.ready(first).unwrap();
    assert!(starts(&w));
    w.run(|e, cx| e.stop(cx, second, true)).result.unwrap();
    assert!(!starts(&w));
}

#[test]
fn namespace_of_an_ended_lobby_is_remembered() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    assert_eq!(w.engine.namespace_of_lobby(lobby), Some(NAMESPACE));
    w.detach(lobby).unwrap();
    assert_eq!(w.engine.namespace_of_lobby(lobby), Some(NAMESPACE));
    assert_eq!(w.engine.namespace_of_lobby(NAMESPACE), None);
}
