//! Time in the model: timeouts, expiry, and what a restart resets.

use hosting_core::Ms;

use super::model_state::{Ending, LATER, Model, Stage, TOMBSTONE_MS};

impl Model {
    pub fn advance_to(&mut self, now: Ms) {
        for lobby in self.lobbies.iter_mut().filter(|lobby| lobby.is_live()) {
            lobby.has_overdue |= lobby.is_silent(now) && !lobby.is_silent(self.now);
        }
        self.now = now;
        self.order += 1;
        for lobby in 0..self.lobbies.len() {
            if !self.lobbies[lobby].is_live() {
                continue;
            }
            let end = self.lobbies[lobby].end_by_time().filter(|(at, _)| *at <= now);
            let horizon = end.map_or(now, |(at, _)| at);
            for index in 0..self.uses.len() {
                let due = self.uses[index].stage.deadline().filter(|at| *at <= horizon);
                if let Some(at) = due.filter(|_| self.uses[index].lobby == lobby) {
                    let is_kept = matches!(self.uses[index].stage, Stage::Kept { .. });
                    self.end_use(index, if is_kept { Ending::Consumed } else { Ending::Expired }, (at, 0));
                    self.require(lobby);
                    self.lobbies[lobby].overdue_uses += 1;
                    self.lobbies[lobby].slots[self.uses[index].slot].noticed_at = LATER;
                }
            }
            if let Some((at, reason)) = end {
                self.end_lobby(lobby, at, reason);
                self.require(lobby);
            }
        }
    }

    fn require(&mut self, lobby: usize) {
        self.lobbies[lobby].has_overdue = true;
        self.lobbies[lobby].owed_after.get_or_insert(self.last_lsn);
    }

    pub fn notice(&mut self, lobby: usize) {
        let (now, order) = (self.now, self.order);
        let lobby = &mut self.lobbies[lobby];
        for slot in &mut lobby.slots {
            slot.noticed_at = slot.noticed_at.min((now, order));
        }
        lobby.has_overdue = false;
        lobby.overdue_uses = 0;
        if let Some(lsn) = lobby.owed_after.take() {
            lobby.changed_lsn = lobby.changed_lsn.max(lsn + 1);
        }
        if let Some(end) = lobby.end.as_mut() {
            end.noticed = end.noticed.min(now);
        }
    }

    pub fn restart(&mut self, now: Ms) {
        self.holds.clear();
        self.settled.clear();
        self.ends.clear();
        self.lobby_ends.clear();
        self.late_ends.clear();
        self.tokens.clear();
        for lobby in &mut self.lobbies {
            // Recovered events are durable, so answers do not wait for them.
            lobby.changed_lsn = 0;
            lobby.spoke_at = now;
            lobby.started_at = now;
            lobby.listed_by = None;
        }
    }

    pub fn deadlines(&self) -> Vec<Ms> {
        let mut all: Vec<Ms> = self.uses.iter().filter_map(|one| one.stage.deadline()).collect();
        for lobby in &self.lobbies {
            if let Some(end) = lobby.end {
                all.push(end.at + TOMBSTONE_MS);
                continue;
            }
            all.extend(lobby.end_by_time().map(|(at, _)| at));
            if lobby.has_to_speak() {
                all.push(lobby.spoke_at + lobby.heartbeat_timeout_ms);
            }
        }
        all.extend(self.keys.values().flat_map(|key| [key.least_until, key.until]));
        all.retain(|at| *at >= self.now);
        all
    }

    pub fn next_end(&self) -> Option<Ms> {
        let slots = self.uses.iter().filter_map(|one| one.stage.deadline());
        let lobbies = self.lobbies.iter().filter(|lobby| lobby.is_live());
        slots.chain(lobbies.filter_map(|lobby| lobby.end_by_time().map(|(at, _)| at))).min()
    }
}
