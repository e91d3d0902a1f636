//! Commands of the engine and their results: plain values without behaviour.
//!
//! All times are milliseconds of service time unless the name says otherwise.

#![allow(missing_docs, reason = "most fields are named after the fields of the contract")]

pub use crate::refusal::EndReason;
use crate::refusal::Refusal;
pub use crate::token::Id;
use crate::token::PlayerToken;

/// Log sequence number: number of an event in the shard's journal, from 1. 0 means "no event".
pub type Lsn = u64;

/// Service time in milliseconds, which never decreases.
pub type Ms = u64;

/// Keyed hash of a client address. 0 means that the request has no address, so that no source limit applies.
pub type Source = u64;

/// Keyed hash of an event channel's secret.
pub type ChannelId = [u8; 16];

/// Journal credit: bytes that the journal can still accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Free bytes in pre-written journal segments.
    pub total: u64,
    /// Part of `total` that only commands on existing slots and lobbies may use, such as disconnects and expiry.
    pub reserve: u64,
    /// Maximum bytes for the events of one command.
    // They must fit into one journal segment.
    pub largest: u64,
}

impl Credit {
    /// Unlimited credit, for tests and benchmarks without a journal.
    pub const UNLIMITED: Credit = Credit { total: u64::MAX, reserve: 0, largest: u64::MAX };
}

/// Encoded events. The caller submits them to the journal and clears the buffer.
#[derive(Debug, Default)]
pub struct EventBuffer {
    pub bytes: Vec<u8>,
    pub count: u32,
}

#[derive(Debug)]
pub struct Context<'a> {
    pub now: Ms,
    /// Remaining journal credit. Each event that a command writes lowers its `total` and `largest`.
    pub credit: Credit,
    pub events: &'a mut EventBuffer,
}

/// Result of a command, with the LSN that must be durable before the result may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome<T> {
    pub result: Result<T, Refusal>,
    pub wait: Lsn,
}

/// Keyed hashes of an idempotency key and its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idempotency {
    /// Hash of the caller and the idempotency key.
    pub key: [u8; 16],
    /// Hash of operation and message.
    pub message: [u8; 16],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Publicity {
    Public,
    /// Players join by lobby id. Find and list omit the lobby.
    Private,
}

/// Port of an attached lobby, returned to players unchanged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    pub name: String,
    /// IP literal or host name.
    pub address: String,
    pub port: u16,
    pub is_tls: bool,
}

/// Registers a lobby server that the service did not start.
#[derive(Clone, Debug)]
pub struct Attach<'a> {
    /// Random id. Its leading 16 bits are the shard.
    pub id: Id,
    pub namespace: Id,
    pub version: Id,
    pub mode: &'a str,
    pub region: &'a str,
    pub tags: &'a [(&'a str, &'a str)],
    pub max_players: u32,
    pub max_players_direct: u32,
    pub max_players_party: u32,
    pub player_token_ttl_ms: u64,
    /// Time without a heartbeat after which find hides the lobby. 0 disables the timeout.
    pub heartbeat_timeout_ms: u64,
    /// Time after a player connects in which a heartbeat list without the player does not free the slot.
    pub heartbeat_grace_ms: u64,
    pub is_join_enabled: bool,
    pub ports: &'a [Port],
    pub create_ts_ms: u64,
    pub lobby_count_max: u32,
    pub idempotency: Option<Idempotency>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    pub lobby: Id,
    pub lobby_token: String,
}

/// Reserves slots in the fullest lobby with enough free slots, or creates a lobby.
#[derive(Clone, Debug)]
pub struct Find<'a> {
    pub namespace: Id,
    pub version: Id,
    /// Modes without duplicates.
    pub modes: &'a [&'a str],
    /// Regions without duplicates, most preferred first.
    pub regions: &'a [&'a str],
    pub tags: &'a [(&'a str, &'a str)],
    /// Number of slots, 1 to 64.
    pub party_size: u32,
    pub source: Source,
    /// Maximum slots of one client address in the namespace.
    pub source_limit: u32,
    pub idempotency: Option<Idempotency>,
    /// Event channels of the second and later players. Channels beyond `party_size` - 1 are ignored.
    pub channels: &'a [ChannelId],
    pub creation: CreationPolicy<'a>,
}

