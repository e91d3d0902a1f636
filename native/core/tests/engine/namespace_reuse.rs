//! Reuse of namespace numbers: memory, presence, counts and recovery while namespaces come and go.

use std::collections::{BTreeMap, BTreeSet};

use hosting_core::*;

use crate::random::Random;
use crate::test_engine::*;

const DAY_MS: u64 = 86_400_000;

fn namespace(number: u64) -> Id {
    let mut id = Id([0x33; 16]);
    id.0[..8].copy_from_slice(&number.to_be_bytes());
    id
}

fn end(w: &mut TestEngine, lobby: Id) {
    assert_eq!(w.run(|e, cx| e.end(cx, lobby, EndReason::Exited)).result, Ok(true));
}

/// Lets the tombstones of all ended lobbies expire, and reads the idle groups.
fn drop_ended(w: &mut TestEngine) {
    w.pass(DAY_MS + 10_000);
    w.engine.take_changed_idle_groups();
}

#[test]
fn ended_namespaces_leave_no_memory() {
    const NAMESPACES: u64 = 10_000;
    const AT_ONCE: u64 = 100;
    let mut engine = fresh_engine();
    let mut events = EventBuffer::default();
    let mut w = TestEngine::new();
    let cx = &mut Context { now: w.now, credit: Credit::UNLIMITED, events: &mut events };
    let mut generation = 0;
    for number in 1..=NAMESPACES {
        let mut lobby = w.own_lobby().lobby;
        lobby.namespace = namespace(number);
        engine.attach(cx, &lobby).result.unwrap();
        engine.ready(cx, lobby.id).result.unwrap();
        generation = engine.presence_since(generation).generation;
        engine.end(cx, lobby.id, EndReason::Exited).result.unwrap();
        if number % AT_ONCE == 0 {
            cx.now += DAY_MS + 10_000;
            while engine.expire_due(cx) > 0 {}
            engine.take_changed_idle_groups();
            generation = engine.presence_since(generation).generation;
            engine.acknowledge_facts(cx, engine.last_lsn());
        }
    }
    assert!(engine.namespace_capacity() as u64 <= AT_ONCE, "{} namespaces", engine.namespace_capacity());
    assert_eq!(engine.namespace_counts().len(), 1_000, "the last ones are remembered");
    assert_eq!(engine.forgotten_namespace_counts().lobby_ends, [NAMESPACES - 1_000, 0, 0, 0, 0]);
    assert_eq!(engine.presence_since(0).namespaces, []);
}

#[test]
fn presence_reports_an_empty_namespace_before_and_after_its_drop() {
    let mut w = TestEngine::new();
    w.lobby(|_| {});
    let ended = w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    let before = w.engine.presence_since(0).generation;
    end(&mut w, ended);
    let seen = w.engine.presence_since(before);
    assert_eq!((seen.is_all, seen.namespaces), (false, vec![(OTHER_NAMESPACE, 0, 0)]));
    drop_ended(&mut w);
    w.lobby(|c| c.namespace = namespace(1));
    assert_eq!(w.engine.namespace_capacity(), 2, "the number is used again");
    let next = w.engine.presence_since(seen.generation);
    assert_eq!((next.is_all, next.namespaces), (false, vec![(namespace(1), 0, 1)]));
    let late = w.engine.presence_since(before);
    assert_eq!((late.is_all, late.namespaces), (true, vec![(NAMESPACE, 0, 1), (namespace(1), 0, 1)]));
}

#[test]
fn reader_learns_of_a_drop_between_two_reads() {
    let mut w = TestEngine::new();
    w.lobby(|_| {});
    let ended = w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    let before = w.engine.presence_since(0).generation;
    end(&mut w, ended);
    drop_ended(&mut w);
    let next = w.engine.presence_since(before);
    assert!(next.generation > before, "a long poll ends");
    assert_eq!((next.is_all, next.namespaces), (true, vec![(NAMESPACE, 0, 1)]));
    let unseen = w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    end(&mut w, unseen);
    drop_ended(&mut w);
    let last = w.engine.presence_since(next.generation);
    assert_eq!((last.is_all, last.generation), (false, next.generation), "no reader knew of this lobby");
}

