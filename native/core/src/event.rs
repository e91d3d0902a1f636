//! Events: what the journal keeps, and their bytes. An event is physical: it names lobby, slot, generation and
//! deadline, and applying it decides nothing. A lobby is named by its number, which its `LobbyMade` tells.
//!
//! Layouts (little-endian, after the kind byte; `stamp` is a flag byte and, when 1, key 8 + 1, message 4, time 8):
//!
//! | kind | name | fields |
//! |---|---|---|
//! | 1 | LobbyMade | lobby u32, id, namespace, version (16 each), mode, region (u16 + text), is_public u8, is_join_enabled u8, limits 3 × u32, ttl, heartbeat timeout, grace, create_ts (u64 each), key u16, tags u16 × (name, value), ports u16 × (name, address, port u16, is_tls u8), stamp |
//! | 2 | LobbyReady | lobby u32 |
//! | 3 | LobbyClosed | lobby u32, is_closed u8 |
//! | 4 | LobbyStateSet | lobby u32, state u32 + bytes |
//! | 5 | LobbyStopping | lobby u32 |
//! | 6 | LobbyEnded | lobby u32, at u64, reason u8 |
//! | 7 | PlacesReserved | lobby u32, deadline u64, key u16, source u64, count u8 × (slot u16, generation u32), stamp |
//! | 8 | PlaceConnected | lobby u32, slot u16, generation u32, at u64, stamp |
//! | 9 | PlaceEnded | lobby u32, slot u16, generation u32, end u8, stamp |
//! | 10 | PlaceKept | lobby u32, slot u16, generation u32, deadline u64, stamp |
//! | 11 | KeyRemembered | lobby u32, slot u16, generation u32, stamp |
//! | 12 | Forgotten | entries_up_to u64, lobbies_up_to u64 |
//! | 13 | LobbyReadyAt | as 2, at u64 |
//! | 14 | LobbyClosedAt | as 3, at u64 |
//! | 15 | LobbyStoppingAt | as 5, at u64 |
//! | 16 | PlaceLeft | at u64, as 9: the end of a connected use |
//! | 17 | PlaceKeptAt | at u64, as 10 |
//! | 18 | LobbyExited | as 6, exit code i32 |
//! | 19 | FactsAcknowledged | up_to u64 |
//! | 20 | TokensSent | lobby u32, ts u64, at u64, deadline u64, key u16, count u8 × (channel 16, slot u16, generation u32) |
//! | 21 | HumanPassed | source u64, at u64 |
//! | 22 | HumanAsked | source u64 |
//! | 23 | MockConsumed | hour u32, at u64, mac 16 |
//! | 24 | LobbyStarts | lobby u32, lobby_config u32 + bytes: it is ours |
//! | 25 | PortsLeased | owner, namespace (16 each), region, is_server u8, ports u16 × (name, protocol u8, kind u8, first u16, last u16) |
//! | 26 | PortReplaced | owner 16, name, number u16, until u64 for the one before |
//! | 27 | BackendsSet | owner 16, backends u16 × (name, address, port u16) |
//! | 28 | LeaseEnded | owner 16: of a server; a lobby's ends with it |
//! | 29 | PortsReturned | owner 16, until u64 |
//!
//! What earlier builds wrote as 2, 3, 5, 9 and 10 tells no time: it is read as `at` 0. Kind 9 is written for uses that are
//! not connected.

use crate::codec::{Reader, Writer};
use crate::command::{Channel, EndReason, Id, Lsn, Ms, Port, Source};
use crate::idempotency::Stamp;
use crate::lease::{Lease, decode_backends, decode_lease, encode_backends, encode_lease};
use crate::slot::End;
pub(crate) use crate::uses::{UseList, Uses};

/// Why recovery cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApplyError {
    /// An event kind that this build does not know.
    UnknownKind(u8),
    /// Bytes that no engine of ours wrote, or not for this state; says which rule they break.
    Malformed(&'static str),
}

impl core::fmt::Display for ApplyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ApplyError::UnknownKind(kind) => write!(f, "unknown event kind {kind}"),
            ApplyError::Malformed(rule) => write!(f, "malformed: {rule}"),
        }
    }
}

impl core::error::Error for ApplyError {}

