//! Lobbies that the service starts by itself: how they are made, and what their runtime and their supply are told. No
//! behaviour.

use super::{Attach, Channel, Id, Idempotency, LeasedPort, Publicity, Source, WantedPort};

/// A lobby that the service starts by itself (decisions 5.3, 5.5, 5.8).
#[derive(Clone, Debug)]
pub struct Make<'a> {
    /// What it is; its `ports` and `idempotency` are not looked at.
    pub lobby: Attach<'a>,
    /// Whether find and list show it.
    pub publicity: Publicity,
    /// JSON text that its process gets.
    pub lobby_config: Option<&'a [u8]>,
    /// Ports that it needs; names differ.
    pub ports: &'a [WantedPort<'a>],
    /// A random number.
    pub random: u64,
}

/// Whether find may make a lobby when none fits.
#[derive(Clone, Debug)]
pub enum Creation<'a> {
    /// The caller does not want one.
    Prevented,
    /// Nothing can be started for any of the wanted modes.
    Impossible {
        /// `lobby_count_max` of the namespace now.
        lobby_count_max: u32,
    },
    /// This one, in the first region and mode that allow it.
    Possible(&'a Make<'a>),
}

/// Make a lobby for the caller (decisions 5.5, 5.13). Class: new place.
#[derive(Clone, Debug)]
pub struct Create<'a> {
    /// Namespace of the caller.
    pub namespace: Id,
    /// The lobby; nothing is prevented here.
    pub creation: Creation<'a>,
    /// 1–64, all or none.
    pub party_size: u32,
    /// Whose places they are; 0 counts for no source.
    pub source: Source,
    /// `max_players` of the namespace now.
    pub source_limit: u32,
    /// Repeats give the same tokens; while it starts they wait for the same lobby.
    pub idempotency: Option<Idempotency>,
    /// As in [`Find::channels`].
    pub channels: &'a [Channel],
}

/// A lobby of ours as its runtime has to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedLobby {
    /// Its id.
    pub lobby: Id,
    /// Its process is to end.
    pub is_stopping: bool,
}

/// What is new to a runtime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// To ask with next time.
    pub sequence: u64,
    /// These are all; what is not among them is not wanted.
    pub is_complete: bool,
    /// New and changed ones.
    pub lobbies: Vec<WantedLobby>,
    /// Those that ended.
    pub gone: Vec<Id>,
}

/// Lobbies of one namespace, version, mode and region that idle ones are kept of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SupplyGroup {
    /// Namespace.
    pub namespace: Id,
    /// Version that they were made with.
    pub version: Id,
    /// Game mode name.
    pub mode: String,
    /// Region name id.
    pub region: String,
    /// Lobbies that start, public, for nobody yet.
    pub starting: u32,
    /// Ready ones with nobody in them, empty longest first.
    pub empty: Vec<EmptyLobby>,
    /// How many there are in all, stopping ones not counted.
    pub live: u32,
    /// How many of ours ended since this was taken last because they were not ready in time, or silent; without those that
    /// were stopping.
    pub failed: u32,
}

/// A ready lobby that nobody is in, not stopping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmptyLobby {
    /// Its id.
    pub lobby: Id,
    /// How long it has been empty, ms.
    pub empty_ms: u64,
    /// Somebody was in it before.
    pub was_used: bool,
    /// Public and open.
    pub is_findable: bool,
    /// Ours to start and stop.
    pub is_ours: bool,
}

/// What a lobby has that the service starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnLobby {
    /// Its ports.
    pub ports: Vec<LeasedPort>,
    /// JSON text that create was given.
    pub lobby_config: Option<Vec<u8>>,
}
