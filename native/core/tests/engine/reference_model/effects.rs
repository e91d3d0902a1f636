//! Changes of the model after a command and its reply. Slots and tokens are the engine's choice, and are checked.

use hosting_core::{EndReason, HoldId, Id, Refusal, ResolvedHold, Source};

use super::commands::{AttachArgs, Command, Reply};
use super::decisions::{Decision, Verdict, Wait};
use super::fact_reader::{ExpectedFact, History};
use super::model_state::{Ending, Hold, KEY_LIFE_MS, Key, Lobby, Model, Remembered, SettledHold, Slot, Stage};

#[derive(Clone, Copy, Debug)]
pub struct Lsns {
    pub before: u64,
    pub after: u64,
}

pub type SlotLookup = fn(&str) -> Option<usize>;

impl Model {
    pub fn effect(
        &mut self,
        command: &Command,
        decision: &Decision,
        reply: &Reply,
        lsns: Lsns,
        slot_of: SlotLookup,
    ) -> Result<(), String> {
        if let Reply::Refused(_) = reply {
            self.count_refusal(command, reply);
            return Ok(());
        }
        match (&decision.verdict, command, reply) {
            (Verdict::NewLobby(_), Command::Attach(args, key), Reply::Attached { lobby, lobby_token }) => {
                self.attach(args, *key, (*lobby, lobby_token), command.message(), lsns)?;
            }
            (Verdict::NewSlots { lobby, .. }, _, Reply::Reserved { tokens, .. }) => {
                let uses = self.begin_uses(*lobby, source_of(command), tokens, slot_of)?;
                self.remember(command.key(), command.message(), Remembered::Admission(uses));
                self.lobbies[*lobby].changed_lsn = lsns.after;
            }
            (Verdict::SamePlace { old }, _, Reply::Reserved { tokens, .. }) => {
                self.take_again(*old, source_of(command), &tokens[0], slot_of, command)?;
                self.lobbies[self.uses[*old].lobby].changed_lsn = lsns.after;
            }
            (Verdict::NewHold { lobby }, _, Reply::Hold(id)) => self.hold(*id, *lobby, command),
            (Verdict::Created(_), _, Reply::Made { hold, lobby, lobby_token }) => {
                self.created(command, *hold, (*lobby, lobby_token), lsns)?;
            }
            (Verdict::KnownHold(index), ..) => self.holds[*index].waiters += 1,
            (Verdict::Done | Verdict::Removed(true), ..) => self.effect_done(command, decision, lsns),
            (Verdict::State(_), Command::State { caller: Some(lobby), .. }, _) => {
                self.speak(*lobby, command, decision, lsns);
            }
            _ => {}
        }
        Ok(())
    }

    fn effect_done(&mut self, command: &Command, decision: &Decision, lsns: Lsns) {
        match command {
            Command::ReleaseHold { hold } => self.release(*hold),
            Command::Stop { lobby, .. } | Command::End { lobby, .. } | Command::Detach { lobby, .. } => {
                self.stop_or_end(*lobby, command, decision, lsns);
            }
            Command::Ready { lobby }
            | Command::Connected { lobby, .. }
            | Command::Disconnected { lobby, .. }
            | Command::SetClosed { lobby, .. }
            | Command::SetState { lobby, .. }
            | Command::Heartbeat { lobby, .. } => self.speak(*lobby, command, decision, lsns),
            _ => {}
        }
    }

    pub fn hold(&mut self, id: HoldId, lobby: usize, command: &Command) {
        self.holds.push(Hold {
            id,
            lobby,
            size: party_of(command),
            waiters: 1,
            source: source_of(command),
            key: command.key(),
            message: command.message(),
        });
    }

    fn release(&mut self, id: HoldId) {
        let settled = self.settled.iter_mut().map(|settled| &mut settled.hold);
        let all = self.holds.iter_mut().chain(settled);
        all.filter(|hold| hold.id == id).for_each(|hold| hold.waiters = hold.waiters.saturating_sub(1));
        self.holds.retain(|hold| hold.waiters > 0);
    }

