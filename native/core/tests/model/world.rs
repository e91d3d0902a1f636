//! Runs one sequence against engine and model side by side, and stops at the first difference.

use hosting_core::{Attach, Context, Credit, EventBuffer, Join, Ms, Placed};

use crate::checks::{self, Baseline};
use crate::commands::{Command, Said};
use crate::coverage::Coverage;
use crate::naive::{Model, Remembered};
use crate::profile::Profile;
use crate::random::Random;
use crate::steps::{Drawing, Kind, Step};
use crate::story::Story;
use crate::surface::{self, Surface, fresh_engine, image_of, key_id_of, slot_of};

pub struct World {
    profile: Profile,
    surface: Surface,
    model: Model,
    base: Baseline,
    now: Ms,
    /// Commands with a key that succeeded.
    keyed: Vec<Command>,
    foreign: Vec<String>,
    pub coverage: Coverage,
    pub story: Story,
    pub commands: u64,
}

impl World {
    pub fn new(seed: u64, mut story: Story) -> Self {
        let mut random = Random::new(seed);
        let profile = Profile::draw(&mut random);
        story.name_ids('N', &profile.namespaces);
        story.name_ids('V', &profile.versions);
        World {
            profile,
            surface: Surface::new(),
            model: Model::default(),
            base: Baseline::default(),
            now: 1_000_000 + random.below(1_000),
            keyed: Vec::new(),
            foreign: Vec::new(),
            coverage: Coverage::default(),
            story,
            commands: 0,
        }
    }

