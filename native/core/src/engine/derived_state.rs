//! Derived state: timers, find index, idle groups and counts.
//!
//! Derived state is updated while the engine is live, dropped when recovery starts, and rebuilt when recovery ends.

use super::Engine;
use crate::command::{EndReason, Ms};
use crate::desired_lobbies::DesiredLobbies;
use crate::find_index::{FindIndex, order_key};
use crate::idle_lobbies::{IdleState, OCCUPIED};
use crate::lobby_table::LobbyRecord;
use crate::slot::{SlotState, SlotUseEnd, slot_count};
use crate::slot_holds::HoldTable;
use crate::slot_ledger::{SlotLedger, TokenOutcome};
use crate::timer_wheel::TimerWheel;

/// Maximum number of lobbies with an outdated position in the find index. Above it, the index is updated at once instead
/// of at the next find.
const MAX_STALE_LOBBIES: usize = 1_024;

const NO_TALLY: u32 = u32::MAX;

impl Engine {
    /// Ends recovery: rebuilds the derived state, and restarts the heartbeat timeouts and start limits.
    pub fn finish_recovery(&mut self, now: Ms) {
        self.enter_recovery();
        self.time.observe(now);
        self.slot_timers = TimerWheel::starting_at(self.time.now());
        self.lobby_timers = TimerWheel::starting_at(self.time.now());
        self.is_live = true;
        for number in 0..self.lobbies.len() {
            match self.lobbies.get(number) {
                Some(LobbyRecord::Live(_)) => {
                    self.derive_lobby(number);
                    self.derive_slots(number);
                }
                Some(LobbyRecord::Ended(tombstone)) => self.ledger.add_tombstone(&self.seed, tombstone.namespace_id),
                None => {}
            }
        }
        self.leases.finish_recovery(self.time.now());
        self.refresh_find_index();
    }

    pub(super) fn enter_recovery(&mut self) {
        if !self.is_live {
            return;
        }
        self.is_live = false;
        let (violations, visited) = (self.ledger.violations, self.find_index.visited);
        self.ledger = SlotLedger::new();
        self.ledger.violations = violations;
        self.source_slot_counts.clear();
        self.find_index = FindIndex::new();
        self.find_index.visited = visited;
        self.holds = HoldTable::new();
        self.clear_idle_groups();
        self.desired_lobbies = DesiredLobbies::new();
        self.unreachable_lobbies.clear();
        self.leases.enter_recovery();
        self.gone_nodes.clear();
    }

    pub(super) fn derive_lobby(&mut self, number: u32) {
        let now = self.time.now();
        let start_limit_ms = self.config.start_limit_ms;
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        lobby.namespace = self.ledger.namespace(&self.seed, lobby.namespace_id);
        // A trial has no players, so the counts of players do not show its mode and region.
        lobby.tally = match lobby.trial_until {
            Some(_) => NO_TALLY,
            None => self.ledger.acquire_tally(lobby.namespace, lobby.mode, lobby.region),
        };
        lobby.group = self.find_index.acquire(&self.seed, lobby.group_key());
        lobby.indexed = None;
        lobby.is_find_index_stale = false;
        lobby.is_silent = false;
        lobby.nothing_listens = false;
        lobby.last_heartbeat_at = now;
        lobby.start_by = now.saturating_add(start_limit_ms);
        lobby.class = lobby.phase();
        lobby.counts.held = 0;
        lobby.holds.clear();
        lobby.timer = crate::timer_wheel::TimerLinks::UNLINKED;
        lobby.empty_since = now;
        lobby.idle_state = IdleState::NotIdle;
        lobby.is_counted_live = false;
        lobby.is_idle_state_stale = false;
        self.ledger.move_phase(lobby.namespace, None, Some(lobby.class));
        let namespace = &mut self.ledger.namespaces[lobby.namespace as usize];
        namespace.lobbies.insert(lobby.created_lsn, number);
        namespace.capacity += u64::from(lobby.capacity);
        self.ledger.mark_presence_changed(lobby.namespace);
        self.schedule_lobby_timer(number);
        self.lobby_changed(number);
    }

    fn derive_slots(&mut self, number: u32) {
        let used = self.lobbies.live(number).map_or(0, |lobby| lobby.slots.used);
        for slot in 0..used {
            let Some(lobby) = self.lobbies.live(number) else { return };
            let Some(at) = lobby.slots.locate(slot) else { return };
            let (namespace, tally) = (lobby.namespace, lobby.tally);
            let slot = self.slots.get_mut(at);
            slot.links = crate::timer_wheel::TimerLinks::UNLINKED;
            slot.was_listed = false;
            let (state, source) = (slot.state, slot.source);
            match state {
                SlotState::Free => continue,
                SlotState::Connected => self.ledger.tally_mut(tally).connected += 1,
                SlotState::Reserved | SlotState::Kept => self.slot_timers.insert(&mut self.slots, at),
            }
            self.source_slot_counts.add(&self.seed, namespace, source, 1);
            self.ledger.namespaces[namespace as usize].counts.slots[slot_count(state)] += 1;
        }
    }

    /// Removes the derived state of a lobby that is about to end. Its slots are already free.
    pub(super) fn remove_derived_lobby(&mut self, number: u32, reason: EndReason) {
        self.lobby_timers.remove(&mut self.lobbies, number);
        self.remove_from_idle_groups(number, reason);
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        if lobby.managed.is_some() {
            self.desired_lobbies.remove(lobby.id);
        }
        self.find_index.move_lobby(lobby.group, number, &lobby.tags, lobby.indexed.take(), None);
        self.find_index.release(&self.seed, lobby.group);
        if lobby.tally != NO_TALLY {
            self.ledger.release_tally(lobby.tally);
        }
        self.ledger.move_phase(lobby.namespace, Some(lobby.class), None);
        let namespace = &mut self.ledger.namespaces[lobby.namespace as usize];
        namespace.lobbies.remove(&lobby.created_lsn);
        namespace.capacity -= u64::from(lobby.capacity);
        namespace.counts.lobby_ends[reason as usize] += 1;
        namespace.tombstones += 1;
        self.ledger.mark_presence_changed(lobby.namespace);
    }

