//! Presence of players of a game server that confirms no tokens: it connects reserved slots and frees connected ones.

use std::collections::BTreeMap;

use super::{CommandOutcome, CreditClass, Engine, accept, has_credit, refuse};
use crate::command::{Context, Ms, Presence, Source};
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
    /// Connects as many reserved slots of each source as it has players, and frees surplus connected slots if `may_free`
    /// is set. Returns for each source of `presence` whether it has a slot.
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
        let mut slots = self.slots_by_source(number, c.is_total);
        let mut wanted: BTreeMap<Source, usize> = BTreeMap::new();
        for (source, players) in c.players {
            let has_own = slots.get(source).is_some_and(|own| own.len() > 0);
            *wanted.entry(if has_own { *source } else { ANY }).or_default() += *players as usize;
        }
        let shared = slots.get(&ANY).map_or(0, SourceSlots::len);
        let has_slot = has_slots(c, &slots, shared);
        let (mut connecting, mut leaving) = (Vec::new(), Vec::new());
        for (source, own) in &mut slots {
            let wanted = wanted.get(source).copied().unwrap_or(0);
            own.reserved.sort_unstable_by_key(|(deadline, slot_use)| (*deadline, slot_use.slot));
            own.connected.sort_unstable_by_key(|(at, slot_use)| (*at, slot_use.slot));
            let missing = wanted.saturating_sub(own.connected.len());
            connecting.extend(own.reserved.iter().take(missing).map(|(_, slot_use)| *slot_use));
            if c.may_free {
                leaving.extend(own.connected.iter().skip(wanted).map(|(_, slot_use)| *slot_use));
            }
        }
        leaving.truncate(MAX_FREED_SLOTS);
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

    /// Returns the reserved and connected slots of a lobby by source, or all under `ANY`.
    fn slots_by_source(&self, number: u32, is_total: bool) -> BTreeMap<Source, SourceSlots> {
        let mut slots: BTreeMap<Source, SourceSlots> = BTreeMap::new();
        let Some(lobby) = self.lobbies.live(number).filter(|lobby| lobby.is_ready) else { return slots };
        for at in (0..lobby.slots.used).filter_map(|number| lobby.slots.locate(number)) {
            let slot = self.slots.get(at);
            let own = slots.entry(if is_total { ANY } else { slot.source });
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
        slots
    }
}

/// Returns for each source whether it has a slot. Sources without slots of their own get the `shared` ones, in order.
fn has_slots(c: &Presence<'_>, slots: &BTreeMap<Source, SourceSlots>, shared: usize) -> Vec<bool> {
    let mut left = shared;
    let has_slot = |(source, players): &(Source, u32)| {
        if *source != ANY && slots.get(source).is_some_and(|own| own.len() > 0) {
            return true;
        }
        let has_shared = left > 0;
        left = left.saturating_sub(*players as usize);
        has_shared
    };
    c.players.iter().map(has_slot).collect()
}
