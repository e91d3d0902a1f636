//! The model's decision for each command, before any change.

use hosting_core::{Credit, Id, Refusal};

use super::commands::{Command, Reply};
use super::model_state::{Key, Model, Remembered, Stage};

/// LSN that must be durable before the answer may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The model does not check the LSN.
    Any,
    Lobby(usize),
    Shard,
}

/// Expected answer. New tokens are learned, known tokens must be repeated.
#[derive(Clone, Debug)]
pub enum Verdict {
    NewLobby(Id),
    KnownLobby(usize),
    NewSlots { lobby: usize, size: u32 },
    SamePlace { old: usize },
    KnownSlots(Vec<usize>),
    NewHold { lobby: usize },
    Created(Id),
    KnownHold(usize),
    Done,
    Removed(bool),
    State(Option<Vec<u8>>),
    Refused(Refusal),
}

/// Expected verdict, refusals that are also allowed, and the outcome's name in the coverage counts.
#[derive(Clone, Debug)]
pub struct Decision {
    pub verdict: Verdict,
    pub also: Vec<Refusal>,
    pub wait: Wait,
    pub label: &'static str,
    /// True for a repeated request: it needs no credit and changes nothing.
    pub is_repeat: bool,
}

impl Decision {
    pub fn new(verdict: Verdict, wait: Wait, label: &'static str) -> Self {
        Decision { verdict, also: Vec::new(), wait, label, is_repeat: false }
    }

    pub fn repeat(mut self) -> Self {
        self.is_repeat = true;
        self
    }

    pub fn or(mut self, refusal: Refusal) -> Self {
        self.also.push(refusal);
        self
    }
}

pub fn refuse(refusal: Refusal, wait: Wait) -> Decision {
    let label = refusal.slug();
    Decision::new(Verdict::Refused(refusal), wait, label)
}

pub enum TokenReading {
    Forged,
    OtherLobby,
    /// Authentic, but the slot use was never issued.
    NeverIssued,
    OwnUse(usize),
}

impl Model {
    pub fn decide(&self, command: &Command) -> Decision {
        self.decide_by(command, |key| self.must_recall(key))
    }

    /// As [`Model::decide`], but every stored key counts as known.
    pub fn decide_recalling(&self, command: &Command) -> Decision {
        self.decide_by(command, |_| true)
    }

    fn decide_by(&self, command: &Command, is_known: impl Fn(&Key) -> bool) -> Decision {
        let asking = self.asking_lobby(command);
        let refused = asking.and_then(|lobby| self.refuse_asking(lobby, command));
        let decision =
            refused.or_else(|| self.decide_by_key(command, is_known)).unwrap_or_else(|| self.decide_afresh(command));
        // The engine may end the lobby late and then drops the tombstone late, so both answers are allowed.
        let is_lapsing = asking.and_then(|lobby| self.lobby_index(lobby)).is_some_and(|index| self.is_forgotten(index));
        if is_lapsing { decision.or(Refusal::LobbyTokenExpired) } else { decision }
    }

    fn decide_afresh(&self, command: &Command) -> Decision {
        match command {
            Command::Attach(args, _) => self.decide_attach(args),
            Command::Ready { lobby } => self.decide_ready(*lobby),
            Command::Find(args, _) => self.decide_find(args),
            Command::Create(args, _) => self.decide_create(args),
            Command::Join(args, _) => self.decide_join(args),
            Command::Connected { lobby, token, .. } => self.decide_connected(*lobby, token),
            Command::Disconnected { lobby, token, hold_ms, .. } => self.decide_disconnected(*lobby, token, *hold_ms),
            Command::SetClosed { lobby, is_closed } => self.decide_setting(*lobby, |one| one.is_closed == *is_closed),
            Command::SetState { lobby, state } => self.decide_setting(*lobby, |one| one.state == *state),
            Command::State { namespace, lobby, caller } => self.decide_state(*namespace, *lobby, *caller),
            Command::Heartbeat { lobby, tokens } => self.decide_heartbeat(*lobby, tokens.as_deref()),
            Command::Detach { namespace, lobby } => self.decide_detach(*namespace, *lobby),
            Command::Stop { lobby, only_if_idle } => self.decide_stop(*lobby, *only_if_idle),
            Command::End { lobby, .. } => self.decide_end(self.lobby_index(*lobby)),
            Command::ReleaseHold { .. } | Command::Advance => Decision::new(Verdict::Done, Wait::Any, "done"),
        }
    }

    /// Returns the lobby of the `lobby_` token that authorizes the command.
    fn asking_lobby(&self, command: &Command) -> Option<Id> {
        match command {
            Command::Ready { lobby } | Command::SetClosed { lobby, .. } | Command::SetState { lobby, .. } => {
                Some(*lobby)
            }
            Command::Heartbeat { lobby, .. } | Command::Connected { lobby, .. } => Some(*lobby),
            Command::Disconnected { lobby, .. } => Some(*lobby),
            Command::State { caller, .. } => *caller,
            _ => None,
        }
    }

