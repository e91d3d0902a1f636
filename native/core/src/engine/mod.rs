//! Engine of one shard: its state, and the first and last steps of every command.
//!
//! The submodules hold the commands by topic. Only `event_application` changes the durable state.

mod captcha_passes;
pub(crate) mod change_marks;
mod channel_delivery;
mod derived_state;
mod event_application;
mod expiry;
pub(crate) mod heartbeat;
mod idempotent_requests;
mod idle_groups;
mod key_search;
mod lobby_creation;
mod lobby_facts;
mod lobby_lifecycle;
mod mock_players;
mod player_connection;
mod player_presence;
mod port_leasing;
mod queries;
mod signing_keys;
pub(crate) mod slot_reservation;
mod state_image;
pub(crate) mod suspect_slots;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use key_search::KeySearch;

use crate::codec::ApplyError;
use crate::command::{ChannelId, CommandOutcome, Context, Id, Lsn, Ms, PortRange, ResolvedHold};
use crate::desired_lobbies::DesiredLobbies;
use crate::event_channels::EventChannels;
use crate::fact_outbox::FactOutbox;
use crate::find_index::FindIndex;
use crate::idempotency_table::IdempotencyTable;
use crate::idle_lobbies::IdleLobbies;
use crate::journal_event::{self, Event};
use crate::keyed_hash::TableSeed;
use crate::lobby_table::LobbyTable;
use crate::mock_tokens::ConsumedMockTokens;
use crate::name_interner::NameInterner;
use crate::port_leases::PortLeaseTable;
use crate::refusal::Refusal;
use crate::service_time::ServiceTime;
use crate::slot::SlotArena;
use crate::slot_holds::HoldTable;
use crate::slot_ledger::SlotLedger;
use crate::slot_use::SlotUseEncoder;
use crate::source_captcha_passes::SourceCaptchaPasses;
use crate::source_slot_counts::SourceSlotCounts;
use crate::timer_wheel::TimerWheel;
use crate::token::KeyRing;

/// Settings of an engine.
#[derive(Debug)]
pub struct EngineConfig {
    /// Leading 16 bits of every lobby id, from 1.
    pub shard: u16,
    /// Signing keys.
    pub keys: KeyRing,
    /// Maximum time from the creation of a lobby until it is ready.
    pub start_limit_ms: u64,
    /// Lifetime of a tombstone, the record of an ended lobby.
    pub tombstone_ms: u64,
    /// Minimum lifetime of an idempotency entry, at least 1.
    pub idempotency_ms: u64,
    /// Maximum number of tombstones. A tombstone that an idempotency entry refers to stays as long as the entry, and so
    /// do the tombstones after it.
    pub tombstones_max: u32,
    /// Range of public ports of each node, for TCP and for UDP.
    pub ports: PortRange,
    /// Quarantine of a port after its lease.
    pub port_quarantine_ms: u64,
    /// Quarantine of a port that edge-guard could not bind.
    pub refused_port_quarantine_ms: u64,
    /// True if a lease gets its ports by [`Engine::bind_ports`], when the node of its process is known.
    pub binds_ports_later: bool,
}

impl EngineConfig {
    /// Returns the default settings.
    pub fn new(shard: u16, keys: KeyRing) -> EngineConfig {
        EngineConfig {
            shard,
            keys,
            start_limit_ms: 300_000,
            tombstone_ms: 86_400_000,
            idempotency_ms: 600_000,
            tombstones_max: 100_000,
            ports: PortRange { first: 26_000, last: 31_999 },
            port_quarantine_ms: 60_000,
            refused_port_quarantine_ms: 600_000,
            binds_ports_later: false,
        }
    }
}

/// State machine of one shard.
///
/// A new engine is live. [`Engine::load_image`] and [`Engine::apply`] start recovery. During recovery the engine takes no
/// commands, until [`Engine::finish_recovery`].
pub struct Engine {
    config: EngineConfig,
    seed: TableSeed,
    time: ServiceTime,
    last_lsn: Lsn,
    /// LSN of the last event that dropped old records. It must be durable before an answer "unknown lobby" is sent.
    forgotten_lsn: Lsn,
    is_live: bool,

    // Durable state: in images, changed by events.
    lobbies: LobbyTable,
    slots: SlotArena,
    entries: IdempotencyTable,
    /// Idempotency entries created at or before this time were dropped, unless a slot use or lobby still needs them.
    entries_up_to: Ms,
    /// Tombstones of lobbies that ended at or before this time were dropped, unless an idempotency entry still needs
    /// them.
    lobbies_up_to: Ms,
    names: NameInterner,
    outbox: FactOutbox,
    event_channels: EventChannels,
    captcha_passes: SourceCaptchaPasses,
    mock_tokens: ConsumedMockTokens,
    leases: PortLeaseTable,

    // Derived or memory only.
    ledger: SlotLedger,
    source_slot_counts: SourceSlotCounts,
    find_index: FindIndex,
    idle_lobbies: IdleLobbies,
    desired_lobbies: DesiredLobbies,
    /// Argument of the last [`Engine::set_unreachable`].
    unreachable_lobbies: BTreeMap<Id, String>,
    /// Nodes of [`Engine::return_ports_of_node`] that still have leases.
    gone_nodes: BTreeSet<Box<str>>,
    holds: HoldTable,
    resolved_holds: Vec<ResolvedHold>,
    /// Channels with tokens that `take_notified_channels` has not returned yet: `(LSN of the token event, channel)`.
    notified_channels: VecDeque<(Lsn, ChannelId)>,
    wall_ms: u64,
    slot_timers: TimerWheel,
    lobby_timers: TimerWheel,
    /// Expiry steps that the current command may still spend.
    expiry_steps_left: u32,
    slot_uses: SlotUseEncoder,
    key_search: KeySearch,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LobbyRef {
    Live(u32),
    Ended(u32),
    Unknown,
}

/// Kind of a command. Only `ExistingSlot` commands may use `Credit::reserve`, the last free bytes of the journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CreditClass {
    NewSlot,
    ExistingSlot,
}

