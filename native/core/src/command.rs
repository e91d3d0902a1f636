//! Commands of the engine and their results: plain values without behaviour.
//!
//! Times are milliseconds of service time unless the name says otherwise.

#![allow(missing_docs, reason = "most fields are named after the fields of the contract")]

use crate::refusal::Refusal;

/// Number of an event in the shard's journal, from 1. 0 means nothing to wait for.
pub type Lsn = u64;

/// Service time in milliseconds. Never runs back.
pub type Ms = u64;

/// A UUID in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Id(pub [u8; 16]);

/// Keyed hash of a client address. 0 means that it counts for no source.
pub type Source = u64;

/// Keyed hash of the secret of an event channel.
pub type ChannelId = [u8; 16];

/// Bytes of journal that commands may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Bytes that are pre-written and free.
    pub total: u64,
    /// Part of `total` that new slots (find, join, attach, ready) may not use.
    pub reserve: u64,
    /// Most bytes for the events of one command: one submission lies within one segment.
    pub largest: u64,
}

impl Credit {
    /// No limit, for tests and benchmarks without a journal.
    pub const UNLIMITED: Credit = Credit { total: u64::MAX, reserve: 0, largest: u64::MAX };
}

/// Encoded events in order of LSN. The caller submits them to the journal and clears the buffer.
#[derive(Debug, Default)]
pub struct EventBuffer {
    pub bytes: Vec<u8>,
    pub count: u32,
}

/// Inputs of every command.
#[derive(Debug)]
pub struct Context<'a> {
    /// Service time.
    pub now: Ms,
    /// A command lowers `total` and `largest` by what it wrote.
    pub credit: Credit,
    pub events: &'a mut EventBuffer,
}

/// A decision, and the LSN that must be durable before the decision may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    pub result: Result<T, Refusal>,
    /// 0 when the answer depends on nothing in the journal.
    pub wait: Lsn,
}

/// Keyed hashes of an idempotency key and its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idempotency {
    /// Hash of caller and key.
    pub key: [u8; 16],
    /// Hash of operation and message.
    pub message: [u8; 16],
}

/// Visibility of a lobby in find and list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Publicity {
    Public,
    /// Never found or listed; joined by id only.
    Private,
}

/// Reason for the end of a lobby.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    Exited,
    /// Not ready within the start limit.
    StartTimeout,
    /// No heartbeat for three times the timeout.
    Silent,
    /// Detached or deleted.
    Removed,
    /// The process ended after a stop.
    Stopped,
}

/// Port of an attached lobby, returned to players as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    pub name: String,
    /// IP literal or host name.
    pub address: String,
    pub port: u16,
    pub is_tls: bool,
}

/// Registers a server that the service did not start as a lobby.
#[derive(Clone, Debug)]
pub struct Attach<'a> {
    /// Fresh random id; its leading 16 bits are the shard.
    pub id: Id,
    pub namespace: Id,
    /// Current version of the namespace.
    pub version: Id,
    pub mode: &'a str,
    pub region: &'a str,
    /// Sorted by name.
    pub tags: &'a [(&'a str, &'a str)],
    pub max_players: u32,
    pub max_players_direct: u32,
    pub max_players_party: u32,
    pub player_token_ttl_ms: u64,
    /// 0 disables the timeout.
    pub heartbeat_timeout_ms: u64,
    /// How long a new connection is safe from a heartbeat list.
    pub heartbeat_grace_ms: u64,
    pub is_join_enabled: bool,
    pub ports: &'a [Port],
    /// Wall clock, for records only.
    pub create_ts_ms: u64,
    pub lobby_count_max: u32,
    pub idempotency: Option<Idempotency>,
}

/// Result of attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    pub lobby: Id,
    pub lobby_token: String,
}

/// Reserves slots in the fullest lobby that fits.
#[derive(Clone, Debug)]
pub struct Find<'a> {
    pub namespace: Id,
    pub version: Id,
    /// Distinct.
    pub modes: &'a [&'a str],
    /// Distinct, in order of preference.
    pub regions: &'a [&'a str],
    /// Tags that the lobby must have.
    pub tags: &'a [(&'a str, &'a str)],
    /// 1 to 64; all slots or none.
    pub party_size: u32,
    /// 0 counts for no source.
    pub source: Source,
    /// `max_players` of the namespace.
    pub source_limit: u32,
    pub idempotency: Option<Idempotency>,
    /// The i-th channel gets the (i+1)-th token. More than `party_size` - 1 are ignored.
    pub channels: &'a [ChannelId],
    pub creation: CreationPolicy<'a>,
}