#[test]
fn unread_idle_group_keeps_its_namespace() {
    let mut w = TestEngine::new();
    let lobby = w.start_idle(|template| template.lobby.namespace = OTHER_NAMESPACE).result.unwrap();
    end(&mut w, lobby);
    w.pass(DAY_MS + 10_000);
    w.lobby(|_| {});
    let groups = w.engine.take_changed_idle_groups();
    let namespaces: BTreeSet<Id> = groups.iter().map(|group| group.namespace).collect();
    assert_eq!(namespaces, [NAMESPACE, OTHER_NAMESPACE].into());
    w.lobby(|c| c.namespace = namespace(1));
    assert_eq!(w.engine.namespace_capacity(), 2);
}

#[test]
fn recovery_gives_numbers_to_lobbies_and_tombstones_only() {
    let mut w = TestEngine::new();
    for number in 0..20 {
        let lobby = w.lobby(|c| c.namespace = namespace(number));
        end(&mut w, lobby);
    }
    drop_ended(&mut w);
    let live = w.lobby(|c| c.namespace = namespace(5));
    let token = w.join_with(live, |c| c.namespace = namespace(5)).result.map(one_token).unwrap();
    w.connect(live, &token).unwrap();
    let ended = w.lobby(|c| c.namespace = namespace(30));
    let late = w.join_with(ended, |c| c.namespace = namespace(30)).result.map(one_token).unwrap();
    end(&mut w, ended);

    let mut from_log = fresh_engine();
    for (lsn, count, bytes) in &w.log {
        from_log.apply(*lsn, *count, bytes).unwrap();
    }
    for mut recovered in [from_image(&image_of(&w.engine)), from_log] {
        recovered.finish_recovery(w.now);
        assert_eq!(recovered.durable_hash(), w.engine.durable_hash());
        assert_eq!(recovered.namespace_capacity(), 2);
        let presence = recovered.presence_since(0);
        assert_eq!((presence.is_all, presence.namespaces), (true, vec![(namespace(5), 1, 1)]));
        let counted: Vec<Id> = recovered.namespace_counts().into_iter().map(|(id, _)| id).collect();
        assert_eq!(counted, [namespace(5)], "no counts since the start");
        assert_eq!(recovered.player_counts(namespace(5)), w.engine.player_counts(namespace(5)));
        w.engine = recovered;
        assert_eq!(w.connect(ended, &late), Err(Refusal::PlayerRemoved));
        let removed = w.engine.namespace_counts().into_iter().find(|(id, _)| *id == namespace(30)).unwrap();
        assert_eq!(removed.1.tokens[6], 1, "a tombstone counts tokens");
    }
    drop_ended(&mut w);
    let next = w.lobby(|c| c.namespace = namespace(40));
    assert_eq!((w.engine.namespace_capacity(), w.engine.namespace_of_lobby(next)), (2, Some(namespace(40))));
    assert_eq!(w.engine.presence_since(0).namespaces, [(namespace(5), 1, 1), (namespace(40), 0, 1)]);
}

const SEQUENCES: u64 = 60;
const STEPS: usize = 200;
const READERS: usize = 3;

struct ModelLobby {
    id: Id,
    namespace: Id,
    connected: Vec<String>,
}

#[derive(Default)]
struct Reader {
    generation: u64,
    view: BTreeMap<Id, (u64, u64)>,
}

#[derive(Default)]
struct NaiveModel {
    lobbies: Vec<ModelLobby>,
    /// Lobbies that have ended, with their namespace and last player token.
    ended: Vec<(Id, Id, Option<String>)>,
    /// Namespaces that had a lobby since the last read of the idle groups.
    unread: BTreeSet<Id>,
    ends_since_start: u64,
    connects_since_start: u64,
    last_counts: BTreeMap<Id, NamespaceCounts>,
    most_in_use: usize,
    oldest_namespace: u64,
    readers: [Reader; READERS],
    full_reads: u64,
    drops_to_zero: u64,
}