    fn speak(&mut self, id: Id, command: &Command, decision: &Decision, lsns: Lsns) {
        let Some(index) = self.lobby_index(id) else { return };
        if let Command::Disconnected { key, .. } = command
            && !decision.is_repeat
        {
            self.remember(*key, command.message(), Remembered::Disconnected(index));
        }
        if !self.lobbies[index].is_live() {
            return;
        }
        self.lobbies[index].spoke_at = self.now;
        match command {
            Command::Ready { .. } => self.make_ready(index),
            Command::Connected { token, key, .. } => self.connect(token, *key, command.message(), decision),
            Command::Disconnected { token, hold_ms, .. } => self.disconnect(token, *hold_ms, decision),
            Command::SetClosed { is_closed, .. } if self.lobbies[index].is_closed != *is_closed => {
                self.lobbies[index].is_closed = *is_closed;
                self.lobbies[index].history.expected_facts.push((self.now, ExpectedFact::Closed(*is_closed)));
            }
            Command::SetState { state, .. } => self.lobbies[index].state.clone_from(state),
            Command::Heartbeat { tokens: Some(list), .. } => self.list(index, list),
            _ => {}
        }
        if !decision.is_repeat {
            self.lobbies[index].changed_lsn = lsns.after;
        }
    }

    fn list(&mut self, lobby: usize, tokens: &[String]) {
        for missing in self.missing_in(lobby, tokens) {
            self.end_use(missing, Ending::Consumed, (self.now, self.order));
        }
        self.lobbies[lobby].listed_by = Some(self.order);
    }

    fn stop_or_end(&mut self, id: Id, command: &Command, decision: &Decision, lsns: Lsns) {
        let Some(index) = self.lobby_index(id).filter(|_| !decision.is_repeat) else { return };
        match command {
            Command::Stop { .. } => {
                self.lobbies[index].is_stopping = true;
                self.lobbies[index].history.expected_facts.push((self.now, ExpectedFact::Stopping));
                self.fail_holds(index, EndReason::Removed);
            }
            Command::End { reason, .. } => self.end_lobby(index, self.now, *reason),
            _ => self.end_lobby(index, self.now, EndReason::Removed),
        }
        self.lobbies[index].changed_lsn = lsns.after;
    }

    fn attach(
        &mut self,
        args: &AttachArgs,
        key: Option<u8>,
        lobby: (Id, &str),
        message: u128,
        lsns: Lsns,
    ) -> Result<(), String> {
        self.push_lobby(args, lobby, lsns)?;
        self.remember(key, message, Remembered::Attached(self.lobbies.len() - 1));
        Ok(())
    }

    pub fn push_lobby(&mut self, args: &AttachArgs, (id, lobby_token): (Id, &str), lsns: Lsns) -> Result<(), String> {
        if self.lobbies.iter().any(|lobby| lobby.lobby_token == lobby_token) {
            return Err("two lobbies have one lobby token".to_owned());
        }
        let capacity = args.limits.iter().copied().max().unwrap_or_default() as usize;
        self.lobbies.push(Lobby {
            id,
            namespace: args.namespace,
            version: args.version,
            mode: args.mode.clone(),
            region: args.region.clone(),
            tags: args.tags.clone(),
            limits: args.limits,
            ttl_ms: args.ttl_ms,
            heartbeat_timeout_ms: args.heartbeat_timeout_ms,
            heartbeat_grace_ms: args.heartbeat_grace_ms,
            is_join_enabled: args.is_join_enabled,
            ports: args.ports.clone(),
            create_ts_ms: args.create_ts_ms,
            lobby_token: lobby_token.to_owned(),
            is_ours: false,
            is_public: true,
            is_ready: false,
            is_closed: false,
            is_stopping: false,
            state: Vec::new(),
            end: None,
            started_at: self.now,
            spoke_at: self.now,
            listed_by: None,
            slots: vec![Slot::default(); capacity],
            changed_lsn: lsns.after,
            has_overdue: false,
            overdue_uses: 0,
            owed_after: None,
            history: History { expected_facts: vec![(self.now, ExpectedFact::Created)], ..History::default() },
        });
        Ok(())
    }