    pub fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            self.step(*step)?;
        }
        self.restart(&mut Random::new(1))
    }

    fn draw(&self, random: &Random) -> Drawing<'_> {
        let random = random.clone();
        Drawing { random, profile: &self.profile, model: &self.model, keyed: &self.keyed, foreign: &self.foreign }
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        let mut random = Random::new(step.dice);
        match step.kind {
            Kind::Time => self.pass_time(&mut random),
            Kind::Image => {
                self.surface.take_image();
                self.story.tell(|| "-- an image is taken".to_owned());
                Ok(())
            }
            Kind::Restart => self.restart(&mut random),
            Kind::Churn => self.churn(&mut random),
            Kind::Foreign => self.forge(&mut random),
            kind => {
                let mut drawing = self.draw(&random);
                // Where nothing can be asked for yet, something is made.
                let Some(command) = drawing.command(kind).or_else(|| drawing.command(Kind::Attach)) else {
                    return Ok(());
                };
                let credit = if kind == Kind::Advance { Credit::UNLIMITED } else { drawing.credit() };
                self.send(command, credit)
            }
        }
    }

    fn pass_time(&mut self, random: &mut Random) -> Result<(), String> {
        self.now = self.draw(random).time();
        if random.chance(self.profile.late_timer_percent) {
            return Ok(());
        }
        self.send(Command::Advance, Credit::UNLIMITED)
    }

    /// One command to both, and everything that can be compared afterwards.
    fn send(&mut self, command: Command, credit: Credit) -> Result<(), String> {
        self.model.advance_to(self.now);
        let has_overdue = self.model.lobbies.iter().any(|lobby| lobby.has_overdue);
        let may_meet_overdue = matches!(command, Command::Connected { .. } | Command::Join(..) | Command::Find(..))
            && self.model.lobbies.iter().all(|lobby| lobby.is_live() || !lobby.has_overdue);
        let key = command.key();
        let meets_ended_hold = key.is_some() && self.model.settled.iter().any(|settled| settled.hold.key == key);
        if meets_ended_hold || credit != Credit::UNLIMITED && has_overdue && !may_meet_overdue {
            // A hold that is over and not told yet; or what a lack of credit puts off is more than slots: nobody could
            // tell what is right.
            self.send(Command::Advance, Credit::UNLIMITED)?;
            self.model.advance_to(self.now);
        }
        let mut decision = self.model.decide(&command);
        self.count(&command, &decision, credit);
        let hash = (credit.total == 0).then(|| self.surface.engine.durable_hash());
        self.commands += 1;
        let called = self.surface.call(&command, self.now, credit);
        self.story.tell_command(&command, credit, &called, self.now);
        if !self.model.agrees(&decision, &called.said) && self.model.may_recall(&command, credit) {
            let recalled = self.model.decide_recalling(&command);
            if self.model.agrees(&recalled, &called.said) {
                decision = recalled;
            }
        }
        checks::check_answer(&self.model, &command, &decision, &called, credit)?;
        checks::check_credit(&called, credit)?;
        if hash.is_some_and(|hash| hash != self.surface.engine.durable_hash()) {
            return Err("something was applied without credit".to_owned());
        }
        if called.said == Said::Refused(hosting_core::Refusal::StorageFull) {
            self.coverage.count(command.name(), "STORAGE_FULL");
        } else {
            self.coverage.count(command.name(), decision.label);
        }
        self.model.effect(&command, &decision, &called.said, called.lsns, slot_of)?;
        if credit == Credit::UNLIMITED {
            self.model.notice_touched(&command, &decision);
        }
        self.model.last_lsn = called.lsns.after;
        self.settle(called.lsns)?;
        checks::check_wait(&self.model, &command, &decision, &called)?;
        checks::check_views(&self.model, &self.surface, &self.profile.namespaces, &self.profile.versions, &self.base)?;
        if command.key().is_some() && !matches!(called.said, Said::Refused(_)) {
            self.keyed.push(command);
        }
        Ok(())
    }

    fn settle(&mut self, lsns: crate::effect::Lsns) -> Result<(), String> {
        let resolved = self.surface.engine.take_resolved();
        for one in &resolved {
            self.coverage.count(
                "hold",
                match &one.answer.result {
                    Ok(_) => "resolved",
                    Err(hosting_core::Refusal::LobbyStartFailed(reason)) => match reason {
                        hosting_core::EndReason::Exited => "MATCHMAKER_LOBBY_START_FAILED Exited",
                        hosting_core::EndReason::StartTimeout => "MATCHMAKER_LOBBY_START_FAILED StartTimeout",
                        hosting_core::EndReason::Silent => "MATCHMAKER_LOBBY_START_FAILED Silent",
                        hosting_core::EndReason::Removed => "MATCHMAKER_LOBBY_START_FAILED Removed",
                    },
                    Err(_) => "something else",
                },
            );
        }
        self.story.tell_resolved(&resolved);
        self.model.settle(&resolved, lsns, slot_of)
    }

    /// Outcomes that a label alone does not tell.
    fn count(&mut self, command: &Command, decision: &crate::decide::Decision, credit: Credit) {
        let Command::Connected { token, .. } = command else { return };
        if credit != Credit::UNLIMITED {
            return;
        }
        let known = self.model.use_of(token);
        if decision.label == "PLAYER_REMOVED"
            && known.is_some_and(|index| self.model.lobbies[self.model.uses[index].lobby].is_live())
            && known.is_some_and(|index| self.model.is_beyond_memory(index))
        {
            self.coverage.count("token", "older than 32 uses");
        }
        if decision.label == "PLAYER_TOKEN_INVALID" && self.foreign.contains(token) {
            let is_never_given = self.model.never_given.iter().any(|(known, _)| known == token);
            self.coverage.count("token", if is_never_given { "not given yet" } else { "of another ring" });
        }
    }

    /// A crash: a new engine from image and journal has the same durable state, and goes on.
    fn restart(&mut self, random: &mut Random) -> Result<(), String> {
        self.send(Command::Advance, Credit::UNLIMITED)?;
        let hash = self.surface.engine.durable_hash();
        let from_start = random.chance(30);
        let key_ids = self.next_ring(random)?;
        let mut recovered = {
            let mut merging = random.clone();
            self.surface.replayed(&key_ids, from_start, || merging.chance(60))?
        };
        if recovered.last_lsn() != self.surface.engine.last_lsn() || recovered.durable_hash() != hash {
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
        recovered.recovered(self.now);
        if recovered.durable_hash() != hash {
            return Err("recovered() changed durable state".to_owned());
        }
        self.story.tell(|| format!("-- restart, recovered at {}, keys {key_ids:?}", self.now));
        self.surface.engine = recovered;
        self.surface.key_ids = key_ids;
        self.model.restart(self.now);
        self.base = Baseline::of(&self.surface);
        self.send(Command::Advance, Credit::UNLIMITED)
    }

    /// Now and then a new MAC key is added, and old ones that nothing names are dropped.
    fn next_ring(&mut self, random: &mut Random) -> Result<Vec<u16>, String> {
        let named = self.surface.engine.keys_in_use();
        for key in self.keys_that_must_stay() {
            if !named.contains(&key) {
                return Err(format!("key {key} is still needed, but keys_in_use() is {named:?}"));
            }
        }
        let mut ids = self.surface.key_ids.clone();
        if random.chance(40) {
            let newest = ids.last().copied().unwrap_or_default();
            ids.push(newest + 1);
            // Nothing was given under the new key yet, so nothing of a fork may pass for what is given from now on.
            let foreign = std::mem::take(&mut self.foreign);
            self.keyed.retain(|command| command.player_token().is_none_or(|token| !foreign.contains(token)));
            self.model.never_given.clear();
            self.coverage.count("restart", "with a new key");
        }
        let newest = ids.last().copied();
        if random.chance(50) {
            let (stay, drop): (Vec<u16>, Vec<u16>) =
                ids.iter().partition(|id| named.contains(id) || Some(**id) == newest);
            if !drop.is_empty() {
                self.coverage.count("restart", "without an old key");
                self.model.dropped_keys.extend(drop);
                ids = stay;
            }
        }
        Ok(ids)
    }

    /// "that key stays while any slot, idempotency entry or 24 h tombstone names it".
    fn keys_that_must_stay(&self) -> Vec<u16> {
        let model = &self.model;
        let uses = model.uses.iter().filter(|one| one.stage.is_live()).map(|one| one.token.as_str());
        let lobbies = model.lobbies.iter().filter(|lobby| lobby.is_live()).map(|lobby| lobby.lobby_token.as_str());
        let known = model.keys.values().filter(|key| model.must_recall(key));
        let remembered = known.filter_map(|key| match &key.success {
            Remembered::Placed(uses) if model.lobbies[model.uses[uses[0]].lobby].is_live() => {
                Some(model.uses[uses[0]].token.as_str())
            }
            _ => None,
        });
        uses.chain(lobbies).chain(remembered).filter_map(key_id_of).collect()
    }

    /// Uses the slots of one lobby until the oldest tokens are older than the slots remember, then asks about old ones.
    fn churn(&mut self, random: &mut Random) -> Result<(), String> {
        let lobbies = &self.model.lobbies;
        let fits =
            |lobby: &crate::naive::Lobby| lobby.is_listed(self.now) && lobby.is_join_enabled && lobby.slots.len() <= 2;
        let Some(index) = (0..lobbies.len()).rev().find(|index| fits(&lobbies[*index])) else { return Ok(()) };
        let (id, namespace, ttl_ms) = (lobbies[index].id, lobbies[index].namespace, lobbies[index].ttl_ms);
        for _ in 0..34 * lobbies[index].slots.len() {
            let join = crate::commands::JoinArgs {
                namespace,
                lobby: id,
                party_size: 1,
                rejoin_token: None,
                source: 0,
                source_limit: self.profile.source_limit,
            };
            let given = self.model.uses.len();
            self.send(Command::Join(join, None), Credit::UNLIMITED)?;
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

    /// Makes tokens that look right: of another ring for a lobby of ours, and of a copy of this engine that went on.
    fn forge(&mut self, random: &mut Random) -> Result<(), String> {
        let ready = |index: &usize| self.model.lobbies[*index].is_listed(self.now);
        let lobbies: Vec<usize> = (0..self.model.lobbies.len()).filter(ready).collect();
        let Some(index) = random.pick(&lobbies).copied() else { return Ok(()) };
        let (id, namespace) = (self.model.lobbies[index].id, self.model.lobbies[index].namespace);
        let is_fork = random.chance(50);
        let mut engine = if is_fork {
            let mut fork = fresh_engine(&self.surface.key_ids, 0x5A);
            let image = image_of(&self.surface.engine);
            fork.load_image(&image).map_err(|error| format!("its own image is refused: {error:?}"))?;
            fork.recovered(self.now);
            fork
        } else {
            fresh_engine(&self.surface.key_ids, 0x77)
        };
        let mut events = EventBuffer::default();
        let mut cx = Context { now: self.now, credit: Credit::UNLIMITED, events: &mut events };
        if !is_fork {
            let attach = Attach {
                id,
                namespace,
                version: namespace,
                mode: "duel",
                region: "east",
                tags: &[],
                max_players: 3,
                max_players_direct: 3,
                max_players_party: 3,
                player_token_ttl_ms: 60_000,
                heartbeat_timeout_ms: 0,
                heartbeat_grace_ms: 0,
                is_join_enabled: true,
                ports: &[],
                create_ts_ms: 0,
                lobby_count_max: 9,
                idempotency: None,
            };
            let _ = engine.attach(&mut cx, &attach);
            let _ = engine.ready(&mut cx, id);
        }
        let join = Join {
            namespace,
            lobby: id,
            party_size: 1,
            rejoin_token: None,
            source: surface::source(namespace, 0),
            source_limit: 1,
            idempotency: None,
        };
        if let Ok(Placed::Reserved(places)) = engine.join(&mut cx, &join).result {
            let token = places.tokens[0].clone();
            if is_fork {
                self.model.never_given.push((token.clone(), index));
            }
            self.story
                .tell(|| format!("-- {} makes {token} for L{index}", if is_fork { "a fork" } else { "another ring" }));
            self.foreign.push(token);
        }
        Ok(())
    }
}
