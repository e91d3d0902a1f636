//! Reasons why the engine refuses a command, with their wire codes.

use crate::command::EndReason;

/// A refused command. It changed nothing, but due slots may have expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No journal credit for this command.
    StorageFull,
    /// The key was used with another operation or message.
    IdempotencyKeyReused,
    /// Unknown, or of another namespace.
    LobbyNotFound,
    /// Ended in the last 24 h.
    LobbyStopped,
    /// No place under the limit that this call uses.
    LobbyFull,
    /// The lobby server closed it.
    LobbyClosed,
    /// Marked stopping.
    LobbyDraining,
    /// No lobby fits and none may be created.
    NoAvailableLobbies,
    /// `lobby_count_max` of the namespace is reached.
    TooManyLobbies,
    /// The lobby ended before it was ready. Context: reason and exit code.
    LobbyStartFailed(EndReason, Option<i32>),
    /// Too few public ports are free.
    PortsExhausted,
    /// No requested mode can be started.
    CapacityExhausted,
    /// Unknown or ended server.
    LeaseNotFound,
    /// The lobby's version has `actions.join` disabled.
    JoinDisabled,
    /// `max_players` of the namespace for this client address is reached.
    TooManyPlayersFromSource,
    /// Context: the lobby's limit.
    PartyTooLarge(u32),
    /// Forged, or names a slot or generation that was never issued.
    PlayerTokenInvalid,
    /// The slot stays as it is.
    PlayerTokenWrongLobby,
    /// Connected now, or ended after it had connected.
    PlayerTokenConsumed,
    /// The deadline passed before the player connected.
    PlayerTokenExpired,
    /// Released, lobby ended, or older than the remembered uses.
    PlayerRemoved,
    /// Malformed or foreign tokens of a heartbeat list. Context: the first 256 indexes, ascending.
    TokenInListInvalid(Box<[u32]>),
    /// The lobby of the `lobby_` token ended more than 24 h ago.
    LobbyTokenExpired,
}

impl Refusal {
    /// Returns the wire code.
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

    /// Every wire code of the engine, once.
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