impl NaiveModel {
    fn presence(&self) -> BTreeMap<Id, (u64, u64)> {
        let mut all: BTreeMap<Id, (u64, u64)> = BTreeMap::new();
        for lobby in &self.lobbies {
            let counts = all.entry(lobby.namespace).or_default();
            *counts = (counts.0 + lobby.connected.len() as u64, counts.1 + 1);
        }
        all
    }

    fn namespaces_in_use(&self, engine: &Engine) -> BTreeSet<Id> {
        let tombstones = self.ended.iter().filter(|(lobby, ..)| engine.namespace_of_lobby(*lobby).is_some());
        let of_lobbies = self.lobbies.iter().map(|lobby| lobby.namespace);
        of_lobbies.chain(tombstones.map(|(_, namespace, _)| *namespace)).chain(self.unread.iter().copied()).collect()
    }

    fn lobby_ended(&mut self, at: usize) {
        let lobby = self.lobbies.remove(at);
        self.unread.insert(lobby.namespace);
        self.ended.push((lobby.id, lobby.namespace, lobby.connected.last().cloned()));
        self.ends_since_start += 1;
    }

    fn read(&mut self, engine: &mut Engine, reader: usize) {
        let expected = self.presence();
        let reader = &mut self.readers[reader];
        let presence = engine.presence_since(reader.generation);
        if presence.is_all {
            self.full_reads += u64::from(reader.generation > 0);
            reader.view.clear();
        }
        reader.generation = presence.generation;
        for (namespace, players, lobbies) in presence.namespaces {
            self.drops_to_zero += u64::from(lobbies == 0 && reader.view.contains_key(&namespace));
            reader.view.insert(namespace, (players, lobbies));
        }
        reader.view.retain(|_, counts| *counts != (0, 0));
        assert_eq!(reader.view, expected);
    }
}

fn few_tombstones() -> Engine {
    let usual = EngineConfig::new(1, keys(&[1], 1));
    Engine::new(EngineConfig { tombstone_ms: 5_000, tombstones_max: 6, ..usual })
}

fn step(w: &mut TestEngine, model: &mut NaiveModel, rng: &mut Random) {
    let at = rng.below(model.lobbies.len().max(1) as u64) as usize;
    match rng.below(24) {
        0..=4 => {
            model.oldest_namespace += rng.below(2);
            let namespace = namespace(model.oldest_namespace + rng.below(5));
            let mode = ["duel", "arena"][rng.below(2) as usize];
            let id = w.starting(|c| (c.namespace, c.mode) = (namespace, mode));
            if !rng.chance(25) {
                w.ready(id).unwrap();
            }
            model.unread.insert(namespace);
            model.lobbies.push(ModelLobby { id, namespace, connected: Vec::new() });
        }
        5..=8 if at < model.lobbies.len() => {
            let lobby = &mut model.lobbies[at];
            let joined = w.join_with(lobby.id, |c| (c.namespace, c.source) = (lobby.namespace, 7));
            if let Ok(Admission::Reserved(reservation)) = joined.result {
                let token = reservation.tokens[0].clone();
                w.connect(lobby.id, &token).unwrap();
                lobby.connected.push(token);
                model.connects_since_start += 1;
            }
        }
        9 if at < model.lobbies.len() => {
            if let Some(token) = model.lobbies[at].connected.pop() {
                w.disconnect(model.lobbies[at].id, &token, None).unwrap();
            }
        }
        10..=13 if at < model.lobbies.len() => {
            end(w, model.lobbies[at].id);
            model.lobby_ended(at);
        }
        14 if !model.ended.is_empty() => {
            let (lobby, _, token) = &model.ended[rng.recent(model.ended.len())];
            if let Some(token) = token {
                assert!(w.connect(*lobby, token).is_err());
            }
        }
        15 | 16 => {
            w.engine.take_changed_idle_groups();
            model.unread.clear();
        }
        17 if rng.chance(20) => restart(w, model, rng),
        18..=20 => pass(w, model, rng),
        _ => model.read(&mut w.engine, rng.below(READERS as u64) as usize),
    }
}

