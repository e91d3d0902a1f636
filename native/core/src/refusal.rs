//! Reasons why the engine refuses a command, with their wire codes.

/// Why a lobby ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// The process of the lobby exited.
    Exited,
    /// The lobby was not ready in time.
    StartTimeout,
    /// The lobby sent no heartbeat for three times its heartbeat timeout.
    Silent,
    /// The lobby was detached or deleted.
    Removed,
    /// The process of a stopping lobby exited.
    Stopped,
}

/// Reason for refusing a command. The command changed nothing, except that due records may have expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The journal cannot accept the events of this command.
    StorageFull,
    /// The idempotency key was used with another operation or message.
    IdempotencyKeyReused,
    /// The lobby is unknown or belongs to another namespace.
    LobbyNotFound,
    /// The lobby ended in the last 24 h.
    LobbyStopped,
    /// Too few free slots under the lobby's limit for this kind of request (find, join or party).
    LobbyFull,
    /// The lobby server closed the lobby to new players.
    LobbyClosed,
    /// Players do not reach the game server of the lobby, although the lobby is ready.
    LobbyUnreachable,
    /// The lobby is stopping, so it accepts no joins.
    LobbyDraining,
    /// No lobby has enough free slots, and none may be created.
    NoAvailableLobbies,
    /// `lobby_count_max` of the namespace is reached.
    TooManyLobbies,
    /// The lobby ended before it was ready, for this reason and with this exit code.
    LobbyStartFailed(EndReason, Option<i32>),
    /// Too few public ports are free for the namespace.
    PortsExhausted,
    /// The service cannot start a lobby, for example without free CPU or memory.
    CapacityExhausted,
    /// The lobby or server of the port lease is unknown or has ended.
    LeaseNotFound,
    /// The lease has ports at another node, and players may already know them.
    LeaseInUse,
    /// No node has the ports of the lobby yet.
    PortsNotBound,
    /// The lobby's version has `actions.join` disabled.
    JoinDisabled,
    /// The client address would use more than `max_players` slots in the namespace.
    TooManyPlayersFromSource,
    /// The party is larger than this limit.
    PartyTooLarge(u32),
    /// Forged token, or token of a slot use that was never issued.
    PlayerTokenInvalid,
    /// The token belongs to another lobby.
    PlayerTokenWrongLobby,
    /// A player already connected with this token.
    PlayerTokenConsumed,
    /// The token's deadline passed before the player connected.
    PlayerTokenExpired,
    /// Too many mock player tokens were used in their lifetime, by the developer group or by all groups.
    TooManyMockPlayers {
        /// Time until the first of them may expire.
        retry_after_ms: u64,
    },
    /// The slot was released, the lobby ended, or at least 32 later uses of the slot have ended.
    PlayerRemoved,
    /// Player tokens of a heartbeat list are not valid for this lobby. Contains their first 256 indexes, ascending.
    TokenInListInvalid(Box<[u32]>),
    /// The lobby of the `lobby_` token ended more than 24 h ago.
    LobbyTokenExpired,
}

impl Refusal {
    /// Returns the error code for clients, such as `MATCHMAKER_LOBBY_FULL`.
    pub fn slug(&self) -> &'static str {
        match self {
            Refusal::StorageFull => "STORAGE_FULL",
            Refusal::IdempotencyKeyReused => "IDEMPOTENCY_KEY_REUSED",
            Refusal::LobbyNotFound => "MATCHMAKER_LOBBY_NOT_FOUND",
            Refusal::LobbyStopped => "MATCHMAKER_LOBBY_STOPPED",
            Refusal::LobbyFull => "MATCHMAKER_LOBBY_FULL",
            Refusal::LobbyClosed => "MATCHMAKER_LOBBY_CLOSED",
            Refusal::LobbyUnreachable => "MATCHMAKER_LOBBY_UNREACHABLE",
            Refusal::LobbyDraining => "MATCHMAKER_LOBBY_DRAINING",
            Refusal::NoAvailableLobbies => "MATCHMAKER_NO_AVAILABLE_LOBBIES",
            Refusal::TooManyLobbies => "MATCHMAKER_TOO_MANY_LOBBIES",
            Refusal::LobbyStartFailed(..) => "MATCHMAKER_LOBBY_START_FAILED",
            Refusal::PortsExhausted => "PORTS_EXHAUSTED",
            Refusal::CapacityExhausted => "CAPACITY_EXHAUSTED",
            Refusal::LeaseNotFound => "SERVER_NOT_FOUND",
            Refusal::LeaseInUse => "IN_USE",
            Refusal::PortsNotBound => "OVERLOADED",
            Refusal::JoinDisabled => "MATCHMAKER_JOIN_DISABLED",
            Refusal::TooManyPlayersFromSource => "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
            Refusal::PartyTooLarge(_) | Refusal::TokenInListInvalid(_) => "BODY_INVALID",
            Refusal::PlayerTokenInvalid => "PLAYER_TOKEN_INVALID",
            Refusal::PlayerTokenWrongLobby => "PLAYER_TOKEN_WRONG_LOBBY",
            Refusal::PlayerTokenConsumed => "PLAYER_TOKEN_CONSUMED",
            Refusal::PlayerTokenExpired => "PLAYER_TOKEN_EXPIRED",
            Refusal::TooManyMockPlayers { .. } => "RATE_LIMITED",
            Refusal::PlayerRemoved => "PLAYER_REMOVED",
            Refusal::LobbyTokenExpired => "TOKEN_EXPIRED",
        }
    }

    /// Error codes of all refusals, each once.
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
        "IN_USE",
        "OVERLOADED",
        "MATCHMAKER_JOIN_DISABLED",
        "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
        "BODY_INVALID",
        "PLAYER_TOKEN_INVALID",
        "PLAYER_TOKEN_WRONG_LOBBY",
        "PLAYER_TOKEN_CONSUMED",
        "PLAYER_TOKEN_EXPIRED",
        "RATE_LIMITED",
        "PLAYER_REMOVED",
        "TOKEN_EXPIRED",
    ];
}
