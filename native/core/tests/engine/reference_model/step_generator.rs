//! Random steps. Each step chooses its command when it runs, so that shrinking can drop steps.

use hosting_core::{Credit, EndReason, HoldId, Id, Ms};

use super::commands::{Command, CreateArgs, CreationArgs, FindArgs, JoinArgs};
use super::engine_driver::{self, base64url, to_base64url};
use super::model_state::{Model, Stage};
use super::workload::{Workload, lobby_id};
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Attach,
    Ready,
    Find,
    Create,
    Join,
    Rejoin,
    Release,
    Connected,
    Disconnected,
    Heartbeat,
    SetClosed,
    SetState,
    State,
    Detach,
    Stop,
    End,
    Repeat,
    Time,
    Advance,
    Image,
    Restart,
    Churn,
    Foreign,
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub kind: Kind,
    pub dice: u64,
}

const WEIGHTS: [(Kind, u64); 23] = [
    (Kind::Attach, 13),
    (Kind::Ready, 20),
    (Kind::Find, 26),
    (Kind::Create, 7),
    (Kind::Join, 24),
    (Kind::Rejoin, 12),
    (Kind::Release, 4),
    (Kind::Connected, 30),
    (Kind::Disconnected, 22),
    (Kind::Heartbeat, 18),
    (Kind::SetClosed, 5),
    (Kind::SetState, 4),
    (Kind::State, 5),
    (Kind::Detach, 2),
    (Kind::Stop, 2),
    (Kind::End, 1),
    (Kind::Repeat, 22),
    (Kind::Time, 34),
    (Kind::Advance, 6),
    (Kind::Image, 2),
    (Kind::Restart, 2),
    (Kind::Churn, 1),
    (Kind::Foreign, 3),
];

pub fn draw(random: &mut Random, count: usize) -> Vec<Step> {
    let sum: u64 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let kind = |random: &mut Random| {
        let mut at = random.below(sum);
        for (kind, weight) in WEIGHTS {
            if at < weight {
                return kind;
            }
            at -= weight;
        }
        Kind::Advance
    };
    (0..count).map(|_| Step { kind: kind(random), dice: random.next() }).collect()
}

pub struct StepDraw<'a> {
    pub random: Random,
    pub workload: &'a Workload,
    pub model: &'a Model,
    pub keyed: &'a [Command],
    pub foreign: &'a [String],
}