fn restart(w: &mut TestEngine, model: &mut NaiveModel, rng: &mut Random) {
    if rng.chance(50) {
        w.restart_as(few_tombstones());
    } else {
        let mut replayed = few_tombstones();
        for (lsn, count, bytes) in &w.log {
            replayed.apply(*lsn, *count, bytes).unwrap();
        }
        replayed.finish_recovery(w.now);
        assert_eq!(replayed.durable_hash(), w.engine.durable_hash());
        w.engine = replayed;
    }
    // The bindings map a generation of an earlier engine to 0.
    model.readers.iter_mut().for_each(|reader| reader.generation = 0);
    (model.ends_since_start, model.connects_since_start, model.most_in_use) = (0, 0, 0);
    model.last_counts = BTreeMap::new();
    model.unread = model.lobbies.iter().map(|lobby| lobby.namespace).collect();
}

fn pass(w: &mut TestEngine, model: &mut NaiveModel, rng: &mut Random) {
    w.pass([1, 1_000, 3_000, 7_000, 100_000][rng.below(5) as usize]);
    for at in (0..model.lobbies.len()).rev() {
        if w.engine.lobby(model.lobbies[at].id).is_none() {
            model.lobby_ended(at);
        }
    }
}

fn compare(w: &TestEngine, model: &mut NaiveModel) {
    let in_use = model.namespaces_in_use(&w.engine);
    model.most_in_use = model.most_in_use.max(in_use.len());
    assert!(w.engine.namespace_capacity() <= model.most_in_use);
    let presence = model.presence();
    let (mut counted, mut totals) = (BTreeMap::new(), NamespaceCounts::default());
    for (namespace, counts) in w.engine.namespace_counts() {
        totals += &counts;
        let lobbies: u64 = counts.lobbies.iter().sum();
        if lobbies > 0 {
            counted.insert(namespace, (counts.slots[3], lobbies));
        } else {
            assert_eq!(counts.slots, [0; 5], "slots without a lobby");
        }
        if let Some(before) = model.last_counts.insert(namespace, counts.clone()) {
            let is_more = |now: &[u64], before: &[u64]| now.iter().zip(before).all(|(now, before)| now >= before);
            assert!(
                is_more(&counts.tokens, &before.tokens) && is_more(&counts.ends, &before.ends),
                "a counter went down"
            );
        }
    }
    assert_eq!(counted, presence);
    for namespace in in_use {
        let players: u64 = w.engine.player_counts(namespace).iter().map(|count| count.player_count).sum();
        let lobbies = w.engine.lobbies_of_version(namespace, VERSION).len() as u64;
        assert_eq!((players, lobbies), presence.get(&namespace).copied().unwrap_or_default());
    }
    assert_eq!(totals.lobby_ends.iter().sum::<u64>(), model.ends_since_start);
    assert_eq!(totals.tokens[1], model.connects_since_start);
}

#[test]
fn presence_and_counts_match_a_model_while_numbers_are_reused() {
    let (mut full_reads, mut drops_to_zero, mut reused) = (0, 0, 0);
    for seed in 1..=SEQUENCES {
        let (mut w, mut rng) = (TestEngine::with(few_tombstones(), few_tombstones()), Random::new(seed));
        let mut model = NaiveModel::default();
        for _ in 0..STEPS {
            step(&mut w, &mut model, &mut rng);
            compare(&w, &mut model);
        }
        for reader in 0..READERS {
            model.read(&mut w.engine, reader);
        }
        full_reads += model.full_reads;
        drops_to_zero += model.drops_to_zero;
        reused += model.oldest_namespace.saturating_sub(w.engine.namespace_capacity() as u64);
    }
    assert!(
        full_reads > 100 && drops_to_zero > 100 && reused > 500,
        "covered too little: {full_reads}, {drops_to_zero}, {reused}"
    );
}
