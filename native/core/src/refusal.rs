//! Why the engine refuses: one enum inward, one slug outward. A slug is the wire code of decisions 2, so that no layer
//! above translates; the typed context becomes `metadata` or `errors` of the answer.

use crate::command::EndReason;

/// A refused command. Nothing was changed by it, except that what was due has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No journal credit for a command of this class (design, Journal).
    StorageFull,
    /// The idempotency key was used with another operation or message (decisions 1.8).
    IdempotencyKeyReused,
    /// No such lobby, or another namespace's.
    LobbyNotFound,
    /// It existed in the last 24 h.
    LobbyStopped,
    /// No place under the limit that this call uses.
    LobbyFull,
    /// The lobby server closed it.
    LobbyClosed,
    /// It is marked stopping.
    LobbyDraining,
    /// Nothing fits and nothing may be created.
    NoAvailableLobbies,
    /// `lobby_count_max` of the namespace is reached.
    TooManyLobbies,
    /// The lobby ended before it was ready: why, and what its process exited with, when that is known.
    LobbyStartFailed(EndReason, Option<i32>),
    /// Too few public ports are free.
    PortsExhausted,
    /// Nothing can be started for this mode here and now.
    CapacityExhausted,
    /// No such server, or one that is over.
    LeaseNotFound,
    /// The lobby's version has `actions.join` disabled.
    JoinDisabled,
    /// `max_players` of the namespace for this client address is reached.
    TooManyPlayersFromSource,
    /// The party is larger than the lobby's limit for it; context: that limit.
    PartyTooLarge(u32),
    /// Not a token of ours, or a slot or generation that was never given.
    PlayerTokenInvalid,
    /// A token of another lobby; the slot stays as it is.
    PlayerTokenWrongLobby,
    /// It is connected, or ended after it was.
    PlayerTokenConsumed,
    /// Its deadline passed before it connected.
    PlayerTokenExpired,
    /// Released unconnected, lobby gone, or older than the slot remembers.
    PlayerRemoved,
    /// Tokens of a heartbeat list that are malformed, forged or another lobby's; context: their indexes, ascending, of
    /// the first 256.
    TokenInListInvalid(Box<[u32]>),
    /// A `lobby_` token whose lobby ended more than 24 h ago.
    LobbyTokenExpired,
}

impl Refusal {
    /// The wire code (decisions 2).
    pub fn slug(&self) -> &'static str {
        match self {
            Refusal::StorageFull => "STORAGE_FULL",
            Refusal::IdempotencyKeyReused => "IDEMPOTENCY_KEY_REUSED",
            Refusal::LobbyNotFound => "MATCHMAKER_LOBBY_NOT_FOUND",
            Refusal::LobbyStopped => "MATCHMAKER_LOBBY_STOPPED",
            Refusal::LobbyFull => "MATCHMAKER_LOBBY_FULL",
            Refusal::LobbyClosed => "MATCHMAKER_LOBBY_CLOSED",
            Refusal::LobbyDraining => "MATCHMAKER_LOBBY_DRAINING",
            Refusal::NoAvailableLobbies => "MATCHMAKER_NO_AVAILABLE_LOBBIES",
            Refusal::TooManyLobbies => "MATCHMAKER_TOO_MANY_LOBBIES",
            Refusal::LobbyStartFailed(..) => "MATCHMAKER_LOBBY_START_FAILED",
            Refusal::PortsExhausted => "PORTS_EXHAUSTED",
            Refusal::CapacityExhausted => "CAPACITY_EXHAUSTED",
            Refusal::LeaseNotFound => "SERVER_NOT_FOUND",
            Refusal::JoinDisabled => "MATCHMAKER_JOIN_DISABLED",
            Refusal::TooManyPlayersFromSource => "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
            Refusal::PartyTooLarge(_) | Refusal::TokenInListInvalid(_) => "BODY_INVALID",
            Refusal::PlayerTokenInvalid => "PLAYER_TOKEN_INVALID",
            Refusal::PlayerTokenWrongLobby => "PLAYER_TOKEN_WRONG_LOBBY",
            Refusal::PlayerTokenConsumed => "PLAYER_TOKEN_CONSUMED",
            Refusal::PlayerTokenExpired => "PLAYER_TOKEN_EXPIRED",
            Refusal::PlayerRemoved => "PLAYER_REMOVED",
            Refusal::LobbyTokenExpired => "TOKEN_EXPIRED",
        }
    }

    /// Every slug that the engine can give, without repetition, for the comparison with the service's error table.
    pub const SLUGS: &'static [&'static str] = &[
        "STORAGE_FULL",
        "IDEMPOTENCY_KEY_REUSED",
        "MATCHMAKER_LOBBY_NOT_FOUND",
        "MATCHMAKER_LOBBY_STOPPED",
        "MATCHMAKER_LOBBY_FULL",
        "MATCHMAKER_LOBBY_CLOSED",
        "MATCHMAKER_LOBBY_DRAINING",
        "MATCHMAKER_NO_AVAILABLE_LOBBIES",
        "MATCHMAKER_TOO_MANY_LOBBIES",
        "MATCHMAKER_LOBBY_START_FAILED",
        "PORTS_EXHAUSTED",
        "CAPACITY_EXHAUSTED",
        "SERVER_NOT_FOUND",
        "MATCHMAKER_JOIN_DISABLED",
        "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
        "BODY_INVALID",
        "PLAYER_TOKEN_INVALID",
        "PLAYER_TOKEN_WRONG_LOBBY",
        "PLAYER_TOKEN_CONSUMED",
        "PLAYER_TOKEN_EXPIRED",
        "PLAYER_REMOVED",
        "TOKEN_EXPIRED",
    ];
}
