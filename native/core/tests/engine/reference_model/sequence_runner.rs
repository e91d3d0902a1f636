//! Runs one sequence on engine and model, and stops at the first difference.

use hosting_core::{Credit, EndReason, Ms, Refusal};

use super::answer_checks::{self, Baseline};
use super::commands::{Command, Reply};
use super::coverage::Coverage;
use super::decisions::Decision;
use super::effects::Lsns;
use super::engine_driver::{CommandRecord, EngineDriver, Way, slot_of};
use super::fact_reader::Reader;
use super::model_state::{Lobby, Model};
use super::step_generator::{Kind, Step, StepDraw};
use super::transcript::Transcript;
use super::workload::Workload;
use crate::random::Random;

pub struct SequenceRunner {
    pub workload: Workload,
    pub driver: EngineDriver,
    pub model: Model,
    pub base: Baseline,
    pub reader: Reader,
    pub now: Ms,
    pub keyed: Vec<Command>,
    pub foreign: Vec<String>,
    pub coverage: Coverage,
    pub transcript: Transcript,
    pub commands: u64,
}

impl SequenceRunner {
    pub fn new(seed: u64, mut transcript: Transcript) -> Self {
        let mut random = Random::new(seed);
        let workload = Workload::draw(&mut random);
        transcript.name_ids('N', &workload.namespaces);
        transcript.name_ids('V', &workload.versions);
        SequenceRunner {
            workload,
            driver: EngineDriver::new(),
            model: Model::default(),
            base: Baseline::default(),
            reader: Reader::default(),
            now: 1_000_000 + random.below(1_000),
            keyed: Vec::new(),
            foreign: Vec::new(),
            coverage: Coverage::default(),
            transcript,
            commands: 0,
        }
    }

