//! Idle lobby groups: which changes they report, and what counts as starting, empty or failed.

use hosting_core::*;

use crate::test_engine::*;

fn changed_group(w: &mut TestEngine) -> (u32, u32, Vec<(Id, u64, bool)>) {
    let groups = w.engine.take_changed_idle_groups();
    let [group] = &groups[..] else { panic!("{} groups", groups.len()) };
    assert_eq!((&*group.mode, &*group.region, group.namespace, group.version), ("duel", "local", NAMESPACE, VERSION));
    (group.starting, group.live, group.empty.iter().map(|one| (one.lobby, one.empty_ms, one.was_used)).collect())
}

fn idle(w: &mut TestEngine) -> Id {
    let lobby = w.start_idle(|_| {}).result.unwrap();
    w.ready(lobby).unwrap();
    lobby
}

#[test]
fn changed_groups_are_reported_once() {
    let mut w = TestEngine::new();
    assert!(w.engine.take_changed_idle_groups().is_empty());
    let lobby = w.start_idle(|_| {}).result.unwrap();
    assert_eq!(changed_group(&mut w), (1, 1, vec![]));
    assert!(w.engine.take_changed_idle_groups().is_empty());
    w.ready(lobby).unwrap();
    assert_eq!(changed_group(&mut w), (0, 1, vec![(lobby, 0, false)]));
    let token = w.join(lobby).unwrap();
    assert_eq!(changed_group(&mut w), (0, 1, vec![]));
    w.connect(lobby, &token).unwrap();
    assert!(
        w.engine.take_changed_idle_groups().is_empty(),
        "whether a player is reserved or connected makes no difference"
    );
    w.disconnect(lobby, &token, Some(5_000)).unwrap();
    assert!(w.engine.take_changed_idle_groups().is_empty(), "a kept slot counts as occupied");
    w.pass(5_000);
    assert_eq!(changed_group(&mut w), (0, 1, vec![(lobby, 0, true)]));
    w.pass_unnoticed(30_000);
    w.close(lobby, true).unwrap();
    let [group] = &w.engine.take_changed_idle_groups()[..] else { panic!("it closed") };
    assert_eq!((group.empty[0].empty_ms, group.empty[0].is_findable, group.empty[0].is_ours), (30_000, false, true));
    w.run(|e, cx| e.stop(cx, lobby, true)).result.unwrap();
    assert_eq!(changed_group(&mut w), (0, 0, vec![]));
    w.run(|e, cx| e.process_exited(cx, lobby, Some(0))).result.unwrap();
    assert!(w.engine.take_changed_idle_groups().len() <= 1);
    assert!(w.engine.take_changed_idle_groups().is_empty());
    assert!(w.engine.idle_groups(NAMESPACE).is_empty());
}

#[test]
fn longest_empty_lobby_comes_first() {
    let mut w = TestEngine::new();
    let (first, second, third) = (idle(&mut w), idle(&mut w), idle(&mut w));
    changed_group(&mut w);
    w.pass_unnoticed(1_000);
    let token = w.join(first).unwrap();
    w.disconnect(first, &token, None).unwrap();
    let empty: Vec<Id> = changed_group(&mut w).2.iter().map(|one| one.0).collect();
    assert_eq!((empty.len(), empty.last()), (3, Some(&first)), "the lobby was used between two reads");
    assert!(empty.contains(&second) && empty.contains(&third));
}

#[test]
fn starting_lobby_with_a_hold_is_not_idle() {
    let mut w = TestEngine::new();
    let template = w.own_lobby();
    let waiting = hold(w.find_with(|c| c.creation = CreationPolicy::Possible(&template)).result.unwrap());
    assert_eq!(changed_group(&mut w), (0, 1, vec![]));
    w.run(|e, cx| e.release_hold(cx, waiting));
    assert_eq!(changed_group(&mut w), (1, 1, vec![]));
    let private = w.start_idle(|template| template.publicity = Publicity::Private).result.unwrap();
    assert_eq!(changed_group(&mut w), (1, 2, vec![]), "players cannot find a private one");
    w.ready(private).unwrap();
    let [group] = &w.engine.take_changed_idle_groups()[..] else { panic!("it is ready") };
    assert_eq!(group.empty.iter().map(|one| one.is_findable).collect::<Vec<_>>(), [false]);
}