#[derive(Clone, Debug)]
pub struct Join<'a> {
    pub namespace: Id,
    pub lobby: Id,
    pub party_size: u32,
    /// Earlier player token of this lobby. If possible, its slot is reserved again.
    pub rejoin_token: Option<&'a str>,
    pub source: Source,
    pub source_limit: u32,
    pub idempotency: Option<Idempotency>,
    pub channels: &'a [ChannelId],
}

/// Id of a hold: slots promised in a lobby that is not ready yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HoldId(pub u64);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    pub lobby: Id,
    pub tokens: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    Reserved(Reservation),
    Hold(HoldId),
}

/// Result of a find or join that does not wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImmediatePlacement {
    /// Slots are reserved, or the request is refused.
    Done(CommandOutcome<Reservation>),
    /// The best lobby is starting. Nothing has changed.
    LobbyStarting,
    /// No lobby fits, and the request allows a new one. Nothing has changed.
    LobbyNeeded,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedHold {
    pub hold: HoldId,
    /// Answer to every request that shares the hold.
    pub outcome: CommandOutcome<Reservation>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelEvent {
    pub lsn: Lsn,
    /// Time at which the token was sent, in ms since the Unix epoch.
    pub ts_ms: u64,
    pub lobby: Id,
    pub token: String,
}

/// Last captcha pass of a client address, and the number of its requests since that pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptchaStatus {
    /// Time since the pass, or None without a pass in the last 12 h.
    pub passed_ago_ms: Option<u64>,
    pub requests_since: u32,
}

#[derive(Clone, Debug)]
pub struct Connect {
    pub lobby: Id,
    /// Verified before the engine is locked. None for a token that no key signed.
    pub player: Option<PlayerToken>,
    pub idempotency: Option<Idempotency>,
}

#[derive(Clone, Debug)]
pub struct Disconnect {
    pub lobby: Id,
    /// Verified before the engine is locked. None for a token that no key signed.
    pub player: Option<PlayerToken>,
    /// Time for which the slot is kept after the player disconnects, at most 600,000 ms. None frees the slot.
    pub hold_ms: Option<u64>,
    pub idempotency: Option<Idempotency>,
}

/// Players that a lobby's server has, as edge-guard or a query counts them.
#[derive(Clone, Debug)]
pub struct Presence<'a> {
    pub lobby: Id,
    /// Sources with their numbers of sessions at edge-guard. Each source occurs once.
    pub sessions: &'a [(Source, u32)],
    /// Number of players by a query. None if each session is a player.
    pub count: Option<u32>,
    /// Whether players that are missing leave.
    pub may_free: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LobbyView {
    pub id: Id,
    pub namespace: Id,
    pub version: Id,
    pub mode: String,
    pub region: String,
    pub ports: Vec<Port>,
    /// Player limits: `find, join, join of a party`.
    pub max_players: [u32; 3],
    /// True if the lobby is ready, and not closed, stopping or silent (heartbeat overdue).
    pub is_open: bool,
    pub is_ready: bool,
    pub is_closed: bool,
    /// Numbers of slots: `held, reserved, connected, kept`.
    pub players: [u32; 4],
    pub create_ts_ms: u64,
    /// Details of a managed lobby; None for an attached lobby.
    pub own: Option<Box<ManagedLobbyView>>,
    pub publicity: Publicity,
    pub is_stopping: bool,
    pub is_trial: bool,
    pub tags: Vec<(String, String)>,
}

