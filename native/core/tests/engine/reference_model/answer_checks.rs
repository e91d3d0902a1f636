//! Checks after every command: answer, wait, credit, and every visible count.

use hosting_core::{
    Credit, Id, ImmediatePlacement, ListedLobby, LobbyView, ManagedLobbyView, Ms, NamespaceCounts, Publicity, Refusal,
};

use super::commands::{Command, Reply};
use super::decisions::{Decision, Verdict, Wait};
use super::engine_driver::{CommandRecord, EngineDriver, Way, reserved};
use super::model_state::{Lobby, Model};
use crate::test_engine::listed;

type Checked = Result<(), String>;

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(reason()) }
}

pub fn check_answer(
    model: &Model,
    command: &Command,
    decision: &Decision,
    command_record: &CommandRecord,
    credit: Credit,
) -> Checked {
    let agrees = model.agrees(decision, &command_record.reply);
    let is_full = command_record.reply == Reply::Refused(Refusal::StorageFull);
    let wrong = || format!("expected {:?} ({}), or {:?}", decision.verdict, decision.label, decision.also);
    if credit == Credit::UNLIMITED || command.is_free_of_credit() {
        return ensure(agrees, wrong);
    }
    let is_blocked = if command.leaves_the_reserve() { credit.total <= credit.reserve } else { credit.total == 0 };
    let is_replay = command.key().is_some() && decision.is_repeat && matches!(decision.label, "replayed" | "shared");
    if is_replay || matches!(decision.verdict, Verdict::Refused(Refusal::PlayerTokenExpired)) {
        return ensure(agrees, || format!("{}, which no lack of credit changes", wrong()));
    }
    let changes = !decision.is_repeat && !matches!(decision.verdict, Verdict::Refused(_));
    let has_overdue = model.lobbies.iter().any(|lobby| lobby.has_overdue);
    let is_stale = |reply: &Reply| {
        let Reply::Refused(refusal) = reply else { return false };
        let busy = [Refusal::LobbyFull, Refusal::NoAvailableLobbies, Refusal::TooManyPlayersFromSource];
        has_overdue && busy.contains(refusal)
    };
    if is_blocked && changes {
        return ensure(is_full || is_stale(&command_record.reply), || {
            "expected STORAGE_FULL: no credit is left".to_owned()
        });
    }
    let is_unsaid = matches!(command, Command::Heartbeat { .. }) && credit.total <= credit.reserve;
    let is_plenty = credit.total >= 1_000_000 && !command.leaves_the_reserve() && !is_unsaid;
    let may_be_full = is_full && !is_plenty;
    ensure(agrees || may_be_full || is_stale(&command_record.reply), || {
        format!("{}, or STORAGE_FULL if it may", wrong())
    })
}

/// Checks that a find or join at once leaves to the whole command exactly what waits for a lobby or needs a new one.
///
/// Without credit, each of them expires only some of the overdue slots.
pub fn check_way(decision: &Decision, command_record: &CommandRecord, credit: Credit) -> Checked {
    let CommandRecord { way, reply, .. } = command_record;
    let is_hold = matches!(reply, Reply::Hold(_));
    let is_creation = match reply {
        Reply::Made { .. } => true,
        Reply::Refused(refusal) => {
            !decision.is_repeat
                && matches!(
                    refusal,
                    Refusal::NoAvailableLobbies
                        | Refusal::PartyTooLarge(_)
                        | Refusal::TooManyLobbies
                        | Refusal::PortsExhausted
                        | Refusal::StorageFull
                )
        }
        _ => false,
    };
    let is_certain = credit == Credit::UNLIMITED;
    match way {
        Way::Whole => Ok(()),
        Way::Now => ensure(!is_hold && !matches!(reply, Reply::Made { .. }), || "held slots at once".to_owned()),
        Way::WholeAfterStarting => ensure(is_hold || !is_certain, || "no lobby is starting".to_owned()),
        Way::WholeAfterNeeded => ensure(is_creation || !is_certain, || "no lobby was needed".to_owned()),
    }
}

/// Checks the stored response to a find or join with a key after the command.
pub fn check_recalled(command: &Command, decision: &Decision, command_record: &CommandRecord) -> Checked {
    let CommandRecord { recalled, reply, wait, .. } = command_record;
    if !matches!(command, Command::Find(..) | Command::Join(..)) || command.key().is_none() {
        return Ok(());
    }
    let is_stored = match reply {
        // The engine has not looked for the key.
        Reply::Refused(Refusal::PartyTooLarge(_)) => return Ok(()),
        Reply::Refused(Refusal::IdempotencyKeyReused) => true,
        Reply::Refused(_) => decision.is_repeat,
        _ => true,
    };
    let is_right = match recalled.clone() {
        None => !is_stored,
        Some(ImmediatePlacement::Done(outcome)) => is_stored && reserved(outcome) == (reply.clone(), *wait),
        Some(ImmediatePlacement::LobbyStarting) => matches!(reply, Reply::Hold(_) | Reply::Made { .. }),
        Some(ImmediatePlacement::LobbyNeeded) => false,
    };
    ensure(is_right, || format!("recalls {recalled:?}"))
}

