//! Longer trials: restarts, slot reuse beyond the remembered ends, forged tokens.

use hosting_core::{Credit, Id};

use super::answer_checks::Baseline;
use super::commands::{AttachArgs, Command, JoinArgs, Reply};
use super::engine_driver::{self, fresh_engine, key_id_of};
use super::fact_reader::Reader;
use super::model_state::{Lobby, Remembered};
use super::sequence_runner::SequenceRunner;
use crate::random::Random;
use crate::test_engine::{image_of, unused_keys};

fn any_join(namespace: Id, lobby: Id) -> JoinArgs {
    JoinArgs { namespace, lobby, party_size: 1, rejoin_token: None, source: 0, source_limit: 1 }
}

impl SequenceRunner {
    pub fn restart(&mut self, random: &mut Random) -> Result<(), String> {
        self.send(Command::Advance, Credit::UNLIMITED)?;
        self.check_facts(&mut random.clone())?;
        self.check_presence()?;
        let hash = self.driver.engine.durable_hash();
        let from_start = random.chance(30);
        let key_ids = self.next_ring(random)?;
        let mut recovered = {
            let mut merging = random.clone();
            self.driver.replayed(&key_ids, from_start, || merging.chance(60))?
        };
        if recovered.last_lsn() != self.driver.engine.last_lsn() || recovered.durable_hash() != hash {
            return Err("replayed state is not the durable state".to_owned());
        }
        let mut loaded = fresh_engine(&key_ids, 0x5A);
        loaded.load_image(&image_of(&recovered)).map_err(|error| format!("its own image is refused: {error:?}"))?;
        if loaded.durable_hash() != hash {
            return Err("an image of the replayed state is another state".to_owned());
        }
        self.coverage.count("restart", if from_start { "same hash from the first event" } else { "same hash" });
        if random.chance(50) {
            self.now = self.draw(random).time();
        }
        if random.chance(50) {
            recovered = loaded;
        }
        recovered.finish_recovery(self.now);
        if recovered.durable_hash() != hash {
            return Err("recovered() changed durable state".to_owned());
        }
        self.transcript.record(|| format!("-- restart, recovered at {}, keys {key_ids:?}", self.now));
        self.driver.engine = recovered;
        self.driver.key_ids = key_ids;
        self.model.restart(self.now);
        self.base = Baseline::of(&self.driver);
        self.reader = Reader::default();
        self.send(Command::Advance, Credit::UNLIMITED)
    }

    fn next_ring(&mut self, random: &mut Random) -> Result<Vec<u16>, String> {
        let unused = unused_keys(&mut self.driver.engine);
        for key in self.keys_that_must_stay() {
            if unused.contains(&key) {
                return Err(format!("key {key} is still needed, but unused_keys() is {unused:?}"));
            }
        }
        let mut ids = self.driver.key_ids.clone();
        if random.chance(40) {
            let newest = ids.last().copied().unwrap_or_default();
            ids.push(newest + 1);
            // The engine signs with a new key from now on, so tokens of other engines are dropped.
            let foreign = std::mem::take(&mut self.foreign);
            self.keyed.retain(|command| command.player_token().is_none_or(|token| !foreign.contains(token)));
            self.model.never_given.clear();
            self.coverage.count("restart", "with a new key");
        }
        let newest = ids.last().copied();
        if random.chance(50) {
            let (stay, drop): (Vec<u16>, Vec<u16>) =
                ids.iter().partition(|id| !unused.contains(id) || Some(**id) == newest);
            if !drop.is_empty() {
                self.coverage.count("restart", "without an old key");
                self.model.dropped_keys.extend(drop);
                ids = stay;
            }
        }
        Ok(ids)
    }