    fn remember(&mut self, key: Option<u8>, message: u128, success: Remembered) {
        let Some(number) = key else { return };
        let reserved_until = match &success {
            Remembered::Admission(uses) => self.now + self.lobbies[self.uses[uses[0]].lobby].ttl_ms,
            _ => 0,
        };
        let least_until = self.now + KEY_LIFE_MS;
        let until = reserved_until.max(least_until);
        self.keys.insert(number, Key { message, success, least_until, until });
    }

    fn begin_uses(
        &mut self,
        lobby: usize,
        source: Source,
        tokens: &[String],
        slot_of: SlotLookup,
    ) -> Result<Vec<usize>, String> {
        let mut uses = Vec::new();
        for token in tokens {
            let allowed = self.next_slots(lobby);
            let slot = self.check_token(token, slot_of)?;
            if !allowed.contains(&slot) {
                return Err(format!("slot {slot} was given, but the next free ones are {allowed:?}"));
            }
            uses.push(self.begin_use(lobby, slot, source, token));
        }
        Ok(uses)
    }

    fn check_token(&self, token: &str, slot_of: SlotLookup) -> Result<usize, String> {
        let is_safe = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        if !token.starts_with("player_") || token.len() > 64 || !is_safe {
            return Err(format!("not the form of a player token: {token}"));
        }
        if self.use_of(token).is_some() {
            return Err(format!("a token was given twice: {token}"));
        }
        slot_of(token).ok_or_else(|| format!("no slot in {token}"))
    }

    fn take_again(
        &mut self,
        old: usize,
        source: Source,
        token: &str,
        slot_of: SlotLookup,
        command: &Command,
    ) -> Result<(), String> {
        let (lobby, slot) = (self.uses[old].lobby, self.uses[old].slot);
        if self.check_token(token, slot_of)? != slot {
            return Err(format!("a rejoin gave another slot than {slot}"));
        }
        let was_kept = matches!(self.uses[old].stage, Stage::Kept { .. });
        let ending = if was_kept { Ending::Consumed } else { Ending::Released };
        self.end_use(old, ending, (self.now, self.order));
        let index = self.begin_use(lobby, slot, source, token);
        self.remember(command.key(), command.message(), Remembered::Admission(vec![index]));
        Ok(())
    }

    fn make_ready(&mut self, lobby: usize) {
        if self.lobbies[lobby].is_ready {
            return;
        }
        self.lobbies[lobby].is_ready = true;
        self.lobbies[lobby].history.expected_facts.push((self.now, ExpectedFact::Ready));
        let (mine, rest): (Vec<Hold>, Vec<Hold>) =
            std::mem::take(&mut self.holds).into_iter().partition(|hold| hold.lobby == lobby);
        self.holds = rest;
        self.settled.extend(mine.into_iter().map(|hold| SettledHold { hold, outcome: Ok(()) }));
    }

    fn connect(&mut self, token: &str, key: Option<u8>, message: u128, decision: &Decision) {
        let Some(index) = self.use_of(token).filter(|_| !decision.is_repeat) else { return };
        self.uses[index].stage = Stage::Connected { since: self.now, order: self.order };
        let lobby = self.uses[index].lobby;
        self.count_token(lobby, 1);
        let connected = self.players_by_stage(lobby)[2];
        let attendance = &mut self.lobbies[lobby].history.attendance;
        attendance.connections += 1;
        attendance.peak_players = attendance.peak_players.max(connected);
        self.remember(key, message, Remembered::Connected(index));
    }

    fn disconnect(&mut self, token: &str, hold_ms: Option<u64>, decision: &Decision) {
        let Some(index) = self.use_of(token).filter(|_| !decision.is_repeat) else { return };
        let freed_at = (self.now, self.order);
        match (self.uses[index].stage, hold_ms) {
            (Stage::Connected { .. }, Some(hold_ms)) => {
                self.leave(index, self.now);
                self.uses[index].stage = Stage::Kept { deadline: self.now + hold_ms };
            }
            (Stage::Reserved { .. }, _) => self.end_use(index, Ending::Released, freed_at),
            _ => self.end_use(index, Ending::Consumed, freed_at),
        }
        self.count_token(self.uses[index].lobby, 7);
    }