pub fn check_wait(model: &Model, command: &Command, decision: &Decision, command_record: &CommandRecord) -> Checked {
    let (wait, last) = (command_record.wait, command_record.lsns.after);
    ensure(wait <= last, || format!("waits for LSN {wait}, the last is {last}"))?;
    if let Reply::Refused(refusal) = &command_record.reply
        && !matches!(&decision.verdict, Verdict::Refused(expected) if expected == refusal)
    {
        return Ok(());
    }
    let changes = !decision.is_repeat && !matches!(decision.verdict, Verdict::Refused(_) | Verdict::State(_));
    match decision.wait {
        Wait::Any => Ok(()),
        Wait::Shard => ensure(wait == last, || format!("waits for LSN {wait}, not the shard's last {last}")),
        Wait::Lobby(_) if changes && !matches!(command, Command::Advance) => {
            ensure(last > command_record.lsns.before, || "changed something and wrote no event".to_owned())?;
            ensure(wait == last, || format!("waits for LSN {wait}, but its own event is LSN {last}"))
        }
        Wait::Lobby(index) => {
            let least = model.lobbies[index].changed_lsn;
            ensure(wait >= least, || format!("waits for LSN {wait}, but its lobby changed at LSN {least} or later"))
        }
    }
}

pub fn check_credit(command_record: &CommandRecord, credit: Credit) -> Checked {
    ensure(command_record.written <= credit.total, || format!("wrote {} bytes on {credit:?}", command_record.written))?;
    let left = credit.total - command_record.written;
    ensure(command_record.credit_after == left, || {
        format!("left {} of {credit:?} after {}", command_record.credit_after, command_record.written)
    })
}

pub fn check_views(
    model: &Model,
    driver: &EngineDriver,
    namespaces: &[Id],
    versions: &[Id],
    base: &Baseline,
) -> Checked {
    let engine = &driver.engine;
    ensure(engine.ledger_violations() == 0, || "the ledger does not add up".to_owned())?;
    for (index, lobby) in model.lobbies.iter().enumerate().filter(|(_, lobby)| !lobby.has_overdue) {
        let just_ended = lobby.end.is_some_and(|end| end.noticed == model.now);
        if lobby.is_live() || just_ended {
            let (actual, expected) = (engine.lobby(lobby.id), lobby.is_live().then(|| view(model, index)));
            ensure(actual == expected, || format!("lobby() shows {actual:?}, expected {expected:?}"))?;
        }
    }
    for namespace in namespaces.iter().filter(|namespace| !model.namespace_has_overdue(**namespace)) {
        check_namespace(model, driver, *namespace, versions, base)?;
    }
    let has_overdue = model.lobbies.iter().any(|lobby| lobby.has_overdue);
    let due = model.next_end().filter(|_| !has_overdue);
    let wakes = engine.next_deadline();
    ensure(due.is_none_or(|due| wakes.is_some_and(|at| at <= due)), || {
        format!("next_deadline() is {wakes:?}, but something is due at {due:?}")
    })
}

fn view(model: &Model, index: usize) -> LobbyView {
    let lobby = &model.lobbies[index];
    LobbyView {
        id: lobby.id,
        namespace: lobby.namespace,
        version: lobby.version,
        mode: lobby.mode.clone(),
        region: lobby.region.clone(),
        ports: lobby.ports.clone(),
        max_players: lobby.limits,
        is_open: lobby.is_listed(model.now),
        is_ready: lobby.is_ready,
        is_closed: lobby.is_closed,
        players: model.players_by_stage(index),
        create_ts_ms: lobby.create_ts_ms,
        own: lobby.is_ours.then(|| Box::new(ManagedLobbyView::default())),
        publicity: if lobby.is_public { Publicity::Public } else { Publicity::Private },
        is_stopping: lobby.is_stopping,
        is_trial: false,
        tags: lobby.tags.clone(),
    }
}