/// Reserves slots in one lobby by its id.
#[derive(Clone, Debug)]
pub struct Join<'a> {
    pub namespace: Id,
    pub lobby: Id,
    pub party_size: u32,
    /// Earlier player token of this lobby whose slot is requested again.
    pub rejoin_token: Option<&'a str>,
    pub source: Source,
    pub source_limit: u32,
    pub idempotency: Option<Idempotency>,
    pub channels: &'a [ChannelId],
}

/// Id of a hold: slots promised in a lobby that is not ready yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HoldId(pub u64);

/// Reserved slots, with one player token for each in `tokens`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    pub lobby: Id,
    pub tokens: Vec<String>,
}

/// Result of find, join and create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    Reserved(Reservation),
    Held(HoldId),
}

/// A hold whose lobby became ready or ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedHold {
    pub hold: HoldId,
    /// The same for every request that shares the hold.
    pub answer: Answer<Reservation>,
}

/// Player token sent to an event channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelEvent {
    /// Grows with each event.
    pub lsn: Lsn,
    /// Wall clock of [`crate::Engine::set_wall_clock`].
    pub ts_ms: u64,
    pub lobby: Id,
    pub token: String,
}

/// Last captcha pass of a client address, and its requests since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptchaStatus {
    /// None without a pass in the last 12 h.
    pub passed_ago_ms: Option<u64>,
    pub requests_since: u32,
}

/// Marks the slot of a player token connected.
#[derive(Clone, Debug)]
pub struct Connect<'a> {
    /// Lobby of the `lobby_` token.
    pub lobby: Id,
    pub player_token: &'a str,
    pub idempotency: Option<Idempotency>,
}

/// Frees or keeps the slot of a player token.
#[derive(Clone, Debug)]
pub struct Disconnect<'a> {
    pub lobby: Id,
    pub player_token: &'a str,
    /// Keeps a connected slot for the player, at most 600,000 ms.
    pub hold_ms: Option<u64>,
    pub idempotency: Option<Idempotency>,
}

/// Public attributes of a lobby.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LobbyView {
    pub id: Id,
    pub namespace: Id,
    pub version: Id,
    pub mode: String,
    pub region: String,
    /// In order of name.
    pub ports: Vec<Port>,
    /// Limits of find, join and party.
    pub max_players: [u32; 3],
    /// Ready, not closed, not silent.
    pub is_open: bool,
    pub is_ready: bool,
    pub is_closed: bool,
    /// Slots held, reserved, connected, kept.
    pub players: [u32; 4],
    pub create_ts_ms: u64,
    /// None for an attached lobby.
    pub own: Option<Box<ManagedLobbyView>>,
    pub publicity: Publicity,
    pub is_stopping: bool,
    /// In order of name.
    pub tags: Vec<(String, String)>,
}

/// Connected players of one mode and region of a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlayerCount {
    pub mode: String,
    pub region: String,
    /// Connected players, over all versions.
    pub player_count: u64,
}

/// Namespaces whose player or lobby count changed since a generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PresenceChanges {
    /// Argument of the next call. Starts anew with each engine and recovery.
    pub generation: u64,
    /// Complete: a namespace that is missing has no players and no lobbies.
    pub is_all: bool,
    /// Namespace, connected players, live lobbies.
    pub namespaces: Vec<(Id, u64, u64)>,
}

/// Counts of one namespace for metrics.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceCounts {
    /// Starting, ready, closed, silent.
    pub lobbies: [u64; 4],
    /// Free, held, reserved, connected, kept.
    pub slots: [u64; 5],
    /// Since start: issued, connected, invalid, wrong lobby, consumed, expired, removed, disconnected.
    pub tokens: [u64; 8],
    /// Since start: expired, consumed, released, lobby gone.
    pub ends: [u64; 4],
    /// Since start, in the order of [`EndReason`].
    pub lobby_ends: [u64; 5],
}

/// Inclusive range of port numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange {
    pub first: u16,
    /// Inclusive. Before `first`: an empty range.
    pub last: u16,
}

impl PortRange {
    /// Returns the number of ports.
    pub fn len(self) -> usize {
        (usize::from(self.last) + 1).saturating_sub(usize::from(self.first))
    }

    /// Returns true for an empty range.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns true if the range holds `number`.
    pub fn contains(self, number: u16) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// Application protocol of a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Protocol {
    Http = 1,
    Https = 2,
    Tcp = 3,
    /// TLS ends at edge-guard.
    TcpTls = 4,
    Udp = 5,
}

impl Protocol {
    /// Returns true if the port is a UDP port.
    pub fn is_datagram(self) -> bool {
        self == Protocol::Udp
    }