    fn count_refusal(&mut self, command: &Command, reply: &Reply) {
        let (Command::Connected { lobby, .. }, Reply::Refused(refusal)) = (command, reply) else { return };
        let outcome = match refusal.slug() {
            "PLAYER_TOKEN_INVALID" => 2,
            "PLAYER_TOKEN_WRONG_LOBBY" => 3,
            "PLAYER_TOKEN_CONSUMED" => 4,
            "PLAYER_TOKEN_EXPIRED" => 5,
            "PLAYER_REMOVED" => 6,
            _ => return,
        };
        if let Some(index) = self.lobby_index(*lobby) {
            self.count_token(index, outcome);
        }
    }

    pub fn settle(&mut self, resolved: &[ResolvedHold], lsns: Lsns, slot_of: SlotLookup) -> Result<(), String> {
        for one in resolved {
            let Some(at) = self.settled.iter().position(|settled| settled.hold.id == one.hold) else {
                return Err(format!("resolved, but no request waits: {one:?}"));
            };
            let SettledHold { hold, outcome } = self.settled.remove(at);
            let first_of_lobby = self.settled.iter().position(|other| other.hold.lobby == hold.lobby);
            if outcome.is_ok() && first_of_lobby.is_some_and(|first| first < at) {
                return Err(format!("resolved out of the order of arrival: {one:?}"));
            }
            if one.outcome.wait <= lsns.before || one.outcome.wait > lsns.after {
                return Err(format!(
                    "{one:?} does not wait for its own event, LSN {}..={}",
                    lsns.before + 1,
                    lsns.after
                ));
            }
            match (&one.outcome.result, outcome) {
                (Ok(reserved), Ok(())) if reserved.tokens.len() == hold.size as usize => {
                    if reserved.lobby != self.lobbies[hold.lobby].id {
                        return Err(format!("resolved in another lobby: {one:?}"));
                    }
                    let uses = self.begin_uses(hold.lobby, hold.source, &reserved.tokens, slot_of)?;
                    self.remember(hold.key, hold.message, Remembered::Admission(uses));
                    self.lobbies[hold.lobby].changed_lsn = lsns.after;
                }
                (Err(Refusal::LobbyStartFailed(reply, _)), Err(reason)) if *reply == reason => {}
                (_, outcome) => return Err(format!("expected {outcome:?} for {hold:?}, resolved {one:?}")),
            }
        }
        // A hold without waiting requests, or in a lobby with overdue changes, need not be resolved yet.
        let is_late =
            |settled: &&SettledHold| settled.hold.waiters > 0 && !self.lobbies[settled.hold.lobby].has_overdue;
        let late = self.settled.iter().find(is_late);
        late.map_or(Ok(()), |settled| Err(format!("not resolved: {settled:?}")))
    }

    pub fn notice_touched(&mut self, command: &Command, decision: &Decision) {
        let by_key = command.key().is_some() && decision.is_repeat;
        // Other commands need not expire slots that they do not name.
        let looks_at_slots = matches!(command, Command::Join(..) | Command::Stop { only_if_idle: true, .. });
        for index in 0..self.lobbies.len() {
            let is_touched = match (command, decision.wait) {
                (Command::Advance, _) => true,
                (Command::Find(..) | Command::Create(..), _) => !by_key,
                (_, Wait::Lobby(touched)) => {
                    touched == index && !by_key && (looks_at_slots || !self.lobbies[index].is_live())
                }
                _ => false,
            };
            if is_touched {
                self.notice(index);
            }
        }
    }
}

fn source_of(command: &Command) -> Source {
    match command {
        Command::Find(args, _) => args.source,
        Command::Create(args, _) => args.source,
        Command::Join(args, _) => args.source,
        _ => 0,
    }
}

fn party_of(command: &Command) -> u32 {
    match command {
        Command::Find(args, _) => args.party_size,
        Command::Create(args, _) => args.party_size,
        Command::Join(args, _) => args.party_size,
        _ => 0,
    }
}
