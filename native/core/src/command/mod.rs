//! What goes into the engine and what comes out: ids, command structs, outcomes. No behaviour.
//! Names are the contract's; durations and times are milliseconds of service time unless a name says otherwise.

mod ports;
mod supply;

pub use ports::{Backend, Lease, LeasedPort, PortRange, Protocol, Reached, Route, Routes, WantedPort};
pub use supply::{Create, Creation, EmptyLobby, Make, OwnLobby, SupplyGroup, Wanted, WantedLobby};

use crate::error::Refusal;

/// Number of an event in the shard's journal, from 1; 0 means "nothing to wait for".
pub type Lsn = u64;

/// Service time in milliseconds (design, "Service time"). Never runs back.
pub type Ms = u64;

/// A UUID in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Id(pub [u8; 16]);

/// Keyed hash of a client address (`hash::HashKey::source`); 0 is never produced and means "counts for no source".
pub type Source = u64;

/// Keyed hash of the secret of an event channel (`hash::HashKey::channel`).
pub type Channel = [u8; 16];

/// Bytes of journal that commands may still take (design, Journal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// All bytes that are pre-written and free.
    pub total: u64,
    /// The part of it that new places (find, join, attach, ready) must leave alone.
    pub reserve: u64,
    /// Most bytes that the events of one command may have: they are one submission, which lies within one segment.
    pub largest: u64,
}

impl Credit {
    /// No limit: for tests and measurements without a journal.
    pub const UNLIMITED: Credit = Credit { total: u64::MAX, reserve: 0, largest: u64::MAX };
}

/// Encoded events of one or more commands, in order of LSN. The caller submits them to the journal and clears it.
#[derive(Debug, Default)]
pub struct EventBuffer {
    /// Concatenated event encodings.
    pub bytes: Vec<u8>,
    /// How many events `bytes` holds.
    pub count: u32,
}

/// Everything that a command needs from outside.
#[derive(Debug)]
pub struct Context<'a> {
    /// Service time now.
    pub now: Ms,
    /// What the journal can take; a command lowers `total` and `largest` by what it wrote.
    pub credit: Credit,
    /// Where its events go.
    pub events: &'a mut EventBuffer,
}

/// A decision and the LSN that must be durable before it may leave the process. Refusals wait as well, when they
/// tell something about a lobby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was decided.
    pub result: Result<T, Refusal>,
    /// 0 when the answer depends on nothing in the journal.
    pub wait: Lsn,
}

/// Keyed hashes of an idempotency key (`hash::HashKey`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idempotency {
    /// Of caller and key.
    pub key: [u8; 16],
    /// Of operation and message.
    pub message: [u8; 16],
}

/// Who may find a lobby.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Publicity {
    /// Found, listed and joined.
    Public,
    /// Joined by id only.
    Private,
}

/// Why a lobby ended; the wire words are of design section 2, "hold". The order is that of
/// [`NamespaceCounts::lobby_ends`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// Its process exited.
    Exited,
    /// Not ready within the start limit.
    StartTimeout,
    /// No heartbeat for three times its timeout.
    Silent,
    /// Detached or deleted.
    Removed,
    /// Its process ended because we had asked it to.
    Stopped,
}

/// One port of an attached lobby, answered as it is (decisions 5.11).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Port name, the key in answers.
    pub name: String,
    /// IP literal or host name.
    pub address: String,
    /// 1–65535.
    pub port: u16,
    /// Follows the configured protocol.
    pub is_tls: bool,
}

