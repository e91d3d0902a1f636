//! Derived state: what is worked out from the durable one and from time, kept up while the engine is live, dropped when
//! recovery begins and made anew when it ends. Timers, find index, counts per source and namespace.

use super::Engine;
use crate::command::{EndReason, Ms};
use crate::deadline::Wheel;
use crate::find::{FindIndex, GroupKey, order_key};
use crate::hold::Holds;
use crate::ledger::{Ledger, TokenOutcome};
use crate::lobbies::Known;
use crate::slot::{End, SlotState};
use crate::supply::{OCCUPIED, Standing};
use crate::wanted::WantedSet;

/// Lobbies that may wait to be put in order before somebody other than find does it.
const MOST_DIRTY: usize = 1_024;

impl Engine {
    /// After the last [`Engine::apply`]: works out what is not durable and starts the memory-only timers (silence,
    /// start limit) anew. `now` is service time.
    pub fn recovered(&mut self, now: Ms) {
        self.enter_recovery();
        self.time.observe(now);
        self.place_wheel = Wheel::starting_at(self.time.now());
        self.lobby_wheel = Wheel::starting_at(self.time.now());
        self.is_live = true;
        for number in 0..self.lobbies.len() {
            if self.lobbies.live(number).is_some() {
                self.derive_lobby(number);
                self.derive_places(number);
            }
        }
        self.leases.wake(self.time.now());
        self.order_dirty();
    }

    /// Forgets everything derived.
    pub(super) fn enter_recovery(&mut self) {
        if !self.is_live {
            return;
        }
        self.is_live = false;
        let (violations, visited) = (self.ledger.violations, self.index.visited);
        self.ledger = Ledger::new();
        self.ledger.violations = violations;
        self.sources.clear();
        self.index = FindIndex::new();
        self.index.visited = visited;
        self.holds = Holds::new();
        self.forget_supply();
        self.wanted = WantedSet::new();
    }

    /// Works out everything about a lobby but its places.
    pub(super) fn derive_lobby(&mut self, number: u32) {
        let now = self.time.now();
        let start_limit_ms = self.config.start_limit_ms;
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        lobby.namespace = self.ledger.namespace(&self.seed, lobby.namespace_id);
        lobby.tally = self.ledger.acquire_tally(lobby.namespace, lobby.mode, lobby.region);
        let (version, mode, region) = (lobby.version, lobby.mode, lobby.region);
        let key = GroupKey { namespace: lobby.namespace, version, mode, region };
        lobby.group = self.index.acquire(&self.seed, key);
        lobby.indexed = None;
        lobby.is_dirty = false;
        lobby.is_silent = false;
        lobby.spoke_at = now;
        lobby.start_by = now.saturating_add(start_limit_ms);
        lobby.class = lobby.classify();
        lobby.counts.held = 0;
        lobby.holds.clear();
        lobby.timer = crate::deadline::Links::UNLINKED;
        lobby.empty_since = now;
        lobby.standing = Standing::Elsewhere;
        lobby.is_supplied = false;
        lobby.is_supply_dirty = false;
        self.ledger.reclassify(lobby.namespace, None, Some(lobby.class));
        let namespace = &mut self.ledger.namespaces[lobby.namespace as usize];
        namespace.lobbies.insert(lobby.made, number);
        namespace.capacity += u64::from(lobby.capacity);
        self.ledger.touch_presence(lobby.namespace);
        self.arm_lobby(number);
        self.follow_lobby(number);
    }

    fn derive_places(&mut self, number: u32) {
        let used = self.lobbies.live(number).map_or(0, |lobby| lobby.slots.used);
        for slot in 0..used {
            let Some(lobby) = self.lobbies.live(number) else { return };
            let Some(at) = lobby.slots.locate(slot) else { return };
            let (namespace, tally) = (lobby.namespace, lobby.tally);
            let slot = self.slots.get_mut(at);
            slot.links = crate::deadline::Links::UNLINKED;
            slot.was_listed = false;
            let (state, source) = (slot.state, slot.source);
            match state {
                SlotState::Free => continue,
                SlotState::Connected => self.ledger.tally_mut(tally).connected += 1,
                SlotState::Reserved | SlotState::Kept => self.place_wheel.insert(&mut self.slots, at),
            }
            self.sources.add(&self.seed, namespace, source, 1);
            self.ledger.namespaces[namespace as usize].counts.slots[slot_count(state)] += 1;
        }
    }

    /// A live lobby is about to become a tombstone for that reason; its places have ended.
    pub(super) fn underive_lobby(&mut self, number: u32, reason: EndReason) {
        self.lobby_wheel.remove(&mut self.lobbies, number);
        self.leave_supply(number, reason);
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        self.index.move_lobby(lobby.group, number, &lobby.tags, lobby.indexed.take(), None);
        self.index.release(&self.seed, lobby.group);
        self.ledger.release_tally(lobby.tally);
        self.ledger.reclassify(lobby.namespace, Some(lobby.class), None);
        let namespace = &mut self.ledger.namespaces[lobby.namespace as usize];
        namespace.lobbies.remove(&lobby.made);
        namespace.capacity -= u64::from(lobby.capacity);
        namespace.counts.lobby_ends[reason as usize] += 1;
        self.ledger.touch_presence(lobby.namespace);
    }

