//! The engine of one shard: the state, and what every command does first and last. The commands stand by family in the
//! submodules; what an event changes stands in `apply`, and nowhere else.

mod apply;
mod channels;
mod creation;
mod derived;
mod expiry;
mod facts;
mod fleet;
mod heartbeat;
mod humans;
mod image;
mod keys;
mod mocks;
mod place;
mod player;
mod ports;
mod records;
mod remembered;
mod replay;
mod supply;
mod view;

use std::collections::VecDeque;

pub(crate) use derived::slot_count;

use crate::channel::Channels;
use crate::command::{Answer, Channel, Context, Id, Lsn, Ms, PortRange, Resolved};
use crate::deadline::Wheel;
use crate::error::Refusal;
use crate::event::{self, ApplyError, Event, UseList};
use crate::find::FindIndex;
use crate::hash::TableSeed;
use crate::hold::Holds;
use crate::idempotency::Entries;
use crate::lease::Leases;
use crate::ledger::Ledger;
use crate::lobbies::{Known, Lobbies};
use crate::mock::Mocks;
use crate::outbox::Outbox;
use crate::slot::SlotArena;
use crate::source::Sources;
use crate::standing::Standings;
use crate::supply::Supply;
use crate::symbol::Symbols;
use crate::time::ServiceTime;
use crate::token::KeyRing;
use crate::wanted::WantedSet;

/// What an engine is made with.
#[derive(Debug)]
pub struct EngineConfig {
    /// Shard number, the leading 16 bits of every lobby id; from 1.
    pub shard: u16,
    /// MAC keys.
    pub keys: KeyRing,
    /// Time from attach to ready.
    pub start_limit_ms: u64,
    /// How long an ended lobby is remembered.
    pub tombstone_ms: u64,
    /// Least life of an idempotency entry; at least 1.
    pub idempotency_ms: u64,
    /// Steps that one call of [`Engine::advance`] takes at most.
    pub advance_steps: u32,
    /// Public ports, of streams and of datagrams.
    pub ports: PortRange,
    /// How long a port rests behind its lease.
    pub port_rest_ms: u64,
    /// How long one rests that edge-guard could not have.
    pub port_refused_ms: u64,
}

impl EngineConfig {
    /// The service's defaults: 5 min to start, 24 h tombstones, 10 min idempotency, ports 26000–31999 that rest for 60 s,
    /// refused ones for 10 min.
    pub fn new(shard: u16, keys: KeyRing) -> EngineConfig {
        EngineConfig {
            shard,
            keys,
            start_limit_ms: 300_000,
            tombstone_ms: 86_400_000,
            idempotency_ms: 600_000,
            advance_steps: 4_096,
            ports: PortRange { first: 26_000, last: 31_999 },
            port_rest_ms: 60_000,
            port_refused_ms: 600_000,
        }
    }
}

/// One shard. Commands take a [`Context`] and give an [`Answer`]; events go to the context's buffer.
///
/// An engine is live when it is new. [`Engine::load_image`] and [`Engine::apply`] put it into recovery, in which it
/// takes no command, until [`Engine::recovered`].
pub struct Engine {
    config: EngineConfig,
    seed: TableSeed,
    time: ServiceTime,
    last_lsn: Lsn,
    /// LSN of the last event that made the engine forget: "never heard of that lobby" depends on it.
    forgotten_lsn: Lsn,
    /// False during recovery: derived state is not kept up then.
    is_live: bool,

    // Durable state: what images hold and events change.
    lobbies: Lobbies,
    slots: SlotArena,
    entries: Entries,
    /// Entries made until then have been dropped, or are kept only by a use that goes on.
    entries_up_to: Ms,
    /// Lobbies that ended until then have been dropped, or are kept only by an entry.
    lobbies_up_to: Ms,
    symbols: Symbols,
    outbox: Outbox,
    channels: Channels,
    standings: Standings,
    mocks: Mocks,
    leases: Leases,

    // Derived from the durable state, or memory only.
    ledger: Ledger,
    sources: Sources,
    index: FindIndex,
    supply: Supply,
    wanted: WantedSet,
    holds: Holds,
    resolved: Vec<Resolved>,
    /// Channels that tokens were sent to, by the event that sent them, until the owner takes them.
    delivered: VecDeque<(Lsn, Channel)>,
    /// The wall clock as the owner told it last; records only.
    wall_ms: u64,
    place_wheel: Wheel,
    lobby_wheel: Wheel,
    uses: UseList,
}

/// A lobby that a command names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    Live(u32),
    Ended(u32),
    Unknown,
}

/// How much credit a command needs (design, Journal).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    NewPlace,
    ExistingPlace,
}

