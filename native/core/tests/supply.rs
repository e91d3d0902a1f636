//! What the supply of idle lobbies is told: who starts for nobody, who is empty and since when (decisions 5.8).

#![allow(clippy::unwrap_used)]

mod world;
use world::*;

use hosting_core::*;

/// Of the only group that was touched: starting, live, and (lobby, empty ms, was used) of the empty ones.
fn told(w: &mut World) -> (u32, u32, Vec<(Id, u64, bool)>) {
    let groups = w.engine.take_changed_idle_groups();
    let [group] = &groups[..] else { panic!("{} groups", groups.len()) };
    assert_eq!((&*group.mode, &*group.region, group.namespace, group.version), ("duel", "local", NAMESPACE, VERSION));
    (group.starting, group.live, group.empty.iter().map(|one| (one.lobby, one.empty_ms, one.was_used)).collect())
}

fn idle(w: &mut World) -> Id {
    let lobby = w.start_idle(|_| {}).result.unwrap();
    w.ready(lobby).unwrap();
    lobby
}

#[test]
fn a_group_is_told_when_something_changed_and_only_then() {
    let mut w = World::new();
    assert!(w.engine.take_changed_idle_groups().is_empty());
    let lobby = w.start_idle(|_| {}).result.unwrap();
    assert_eq!(told(&mut w), (1, 1, vec![]));
    assert!(w.engine.take_changed_idle_groups().is_empty());
    w.ready(lobby).unwrap();
    assert_eq!(told(&mut w), (0, 1, vec![(lobby, 0, false)]));
    let token = w.join(lobby).unwrap();
    assert_eq!(told(&mut w), (0, 1, vec![]));
    w.connect(lobby, &token).unwrap();
    assert!(
        w.engine.take_changed_idle_groups().is_empty(),
        "whether a player is reserved or connected makes no difference"
    );
    w.disconnect(lobby, &token, Some(5_000)).unwrap();
    assert!(w.engine.take_changed_idle_groups().is_empty(), "a kept place is a player");
    w.pass(5_000);
    assert_eq!(told(&mut w), (0, 1, vec![(lobby, 0, true)]));
    w.pass_unnoticed(30_000);
    w.close(lobby, true).unwrap();
    let [group] = &w.engine.take_changed_idle_groups()[..] else { panic!("it closed") };
    assert_eq!((group.empty[0].empty_ms, group.empty[0].is_findable, group.empty[0].is_ours), (30_000, false, true));
    w.run(|e, cx| e.stop(cx, lobby, true)).result.unwrap();
    assert_eq!(told(&mut w), (0, 0, vec![]));
    w.run(|e, cx| e.process_exited(cx, lobby, Some(0))).result.unwrap();
    assert!(w.engine.take_changed_idle_groups().len() <= 1);
    assert!(w.engine.take_changed_idle_groups().is_empty());
    assert!(w.engine.idle_groups(NAMESPACE).is_empty());
}

#[test]
fn the_one_that_is_empty_longest_comes_first() {
    let mut w = World::new();
    let (first, second, third) = (idle(&mut w), idle(&mut w), idle(&mut w));
    told(&mut w);
    w.pass_unnoticed(1_000);
    let token = w.join(first).unwrap();
    w.disconnect(first, &token, None).unwrap();
    let empty: Vec<Id> = told(&mut w).2.iter().map(|one| one.0).collect();
    assert_eq!((empty.len(), empty.last()), (3, Some(&first)), "it was used between two looks");
    assert!(empty.contains(&second) && empty.contains(&third));
}

#[test]
fn a_lobby_that_starts_for_somebody_is_not_one_that_starts_for_nobody() {
    let mut w = World::new();
    let make = w.own_lobby();
    let waiting = hold(w.find_with(|c| c.creation = CreationPolicy::Possible(&make)).result.unwrap());
    assert_eq!(told(&mut w), (0, 1, vec![]));
    w.run(|e, cx| e.release_hold(cx, waiting));
    assert_eq!(told(&mut w), (1, 1, vec![]));
    let private = w.start_idle(|make| make.publicity = Publicity::Private).result.unwrap();
    assert_eq!(told(&mut w), (1, 2, vec![]), "nobody finds a private one");
    w.ready(private).unwrap();
    let [group] = &w.engine.take_changed_idle_groups()[..] else { panic!("it is ready") };
    assert_eq!(group.empty.iter().map(|one| one.is_findable).collect::<Vec<_>>(), [false]);
}

#[test]
fn a_lobby_that_was_made_for_somebody_was_used() {
    let mut w = World::new();
    let make = w.own_lobby();
    let hold = hold(w.find_with(|c| c.creation = CreationPolicy::Possible(&make)).result.unwrap());
    let lobby = w.engine.desired_lobbies_since(0).lobbies[0].lobby;
    w.ready(lobby).unwrap();
    let resolved = w.engine.take_resolved_holds();
    let [one] = &resolved[..] else { panic!("{} holds", resolved.len()) };
    assert_eq!(one.hold, hold);
    let token = one.answer.result.as_ref().unwrap().tokens[0].clone();
    told(&mut w);
    w.disconnect(lobby, &token, None).unwrap();
    assert_eq!(told(&mut w), (0, 1, vec![(lobby, 0, true)]));
}