    /// Something about a lobby changed that find, list or metrics look at.
    pub(super) fn follow_lobby(&mut self, number: u32) {
        if !self.is_live {
            return;
        }
        self.follow_supply(number);
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        let class = lobby.classify();
        if class != lobby.class {
            self.ledger.reclassify(lobby.namespace, Some(lobby.class), Some(class));
            lobby.class = class;
        }
        self.mark_dirty(number);
    }

    /// The find index is brought up to date when find asks, or when many lobbies wait: places come and go far more
    /// often than anybody asks for the order.
    pub(super) fn mark_dirty(&mut self, number: u32) {
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        // Whether anybody is in it is what the supply looks at.
        let is_empty = lobby.counts.players() == 0;
        if is_empty != (lobby.standing != Standing::Elsewhere) {
            if !is_empty {
                lobby.empty_since = OCCUPIED;
            }
            if !lobby.is_supply_dirty {
                lobby.is_supply_dirty = true;
                self.supply.dirty.push(number);
            }
        }
        if lobby.is_dirty {
            return;
        }
        lobby.is_dirty = true;
        self.index.dirty.push(number);
        if self.index.dirty.len() > MOST_DIRTY {
            self.order_dirty();
        }
    }

    /// Puts every lobby that changed where it belongs in the find index.
    pub(super) fn order_dirty(&mut self) {
        let mut dirty = core::mem::take(&mut self.index.dirty);
        for number in dirty.drain(..) {
            let Some(lobby) = self.lobbies.live_mut(number) else { continue };
            lobby.is_dirty = false;
            let free = lobby.free_to_find();
            let is_in = lobby.is_findable() && free > 0;
            let standing = is_in.then(|| (lobby.is_ready, order_key(free, lobby.made)));
            if standing != lobby.indexed {
                self.index.move_lobby(lobby.group, number, &lobby.tags, lobby.indexed, standing);
                lobby.indexed = standing;
            }
        }
        self.index.dirty = dirty;
    }

    /// Sets the timer of a lobby to its next deadline, unless it fires before that anyway.
    pub(super) fn arm_lobby(&mut self, number: u32) {
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        let next = lobby.next_deadline().unwrap_or(Ms::MAX);
        self.lobby_wheel.remove(&mut self.lobbies, number);
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        lobby.timer_at = next;
        if next != Ms::MAX {
            self.lobby_wheel.insert(&mut self.lobbies, number);
        }
    }

    /// The server of a lobby was heard.
    pub(super) fn hear(&mut self, number: u32) {
        let now = self.time.now();
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        lobby.spoke_at = now;
        if lobby.is_silent {
            lobby.is_silent = false;
            self.follow_lobby(number);
            self.arm_lobby(number);
        }
    }

    /// A use began: it is reserved.
    pub(super) fn follow_begun(&mut self, number: u32, at: u32) {
        let source = self.slots.get(at).source;
        self.place_wheel.insert(&mut self.slots, at);
        let Some(lobby) = self.lobbies.live(number) else { return };
        let namespace = lobby.namespace;
        self.sources.add(&self.seed, namespace, source, 1);
        self.ledger.namespaces[namespace as usize].counts.slots[slot_count(SlotState::Reserved)] += 1;
        self.ledger.count_token(namespace, TokenOutcome::Issued);
        self.mark_dirty(number);
    }

    /// A use went from one state to another.
    pub(super) fn follow_moved(&mut self, number: u32, from: SlotState, to: SlotState) {
        let Some(lobby) = self.lobbies.live(number) else { return };
        let (namespace, tally) = (lobby.namespace, lobby.tally);
        let slots = &mut self.ledger.namespaces[namespace as usize].counts.slots;
        slots[slot_count(from)] -= 1;
        slots[slot_count(to)] += 1;
        let connected = &mut self.ledger.tally_mut(tally).connected;
        *connected += u64::from(to == SlotState::Connected);
        *connected -= u64::from(from == SlotState::Connected);
        self.ledger.touch_presence(namespace);
    }

    /// A use ended.
    pub(super) fn follow_ended(&mut self, number: u32, at: u32, was: SlotState, end: End) {
        self.place_wheel.remove(&mut self.slots, at);
        let source = self.slots.get(at).source;
        let Some(lobby) = self.lobbies.live(number) else { return };
        let (namespace, tally) = (lobby.namespace, lobby.tally);
        self.sources.remove(&self.seed, namespace, source, 1);
        let counts = &mut self.ledger.namespaces[namespace as usize].counts;
        counts.slots[slot_count(was)] -= 1;
        counts.ends[end as usize] += 1;
        if was == SlotState::Connected {
            self.ledger.tally_mut(tally).connected -= 1;
            self.ledger.touch_presence(namespace);
        }
        self.mark_dirty(number);
    }

    /// Counts what became of a token under the namespace of its lobby, ended or not.
    pub(super) fn count_token(&mut self, number: u32, outcome: TokenOutcome) {
        let namespace = match self.lobbies.known(number) {
            Some(Known::Live(lobby)) => lobby.namespace,
            Some(Known::Ended(tombstone)) => self.ledger.namespace(&self.seed, tombstone.namespace_id),
            None => return,
        };
        self.ledger.count_token(namespace, outcome);
    }
}

/// Index of a state in `NamespaceCounts::slots`: free, held, reserved, connected, kept.
pub(crate) fn slot_count(state: SlotState) -> usize {
    match state {
        SlotState::Free => 0,
        SlotState::Reserved => 2,
        SlotState::Connected => 3,
        SlotState::Kept => 4,
    }
}

/// Index of held places there.
pub(super) const HELD: usize = 1;