/// Request for a part of the list of a version's lobbies.
#[derive(Clone, Copy, Debug)]
pub struct ListLobbies {
    pub namespace: Id,
    pub version: Id,
    /// Position of the last lobby of the previous part, or 0.
    pub after: Lsn,
    pub with_state: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedLobby {
    pub id: Id,
    /// Position in the list. It never changes.
    pub position: Lsn,
    pub mode: String,
    pub region: String,
    /// Player limits: `find, join, join of a party`.
    pub max_players: [u32; 3],
    pub connected: u32,
    /// The lobby's state, if it is requested and set.
    pub state: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LobbyPage {
    pub lobbies: Vec<ListedLobby>,
    /// Value of [`ListLobbies::after`] for the next part, or None after the last part.
    pub next: Option<Lsn>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlayerCount {
    pub mode: String,
    pub region: String,
    pub player_count: u64,
}

/// Namespaces with a player or lobby count that changed after a given change number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PresenceChanges {
    /// Change number to pass to the next `presence_since`. Numbering restarts with each engine and recovery.
    pub generation: u64,
    /// True if `namespaces` lists every namespace that has players or lobbies. The engine then does not know all changes
    /// since the given number.
    pub is_all: bool,
    /// `(namespace, connected players, live lobbies)`.
    pub namespaces: Vec<(Id, u64, u64)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceCounts {
    /// Numbers of lobbies: `starting, ready, closed, silent`.
    pub lobbies: [u64; 4],
    /// Numbers of slots: `free, held, reserved, connected, kept`.
    pub slots: [u64; 5],
    /// Numbers of tokens by outcome: `issued, connected, invalid, wrong lobby, consumed, expired, removed,
    /// disconnected`.
    pub tokens: [u64; 8],
    /// Numbers of ended slot uses: `expired, consumed, released, lobby gone`. Consumed: its player had connected.
    pub ends: [u64; 4],
    /// Numbers of ended lobbies, in the order of [`EndReason`].
    pub lobby_ends: [u64; 5],
}

impl core::ops::AddAssign<&NamespaceCounts> for NamespaceCounts {
    fn add_assign(&mut self, more: &NamespaceCounts) {
        fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
            sum.iter_mut().zip(more).for_each(|(total, one)| *total += one);
        }
        add(&mut self.lobbies, &more.lobbies);
        add(&mut self.slots, &more.slots);
        add(&mut self.tokens, &more.tokens);
        add(&mut self.ends, &more.ends);
        add(&mut self.lobby_ends, &more.lobby_ends);
    }
}

/// Inclusive range of port numbers. It is empty if `last` is less than `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub fn len(self) -> usize {
        (usize::from(self.last) + 1).saturating_sub(usize::from(self.first))
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn contains(self, number: u16) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Protocol {
    Http = 1,
    Https = 2,
    Tcp = 3,
    /// TCP to the process. Edge-guard terminates TLS.
    TcpTls = 4,
    Udp = 5,
    /// TCP and UDP with the same port number.
    TcpUdp = 6,
}

impl Protocol {
    const ALL: [Protocol; 6] =
        [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TcpTls, Protocol::Udp, Protocol::TcpUdp];

    /// Reports whether the protocol needs a number of TCP, and one of UDP.
    pub fn families(self) -> [bool; 2] {
        [self != Protocol::Udp, matches!(self, Protocol::Udp | Protocol::TcpUdp)]
    }

    pub fn from_byte(byte: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| *protocol as u8 == byte)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortExposure {
    /// A public port of edge-guard. The engine chooses the number; a request contains 0.
    Number(u16),
    /// A host name of edge-guard, on the standard ports of the protocol.
    Host,
    /// Machine ports `(first, last)` on which the process itself listens. The engine leases none of them.
    Range(u16, u16),
}

/// Counting of the players' sessions at a port by edge-guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SessionCounting {
    /// The process confirms the tokens of its players.
    #[default]
    Uncounted,
    /// Sessions keep the slots of their client address connected. A query connects and frees slots.
    Compared,
    /// Sessions connect the reserved slots of their client address.
    Counted,
    /// As `Counted`, and sessions of an address without a slot are refused.
    Required,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRequest<'a> {
    pub name: &'a str,
    pub protocol: Protocol,
    pub exposure: PortExposure,
    /// True if edge-guard sends the player's address to the process, in a PROXY header.
    pub sends_proxy_header: bool,
    pub counting: SessionCounting,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backend {
    pub address: Box<str>,
    pub port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeasedPort {
    pub name: Box<str>,
    pub protocol: Protocol,
    pub exposure: PortExposure,
    /// True if edge-guard sends the player's address to the process, in a PROXY header.
    pub sends_proxy_header: bool,
    pub counting: SessionCounting,
    /// Address of the process. None until the process listens.
    pub backend: Option<Backend>,
}

/// Node that has the ports of a lease.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseNode {
    /// Empty for the node of a single machine.
    pub name: Box<str>,
    /// Host name or address at which players reach the node. Empty for the address of the service.
    pub host: Box<str>,
}

/// Ports of a lobby or dynamic server, with their node.
///
/// With [`crate::EngineConfig::binds_ports_later`], the node is empty and each number is 0 until the lease is bound.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeasedPorts {
    pub ports: Vec<LeasedPort>,
    pub node: LeaseNode,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Id of the lobby or dynamic server.
    pub owner: Id,
    pub is_server: bool,
    pub region: Box<str>,
    pub port: LeasedPort,
    pub node: LeaseNode,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteChanges {
    /// LSN to pass to the next `routes_since`.
    pub lsn: Lsn,
    /// True if `changed` holds the routes of all lobbies and servers of the node. Use them only when `lsn` is durable.
    pub is_complete: bool,
    /// All routes of the lobbies and servers with a changed lease.
    pub changed: Vec<Route>,
    /// Lobbies and servers with a lease that is over at the node. Edge-guard removes their routes and confirms with
    /// `return_ports`.
    pub removed: Vec<Id>,
}

#[derive(Clone, Debug)]
pub struct LeaseRequest<'a> {
    pub owner: Id,
    pub namespace: Id,
    pub region: &'a str,
    pub ports: &'a [PortRequest<'a>],
    pub random: u64,
}

/// Binds the ports of a lobby or dynamic server to the node that runs it.
#[derive(Clone, Copy, Debug)]
pub struct BindPorts<'a> {
    pub owner: Id,
    /// Name of the node, never empty.
    pub node: &'a str,
    /// Host name or address at which players reach the node.
    pub host: &'a str,
    pub random: u64,
}