/// A server that somebody else started becomes a lobby (decisions 5.11). Class: new place.
#[derive(Clone, Debug)]
pub struct Attach<'a> {
    /// Fresh random id; its leading 16 bits are the shard.
    pub id: Id,
    /// Namespace that it belongs to.
    pub namespace: Id,
    /// Current version of the namespace.
    pub version: Id,
    /// Game mode name.
    pub mode: &'a str,
    /// Region name id.
    pub region: &'a str,
    /// Tags that find compares, sorted by name by the caller.
    pub tags: &'a [(&'a str, &'a str)],
    /// Limit of find.
    pub max_players: u32,
    /// Limit of join and create for one player.
    pub max_players_direct: u32,
    /// Limit of join and create for a party.
    pub max_players_party: u32,
    /// Life of a reservation.
    pub player_token_ttl_ms: u64,
    /// Silence after which it is hidden; ended after three times as long. 0: never.
    pub heartbeat_timeout_ms: u64,
    /// How long a connected slot is safe from a heartbeat list.
    pub heartbeat_grace_ms: u64,
    /// `actions.join` of its version.
    pub is_join_enabled: bool,
    /// Its ports.
    pub ports: &'a [Port],
    /// Wall-clock creation time for records and lists, ms since the Unix epoch; the engine never computes with it.
    pub create_ts_ms: u64,
    /// `lobby_count_max` of the namespace now.
    pub lobby_count_max: u32,
    /// Repeats of the same key give the same lobby, 410 once it has ended.
    pub idempotency: Option<Idempotency>,
}

/// Answer of attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The lobby; an earlier one when the key was known.
    pub lobby: Id,
    /// `lobby_…` token.
    pub lobby_token: String,
}

/// Find the fullest lobby that fits (decisions 5.3). Class: new place.
#[derive(Clone, Debug)]
pub struct Find<'a> {
    /// Namespace of the caller.
    pub namespace: Id,
    /// Its current version.
    pub version: Id,
    /// Wanted modes, distinct, that passed their mode checks.
    pub modes: &'a [&'a str],
    /// Regions in order of preference, distinct.
    pub regions: &'a [&'a str],
    /// Tags that the lobby's tags must contain.
    pub tags: &'a [(&'a str, &'a str)],
    /// 1–64, all or none.
    pub party_size: u32,
    /// Whose places they are; 0 counts for no source.
    pub source: Source,
    /// `max_players` of the namespace now.
    pub source_limit: u32,
    /// Repeats give the same tokens.
    pub idempotency: Option<Idempotency>,
    /// The i-th gets the (i+1)-th token (decisions 5.12); at most `party_size` - 1, more are not looked at.
    pub channels: &'a [Channel],
    /// What is done when no lobby fits.
    pub creation: Creation<'a>,
}

/// Join one lobby by its id (contract lobbies.join, decisions 5.1, 5.2, 5.13). Class: new place.
#[derive(Clone, Debug)]
pub struct Join<'a> {
    /// Namespace of the caller.
    pub namespace: Id,
    /// The lobby.
    pub lobby: Id,
    /// 1–64, all or none.
    pub party_size: u32,
    /// An earlier player token of this lobby whose place is wanted back.
    pub rejoin_token: Option<&'a str>,
    /// Whose places they are; 0 counts for no source.
    pub source: Source,
    /// `max_players` of the namespace now.
    pub source_limit: u32,
    /// Repeats give the same tokens.
    pub idempotency: Option<Idempotency>,
    /// As in [`Find::channels`].
    pub channels: &'a [Channel],
}

/// Names a hold: finders' places in a lobby that is not ready yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HoldId(pub u64);

/// Reserved places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// In which lobby.
    pub lobby: Id,
    /// One token per player, in order; at least one.
    pub tokens: Vec<String>,
}

/// What find and join give.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placed {
    /// The places are reserved.
    Reserved(Reservation),
    /// The lobby is starting: wait for [`Resolved`] of this hold, or give it up with `release_hold`.
    Held(HoldId),
}

/// A hold that ended by itself: its lobby became ready, or ended before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// Which hold; every request that waits for it gets this answer.
    pub hold: HoldId,
    /// Tokens, or why not.
    pub answer: Answer<Reservation>,
}

