//! Presence of players of a game server that confirms no tokens: it connects reserved slots and frees connected ones.

use std::collections::BTreeMap;

use super::suspect_slots::foreign_sessions;
use super::{CommandOutcome, CreditClass, Engine, accept, has_credit, refuse};
use crate::command::{Context, Id, LeasedPort, Ms, Presence, SessionCounting, Source};
use crate::journal_event::Event;
use crate::refusal::Refusal;
use crate::slot::{SlotState, SlotUseEnd};
use crate::slot_ledger::TokenOutcome;
use crate::slot_use::SlotUse;

/// Maximum number of slots that one command frees. The next command frees the rest.
const MAX_FREED_SLOTS: usize = 1_024;

/// Source of slots that were reserved without a client address. A player of any address may have them.
const ANY: Source = 0;

/// Slot uses of one source, with their deadline (reserved) or connect time (connected).
#[derive(Default)]
struct SourceSlots {
    reserved: Vec<(Ms, SlotUse)>,
    connected: Vec<(Ms, SlotUse)>,
}

impl SourceSlots {
    fn len(&self) -> usize {
        self.reserved.len() + self.connected.len()
    }
}

impl Engine {
    /// Connects reserved slots, and frees surplus connected slots if `may_free` is set. Returns for each source of
    /// `sessions` whether it has a slot.
    ///
    /// Without a `count`, each source connects as many slots as it has sessions. With it, the slots of all sources connect
    /// up to the count, and no slot of a source with enough sessions is freed. Sessions without a `count` change nothing
    /// in a lobby with a port that is `Compared`.
    ///
    /// The reservation with the earliest deadline is connected first, and the slot that connected last is freed first.
    /// A source without slots of its own uses slots that were reserved without a client address. Kept slots do not
    /// change. A lobby that is not ready has no slots.
    ///
    /// Refusals, which change nothing: `LobbyStopped`, `LobbyTokenExpired`, `StorageFull`.
    pub fn match_presence(&mut self, cx: &mut Context<'_>, c: &Presence<'_>) -> CommandOutcome<Vec<bool>> {
        let number = match self.resolve_calling_lobby(cx, c.lobby) {
            Ok(number) => number,
            Err(outcome) => return outcome,
        };
        if c.count.is_none() && self.has_compared_port(c.lobby) {
            return accept(vec![true; c.sessions.len()], 0);
        }
        let slots = self.slots_by_source(number);
        let has_slot = has_slots(c.sessions, &slots);
        let (connecting, mut leaving) = match c.count {
            Some(count) => surplus_of_count(count, c.sessions, slots),
            None => surplus_of_sessions(c.sessions, slots),
        };
        leaving.truncate(if c.may_free { MAX_FREED_SLOTS } else { 0 });
        let needed =
            connecting.len() as u64 * Event::PLAYER_CONNECTED_LEN + leaving.len() as u64 * Event::PLAYER_LEFT_LEN;
        if !has_credit(cx, CreditClass::ExistingSlot, needed) {
            return refuse(Refusal::StorageFull, 0);
        }
        let at = self.time.now();
        for slot_use in connecting {
            self.emit(cx, &Event::PlayerConnected { slot_use, at, stamp: None });
            self.count_token(number, TokenOutcome::Connected);
        }
        for slot_use in leaving {
            self.emit(cx, &Event::PlayerLeft { slot_use, at, end: SlotUseEnd::Consumed, stamp: None });
            self.count_token(number, TokenOutcome::Disconnected);
        }
        self.record_heartbeat(number);
        self.check_ledger(number);
        accept(has_slot, self.lobbies.lsn(number))
    }

    fn has_compared_port(&self, lobby: Id) -> bool {
        let is_compared = |port: &LeasedPort| port.counting == SessionCounting::Compared;
        self.leases.live(lobby).is_some_and(|lease| lease.definition.ports.iter().any(is_compared))
    }