/// Input for a lobby that the service starts.
#[derive(Clone, Debug)]
pub struct LobbyTemplate<'a> {
    /// Attributes of the lobby. `ports` and `idempotency` in this value are ignored.
    pub lobby: Attach<'a>,
    pub publicity: Publicity,
    pub lobby_config: Option<&'a [u8]>,
    pub ports: &'a [PortRequest<'a>],
    pub random: u64,
    /// Lifetime of a trial, or None for a lobby that is for players. A trial is private, and joins are refused.
    pub trial_ms: Option<u64>,
}

/// Whether find or create may start a lobby.
#[derive(Clone, Debug)]
pub enum CreationPolicy<'a> {
    /// The request forbids a new lobby.
    Prevented,
    /// The service cannot start a lobby of any requested mode.
    Impossible { lobby_count_max: u32 },
    /// The engine may create a lobby from this template.
    Possible(&'a LobbyTemplate<'a>),
}

#[derive(Clone, Debug)]
pub struct Create<'a> {
    pub namespace: Id,
    /// Policy for the new lobby. Never `Prevented`.
    pub creation: CreationPolicy<'a>,
    pub party_size: u32,
    pub source: Source,
    pub source_limit: u32,
    pub idempotency: Option<Idempotency>,
    pub channels: &'a [ChannelId],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DesiredLobby {
    pub lobby: Id,
    pub is_stopping: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DesiredLobbyChanges {
    /// Sequence number to pass to the next `desired_lobbies_since`.
    pub sequence: u64,
    /// True if `lobbies` holds all desired lobbies, not only the changed ones.
    pub is_complete: bool,
    pub lobbies: Vec<DesiredLobby>,
    pub removed: Vec<Id>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdleLobbyGroup {
    pub namespace: Id,
    pub version: Id,
    pub mode: String,
    pub region: String,
    /// Number of public managed lobbies that are starting and have no players.
    pub starting: u32,
    /// Ready lobbies without players, longest empty first.
    pub empty: Vec<EmptyLobby>,
    /// Number of lobbies of the group that are not stopping.
    pub live: u32,
    /// Number of managed lobbies that ended as `StartTimeout` or `Silent` since the last `take_changed_idle_groups`.
    pub failed: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmptyLobby {
    pub lobby: Id,
    pub empty_ms: u64,
    pub was_used: bool,
    /// True if the lobby is public and not closed.
    pub is_findable: bool,
    /// True if the service started the lobby.
    pub is_ours: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManagedLobbyView {
    pub leased: LeasedPorts,
    pub lobby_config: Option<Vec<u8>>,
}