    /// Refuses calls of an ended lobby. For 24 h, connected and disconnected still work.
    fn refuse_asking(&self, lobby: Id, command: &Command) -> Option<Decision> {
        let Some(index) = self.lobby_index(lobby) else {
            return Some(refuse(Refusal::LobbyTokenExpired, Wait::Any));
        };
        if self.lobbies[index].is_live() {
            return None;
        }
        if self.is_forgotten(index) && !self.is_perhaps_known(index) {
            return Some(refuse(Refusal::LobbyTokenExpired, Wait::Any));
        }
        let is_player_call = matches!(command, Command::Connected { .. } | Command::Disconnected { .. });
        (!is_player_call).then(|| refuse(Refusal::LobbyStopped, Wait::Lobby(index)))
    }

    fn decide_by_key(&self, command: &Command, is_known: impl Fn(&Key) -> bool) -> Option<Decision> {
        let number = command.key()?;
        let message = command.message();
        if let Some(index) = self.holds.iter().position(|hold| hold.key == Some(number)) {
            let hold = &self.holds[index];
            return Some(if hold.message == message {
                Decision::new(Verdict::KnownHold(index), Wait::Any, "shared").repeat()
            } else {
                refuse(Refusal::IdempotencyKeyReused, Wait::Any).repeat()
            });
        }
        let Key { message: known, success, .. } = self.keys.get(&number).filter(|key| is_known(key))?;
        if *known != message {
            return Some(refuse(Refusal::IdempotencyKeyReused, Wait::Any).repeat());
        }
        match success {
            Remembered::Attached(lobby) => Some(self.replay(*lobby, Verdict::KnownLobby(*lobby))),
            Remembered::Admission(uses) => {
                Some(self.replay(self.uses[uses[0]].lobby, Verdict::KnownSlots(uses.clone())))
            }
            // The replay of connected succeeds only while the player is connected. Later the token's end decides.
            Remembered::Connected(index) => {
                let one = &self.uses[*index];
                let is_connected = matches!(one.stage, Stage::Connected { .. });
                let done = Decision::new(Verdict::Done, Wait::Lobby(one.lobby), "replayed").repeat();
                is_connected.then_some(done)
            }
            Remembered::Disconnected(lobby) => {
                Some(Decision::new(Verdict::Done, Wait::Lobby(*lobby), "replayed").repeat())
            }
        }
    }

    pub fn may_recall(&self, command: &Command, credit: Credit) -> bool {
        let Some(key) = command.key().and_then(|number| self.keys.get(&number)) else { return false };
        let has_ended = match &key.success {
            Remembered::Admission(uses) => {
                let is_seen = !self.lobbies[self.uses[uses[0]].lobby].has_overdue;
                is_seen && uses.iter().all(|index| !self.uses[*index].stage.is_live())
            }
            _ => false,
        };
        !has_ended || self.now < key.until || credit != Credit::UNLIMITED
    }

    fn replay(&self, lobby: usize, verdict: Verdict) -> Decision {
        if self.lobbies[lobby].is_live() {
            Decision::new(verdict, Wait::Lobby(lobby), "replayed").repeat()
        } else {
            let mut stopped = refuse(Refusal::LobbyStopped, Wait::Lobby(lobby)).repeat();
            stopped.label = "replayed: MATCHMAKER_LOBBY_STOPPED";
            stopped
        }
    }

    pub fn agrees(&self, decision: &Decision, reply: &Reply) -> bool {
        if let Reply::Refused(refusal) = reply
            && decision.also.contains(refusal)
        {
            return true;
        }
        let is_new = |tokens: &[String]| tokens.iter().all(|token| self.use_of(token).is_none());
        match (&decision.verdict, reply) {
            (Verdict::NewLobby(id), Reply::Attached { lobby, .. }) => id == lobby,
            (Verdict::KnownLobby(index), Reply::Attached { lobby, lobby_token }) => {
                self.lobbies[*index].id == *lobby && self.lobbies[*index].lobby_token == *lobby_token
            }
            (Verdict::NewSlots { lobby, size }, Reply::Reserved { lobby: id, tokens }) => {
                self.lobbies[*lobby].id == *id && tokens.len() == *size as usize && is_new(tokens)
            }
            (Verdict::SamePlace { old }, Reply::Reserved { lobby, tokens }) => {
                self.lobbies[self.uses[*old].lobby].id == *lobby && tokens.len() == 1 && is_new(tokens)
            }
            (Verdict::KnownSlots(uses), Reply::Reserved { lobby, tokens }) => {
                let known: Vec<&String> = uses.iter().map(|index| &self.uses[*index].token).collect();
                self.lobbies[self.uses[uses[0]].lobby].id == *lobby && known.into_iter().eq(tokens.iter())
            }
            (Verdict::NewHold { .. }, Reply::Hold(hold)) => self.holds.iter().all(|known| known.id != *hold),
            (Verdict::Created(id), Reply::Made { hold, lobby, .. }) => {
                id == lobby && self.holds.iter().all(|known| known.id != *hold)
            }
            (Verdict::KnownHold(index), Reply::Hold(hold)) => self.holds[*index].id == *hold,
            (Verdict::Done, Reply::Done) => true,
            (Verdict::Removed(one), Reply::Removed(other)) => one == other,
            (Verdict::State(one), Reply::State(other)) => one == other,
            (Verdict::Refused(one), Reply::Refused(other)) => one == other,
            _ => false,
        }
    }
}