/// A player token that was sent to an event channel (decisions 5.12).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelEvent {
    /// Number of the event that sent it: newer ones have greater numbers.
    pub lsn: Lsn,
    /// When, ms since the Unix epoch, as [`crate::Engine::note_wall`] told it.
    pub ts_ms: u64,
    /// The lobby.
    pub lobby: Id,
    /// The token, byte for byte as it was given to the caller of find or join.
    pub token: String,
}

/// What is known of the humanity of an address (decisions 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HumanStanding {
    /// Milliseconds since it passed a captcha; None when it did not within the longest time that counts.
    pub passed_ago_ms: Option<u64>,
    /// Its requests since.
    pub requests_since: u32,
}

/// `players.connected` (decisions 5.2). Class: existing place.
#[derive(Clone, Debug)]
pub struct Connect<'a> {
    /// The lobby that asks (from its `lobby_` token).
    pub lobby: Id,
    /// What the player brought.
    pub player_token: &'a str,
    /// One per socket.
    pub idempotency: Option<Idempotency>,
}

/// `players.disconnected` (decisions 5.2). Class: existing place.
#[derive(Clone, Debug)]
pub struct Disconnect<'a> {
    /// The lobby that asks.
    pub lobby: Id,
    /// Whose place ends.
    pub player_token: &'a str,
    /// Keep a connected place for that player, at most 600,000.
    pub hold_ms: Option<u64>,
    /// Repeats are `{}` anyway; a reused key is refused.
    pub idempotency: Option<Idempotency>,
}

/// A lobby as answers need it. Everything but the counts never changes after it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LobbyView {
    /// Its id.
    pub id: Id,
    /// Namespace.
    pub namespace: Id,
    /// Version that it was made with.
    pub version: Id,
    /// Game mode name.
    pub mode: String,
    /// Region name id.
    pub region: String,
    /// Ports in order of name.
    pub ports: Vec<Port>,
    /// Limits of find, join and party.
    pub max_players: [u32; 3],
    /// Ready, open, and not silent.
    pub is_open: bool,
    /// Ready.
    pub is_ready: bool,
    /// Closed by its server.
    pub is_closed: bool,
    /// Places per state: held, reserved, connected, kept.
    pub players: [u32; 4],
    /// ms since the Unix epoch.
    pub create_ts_ms: u64,
    /// What of it is ours; None for one that was attached.
    pub own: Option<Box<OwnLobby>>,
    /// Public or private.
    pub publicity: Publicity,
    /// Marked stopping.
    pub is_stopping: bool,
    /// Name and value, in order of name.
    pub tags: Vec<(String, String)>,
}

/// Connected players of one (mode, region) of a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlayerCount {
    /// Game mode name.
    pub mode: String,
    /// Region name id.
    pub region: String,
    /// Connected players over all versions.
    pub player_count: u64,
}

/// Namespaces whose players or lobbies changed since a reader looked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Presence {
    /// To ask with next time; from 1, anew with each engine and each recovery.
    pub generation: u64,
    /// Everything is told, because the reader knew nothing, or things of another engine: who is not told has nothing.
    pub is_all: bool,
    /// Namespace, connected players, live lobbies. Those that are not told did not change.
    pub namespaces: Vec<(Id, u64, u64)>,
}

/// Live lobbies and slots of one namespace, for metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceCounts {
    /// Lobbies: starting, ready (open and findable), closed, silent.
    pub lobbies: [u64; 4],
    /// Slots: free, held, reserved, connected, kept.
    pub slots: [u64; 5],
    /// Tokens by outcome since start: issued, connected, then one per refusal of connected
    /// (invalid, wrong_lobby, consumed, expired, removed), disconnected.
    pub tokens: [u64; 8],
    /// Ends of slots since start by cause: expired, consumed, released, lobby gone.
    pub ends: [u64; 4],
    /// Ends of lobbies since start by cause: exited, start timeout, silent, removed, stopped.
    pub lobby_ends: [u64; 5],
}