    /// Decodes the byte of journals and images.
    pub fn from_byte(byte: u8) -> Option<Protocol> {
        let all = [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TcpTls, Protocol::Udp];
        all.into_iter().find(|protocol| *protocol as u8 == byte)
    }
}

/// How players reach a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortExposure {
    /// A port of edge-guard; 0 in a request means any.
    Number(u16),
    /// A host name of edge-guard, on the standard ports of the protocol.
    Host,
    /// The process itself, on these ports of the machine. Nothing is leased.
    Range(u16, u16),
}

/// A port that a lobby or server needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRequest<'a> {
    pub name: &'a str,
    pub protocol: Protocol,
    pub exposure: PortExposure,
}

/// Address where a process listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backend {
    /// IP literal.
    pub address: Box<str>,
    pub port: u16,
}

/// A port of a lobby or server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeasedPort {
    pub name: Box<str>,
    pub protocol: Protocol,
    pub exposure: PortExposure,
    /// None until the process listens.
    pub backend: Option<Backend>,
}

/// One forwarding rule of edge-guard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Lobby or dynamic server.
    pub owner: Id,
    pub is_server: bool,
    pub region: Box<str>,
    pub port: LeasedPort,
}

/// Routes that changed since a version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteChanges {
    /// Argument of the next call.
    pub version: Lsn,
    /// `changed` holds all routes.
    pub is_complete: bool,
    /// All routes of each owner that changed.
    pub changed: Vec<Route>,
    /// Owners to remove. Repeated until [`crate::Engine::return_ports`].
    pub removed: Vec<Id>,
}

/// Requests ports for a dynamic server.
#[derive(Clone, Debug)]
pub struct LeaseRequest<'a> {
    /// The dynamic server.
    pub owner: Id,
    pub namespace: Id,
    pub region: &'a str,
    /// Names differ.
    pub ports: &'a [PortRequest<'a>],
    pub random: u64,
}

/// Input for a lobby that the service starts.
#[derive(Clone, Debug)]
pub struct LobbyTemplate<'a> {
    /// `ports` and `idempotency` are ignored.
    pub lobby: Attach<'a>,
    pub publicity: Publicity,
    /// JSON text for the process.
    pub lobby_config: Option<&'a [u8]>,
    /// Names differ.
    pub ports: &'a [PortRequest<'a>],
    pub random: u64,
}

/// Whether find and create may start a lobby.
#[derive(Clone, Debug)]
pub enum CreationPolicy<'a> {
    /// The caller wants no new lobby.
    Prevented,
    /// No requested mode can be started.
    Impossible { lobby_count_max: u32 },
    /// Created when no lobby fits.
    Possible(&'a LobbyTemplate<'a>),
}

/// Starts a lobby and reserves slots in it.
#[derive(Clone, Debug)]
pub struct Create<'a> {
    pub namespace: Id,
    /// Never `Prevented`.
    pub creation: CreationPolicy<'a>,
    pub party_size: u32,
    pub source: Source,
    pub source_limit: u32,
    pub idempotency: Option<Idempotency>,
    pub channels: &'a [ChannelId],
}

/// A lobby whose process the runtime must run or stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DesiredLobby {
    pub lobby: Id,
    /// The process is to end.
    pub is_stopping: bool,
}

/// Desired lobbies that changed since a sequence number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DesiredLobbyChanges {
    /// Argument of the next call.
    pub sequence: u64,
    /// `lobbies` holds all desired lobbies.
    pub is_complete: bool,
    pub lobbies: Vec<DesiredLobby>,
    pub gone: Vec<Id>,
}

/// Starting and empty lobbies of one namespace, version, mode and region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdleLobbyGroup {
    pub namespace: Id,
    pub version: Id,
    pub mode: String,
    pub region: String,
    /// Public managed lobbies that start without players.
    pub starting: u32,
    /// Ready lobbies without players, longest empty first.
    pub empty: Vec<EmptyLobby>,
    /// All lobbies that are not stopping.
    pub live: u32,
    /// Managed lobbies that missed the start limit or went silent since the last call.
    pub failed: u32,
}

/// A ready lobby without players.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmptyLobby {
    pub lobby: Id,
    pub empty_ms: u64,
    /// A slot was used before.
    pub was_used: bool,
    /// Public and not closed.
    pub is_findable: bool,
    /// Managed by the service.
    pub is_ours: bool,
}

/// Attributes of a lobby that the service started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagedLobbyView {
    pub ports: Vec<LeasedPort>,
    /// JSON text given to create.
    pub lobby_config: Option<Vec<u8>>,
}