#[test]
fn lobby_created_for_a_player_counts_as_used() {
    let mut w = TestEngine::new();
    let template = w.own_lobby();
    let hold = hold(w.find_with(|c| c.creation = CreationPolicy::Possible(&template)).result.unwrap());
    let lobby = w.engine.desired_lobbies_since(0).lobbies[0].lobby;
    w.ready(lobby).unwrap();
    let resolved = w.engine.take_resolved_holds();
    let [one] = &resolved[..] else { panic!("{} holds", resolved.len()) };
    assert_eq!(one.hold, hold);
    let token = one.outcome.result.as_ref().unwrap().tokens[0].clone();
    changed_group(&mut w);
    w.disconnect(lobby, &token, None).unwrap();
    assert_eq!(changed_group(&mut w), (0, 1, vec![(lobby, 0, true)]));
}

#[test]
fn closed_starting_lobby_counts_as_starting() {
    let mut w = TestEngine::new();
    let lobby = w.start_idle(|_| {}).result.unwrap();
    w.close(lobby, true).unwrap();
    assert_eq!(changed_group(&mut w), (1, 1, vec![]));
    w.ready(lobby).unwrap();
    assert_eq!(changed_group(&mut w), (0, 1, vec![(lobby, 0, false)]));
}

#[test]
fn group_without_lobbies_is_reported_once_with_its_names() {
    let mut w = TestEngine::new();
    let lobby = w.start_idle(|template| (template.lobby.mode, template.lobby.region) = ("rare", "far")).result.unwrap();
    w.detach(lobby).unwrap();
    w.start_idle(|template| (template.lobby.mode, template.lobby.region) = ("other", "near")).result.unwrap();
    let mut names: Vec<_> =
        w.engine.take_changed_idle_groups().into_iter().map(|group| (group.mode, group.region, group.live)).collect();
    names.sort();
    assert_eq!(names, [("other".into(), "near".into(), 1), ("rare".into(), "far".into(), 0)]);
    assert_eq!(w.engine.idle_groups(NAMESPACE).len(), 1);
    assert!(w.engine.idle_groups(OTHER_NAMESPACE).is_empty());
}

#[test]
fn each_version_has_its_own_group_including_attached_lobbies() {
    let mut w = TestEngine::new();
    let attached = w.lobby(|_| {});
    let next = w.start_idle(|template| template.lobby.version = NEXT_VERSION).result.unwrap();
    let groups = w.engine.idle_groups(NAMESPACE);
    let found: Vec<_> = groups.iter().map(|group| (group.version, group.starting, group.empty.len())).collect();
    assert_eq!(found, [(VERSION, 0, 1), (NEXT_VERSION, 1, 0)]);
    assert_eq!((groups[0].empty[0].lobby, groups[0].empty[0].is_ours), (attached, false));
    w.detach(next).unwrap();
}

#[test]
fn recovery_reports_every_group_again() {
    let mut w = TestEngine::new();
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

fn failed(w: &mut TestEngine) -> Vec<u32> {
    w.engine.take_changed_idle_groups().iter().map(|group| group.failed).collect()
}

#[test]
fn failed_managed_lobbies_are_counted_once() {
    let mut w = TestEngine::new();
    for _ in 0..3 {
        w.start_idle(|_| {}).result.unwrap();
    }
    assert_eq!(failed(&mut w), [0]);
    w.pass(300_000);
    assert_eq!(failed(&mut w), [3]);
    assert_eq!(failed(&mut w), []);
    let lobby = w.start_idle(|template| template.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    w.ready(lobby).unwrap();
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    assert_eq!(failed(&mut w), [0], "earlier failures were reported");
    w.pass(3_000);
    assert_eq!(failed(&mut w), [1]);
    assert!(w.engine.idle_groups(NAMESPACE).is_empty());
}

#[test]
fn other_ends_do_not_count_as_failed() {
    let mut w = TestEngine::new();
    let beats = |template: &mut LobbyTemplate<'_>| template.lobby.heartbeat_timeout_ms = 1_000;
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
fn stopping_lobby_ends_with_its_process_only() {
    let mut w = TestEngine::new();
    let beats = |template: &mut LobbyTemplate<'_>| template.lobby.heartbeat_timeout_ms = 1_000;
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
        "a lobby whose process stays alive is ended by the runtime"
    );
    for lobby in [says_goodbye, was_silent, never_ready] {
        assert!(w.run(|e, cx| e.process_exited(cx, lobby, Some(0))).result.unwrap());
    }
    assert_eq!(w.engine.namespace_counts()[0].1.lobby_ends, [0, 0, 0, 0, 3], "stopped, as ordered");
    assert_eq!(failed(&mut w), [0]);
}
