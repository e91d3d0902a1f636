//! Runs one sequence against engine and model side by side, and stops at the first difference.

use hosting_core::{Credit, EndReason, Ms, Refusal};

use crate::checks::{self, Baseline};
use crate::commands::{Command, Said};
use crate::coverage::Coverage;
use crate::decide::Decision;
use crate::effect::Lsns;
use crate::naive::Model;
use crate::profile::Profile;
use crate::random::Random;
use crate::steps::{Drawing, Kind, Step};
use crate::story::Story;
use crate::surface::{Surface, slot_of};

pub struct World {
    pub profile: Profile,
    pub surface: Surface,
    pub model: Model,
    pub base: Baseline,
    pub now: Ms,
    /// Commands with a key that succeeded.
    pub keyed: Vec<Command>,
    pub foreign: Vec<String>,
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
        self.restart(&mut Random::new(self.commands))
    }

    pub fn draw(&self, random: &Random) -> Drawing<'_> {
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
    pub fn send(&mut self, command: Command, credit: Credit) -> Result<(), String> {
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
        if called.said == Said::Refused(Refusal::StorageFull) {
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

    fn settle(&mut self, lsns: Lsns) -> Result<(), String> {
        let resolved = self.surface.engine.take_resolved();
        for one in &resolved {
            self.coverage.count(
                "hold",
                match &one.answer.result {
                    Ok(_) => "resolved",
                    Err(Refusal::LobbyStartFailed(reason)) => match reason {
                        EndReason::Exited => "MATCHMAKER_LOBBY_START_FAILED Exited",
                        EndReason::StartTimeout => "MATCHMAKER_LOBBY_START_FAILED StartTimeout",
                        EndReason::Silent => "MATCHMAKER_LOBBY_START_FAILED Silent",
                        EndReason::Removed => "MATCHMAKER_LOBBY_START_FAILED Removed",
                    },
                    Err(_) => "something else",
                },
            );
        }
        self.story.tell_resolved(&resolved);
        self.model.settle(&resolved, lsns, slot_of)
    }

    /// Outcomes that a label alone does not tell.
    fn count(&mut self, command: &Command, decision: &Decision, credit: Credit) {
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
}