/// (kind, name) of every event that this build writes and reads; kinds are never reused.
pub(crate) const KINDS: &[(u8, &str)] = &[
    (1, "LobbyMade"),
    (2, "LobbyReady"),
    (3, "LobbyClosed"),
    (4, "LobbyStateSet"),
    (5, "LobbyStopping"),
    (6, "LobbyEnded"),
    (7, "PlacesReserved"),
    (8, "PlaceConnected"),
    (9, "PlaceEnded"),
    (10, "PlaceKept"),
    (11, "KeyRemembered"),
    (12, "Forgotten"),
    (13, "LobbyReadyAt"),
    (14, "LobbyClosedAt"),
    (15, "LobbyStoppingAt"),
    (16, "PlaceLeft"),
    (17, "PlaceKeptAt"),
    (18, "LobbyExited"),
    (19, "FactsAcknowledged"),
    (20, "TokensSent"),
    (21, "HumanPassed"),
    (22, "HumanAsked"),
    (23, "MockConsumed"),
    (24, "LobbyStarts"),
    (25, "PortsLeased"),
    (26, "PortReplaced"),
    (27, "BackendsSet"),
    (28, "LeaseEnded"),
    (29, "PortsReturned"),
];

/// One use of one slot of one lobby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) lobby: u32,
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

/// Tokens that were sent to channels, as they stand in an event: channel, slot, generation each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deliveries<'a>(pub(crate) &'a [u8]);

impl<'a> Deliveries<'a> {
    /// Bytes of one delivery.
    pub(crate) const WIDTH: usize = 16 + Uses::WIDTH;

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Channel, u16, u32)> + use<'a> {
        self.0.chunks_exact(Deliveries::WIDTH).filter_map(|delivery| {
            let (channel, use_) = delivery.split_first_chunk::<16>()?;
            let (slot, generation) = Uses(use_).iter().next()?;
            Some((*channel, slot, generation))
        })
    }
}

/// Everything that never changes about a lobby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LobbyMade<'a> {
    pub(crate) lobby: u32,
    pub(crate) id: Id,
    pub(crate) namespace: Id,
    pub(crate) version: Id,
    pub(crate) mode: &'a str,
    pub(crate) region: &'a str,
    pub(crate) is_public: bool,
    pub(crate) is_join_enabled: bool,
    pub(crate) limits: [u32; 3],
    pub(crate) ttl_ms: u64,
    pub(crate) heartbeat_timeout_ms: u64,
    pub(crate) heartbeat_grace_ms: u64,
    pub(crate) create_ts_ms: u64,
    pub(crate) key_id: u16,
    pub(crate) tags: Vec<(&'a str, &'a str)>,
    pub(crate) ports: Vec<Port>,
}