#[test]
fn a_lobby_that_is_closed_while_it_starts_is_one_that_starts() {
    let mut w = World::new();
    let lobby = w.start_idle(|_| {}).result.unwrap();
    w.close(lobby, true).unwrap();
    assert_eq!(told(&mut w), (1, 1, vec![]));
    w.ready(lobby).unwrap();
    assert_eq!(told(&mut w), (0, 1, vec![(lobby, 0, false)]));
}

#[test]
fn the_last_lobby_of_a_group_is_told_with_its_names_also_when_they_are_used_again() {
    let mut w = World::new();
    let lobby = w.start_idle(|make| (make.lobby.mode, make.lobby.region) = ("rare", "far")).result.unwrap();
    w.detach(lobby).unwrap();
    w.start_idle(|make| (make.lobby.mode, make.lobby.region) = ("other", "near")).result.unwrap();
    let mut names: Vec<_> =
        w.engine.take_changed_idle_groups().into_iter().map(|group| (group.mode, group.region, group.live)).collect();
    names.sort();
    assert_eq!(names, [("other".into(), "near".into(), 1), ("rare".into(), "far".into(), 0)]);
    assert_eq!(w.engine.idle_groups(NAMESPACE).len(), 1);
    assert!(w.engine.idle_groups(OTHER_NAMESPACE).is_empty());
}

#[test]
fn versions_have_groups_of_their_own_and_attached_lobbies_are_in_them() {
    let mut w = World::new();
    let attached = w.lobby(|_| {});
    let next = w.start_idle(|make| make.lobby.version = NEXT_VERSION).result.unwrap();
    let groups = w.engine.idle_groups(NAMESPACE);
    let found: Vec<_> = groups.iter().map(|group| (group.version, group.starting, group.empty.len())).collect();
    assert_eq!(found, [(VERSION, 0, 1), (NEXT_VERSION, 1, 0)]);
    assert_eq!((groups[0].empty[0].lobby, groups[0].empty[0].is_ours), (attached, false));
    w.detach(next).unwrap();
}

#[test]
fn after_a_crash_everything_is_told_anew() {
    let mut w = World::new();
    let lobby = idle(&mut w);
    let used = idle(&mut w);
    let token = w.join(used).unwrap();
    w.connect(used, &token).unwrap();
    w.replica.finish_recovery(w.now);
    let groups = w.replica.take_changed_idle_groups();
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].live, groups[0].starting), (2, 0));
    assert_eq!(groups[0].empty.iter().map(|one| one.lobby).collect::<Vec<_>>(), [lobby]);
}

/// How many of the groups' lobbies the engine has ended because they failed.
fn failed(w: &mut World) -> Vec<u32> {
    w.engine.take_changed_idle_groups().iter().map(|group| group.failed).collect()
}

#[test]
fn of_ours_that_end_because_they_are_not_ready_or_silent_the_supply_is_told_once() {
    let mut w = World::new();
    for _ in 0..3 {
        w.start_idle(|_| {}).result.unwrap();
    }
    assert_eq!(failed(&mut w), [0]);
    w.pass(300_000);
    assert_eq!(failed(&mut w), [3]);
    assert_eq!(failed(&mut w), []);
    let lobby = w.start_idle(|make| make.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    w.ready(lobby).unwrap();
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    assert_eq!(failed(&mut w), [0], "those of before are told");
    w.pass(3_000);
    assert_eq!(failed(&mut w), [1]);
    assert!(w.engine.idle_groups(NAMESPACE).is_empty());
}

#[test]
fn who_ends_otherwise_has_not_failed() {
    let mut w = World::new();
    let beats = |make: &mut LobbyTemplate<'_>| make.lobby.heartbeat_timeout_ms = 1_000;
    let exited = w.start_idle(beats).result.unwrap();
    w.run(|e, cx| e.process_exited(cx, exited, Some(1))).result.unwrap();
    let removed = w.start_idle(beats).result.unwrap();
    w.detach(removed).unwrap();
    w.lobby(|attach| attach.heartbeat_timeout_ms = 1_000);
    w.pass(3_000);
    assert_eq!(w.engine.namespace_counts()[0].1.lobby_ends, [1, 0, 1, 1, 0], "the attached one is silent");
    assert_eq!(failed(&mut w), [0]);
}

#[test]
fn one_that_is_being_stopped_ends_when_its_process_is_over_and_not_before() {
    let mut w = World::new();
    let beats = |make: &mut LobbyTemplate<'_>| make.lobby.heartbeat_timeout_ms = 1_000;
    let [says_goodbye, was_silent, never_ready] = [(); 3].map(|()| w.start_idle(beats).result.unwrap());
    w.ready(says_goodbye).unwrap();
    w.ready(was_silent).unwrap();
    w.pass(1_500);
    w.run(|e, cx| e.heartbeat(cx, says_goodbye, None)).result.unwrap();
    for lobby in [says_goodbye, was_silent, never_ready] {
        assert!(w.run(|e, cx| e.stop(cx, lobby, false)).result.unwrap());
    }
    w.pass(10 * EngineConfig::new(1, keys(&[1], 1)).start_limit_ms);
    assert_eq!(
        w.engine.namespace_counts()[0].1.lobby_ends,
        [0; 5],
        "whoever hangs or plays on is killed, and then told"
    );
    for lobby in [says_goodbye, was_silent, never_ready] {
        assert!(w.run(|e, cx| e.process_exited(cx, lobby, Some(0))).result.unwrap());
    }
    assert_eq!(w.engine.namespace_counts()[0].1.lobby_ends, [0, 0, 0, 0, 3], "stopped, as they were told");
    assert_eq!(failed(&mut w), [0]);
}