fn check_namespace(model: &Model, driver: &EngineDriver, namespace: Id, versions: &[Id], base: &Baseline) -> Checked {
    let engine = &driver.engine;
    for version in versions {
        let expected: Vec<ListedLobby> = model
            .live_lobbies(namespace)
            .filter(|(_, lobby)| lobby.version == *version && lobby.is_public && lobby.is_listed(model.now))
            .map(|(index, lobby)| ListedLobby {
                id: lobby.id,
                position: 0,
                mode: lobby.mode.clone(),
                region: lobby.region.clone(),
                max_players: lobby.limits,
                connected: model.players_by_stage(index)[2],
                state: None,
            })
            .collect();
        let mut actual = listed(engine, namespace, *version);
        actual.iter_mut().for_each(|lobby| (lobby.position, lobby.state) = (0, None));
        ensure(actual == expected, || format!("list() shows {actual:?}, expected {expected:?}"))?;
    }
    let mut actual = engine.player_counts(namespace);
    actual.retain(|count| count.player_count > 0);
    actual.sort_by(|one, other| (&one.mode, &one.region).cmp(&(&other.mode, &other.region)));
    let expected = model.player_counts(namespace);
    ensure(actual == expected, || format!("player_counts() shows {actual:?}, expected {expected:?}"))?;
    let mut actual = base.since_start(engine.namespace_counts(), namespace);
    let expected = counts(model, namespace);
    check_lobby_states(model, namespace, actual.lobbies)?;
    actual.lobbies = expected.lobbies;
    // A slot use that was overdue when its lobby ended may count as expired or as lobby gone.
    let late = actual.ends[3].saturating_sub(expected.ends[3]);
    if late <= model.late_ends.get(&namespace).copied().unwrap_or_default()
        && actual.ends.iter().sum::<u64>() == expected.ends.iter().sum::<u64>()
    {
        actual.ends = expected.ends;
    }
    ensure(actual == expected, || format!("namespace_counts() shows {actual:?}, expected {expected:?}"))
}

fn counts(model: &Model, namespace: Id) -> NamespaceCounts {
    let mut counts = NamespaceCounts {
        ends: model.ends.get(&namespace).copied().unwrap_or_default(),
        tokens: model.tokens.get(&namespace).copied().unwrap_or_default(),
        lobby_ends: model.lobby_ends.get(&namespace).copied().unwrap_or_default(),
        ..NamespaceCounts::default()
    };
    for (index, lobby) in model.live_lobbies(namespace) {
        counts.lobbies[states(lobby, model.now).iter().position(|is_it| *is_it).unwrap_or_default()] += 1;
        let players = model.players_by_stage(index);
        counts.slots[0] += lobby.slots.len() as u64 - u64::from(players.iter().sum::<u32>());
        players.iter().enumerate().for_each(|(stage, count)| counts.slots[stage + 1] += u64::from(*count));
    }
    counts
}

fn states(lobby: &Lobby, now: Ms) -> [bool; 4] {
    let is_shut = lobby.is_closed || lobby.is_stopping;
    [!lobby.is_ready, lobby.is_listed(now), is_shut, lobby.is_silent(now)]
}

fn check_lobby_states(model: &Model, namespace: Id, actual: [u64; 4]) -> Checked {
    let all: Vec<[bool; 4]> = model.live_lobbies(namespace).map(|(_, lobby)| states(lobby, model.now)).collect();
    for (state, actual) in actual.into_iter().enumerate() {
        let most = all.iter().filter(|states| states[state]).count() as u64;
        let sure = all.iter().filter(|states| states[state] && states.iter().filter(|is_it| **is_it).count() == 1);
        let least = sure.count() as u64;
        ensure((least..=most).contains(&actual), || {
            format!("namespace_counts() shows {actual} lobbies in state {state}, expected {least} to {most}")
        })?;
    }
    ensure(actual.iter().sum::<u64>() == all.len() as u64, || format!("{actual:?} are not {} lobbies", all.len()))
}

#[derive(Default)]
pub struct Baseline(Vec<(Id, NamespaceCounts)>);

impl Baseline {
    pub fn of(driver: &EngineDriver) -> Self {
        Baseline(driver.engine.namespace_counts())
    }

    fn since_start(&self, all: Vec<(Id, NamespaceCounts)>, namespace: Id) -> NamespaceCounts {
        let of = |all: &[(Id, NamespaceCounts)]| {
            all.iter().find(|(id, _)| *id == namespace).map(|(_, counts)| counts.clone()).unwrap_or_default()
        };
        let (mut now, then) = (of(&all), of(&self.0));
        now.tokens.iter_mut().zip(then.tokens).for_each(|(now, then)| *now = now.wrapping_sub(then));
        now.ends.iter_mut().zip(then.ends).for_each(|(now, then)| *now = now.wrapping_sub(then));
        now.lobby_ends.iter_mut().zip(then.lobby_ends).for_each(|(now, then)| *now = now.wrapping_sub(then));
        now
    }
}