    pub(super) fn lobby_changed(&mut self, number: u32) {
        if !self.is_live {
            return;
        }
        self.update_idle_group(number);
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        if lobby.managed.is_some() {
            self.desired_lobbies.put(lobby.id, lobby.is_stopping);
        }
        let class = lobby.phase();
        if class != lobby.class {
            self.ledger.move_phase(lobby.namespace, Some(lobby.class), Some(class));
            lobby.class = class;
        }
        self.mark_find_index_stale(number);
    }

    /// Postpones the update of a lobby's position in the find index.
    pub(super) fn mark_find_index_stale(&mut self, number: u32) {
        // Not updated at once, because slots change far more often than find runs.
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        let is_empty = lobby.counts.players() == 0;
        if is_empty != (lobby.idle_state != IdleState::NotIdle) {
            if !is_empty {
                lobby.empty_since = OCCUPIED;
            }
            if !lobby.is_idle_state_stale {
                lobby.is_idle_state_stale = true;
                self.idle_lobbies.stale.push(number);
            }
        }
        if lobby.is_find_index_stale {
            return;
        }
        lobby.is_find_index_stale = true;
        self.find_index.stale.push(number);
        if self.find_index.stale.len() > MAX_STALE_LOBBIES {
            self.refresh_find_index();
        }
    }

    pub(super) fn refresh_find_index(&mut self) {
        let mut stale = core::mem::take(&mut self.find_index.stale);
        for number in stale.drain(..) {
            let Some(lobby) = self.lobbies.live_mut(number) else { continue };
            lobby.is_find_index_stale = false;
            let free = lobby.free_to_find();
            let is_indexed = lobby.is_findable() && free > 0;
            let position = is_indexed.then(|| (lobby.is_ready, order_key(free, lobby.created_lsn)));
            if position != lobby.indexed {
                self.find_index.move_lobby(lobby.group, number, &lobby.tags, lobby.indexed, position);
                lobby.indexed = position;
            }
        }
        self.find_index.stale = stale;
    }

    pub(super) fn schedule_lobby_timer(&mut self, number: u32) {
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        let next = lobby.next_deadline().unwrap_or(Ms::MAX);
        self.lobby_timers.remove(&mut self.lobbies, number);
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        lobby.timer_at = next;
        if next != Ms::MAX {
            self.lobby_timers.insert(&mut self.lobbies, number);
        }
    }

    pub(super) fn record_heartbeat(&mut self, number: u32) {
        let now = self.time.now();
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        lobby.last_heartbeat_at = now;
        if lobby.is_silent {
            lobby.is_silent = false;
            self.lobby_changed(number);
            self.schedule_lobby_timer(number);
        }
    }

    pub(super) fn slot_use_began(&mut self, number: u32, at: u32) {
        let source = self.slots.get(at).source;
        self.slot_timers.insert(&mut self.slots, at);
        let Some(lobby) = self.lobbies.live(number) else { return };
        let namespace = lobby.namespace;
        self.source_slot_counts.add(&self.seed, namespace, source, 1);
        self.ledger.namespaces[namespace as usize].counts.slots[slot_count(SlotState::Reserved)] += 1;
        self.ledger.count_token(namespace, TokenOutcome::Issued);
        self.mark_find_index_stale(number);
    }

    pub(super) fn slot_state_changed(&mut self, number: u32, from: SlotState, to: SlotState) {
        let Some(lobby) = self.lobbies.live(number) else { return };
        let (namespace, tally) = (lobby.namespace, lobby.tally);
        let slots = &mut self.ledger.namespaces[namespace as usize].counts.slots;
        slots[slot_count(from)] -= 1;
        slots[slot_count(to)] += 1;
        let connected = &mut self.ledger.tally_mut(tally).connected;
        *connected += u64::from(to == SlotState::Connected);
        *connected -= u64::from(from == SlotState::Connected);
        self.ledger.mark_presence_changed(namespace);
    }

    pub(super) fn slot_use_ended(&mut self, number: u32, at: u32, previous: SlotState, end: SlotUseEnd) {
        self.slot_timers.remove(&mut self.slots, at);
        let source = self.slots.get(at).source;
        let Some(lobby) = self.lobbies.live(number) else { return };
        let (namespace, tally) = (lobby.namespace, lobby.tally);
        self.source_slot_counts.remove(&self.seed, namespace, source, 1);
        let counts = &mut self.ledger.namespaces[namespace as usize].counts;
        counts.slots[slot_count(previous)] -= 1;
        counts.ends[end as usize] += 1;
        if previous == SlotState::Connected {
            self.ledger.tally_mut(tally).connected -= 1;
            self.ledger.mark_presence_changed(namespace);
        }
        self.mark_find_index_stale(number);
    }

    pub(super) fn count_token(&mut self, number: u32, outcome: TokenOutcome) {
        let namespace = match self.lobbies.get(number) {
            Some(LobbyRecord::Live(lobby)) => Some(lobby.namespace),
            Some(LobbyRecord::Ended(tombstone)) => self.ledger.namespace_of(&self.seed, tombstone.namespace_id),
            None => None,
        };
        if let Some(namespace) = namespace {
            self.ledger.count_token(namespace, outcome);
        }
    }
}

pub(super) const PROMISED_SLOTS: usize = 1;