impl StepDraw<'_> {
    fn lobby(&mut self) -> Option<usize> {
        if self.model.lobbies.is_empty() {
            return None;
        }
        let live: Vec<usize> =
            (0..self.model.lobbies.len()).filter(|index| self.model.lobbies[*index].is_live()).collect();
        if live.is_empty() || self.random.chance(8) {
            Some(self.random.recent(self.model.lobbies.len()))
        } else {
            Some(live[self.random.recent(live.len())])
        }
    }

    fn id_of(&mut self, lobby: Option<usize>) -> Id {
        match lobby {
            Some(index) if !self.random.chance(2) => self.model.lobbies[index].id,
            _ => lobby_id(&mut self.random),
        }
    }

    fn namespace_of(&mut self, lobby: Option<usize>) -> Id {
        match lobby {
            Some(index) if !self.random.chance(5) => self.model.lobbies[index].namespace,
            _ => self.random.pick(&self.workload.namespaces).copied().unwrap_or_default(),
        }
    }

    pub fn command(&mut self, kind: Kind) -> Option<Command> {
        let key = self.workload.key(&mut self.random);
        Some(match kind {
            Kind::Attach => Command::Attach(self.workload.attach(&mut self.random, self.model), key),
            Kind::Ready => self.ready(),
            Kind::Find => Command::Find(self.find(), key),
            Kind::Create => Command::Create(self.create(), key),
            Kind::Join => Command::Join(self.join(), key),
            Kind::Rejoin => Command::Join(self.rejoin()?, key),
            Kind::Release => Command::ReleaseHold { hold: self.hold() },
            Kind::Connected => {
                let (lobby, token) = self.lobby_and_token(|stage| matches!(stage, Stage::Reserved { .. }))?;
                Command::Connected { lobby, token, key }
            }
            Kind::Disconnected => {
                let is_there = |stage: Stage| matches!(stage, Stage::Connected { .. } | Stage::Kept { .. });
                let (lobby, token) = self.lobby_and_token(is_there)?;
                let hold_ms =
                    self.random.chance(45).then(|| [1, 3_000, 60_000, 600_000][self.random.below(4) as usize]);
                Command::Disconnected { lobby, token, hold_ms, key }
            }
            Kind::Heartbeat => self.heartbeat(),
            Kind::SetClosed | Kind::SetState | Kind::State | Kind::Detach | Kind::Stop | Kind::End => self.server(kind),
            Kind::Repeat => self.repeat()?,
            _ => Command::Advance,
        })
    }

    fn server(&mut self, kind: Kind) -> Command {
        let index = self.lobby();
        let (namespace, lobby) = (self.namespace_of(index), self.id_of(index));
        match kind {
            Kind::SetClosed => Command::SetClosed { lobby, is_closed: self.random.chance(50) },
            Kind::SetState => {
                let state = [&b""[..], b"{\"round\":1}", b"[1,2]"][self.random.below(3) as usize].to_vec();
                Command::SetState { lobby, state }
            }
            Kind::State => {
                let is_own = self.random.chance(60);
                let caller = if is_own { index } else { self.lobby() };
                let caller = self.random.chance(60).then(|| if is_own { lobby } else { self.id_of(caller) });
                Command::State { namespace, lobby, caller }
            }
            Kind::Detach => Command::Detach { namespace, lobby },
            Kind::Stop => Command::Stop { lobby, only_if_idle: self.random.chance(60) },
            _ => {
                let reason = if self.random.chance(70) { EndReason::Exited } else { EndReason::Removed };
                Command::End { lobby, reason }
            }
        }
    }

    fn ready(&mut self) -> Command {
        let starting: Vec<usize> = (0..self.model.lobbies.len())
            .filter(|index| self.model.lobbies[*index].is_live() && !self.model.lobbies[*index].is_ready)
            .collect();
        let lobby = if self.random.chance(80) { self.random.pick(&starting).copied() } else { None };
        let lobby = lobby.or_else(|| self.lobby());
        Command::Ready { lobby: self.id_of(lobby) }
    }

    fn party(&mut self) -> u32 {
        if self.random.chance(65) { 1 } else { self.random.between(2, 4) as u32 }
    }

    fn find(&mut self) -> FindArgs {
        let mut namespace = self.random.pick(&self.workload.namespaces).copied().unwrap_or_default();
        let mut version = self.random.pick(&self.workload.versions).copied().unwrap_or_default();
        let mut modes = self.workload.some_of(&mut self.random, &self.workload.modes);
        let mut regions = self.workload.some_of(&mut self.random, &self.workload.regions);
        if let Some(index) = self.lobby().filter(|_| self.random.chance(80)) {
            let lobby = &self.model.lobbies[index];
            (namespace, version) = (lobby.namespace, lobby.version);
            [(&mut modes, &lobby.mode), (&mut regions, &lobby.region)].into_iter().for_each(|(all, one)| {
                if !all.contains(one) {
                    all.push(one.clone());
                }
            });
        }
        let source = self.workload.source(&mut self.random);
        let mut args = FindArgs {
            namespace,
            version,
            modes,
            regions,
            tags: if self.random.chance(40) { self.workload.tags(&mut self.random, 2) } else { Vec::new() },
            party_size: self.party(),
            source: engine_driver::source(namespace, source),
            source_limit: self.workload.source_limit,
            creation: CreationArgs::Prevented,
        };
        args.creation = self.workload.creation(&mut self.random, self.model, &args);
        args
    }

    fn create(&mut self) -> CreateArgs {
        let lobby = self.workload.attach(&mut self.random, self.model);
        let (namespace, source) = (lobby.namespace, self.workload.source(&mut self.random));
        let is_public = self.random.chance(60);
        CreateArgs {
            namespace,
            party_size: self.party(),
            source: engine_driver::source(namespace, source),
            source_limit: self.workload.source_limit,
            creation: self.workload.possible(&mut self.random, lobby, is_public),
        }
    }

    fn join(&mut self) -> JoinArgs {
        let lobby = self.lobby();
        let namespace = self.namespace_of(lobby);
        let source = self.workload.source(&mut self.random);
        JoinArgs {
            namespace,
            lobby: self.id_of(lobby),
            party_size: self.party(),
            rejoin_token: None,
            source: engine_driver::source(namespace, source),
            source_limit: self.workload.source_limit,
        }
    }

    fn rejoin(&mut self) -> Option<JoinArgs> {
        let mut args = self.join();
        let kept_slots: Vec<usize> = (0..self.model.uses.len())
            .filter(|index| matches!(self.model.uses[*index].stage, Stage::Kept { .. } | Stage::Reserved { .. }))
            .collect();
        let chosen = if self.random.chance(70) { self.random.pick(&kept_slots).copied() } else { None };
        let token = match chosen {
            Some(index) => self.model.uses[index].token.clone(),
            None => self.token(|_| false)?,
        };
        if let Some(index) = self.model.use_of(&token).filter(|_| !self.random.chance(12)) {
            let lobby = &self.model.lobbies[self.model.uses[index].lobby];
            let source = self.workload.source(&mut self.random);
            (args.lobby, args.namespace) = (lobby.id, lobby.namespace);
            args.source = engine_driver::source(lobby.namespace, source);
        }
        args.party_size = 1;
        args.rejoin_token = Some(token);
        Some(args)
    }

    fn hold(&mut self) -> HoldId {
        let holds: Vec<HoldId> = self.model.holds.iter().map(|hold| hold.id).collect();
        self.random.pick(&holds).copied().unwrap_or(HoldId(u64::MAX))
    }

    fn token(&mut self, is_suitable: fn(Stage) -> bool) -> Option<String> {
        if self.random.chance(6)
            && let Some(token) = self.random.pick(self.foreign)
        {
            return Some(token.clone());
        }
        let uses = &self.model.uses;
        if uses.is_empty() {
            return self.random.pick(self.foreign).cloned();
        }
        let is_wanted = self.random.chance(60);
        let live: Vec<usize> = (0..uses.len()).filter(|index| is_suitable(uses[*index].stage)).collect();
        let index = match self.random.pick(&live).filter(|_| is_wanted) {
            Some(index) => *index,
            None => self.random.recent(uses.len()),
        };
        let token = uses[index].token.clone();
        Some(if self.random.chance(8) { self.spoil(token) } else { token })
    }

    fn spoil(&mut self, token: String) -> String {
        let body = token.trim_start_matches("player_").to_owned();
        let mut bytes = base64url(&body).unwrap_or_default();
        match self.random.below(10) {
            0..=2 => {
                let bit = self.random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                format!("player_{}", to_base64url(&bytes))
            }
            3 => format!("lobby_{body}"),
            4 => self.random.pick(&self.model.lobbies).map_or(String::new(), |lobby| lobby.lobby_token.clone()),
            5 => token[..self.random.below(token.len() as u64) as usize].to_owned(),
            6 => format!("{token}A"),
            7 => format!("{token}="),
            8 => format!("Player_{body}"),
            // The last letter has unused bits, so another letter can encode the same bytes.
            _ => {
                let (rest, last) = token.split_at(token.len() - 1);
                let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
                let at = letters.iter().position(|letter| [*letter] == last.as_bytes()).unwrap_or_default();
                format!("{rest}{}", letters[(at + 1) % 64] as char)
            }
        }
    }

    fn lobby_and_token(&mut self, is_suitable: fn(Stage) -> bool) -> Option<(Id, String)> {
        let token = self.token(is_suitable)?;
        let own = self.model.use_of(&token).map(|index| self.model.uses[index].lobby);
        let lobby = if self.random.chance(92) { own.or_else(|| self.lobby()) } else { self.lobby() };
        Some((self.id_of(lobby), token))
    }

    fn heartbeat(&mut self) -> Command {
        let lobby = self.lobby();
        let Some(index) = lobby.filter(|_| self.random.chance(70)) else {
            return Command::Heartbeat { lobby: self.id_of(lobby), tokens: None };
        };
        let mut list = Vec::new();
        for one in self.model.uses.iter().filter(|one| one.lobby == index) {
            let percent = if one.stage.is_live() { 60 } else { 4 };
            if self.random.chance(percent) {
                list.push(one.token.clone());
            }
        }
        let odd_ones = if self.random.chance(10) { self.random.between(1, 3) } else { 0 };
        for _ in 0..odd_ones {
            let odd = self.token(|_| false);
            let at = self.random.below(list.len() as u64 + 1) as usize;
            odd.into_iter().for_each(|token| list.insert(at, token));
        }
        Command::Heartbeat { lobby: self.id_of(lobby), tokens: Some(list) }
    }

    fn repeat(&mut self) -> Option<Command> {
        let index = if self.keyed.is_empty() { return None } else { self.random.recent(self.keyed.len()) };
        let mut command = self.keyed[index].clone();
        if let Some(lobby) = command.lobby_to_be() {
            lobby.id = lobby_id(&mut self.random);
        }
        if self.random.chance(75) {
            return Some(command);
        }
        let kinds = [Kind::Find, Kind::Create, Kind::Join, Kind::Connected, Kind::Disconnected, Kind::Attach];
        let kind = kinds[self.random.below(6) as usize];
        let mut other = self.command(kind)?;
        match &mut other {
            Command::Attach(_, key) | Command::Find(_, key) | Command::Join(_, key) => *key = command.key(),
            Command::Create(_, key) => *key = command.key(),
            Command::Connected { key, .. } | Command::Disconnected { key, .. } => *key = command.key(),
            _ => {}
        }
        Some(other)
    }

    pub fn time(&mut self) -> Ms {
        let now = self.model.now;
        let mut deadlines = self.model.deadlines();
        deadlines.sort_unstable();
        if self.random.chance(45) || deadlines.is_empty() {
            return now + self.random.below(4_000);
        }
        // Skip a day only rarely, otherwise no lobby would stay live.
        let reach = if self.random.chance(98) { 2_000_000 } else { Ms::MAX };
        let near = deadlines.iter().filter(|at| **at - now <= reach).count();
        if near == 0 {
            return now + self.random.below(6_000);
        }
        let near = if self.random.chance(85) { near.min(3) } else { near };
        let deadline = deadlines[self.random.below(near as u64) as usize];
        (deadline + self.random.below(3)).saturating_sub(1).max(now)
    }

    pub fn credit(&mut self) -> Credit {
        if !self.random.chance(self.workload.scarce_credit_percent) {
            return Credit::UNLIMITED;
        }
        match self.random.below(3) {
            0 => Credit { total: 0, reserve: self.random.below(2) * 1_000_000, largest: u64::MAX },
            1 => Credit { total: 1_000_000, reserve: 1_000_000, largest: u64::MAX },
            _ => Credit { total: self.random.below(400), reserve: self.random.below(200), largest: u64::MAX },
        }
    }
}