    fn keys_that_must_stay(&self) -> Vec<u16> {
        let model = &self.model;
        let uses = model.uses.iter().filter(|one| one.stage.is_live()).map(|one| one.token.as_str());
        let lobbies = model.lobbies.iter().filter(|lobby| lobby.is_live()).map(|lobby| lobby.lobby_token.as_str());
        let known = model.keys.values().filter(|key| model.must_recall(key));
        let remembered = known.filter_map(|key| match &key.success {
            Remembered::Admission(uses) if model.lobbies[model.uses[uses[0]].lobby].is_live() => {
                Some(model.uses[uses[0]].token.as_str())
            }
            _ => None,
        });
        uses.chain(lobbies).chain(remembered).filter_map(key_id_of).collect()
    }

    pub fn churn(&mut self, random: &mut Random) -> Result<(), String> {
        let lobbies = &self.model.lobbies;
        let fits = |lobby: &Lobby| lobby.is_listed(self.now) && lobby.is_join_enabled && lobby.slots.len() <= 2;
        let Some(index) = (0..lobbies.len()).rev().find(|index| fits(&lobbies[*index])) else { return Ok(()) };
        let (id, namespace, ttl_ms) = (lobbies[index].id, lobbies[index].namespace, lobbies[index].ttl_ms);
        for _ in 0..34 * lobbies[index].slots.len() {
            let given = self.model.uses.len();
            self.send(Command::Join(any_join(namespace, id), None), Credit::UNLIMITED)?;
            let Some(token) = self.model.uses.get(given).map(|one| one.token.clone()) else { break };
            let (lobby, key) = (id, None);
            let end = random.below(8);
            if end == 0 && ttl_ms <= 5_000 {
                self.now += ttl_ms;
                continue;
            }
            if end < 5 {
                self.send(Command::Connected { lobby, token: token.clone(), key }, Credit::UNLIMITED)?;
            }
            self.send(Command::Disconnected { lobby, token, hold_ms: None, key }, Credit::UNLIMITED)?;
        }
        for _ in 0..12 {
            let tokens: Vec<String> =
                self.model.uses.iter().filter(|one| one.lobby == index).map(|one| one.token.clone()).collect();
            let Some(token) = random.pick(&tokens).cloned() else { return Ok(()) };
            self.send(Command::Connected { lobby: id, token, key: None }, Credit::UNLIMITED)?;
        }
        Ok(())
    }

    pub fn forge(&mut self, random: &mut Random) -> Result<(), String> {
        let ready = |index: &usize| self.model.lobbies[*index].is_listed(self.now);
        let lobbies: Vec<usize> = (0..self.model.lobbies.len()).filter(ready).collect();
        let Some(index) = random.pick(&lobbies).copied() else { return Ok(()) };
        let (id, namespace) = (self.model.lobbies[index].id, self.model.lobbies[index].namespace);
        let is_fork = random.chance(50);
        let mut engine = if is_fork {
            let mut fork = fresh_engine(&self.driver.key_ids, 0x5A);
            let image = image_of(&self.driver.engine);
            fork.load_image(&image).map_err(|error| format!("its own image is refused: {error:?}"))?;
            fork.finish_recovery(self.now);
            fork
        } else {
            fresh_engine(&self.driver.key_ids, 0x77)
        };
        if !is_fork {
            let args = AttachArgs { id, namespace, ..self.workload.attach(random, &self.model) };
            let args = AttachArgs { is_join_enabled: true, lobby_count_max: 1, ..args };
            engine_driver::ask_aside(&mut engine, &Command::Attach(args, None), self.now);
            engine_driver::ask_aside(&mut engine, &Command::Ready { lobby: id }, self.now);
        }
        let join = Command::Join(any_join(namespace, id), None);
        if let Reply::Reserved { tokens, .. } = engine_driver::ask_aside(&mut engine, &join, self.now) {
            let token = tokens[0].clone();
            if is_fork {
                self.model.never_given.push((token.clone(), index));
            }
            self.transcript.record(|| {
                format!("-- {} makes {token} for L{index}", if is_fork { "a fork" } else { "another ring" })
            });
            self.foreign.push(token);
        }
        Ok(())
    }
}