/// One event. `at` is 0 when it was not told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    LobbyMade(Box<LobbyMade<'a>>, Option<Stamp>),
    LobbyReady { lobby: u32, at: Ms },
    LobbyClosed { lobby: u32, is_closed: bool, at: Ms },
    LobbyStateSet { lobby: u32, state: &'a [u8] },
    LobbyStopping { lobby: u32, at: Ms },
    LobbyEnded { lobby: u32, at: Ms, reason: EndReason, exit_code: Option<i32> },
    PlacesReserved { lobby: u32, deadline: Ms, key_id: u16, source: Source, uses: Uses<'a>, stamp: Option<Stamp> },
    PlaceConnected { place: Place, at: Ms, stamp: Option<Stamp> },
    PlaceEnded { place: Place, at: Ms, end: End, stamp: Option<Stamp> },
    PlaceKept { place: Place, at: Ms, deadline: Ms, stamp: Option<Stamp> },
    KeyRemembered { place: Place, stamp: Option<Stamp> },
    Forgotten { entries_up_to: Ms, lobbies_up_to: Ms },
    FactsAcknowledged { up_to: Lsn },
    TokensSent { lobby: u32, ts_ms: u64, at: Ms, deadline: Ms, key_id: u16, deliveries: Deliveries<'a> },
    HumanPassed { source: Source, at: Ms },
    HumanAsked { source: Source },
    MockConsumed { hour: u32, at: Ms, mac: [u8; 16] },
    LobbyStarts { lobby: u32, lobby_config: &'a [u8] },
    PortsLeased { owner: Id, lease: Box<Lease> },
    PortReplaced { owner: Id, name: &'a str, number: u16, until: Ms },
    BackendsSet { owner: Id, backends: Vec<(&'a str, &'a str, u16)> },
    LeaseEnded { owner: Id },
    PortsReturned { owner: Id, until: Ms },
}

const STAMP: u64 = 22;

/// Most bytes of the events of one command, for its credit.
pub(crate) mod cost {
    use super::{Deliveries, STAMP, Uses};

    pub(crate) const READY: u64 = 13;
    pub(crate) const CLOSED: u64 = 14;
    pub(crate) const STOPPING: u64 = 13;
    pub(crate) const ENDED: u64 = 18;
    pub(crate) const CONNECTED: u64 = 19 + STAMP;
    pub(crate) const PLACE_ENDED: u64 = 12 + STAMP;
    pub(crate) const PLACE_LEFT: u64 = 20 + STAMP;
    pub(crate) const KEPT: u64 = 27 + STAMP;
    pub(crate) const REMEMBERED: u64 = 11 + STAMP;
    pub(crate) const FORGOTTEN: u64 = 17;
    pub(crate) const FACTS_ACKNOWLEDGED: u64 = 9;
    pub(crate) const HUMAN_PASSED: u64 = 17;
    pub(crate) const HUMAN_ASKED: u64 = 9;
    pub(crate) const MOCK_CONSUMED: u64 = 29;
    pub(crate) const LEASE_ENDED: u64 = 17;
    pub(crate) const PORTS_RETURNED: u64 = 25;

    pub(crate) fn state_set(len: usize) -> u64 {
        9 + len as u64
    }

    pub(crate) fn reserved(places: u32) -> u64 {
        24 + u64::from(places) * Uses::WIDTH as u64 + STAMP
    }

    /// Of places whose tokens, but for the first, go to so many channels too.
    pub(crate) fn placed(places: u32, channels: usize) -> u64 {
        let sent = if channels == 0 { 0 } else { 32 + (channels * Deliveries::WIDTH) as u64 };
        reserved(places) + sent
    }
}

impl Event<'_> {
    /// Appends kind and fields.
    #[inline]
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let mut w = Writer { bytes };
        match self {
            Event::LobbyMade(made, stamp) => {
                w.u8(1);
                encode_made(&mut w, made);
                encode_stamp(&mut w, stamp);
            }
            Event::LobbyReady { lobby, at } => {
                w.u8(13);
                w.u32(*lobby);
                w.u64(*at);
            }
            Event::LobbyClosed { lobby, is_closed, at } => {
                w.u8(14);
                w.u32(*lobby);
                w.flag(*is_closed);
                w.u64(*at);
            }
            Event::LobbyStateSet { lobby, state } => {
                w.u8(4);
                w.u32(*lobby);
                w.long_bytes(state);
            }
            Event::LobbyStopping { lobby, at } => {
                w.u8(15);
                w.u32(*lobby);
                w.u64(*at);
            }
            Event::LobbyEnded { lobby, at, reason, exit_code } => {
                w.u8(if exit_code.is_some() { 18 } else { 6 });
                w.u32(*lobby);
                w.u64(*at);
                w.u8(reason_byte(*reason));
                exit_code.iter().for_each(|code| w.u32(*code as u32));
            }
            Event::PlacesReserved { lobby, deadline, key_id, source, uses, stamp } => {
                w.u8(7);
                w.u32(*lobby);
                w.u64(*deadline);
                w.u16(*key_id);
                w.u64(*source);
                w.u8(uses.len() as u8);
                w.raw(uses.0);
                encode_stamp(&mut w, stamp);
            }
            Event::PlaceConnected { place, at, stamp } => {
                encode_place(&mut w, 8, place);
                w.u64(*at);
                encode_stamp(&mut w, stamp);
            }
            Event::PlaceEnded { place, at, end, stamp } => {
                encode_place(&mut w, if *at > 0 { 16 } else { 9 }, place);
                if *at > 0 {
                    w.u64(*at);
                }
                w.u8(*end as u8);
                encode_stamp(&mut w, stamp);
            }
            Event::PlaceKept { place, at, deadline, stamp } => {
                encode_place(&mut w, 17, place);
                w.u64(*at);
                w.u64(*deadline);
                encode_stamp(&mut w, stamp);
            }
            Event::KeyRemembered { place, stamp } => {
                encode_place(&mut w, 11, place);
                encode_stamp(&mut w, stamp);
            }
            Event::Forgotten { entries_up_to, lobbies_up_to } => {
                w.u8(12);
                w.u64(*entries_up_to);
                w.u64(*lobbies_up_to);
            }
            Event::FactsAcknowledged { up_to } => {
                w.u8(19);
                w.u64(*up_to);
            }
            Event::TokensSent { lobby, ts_ms, at, deadline, key_id, deliveries } => {
                w.u8(20);
                w.u32(*lobby);
                w.u64(*ts_ms);
                w.u64(*at);
                w.u64(*deadline);
                w.u16(*key_id);
                w.u8((deliveries.0.len() / Deliveries::WIDTH) as u8);
                w.raw(deliveries.0);
            }
            Event::HumanPassed { source, at } => {
                w.u8(21);
                w.u64(*source);
                w.u64(*at);
            }
            Event::HumanAsked { source } => {
                w.u8(22);
                w.u64(*source);
            }
            Event::MockConsumed { hour, at, mac } => {
                w.u8(23);
                w.u32(*hour);
                w.u64(*at);
                w.raw(mac);
            }
            Event::LobbyStarts { lobby, lobby_config } => {
                w.u8(24);
                w.u32(*lobby);
                w.long_bytes(lobby_config);
            }
            Event::PortsLeased { owner, lease } => {
                w.u8(25);
                w.id(*owner);
                encode_lease(&mut w, lease);
            }
            Event::PortReplaced { owner, name, number, until } => {
                w.u8(26);
                w.id(*owner);
                w.short_bytes(name.as_bytes());
                w.u16(*number);
                w.u64(*until);
            }
            Event::BackendsSet { owner, backends } => {
                w.u8(27);
                w.id(*owner);
                encode_backends(&mut w, backends.iter().copied());
            }
            Event::LeaseEnded { owner } => {
                w.u8(28);
                w.id(*owner);
            }
            Event::PortsReturned { owner, until } => {
                w.u8(29);
                w.id(*owner);
                w.u64(*until);
            }
        }
    }
}

impl<'a> Event<'a> {
    /// Reads the next event.
    #[inline]
    pub(crate) fn decode(r: &mut Reader<'a>) -> Result<Event<'a>, ApplyError> {
        Ok(match r.u8()? {
            1 => Event::LobbyMade(Box::new(decode_made(r)?), decode_stamp(r)?),
            2 => Event::LobbyReady { lobby: r.u32()?, at: 0 },
            3 => Event::LobbyClosed { lobby: r.u32()?, is_closed: r.flag()?, at: 0 },
            4 => Event::LobbyStateSet { lobby: r.u32()?, state: r.long_bytes()? },
            5 => Event::LobbyStopping { lobby: r.u32()?, at: 0 },
            6 => Event::LobbyEnded { lobby: r.u32()?, at: r.u64()?, reason: decode_reason(r)?, exit_code: None },
            7 => {
                let (lobby, deadline, key_id, source) = (r.u32()?, r.u64()?, r.u16()?, r.u64()?);
                let count = usize::from(r.u8()?);
                let uses = Uses(r.take(count * Uses::WIDTH)?);
                Event::PlacesReserved { lobby, deadline, key_id, source, uses, stamp: decode_stamp(r)? }
            }
            8 => Event::PlaceConnected { place: decode_place(r)?, at: r.u64()?, stamp: decode_stamp(r)? },
            9 => Event::PlaceEnded { place: decode_place(r)?, at: 0, end: decode_end(r)?, stamp: decode_stamp(r)? },
            10 => Event::PlaceKept { place: decode_place(r)?, at: 0, deadline: r.u64()?, stamp: decode_stamp(r)? },
            11 => Event::KeyRemembered { place: decode_place(r)?, stamp: decode_stamp(r)? },
            12 => Event::Forgotten { entries_up_to: r.u64()?, lobbies_up_to: r.u64()? },
            13 => Event::LobbyReady { lobby: r.u32()?, at: r.u64()? },
            14 => Event::LobbyClosed { lobby: r.u32()?, is_closed: r.flag()?, at: r.u64()? },
            15 => Event::LobbyStopping { lobby: r.u32()?, at: r.u64()? },
            16 => Event::PlaceEnded {
                place: decode_place(r)?,
                at: r.u64()?,
                end: decode_end(r)?,
                stamp: decode_stamp(r)?,
            },
            17 => {
                Event::PlaceKept { place: decode_place(r)?, at: r.u64()?, deadline: r.u64()?, stamp: decode_stamp(r)? }
            }
            18 => {
                let (lobby, at, reason) = (r.u32()?, r.u64()?, decode_reason(r)?);
                Event::LobbyEnded { lobby, at, reason, exit_code: Some(r.u32()? as i32) }
            }
            19 => Event::FactsAcknowledged { up_to: r.u64()? },
            20 => {
                let (lobby, ts_ms, at, deadline, key_id) = (r.u32()?, r.u64()?, r.u64()?, r.u64()?, r.u16()?);
                let count = usize::from(r.u8()?);
                let deliveries = Deliveries(r.take(count * Deliveries::WIDTH)?);
                Event::TokensSent { lobby, ts_ms, at, deadline, key_id, deliveries }
            }
            21 => Event::HumanPassed { source: r.u64()?, at: r.u64()? },
            22 => Event::HumanAsked { source: r.u64()? },
            23 => Event::MockConsumed { hour: r.u32()?, at: r.u64()?, mac: r.id()?.0 },
            24 => Event::LobbyStarts { lobby: r.u32()?, lobby_config: r.long_bytes()? },
            25 => Event::PortsLeased { owner: r.id()?, lease: Box::new(decode_lease(r)?) },
            26 => Event::PortReplaced { owner: r.id()?, name: r.text()?, number: r.u16()?, until: r.u64()? },
            27 => Event::BackendsSet { owner: r.id()?, backends: decode_backends(r)? },
            28 => Event::LeaseEnded { owner: r.id()? },
            29 => Event::PortsReturned { owner: r.id()?, until: r.u64()? },
            kind => return Err(ApplyError::UnknownKind(kind)),
        })
    }
}

fn encode_place(w: &mut Writer<'_>, kind: u8, place: &Place) {
    w.u8(kind);
    w.u32(place.lobby);
    w.u16(place.slot);
    w.u32(place.generation);
}

fn decode_place(r: &mut Reader<'_>) -> Result<Place, ApplyError> {
    Ok(Place { lobby: r.u32()?, slot: r.u16()?, generation: r.u32()? })
}

fn encode_stamp(w: &mut Writer<'_>, stamp: &Option<Stamp>) {
    w.flag(stamp.is_some());
    if let Some(stamp) = stamp {
        w.u64(stamp.key);
        w.u8(stamp.key_more);
        w.u32(stamp.message);
        w.u64(stamp.at);
    }
}

fn decode_stamp(r: &mut Reader<'_>) -> Result<Option<Stamp>, ApplyError> {
    if !r.flag()? {
        return Ok(None);
    }
    Ok(Some(Stamp { key: r.u64()?, key_more: r.u8()?, message: r.u32()?, at: r.u64()? }))
}

fn decode_end(r: &mut Reader<'_>) -> Result<End, ApplyError> {
    End::from_byte(r.u8()?).ok_or(ApplyError::Malformed("an end is 0 to 3"))
}

const REASONS: [EndReason; 5] =
    [EndReason::Exited, EndReason::StartTimeout, EndReason::Silent, EndReason::Removed, EndReason::Stopped];

fn reason_byte(reason: EndReason) -> u8 {
    REASONS.iter().position(|known| *known == reason).unwrap_or_default() as u8
}

pub(crate) fn decode_reason(r: &mut Reader<'_>) -> Result<EndReason, ApplyError> {
    REASONS.get(usize::from(r.u8()?)).copied().ok_or(ApplyError::Malformed("an end reason is 0 to 4"))
}

pub(crate) fn encode_reason(w: &mut Writer<'_>, reason: EndReason) {
    w.u8(reason_byte(reason));
}

pub(crate) fn encode_made(w: &mut Writer<'_>, made: &LobbyMade<'_>) {
    w.u32(made.lobby);
    w.id(made.id);
    w.id(made.namespace);
    w.id(made.version);
    w.short_bytes(made.mode.as_bytes());
    w.short_bytes(made.region.as_bytes());
    w.flag(made.is_public);
    w.flag(made.is_join_enabled);
    made.limits.iter().for_each(|limit| w.u32(*limit));
    w.u64(made.ttl_ms);
    w.u64(made.heartbeat_timeout_ms);
    w.u64(made.heartbeat_grace_ms);
    w.u64(made.create_ts_ms);
    w.u16(made.key_id);
    w.u16(made.tags.len() as u16);
    for (name, value) in &made.tags {
        w.short_bytes(name.as_bytes());
        w.short_bytes(value.as_bytes());
    }
    w.u16(made.ports.len() as u16);
    for port in &made.ports {
        w.short_bytes(port.name.as_bytes());
        w.short_bytes(port.address.as_bytes());
        w.u16(port.port);
        w.flag(port.is_tls);
    }
}

pub(crate) fn decode_made<'a>(r: &mut Reader<'a>) -> Result<LobbyMade<'a>, ApplyError> {
    Ok(LobbyMade {
        lobby: r.u32()?,
        id: r.id()?,
        namespace: r.id()?,
        version: r.id()?,
        mode: r.text()?,
        region: r.text()?,
        is_public: r.flag()?,
        is_join_enabled: r.flag()?,
        limits: [r.u32()?, r.u32()?, r.u32()?],
        ttl_ms: r.u64()?,
        heartbeat_timeout_ms: r.u64()?,
        heartbeat_grace_ms: r.u64()?,
        create_ts_ms: r.u64()?,
        key_id: r.u16()?,
        tags: (0..r.u16()?).map(|_| Ok((r.text()?, r.text()?))).collect::<Result<_, ApplyError>>()?,
        ports: (0..r.u16()?).map(|_| decode_port(r)).collect::<Result<_, ApplyError>>()?,
    })
}

fn decode_port(r: &mut Reader<'_>) -> Result<Port, ApplyError> {
    Ok(Port { name: r.text()?.to_owned(), address: r.text()?.to_owned(), port: r.u16()?, is_tls: r.flag()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{LeasedPort, Protocol, Reached};

    fn id(byte: u8) -> Id {
        Id([byte; 16])
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Every event kind with the bytes that journals of earlier builds have for it.
    #[test]
    fn event_bytes_never_change() {
        let place = Place { lobby: 0x0102_0304, slot: 0x0506, generation: 0x0708_090a };
        let stamp = Some(Stamp { key: 0x1112_1314_1516_1718, key_more: 0x19, message: 0x2122_2324, at: 0x31 });
        let uses = [1, 0, 2, 0, 0, 0, 3, 0, 4, 0, 0, 0];
        let deliveries: Vec<u8> = (0..22).collect();
        let made = LobbyMade {
            lobby: 7,
            id: id(1),
            namespace: id(2),
            version: id(3),
            mode: "duel",
            region: "local",
            is_public: true,
            is_join_enabled: false,
            limits: [4, 5, 6],
            ttl_ms: 120_000,
            heartbeat_timeout_ms: 30_000,
            heartbeat_grace_ms: 10_000,
            create_ts_ms: 1_700_000_000_000,
            key_id: 9,
            tags: vec![("map", "lake")],
            ports: vec![Port { name: "game".into(), address: "192.0.2.1".into(), port: 7_777, is_tls: true }],
        };
        let port = |name: &str, protocol, reached| LeasedPort { name: name.into(), protocol, reached, backend: None };
        let lease = Lease {
            namespace: id(2),
            region: "local".into(),
            is_server: true,
            ports: vec![
                port("a", Protocol::Tcp, Reached::Number(26_000)),
                port("b", Protocol::Https, Reached::Host),
                port("c", Protocol::Udp, Reached::Range(20_000, 20_003)),
            ],
            is_over: false,
            changed: 0,
        };
        let events = [
            (
                "010700000001010101010101010101010101010101020202020202020202020202020202020303030303030303030303030303030304006475656c05006c6f63616c0100040000000500000006000000c0d4010000000000307500000000000010270000000000000068e5cf8b0100000900010003006d617004006c616b650100040067616d6509003139322e302e322e31611e0101181716151413121119242322213100000000000000",
                Event::LobbyMade(Box::new(made), stamp),
            ),
            ("0d070000000800000000000000", Event::LobbyReady { lobby: 7, at: 8 }),
            ("0e07000000010800000000000000", Event::LobbyClosed { lobby: 7, is_closed: true, at: 8 }),
            ("0407000000020000007b7d", Event::LobbyStateSet { lobby: 7, state: b"{}" }),
            ("0f070000000800000000000000", Event::LobbyStopping { lobby: 7, at: 8 }),
            (
                "0607000000080000000000000002",
                Event::LobbyEnded { lobby: 7, at: 8, reason: EndReason::Silent, exit_code: None },
            ),
            (
                "1207000000080000000000000000f7ffffff",
                Event::LobbyEnded { lobby: 7, at: 8, reason: EndReason::Exited, exit_code: Some(-9) },
            ),
            (
                "0707000000080000000000000009000a000000000000000201000200000003000400000001181716151413121119242322213100000000000000",
                Event::PlacesReserved { lobby: 7, deadline: 8, key_id: 9, source: 10, uses: Uses(&uses), stamp },
            ),
            (
                "080403020106050a090807080000000000000001181716151413121119242322213100000000000000",
                Event::PlaceConnected { place, at: 8, stamp },
            ),
            ("090403020106050a0908070000", Event::PlaceEnded { place, at: 0, end: End::Expired, stamp: None }),
            (
                "100403020106050a09080708000000000000000101181716151413121119242322213100000000000000",
                Event::PlaceEnded { place, at: 8, end: End::Consumed, stamp },
            ),
            (
                "110403020106050a0908070800000000000000090000000000000001181716151413121119242322213100000000000000",
                Event::PlaceKept { place, at: 8, deadline: 9, stamp },
            ),
            (
                "0b0403020106050a09080701181716151413121119242322213100000000000000",
                Event::KeyRemembered { place, stamp },
            ),
            ("0c08000000000000000900000000000000", Event::Forgotten { entries_up_to: 8, lobbies_up_to: 9 }),
            ("130800000000000000", Event::FactsAcknowledged { up_to: 8 }),
            (
                "1407000000080000000000000009000000000000000a000000000000000b0001000102030405060708090a0b0c0d0e0f101112131415",
                Event::TokensSent {
                    lobby: 7,
                    ts_ms: 8,
                    at: 9,
                    deadline: 10,
                    key_id: 11,
                    deliveries: Deliveries(&deliveries),
                },
            ),
            ("1507000000000000000800000000000000", Event::HumanPassed { source: 7, at: 8 }),
            ("160700000000000000", Event::HumanAsked { source: 7 }),
            (
                "1707000000080000000000000009090909090909090909090909090909",
                Event::MockConsumed { hour: 7, at: 8, mac: [9; 16] },
            ),
            ("1807000000020000007b7d", Event::LobbyStarts { lobby: 7, lobby_config: b"{}" }),
            (
                "19010101010101010101010101010101010202020202020202020202020202020205006c6f63616c0103000100610300906590650100620201000000000100630502204e234e",
                Event::PortsLeased { owner: id(1), lease: Box::new(lease) },
            ),
            (
                "1a01010101010101010101010101010101040067616d6591650800000000000000",
                Event::PortReplaced { owner: id(1), name: "game", number: 26_001, until: 8 },
            ),
            (
                "1b010101010101010101010101010101010100040067616d6509003132372e302e302e31611e",
                Event::BackendsSet { owner: id(1), backends: vec![("game", "127.0.0.1", 7_777)] },
            ),
            ("1c01010101010101010101010101010101", Event::LeaseEnded { owner: id(1) }),
            ("1d010101010101010101010101010101010800000000000000", Event::PortsReturned { owner: id(1), until: 8 }),
        ];
        for (expected, event) in events {
            let mut bytes = Vec::new();
            event.encode(&mut bytes);
            assert_eq!(hex(&bytes), expected, "{event:?}");
            let mut reader = Reader::new(&bytes);
            assert_eq!(Event::decode(&mut reader), Ok(event));
            assert!(reader.is_empty());
        }
    }
}