    pub fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            self.step(*step)?;
        }
        self.restart(&mut Random::new(self.commands))
    }

    pub fn draw(&self, random: &Random) -> StepDraw<'_> {
        let random = random.clone();
        StepDraw { random, workload: &self.workload, model: &self.model, keyed: &self.keyed, foreign: &self.foreign }
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        let mut random = Random::new(step.dice);
        match step.kind {
            Kind::Time => self.pass_time(&mut random),
            Kind::Image => {
                self.driver.take_image();
                self.transcript.record(|| "-- an image is taken".to_owned());
                Ok(())
            }
            Kind::Restart => self.restart(&mut random),
            Kind::Churn => self.churn(&mut random),
            Kind::Foreign => self.forge(&mut random),
            kind => {
                let mut drawing = self.draw(&random);
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
        if random.chance(self.workload.late_timer_percent) {
            return Ok(());
        }
        self.send(Command::Advance, Credit::UNLIMITED)?;
        self.check_presence()
    }

    pub fn send(&mut self, command: Command, credit: Credit) -> Result<(), String> {
        self.model.advance_to(self.now);
        if self.meets_the_undecided(&command, credit) {
            self.send(Command::Advance, Credit::UNLIMITED)?;
            self.model.advance_to(self.now);
        }
        let expected = self.model.decide(&command);
        let hash = (credit.total == 0).then(|| self.driver.engine.durable_hash());
        self.commands += 1;
        let command_record = self.driver.call(&command, self.now, credit);
        self.transcript.record_command(&command, credit, &command_record, self.now);
        let decision = self.recall(&command, expected, &command_record, credit);
        answer_checks::check_answer(&self.model, &command, &decision, &command_record, credit)?;
        answer_checks::check_credit(&command_record, credit)?;
        answer_checks::check_way(&decision, &command_record, credit)?;
        answer_checks::check_recalled(&command, &decision, &command_record)?;
        if hash.is_some_and(|hash| hash != self.driver.engine.durable_hash()) {
            return Err("something was applied without credit".to_owned());
        }
        self.count(&command, &decision, &command_record);
        self.model.effect(&command, &decision, &command_record.reply, command_record.lsns, slot_of)?;
        if credit == Credit::UNLIMITED {
            self.model.notice_touched(&command, &decision);
        }
        self.model.last_lsn = command_record.lsns.after;
        self.settle(command_record.lsns)?;
        answer_checks::check_wait(&self.model, &command, &decision, &command_record)?;
        answer_checks::check_views(
            &self.model,
            &self.driver,
            &self.workload.namespaces,
            &self.workload.versions,
            &self.base,
        )?;
        if command.key().is_some() && !matches!(command_record.reply, Reply::Refused(_)) {
            self.keyed.push(command);
        }
        Ok(())
    }

    fn meets_the_undecided(&self, command: &Command, credit: Credit) -> bool {
        let lobbies = &self.model.lobbies;
        let is_joinable = |lobby: &Lobby| lobby.is_live() && !lobby.is_silent(self.model.now);
        let is_decided = match command {
            Command::Connected { .. } | Command::Join(..) | Command::Create(..) => true,
            Command::Find(args, _) => !self.model.depends_on_counts(args),
            _ => false,
        };
        let may_meet_overdue = is_decided && lobbies.iter().all(|lobby| is_joinable(lobby) || !lobby.has_overdue);
        let has_overdue = lobbies.iter().any(|lobby| lobby.has_overdue);
        let key = command.key();
        let meets_ended_hold = key.is_some() && self.model.settled.iter().any(|settled| settled.hold.key == key);
        meets_ended_hold || credit != Credit::UNLIMITED && has_overdue && !may_meet_overdue
    }

    fn recall(
        &self,
        command: &Command,
        expected: Decision,
        command_record: &CommandRecord,
        credit: Credit,
    ) -> Decision {
        if self.model.agrees(&expected, &command_record.reply) || !self.model.may_recall(command, credit) {
            return expected;
        }
        let recalled = self.model.decide_recalling(command);
        if self.model.agrees(&recalled, &command_record.reply) { recalled } else { expected }
    }

    fn settle(&mut self, lsns: Lsns) -> Result<(), String> {
        let resolved = self.driver.engine.take_resolved_holds();
        for one in &resolved {
            self.coverage.count(
                "hold",
                match &one.outcome.result {
                    Ok(_) => "resolved",
                    Err(Refusal::LobbyStartFailed(reason, _)) => match reason {
                        EndReason::Exited => "MATCHMAKER_LOBBY_START_FAILED Exited",
                        EndReason::StartTimeout => "MATCHMAKER_LOBBY_START_FAILED StartTimeout",
                        EndReason::Silent => "MATCHMAKER_LOBBY_START_FAILED Silent",
                        EndReason::Removed => "MATCHMAKER_LOBBY_START_FAILED Removed",
                        EndReason::Stopped => "MATCHMAKER_LOBBY_START_FAILED Stopped",
                    },
                    Err(_) => "something else",
                },
            );
        }
        self.transcript.record_resolved(&resolved);
        self.model.settle(&resolved, lsns, slot_of)
    }

    fn count(&mut self, command: &Command, decision: &Decision, command_record: &CommandRecord) {
        match command_record.way {
            Way::Whole => {}
            Way::Now => self.coverage.count(command.name(), "at once"),
            Way::WholeAfterStarting => self.coverage.count(command.name(), "lobby starting"),
            Way::WholeAfterNeeded => self.coverage.count(command.name(), "lobby needed"),
        }
        let label = match &command_record.reply {
            Reply::Refused(refusal) if !decision.label.contains(refusal.slug()) => refusal.slug(),
            _ => decision.label,
        };
        self.coverage.count(command.name(), label);
        let Command::Connected { token, .. } = command else { return };
        let (model, known) = (&self.model, self.model.use_of(token));
        let is_old = known
            .is_some_and(|index| model.lobbies[model.uses[index].lobby].is_live() && model.is_beyond_memory(index));
        if is_old && label == "PLAYER_REMOVED" {
            self.coverage.count("token", "older than 32 uses");
        }
        if label == "PLAYER_TOKEN_INVALID" && self.foreign.contains(token) {
            let is_never_given = model.never_given.iter().any(|(known, _)| known == token);
            self.coverage.count("token", if is_never_given { "not given yet" } else { "of another ring" });
        }
    }
}