    /// Returns the reserved and connected slots of a lobby, in the order in which they connect.
    fn slots_by_source(&self, number: u32) -> BTreeMap<Source, SourceSlots> {
        let mut slots: BTreeMap<Source, SourceSlots> = BTreeMap::new();
        let Some(lobby) = self.lobbies.live(number).filter(|lobby| lobby.is_ready) else { return slots };
        for at in (0..lobby.slots.used).filter_map(|number| lobby.slots.locate(number)) {
            let slot = self.slots.get(at);
            let own = slots.entry(slot.source);
            let slot_use = SlotUse { lobby: number, slot: slot.number, generation: slot.generation };
            match slot.state {
                // An overdue reservation is about to expire.
                SlotState::Reserved if slot.time > self.time.now() => {
                    own.or_default().reserved.push((slot.time, slot_use));
                }
                SlotState::Connected => own.or_default().connected.push((slot.time, slot_use)),
                SlotState::Free | SlotState::Reserved | SlotState::Kept => {}
            }
        }
        for own in slots.values_mut() {
            own.reserved.sort_unstable_by_key(by_time);
            own.connected.sort_unstable_by_key(by_time);
        }
        slots
    }
}

fn by_time((time, slot_use): &(Ms, SlotUse)) -> (Ms, u16) {
    (*time, slot_use.slot)
}

fn uses(slots: impl Iterator<Item = (Ms, SlotUse)>) -> Vec<SlotUse> {
    slots.map(|(_, slot_use)| slot_use).collect()
}

/// Returns the slots that connect and that leave, if each session is a player.
fn surplus_of_sessions(
    sessions: &[(Source, u32)],
    slots: BTreeMap<Source, SourceSlots>,
) -> (Vec<SlotUse>, Vec<SlotUse>) {
    let mut wanted: BTreeMap<Source, usize> = BTreeMap::new();
    for (source, sessions) in sessions {
        *wanted.entry(if slots.contains_key(source) { *source } else { ANY }).or_default() += *sessions as usize;
    }
    let (mut connecting, mut leaving) = (Vec::new(), Vec::new());
    for (source, own) in slots {
        let wanted = wanted.get(&source).copied().unwrap_or(0);
        let missing = wanted.saturating_sub(own.connected.len());
        connecting.extend(own.reserved.into_iter().take(missing));
        leaving.extend(own.connected.into_iter().skip(wanted));
    }
    (uses(connecting.into_iter()), uses(leaving.into_iter()))
}

/// Returns the slots that connect and that leave, if a query counts the players.
fn surplus_of_count(
    count: u32,
    sessions: &[(Source, u32)],
    slots: BTreeMap<Source, SourceSlots>,
) -> (Vec<SlotUse>, Vec<SlotUse>) {
    let count = count as usize;
    let connected: usize = slots.values().map(|own| own.connected.len()).sum();
    let sessions_of: BTreeMap<Source, u32> = sessions.iter().copied().collect();
    let has_connected = |source: &Source| slots.get(source).is_some_and(|own| !own.connected.is_empty());
    let foreign = foreign_sessions(sessions, has_connected) as usize;
    let (mut reserved, mut absent) = (Vec::new(), Vec::new());
    for (source, own) in slots {
        let present = sessions_of.get(&source).map_or(0, |sessions| *sessions as usize);
        reserved.extend(own.reserved);
        absent.extend(own.connected.into_iter().skip(present));
    }
    reserved.sort_unstable_by_key(by_time);
    absent.sort_unstable_by_key(by_time);
    let leaving = connected.saturating_sub(count).min(absent.len().saturating_sub(foreign));
    let missing = count.saturating_sub(connected);
    (uses(reserved.into_iter().take(missing)), uses(absent.into_iter().rev().take(leaving)))
}

/// Returns for each source whether it has a slot. Sources without slots of their own get those of `ANY`, in order.
fn has_slots(sessions: &[(Source, u32)], slots: &BTreeMap<Source, SourceSlots>) -> Vec<bool> {
    let mut left = slots.get(&ANY).map_or(0, SourceSlots::len);
    let has_slot = |(source, sessions): &(Source, u32)| {
        if *source != ANY && slots.contains_key(source) {
            return true;
        }
        let has_shared = left > 0;
        left = left.saturating_sub(*sessions as usize);
        has_shared
    };
    sessions.iter().map(has_slot).collect()
}
