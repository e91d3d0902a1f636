//! Trials: private lobbies that end by a deadline, and that nothing for players shows.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

const TRIAL_MS: u64 = 60_000;

fn start_trial(w: &mut TestEngine) -> CommandOutcome<Id> {
    w.start_idle(|template| template.trial_ms = Some(TRIAL_MS))
}

fn ready_trial(w: &mut TestEngine) -> Id {
    let trial = start_trial(w).result.unwrap();
    w.ready(trial).unwrap();
    trial
}

/// Returns the reason of the last end that the facts report.
fn end_of(w: &TestEngine, lobby: Id) -> Option<EndReason> {
    let facts = w.engine.read_facts(0, Lsn::MAX, usize::MAX).facts;
    facts.into_iter().rev().filter(|fact| fact.lobby == lobby).find_map(|fact| match fact.kind {
        LobbyFactKind::Ended(ended) => Some(ended.reason),
        _ => None,
    })
}

#[test]
fn find_join_list_and_statistics_never_show_a_trial() {
    let mut w = TestEngine::new();
    let trial = ready_trial(&mut w);
    assert!(w.engine.lobby(trial).unwrap().is_trial);
    assert_eq!(w.find(), Err(NoAvailableLobbies));
    assert_eq!(w.join(trial), Err(LobbyNotFound));
    assert_eq!(listed(&w.engine, NAMESPACE, VERSION), []);
    assert_eq!(w.engine.player_counts(NAMESPACE), []);
    w.restart();
    assert_eq!((w.find(), w.join(trial)), (Err(NoAvailableLobbies), Err(LobbyNotFound)));
    assert_eq!(w.engine.player_counts(NAMESPACE), []);
}

#[test]
fn trial_is_in_no_idle_group() {
    let mut w = TestEngine::new();
    let trial = start_trial(&mut w).result.unwrap();
    assert!(w.engine.take_changed_idle_groups().is_empty(), "it is starting");
    w.ready(trial).unwrap();
    assert!(w.engine.take_changed_idle_groups().is_empty(), "it is ready");
    w.restart();
    assert!(w.engine.idle_groups(NAMESPACE).is_empty());
    let failing = start_trial(&mut w).result.unwrap();
    w.pass(TRIAL_MS);
    assert_eq!(end_of(&w, failing), Some(EndReason::StartTimeout));
    assert!(w.engine.take_changed_idle_groups().is_empty(), "a failed trial does not delay the start of lobbies");
}

#[test]
fn trial_ends_at_its_deadline() {
    let mut w = TestEngine::new();
    let (never_ready, ready) = (start_trial(&mut w).result.unwrap(), ready_trial(&mut w));
    let stopping = ready_trial(&mut w);
    w.run(|e, cx| e.stop(cx, stopping, false)).result.unwrap();
    w.pass(TRIAL_MS - 1);
    assert_eq!([never_ready, ready, stopping].map(|trial| w.engine.lobby(trial).is_some()), [true; 3]);
    w.pass(1);
    assert_eq!(end_of(&w, never_ready), Some(EndReason::StartTimeout));
    assert_eq!(end_of(&w, ready), Some(EndReason::Stopped));
    assert_eq!(end_of(&w, stopping), Some(EndReason::Stopped), "even if its process does not exit");
    assert!(w.engine.desired_lobbies_since(0).lobbies.is_empty());
}

#[test]
fn restart_does_not_prolong_a_trial() {
    let mut w = TestEngine::new();
    let (starting, ready) = (start_trial(&mut w).result.unwrap(), ready_trial(&mut w));
    w.pass(TRIAL_MS - 10);
    w.restart();
    w.pass(9);
    assert!(w.engine.lobby(starting).is_some() && w.engine.lobby(ready).is_some());
    w.pass(1);
    assert_eq!((end_of(&w, starting), end_of(&w, ready)), (Some(EndReason::StartTimeout), Some(EndReason::Stopped)));
}

#[test]
fn start_limit_and_heartbeat_timeout_end_a_trial_before_its_deadline() {
    let mut w = TestEngine::new();
    let silent = w.start_idle(|template| {
        (template.trial_ms, template.lobby.heartbeat_timeout_ms) = (Some(TRIAL_MS * 100), 10_000);
    });
    let silent = silent.result.unwrap();
    w.ready(silent).unwrap();
    let slow = w.start_idle(|template| template.trial_ms = Some(TRIAL_MS * 100)).result.unwrap();
    w.pass(30_000);
    assert_eq!(end_of(&w, silent), Some(EndReason::Silent));
    w.pass(300_000);
    assert_eq!(end_of(&w, slow), Some(EndReason::StartTimeout));
}

#[test]
fn trial_counts_for_the_limits_of_lobbies_and_ports() {
    let mut w = TestEngine::new();
    let trial = start_trial(&mut w).result.unwrap();
    assert_eq!(w.start_idle(|template| template.lobby.lobby_count_max = 1).result, Err(TooManyLobbies));
    let view = w.engine.lobby(trial).unwrap();
    assert_eq!(view.own.unwrap().leased.ports.len(), 1, "it leases its port");
    w.pass(TRIAL_MS);
    w.start_idle(|template| template.lobby.lobby_count_max = 1).result.unwrap();
    let full = w.start_idle(|template| (template.lobby.lobby_count_max, template.trial_ms) = (1, Some(TRIAL_MS)));
    assert_eq!(full.result, Err(TooManyLobbies));
}

#[test]
fn facts_name_a_trial() {
    let mut w = TestEngine::new();
    let trial = ready_trial(&mut w);
    w.run(|e, cx| e.process_exited(cx, trial, Some(0))).result.unwrap();
    w.restart();
    let facts = w.engine.read_facts(0, Lsn::MAX, usize::MAX).facts;
    let is_trial: Vec<bool> = facts
        .iter()
        .filter_map(|fact| match &fact.kind {
            LobbyFactKind::Created(details) => Some(details.is_trial && !details.is_public),
            LobbyFactKind::Ended(ended) => Some(ended.details.is_trial),
            _ => None,
        })
        .collect();
    assert_eq!(is_trial, [true, true]);
}

#[test]
fn image_has_the_version_of_trials_only_while_it_has_one() {
    let version = |w: &TestEngine| u16::from_le_bytes(image_of(&w.engine)[8..10].try_into().unwrap());
    let mut w = TestEngine::new();
    w.lobby(|_| {});
    assert_eq!(version(&w), 3);
    let trial = ready_trial(&mut w);
    assert_eq!(version(&w), 5);
    w.detach(trial).unwrap();
    assert_eq!(version(&w), 5, "the facts of the trial are not read yet");
    w.run(|e, cx| e.acknowledge_facts(cx, Lsn::MAX));
    assert_eq!(version(&w), 3);
}