impl Engine {
    /// `(number, journal name)` of every event kind.
    pub const EVENT_KINDS: &'static [(u8, &'static str)] = journal_event::KINDS;

    /// Returns an empty, live engine.
    pub fn new(mut config: EngineConfig) -> Engine {
        config.idempotency_ms = config.idempotency_ms.max(1);
        Engine {
            seed: TableSeed::new(config.keys.seed_secret()),
            time: ServiceTime::default(),
            last_lsn: 0,
            forgotten_lsn: 0,
            is_live: true,
            lobbies: LobbyTable::new(),
            slots: SlotArena::new(),
            entries: IdempotencyTable::new(),
            entries_up_to: 0,
            lobbies_up_to: 0,
            names: NameInterner::new(),
            outbox: FactOutbox::default(),
            event_channels: EventChannels::default(),
            captcha_passes: SourceCaptchaPasses::default(),
            mock_tokens: ConsumedMockTokens::default(),
            leases: PortLeaseTable::new(config.ports),
            ledger: SlotLedger::new(),
            source_slot_counts: SourceSlotCounts::new(),
            find_index: FindIndex::new(),
            idle_lobbies: IdleLobbies::default(),
            desired_lobbies: DesiredLobbies::new(),
            unreachable_lobbies: BTreeMap::new(),
            gone_nodes: BTreeSet::new(),
            holds: HoldTable::new(),
            resolved_holds: Vec::new(),
            notified_channels: VecDeque::new(),
            wall_ms: 0,
            slot_timers: TimerWheel::starting_at(0),
            lobby_timers: TimerWheel::starting_at(0),
            expiry_steps_left: 0,
            slot_uses: SlotUseEncoder::default(),
            key_search: KeySearch::default(),
            config,
        }
    }

    /// Returns the leading 16 bits of every lobby id.
    pub fn shard(&self) -> u16 {
        self.config.shard
    }

    /// Returns true if leases get their ports by [`Engine::bind_ports`].
    pub fn binds_ports_later(&self) -> bool {
        self.config.binds_ports_later
    }

    /// Returns the key ring.
    pub fn keys(&self) -> &KeyRing {
        &self.config.keys
    }

    /// Returns the LSN of the last event, or 0 before the first.
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Returns the LSN of a lobby's last event, or 0 if none is known.
    pub fn lobby_lsn(&self, id: Id) -> Lsn {
        self.lobbies.number_of(&self.seed, id).map_or(0, |number| self.lobbies.lsn(number))
    }

    /// Returns how many checks found a lobby with inconsistent slot counts.
    pub fn ledger_violations(&self) -> u64 {
        self.ledger.violations
    }

    /// Returns how many lobbies find has examined since start.
    pub fn find_candidates_visited(&self) -> u64 {
        self.find_index.visited
    }

    /// Encodes an event and applies it as recovery would.
    ///
    /// Panics if the event cannot be applied. The shard then ends the process before it submits the bytes, because no
    /// later start could replay such a journal.
    fn emit(&mut self, cx: &mut Context<'_>, event: &Event<'_>) {
        let before = cx.events.bytes.len();
        event.encode(&mut cx.events.bytes);
        cx.events.count += 1;
        let written = (cx.events.bytes.len() - before) as u64;
        cx.credit.total = cx.credit.total.saturating_sub(written);
        cx.credit.largest = cx.credit.largest.saturating_sub(written);
        let applied = self.apply_event(self.last_lsn + 1, event);
        assert_eq!(applied, Ok::<(), ApplyError>(()), "a live event fits the state: {event:?}");
        self.last_lsn += 1;
    }

    fn check_ledger(&mut self, number: u32) {
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

fn has_credit(cx: &Context<'_>, class: CreditClass, cost: u64) -> bool {
    credit_of(cx, class) >= cost
}

fn credit_of(cx: &Context<'_>, class: CreditClass) -> u64 {
    let reserve = if class == CreditClass::NewSlot { cx.credit.reserve } else { 0 };
    cx.credit.total.saturating_sub(reserve).min(cx.credit.largest)
}

fn accept<T>(value: T, wait: Lsn) -> CommandOutcome<T> {
    CommandOutcome { result: Ok(value), wait }
}

fn refuse<T>(refusal: Refusal, wait: Lsn) -> CommandOutcome<T> {
    CommandOutcome { result: Err(refusal), wait }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Credit, EventBuffer};

    #[test]
    fn engine_is_send() {
        fn is_send<T: Send>() {}
        is_send::<Engine>();
    }

    // A debug assertion would pass this test, too. Only `cargo test --release` shows the difference.
    #[test]
    #[should_panic(expected = "a live event fits the state")]
    fn event_that_cannot_be_applied_panics() {
        let keys = KeyRing::new(vec![(1, [7; 32])], 1).expect("one key");
        let mut engine = Engine::new(EngineConfig::new(1, keys));
        let mut events = EventBuffer::default();
        let mut cx = Context { now: 1, credit: Credit::UNLIMITED, events: &mut events };
        engine.emit(&mut cx, &Event::LobbyReady { lobby: 0, at: 1 });
    }
}