impl Engine {
    /// (kind, name) of every event that this build writes and reads; kinds are never reused.
    pub const EVENT_KINDS: &'static [(u8, &'static str)] = event::KINDS;

    /// An empty, live engine.
    pub fn new(mut config: EngineConfig) -> Engine {
        config.idempotency_ms = config.idempotency_ms.max(1);
        Engine {
            seed: TableSeed::new(config.keys.seed_secret()),
            time: ServiceTime::default(),
            last_lsn: 0,
            forgotten_lsn: 0,
            is_live: true,
            lobbies: Lobbies::new(),
            slots: SlotArena::new(),
            entries: Entries::new(),
            entries_up_to: 0,
            lobbies_up_to: 0,
            symbols: Symbols::new(),
            outbox: Outbox::default(),
            channels: Channels::default(),
            standings: Standings::default(),
            mocks: Mocks::default(),
            leases: Leases::new(config.ports),
            ledger: Ledger::new(),
            sources: Sources::new(),
            index: FindIndex::new(),
            supply: Supply::default(),
            wanted: WantedSet::new(),
            holds: Holds::new(),
            resolved: Vec::new(),
            delivered: VecDeque::new(),
            wall_ms: 0,
            place_wheel: Wheel::starting_at(0),
            lobby_wheel: Wheel::starting_at(0),
            uses: UseList::default(),
            config,
        }
    }

    /// The key ring that it signs and verifies with.
    pub fn keys(&self) -> &KeyRing {
        &self.config.keys
    }

    /// LSN of the last event; 0 before the first.
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// LSN that an answer about this lobby waits for; 0 when nothing about it is known.
    pub fn lobby_lsn(&self, id: Id) -> Lsn {
        self.lobbies.number_of(&self.seed, id).map_or(0, |number| self.lobbies.lsn(number))
    }

    /// Commands after which the ledger of a lobby did not add up.
    pub fn ledger_violations(&self) -> u64 {
        self.ledger.violations
    }

    /// Candidates that find visited since start.
    pub fn find_work(&self) -> u64 {
        self.index.visited
    }

    fn begin(&mut self, cx: &Context<'_>) -> Ms {
        debug_assert!(self.is_live, "recovered() comes before the first command");
        self.time.observe(cx.now);
        self.time.now()
    }

    /// Looks a lobby up and first expires what is due of itself (start limit, silence).
    fn meet(&mut self, cx: &mut Context<'_>, id: Id) -> Met {
        let Some(number) = self.lobbies.number_of(&self.seed, id) else { return Met::Unknown };
        let now = self.time.now();
        if self.lobbies.live(number).is_some_and(|lobby| lobby.timer_at <= now) {
            self.fire_lobby(cx, number);
        }
        match self.lobbies.known(number) {
            Some(Known::Live(_)) => Met::Live(number),
            Some(Known::Ended(tombstone)) if now < tombstone.ended_at + self.config.tombstone_ms => Met::Ended(number),
            _ => Met::Unknown,
        }
    }

    /// Applies an event with the `apply` that recovery uses and appends its bytes.
    fn emit(&mut self, cx: &mut Context<'_>, event: &Event<'_>) {
        let before = cx.events.bytes.len();
        event.encode(&mut cx.events.bytes);
        cx.events.count += 1;
        let written = (cx.events.bytes.len() - before) as u64;
        cx.credit.total = cx.credit.total.saturating_sub(written);
        cx.credit.largest = cx.credit.largest.saturating_sub(written);
        let applied = self.apply_event(self.last_lsn + 1, event);
        debug_assert_eq!(applied, Ok::<(), ApplyError>(()), "a live event fits the state: {event:?}");
        self.last_lsn += 1;
    }

    /// Checks the ledger of a lobby that a command changed.
    fn audit(&mut self, number: u32) {
        if let Some(lobby) = self.lobbies.live(number) {
            self.ledger.check(lobby, &self.slots);
        }
    }
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Engine {{ shard: {}, last_lsn: {} }}", self.config.shard, self.last_lsn)
    }
}

fn has_credit(cx: &Context<'_>, class: Class, cost: u64) -> bool {
    credit_of(cx, class) >= cost
}

fn credit_of(cx: &Context<'_>, class: Class) -> u64 {
    let reserve = if class == Class::NewPlace { cx.credit.reserve } else { 0 };
    cx.credit.total.saturating_sub(reserve).min(cx.credit.largest)
}

fn accept<T>(value: T, wait: Lsn) -> Answer<T> {
    Answer { result: Ok(value), wait }
}

fn refuse<T>(refusal: Refusal, wait: Lsn) -> Answer<T> {
    Answer { result: Err(refusal), wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_can_be_handed_to_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<Engine>();
    }
}
