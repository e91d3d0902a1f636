//! Journal events: one table of all event kinds, and the encoding of each field.
//!
//! An event names slots, generations and deadlines, so that applying it needs no decision. Events refer to a lobby by
//! the number from its `LobbyCreated`.

use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{EndReason, Id, Lsn, Ms, Port, Source};
use crate::idempotency_table::KeyStamp;
use crate::lease_definition::{LeaseDefinition, decode_backends, decode_lease, encode_backends, encode_lease};
use crate::slot::SlotUseEnd;
use crate::slot_use::{EncodedDeliveries, EncodedSlotUses, SlotUse};

/// Declares each event kind as `number "journal name" Variant [constant] { fields in order of their bytes }`.
///
/// Generates the enum, the table of kinds, encoder and decoder. The optional constant is the encoded length in bytes,
/// with an idempotency stamp and without the contents of variable-length fields.
macro_rules! journal_events {
    (@len $a:lifetime [$len:ident] $($type:ty),*) => {
        pub(crate) const $len: u64 = 1 $(+ <$type as Field<$a>>::LEN)*;
    };
    (@len $a:lifetime $($type:ty),*) => {};
    ($a:lifetime $($kind:literal $name:literal $variant:ident $([$len:ident])? { $($field:ident: $type:ty),* })*) => {
        /// One change of the durable state.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Event<$a> {
            $($variant { $($field: $type),* },)*
        }

        /// `(number, journal name)` of every event kind. Journals store both, so neither ever changes or is reused.
        pub(crate) const KINDS: &[(u8, &str)] = &[$(($kind, $name)),*];

        impl<$a> Event<$a> {
            $(journal_events! { @len $a $([$len])? $($type),* })*

            #[inline]
            pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
                let mut w = Writer { bytes };
                match self {
                    $(Event::$variant { $($field),* } => {
                        w.u8($kind);
                        $($field.write(&mut w);)*
                    })*
                }
            }

            #[inline]
            pub(crate) fn decode(r: &mut Reader<$a>) -> Result<Event<$a>, ApplyError> {
                Ok(match r.u8()? {
                    $($kind => Event::$variant { $($field: Field::read(r)?),* },)*
                    kind => return Err(ApplyError::UnknownKind(kind)),
                })
            }
        }
    };
}

// Builds before the first release wrote kinds 2, 3, 5 and 10. Never reuse them. Kind 11 is only read: 0.1.0 wrote it.
journal_events! { 'a
    1 "LobbyMade" LobbyCreated { definition: Box<LobbyDefinition<'a>>, stamp: Option<KeyStamp> }
    4 "LobbyStateSet" LobbyStateSet [LOBBY_STATE_SET_LEN] { lobby: u32, state: &'a [u8] }
    6 "LobbyEnded" LobbyEnded { lobby: u32, at: Ms, reason: EndReason }
    7 "PlacesReserved" SlotsReserved [SLOTS_RESERVED_LEN] {
        lobby: u32, deadline: Ms, key_id: u16, source: Source, uses: EncodedSlotUses<'a>, stamp: Option<KeyStamp>
    }
    8 "PlaceConnected" PlayerConnected [PLAYER_CONNECTED_LEN] { slot_use: SlotUse, at: Ms, stamp: Option<KeyStamp> }
    9 "PlaceEnded" SlotUseEnded [SLOT_USE_ENDED_LEN] { slot_use: SlotUse, end: SlotUseEnd, stamp: Option<KeyStamp> }
    11 "KeyRemembered" DisconnectKeyStored { slot_use: SlotUse, stamp: Option<KeyStamp> }
    12 "Forgotten" OldRecordsDropped [OLD_RECORDS_DROPPED_LEN] { entries_up_to: Ms, lobbies_up_to: Ms }
    13 "LobbyReadyAt" LobbyReady [LOBBY_READY_LEN] { lobby: u32, at: Ms }
    14 "LobbyClosedAt" LobbyClosed [LOBBY_CLOSED_LEN] { lobby: u32, is_closed: bool, at: Ms }
    15 "LobbyStoppingAt" LobbyStopping [LOBBY_STOPPING_LEN] { lobby: u32, at: Ms }
    16 "PlaceLeft" PlayerLeft [PLAYER_LEFT_LEN] { slot_use: SlotUse, at: Ms, end: SlotUseEnd, stamp: Option<KeyStamp> }
    17 "PlaceKeptAt" SlotKept [SLOT_KEPT_LEN] { slot_use: SlotUse, at: Ms, deadline: Ms, stamp: Option<KeyStamp> }
    18 "LobbyExited" LobbyExited [LOBBY_EXITED_LEN] { lobby: u32, at: Ms, reason: EndReason, exit_code: i32 }
    19 "FactsAcknowledged" FactsAcknowledged [FACTS_ACKNOWLEDGED_LEN] { up_to: Lsn }
    20 "TokensSent" TokensSent [TOKENS_SENT_LEN] {
        lobby: u32, ts_ms: u64, at: Ms, deadline: Ms, key_id: u16, deliveries: EncodedDeliveries<'a>
    }
    21 "HumanPassed" CaptchaPassed [CAPTCHA_PASSED_LEN] { source: Source, at: Ms }
    22 "HumanAsked" CaptchaRequestCounted [CAPTCHA_REQUEST_COUNTED_LEN] { source: Source }
    23 "MockConsumed" MockTokenConsumed [MOCK_TOKEN_CONSUMED_LEN] { hour: u32, at: Ms, mac: [u8; 16] }
    24 "LobbyStarts" LobbyManaged { lobby: u32, lobby_config: &'a [u8] }
    25 "PortsLeased" PortsLeased { owner: Id, lease: Box<LeaseDefinition> }
    26 "PortReplaced" PortReplaced { owner: Id, name: &'a str, number: u16, until: Ms }
    27 "BackendsSet" BackendsSet { owner: Id, backends: Vec<(&'a str, &'a str, u16)> }
    28 "LeaseEnded" LeaseEnded [LEASE_ENDED_LEN] { owner: Id }
    29 "PortsReturned" PortsReturned { owner: Id, until: Ms }
    30 "TrialMade" TrialCreated { definition: Box<LobbyDefinition<'a>>, until: Ms }
    31 "PortsRequested" PortsRequested { owner: Id, lease: Box<LeaseDefinition> }
    32 "PortsBound" PortsBound { owner: Id, node: &'a str, host: &'a str, numbers: Vec<u16>, at: Ms }
    33 "NodePortsReturned" NodePortsReturned { owner: Id, node: &'a str, until: Ms }
}

impl Event<'_> {
    /// Returns the maximum bytes of the events that reserve `slots` slots and send tokens to `channels` event channels.
    pub(crate) fn max_reservation_len(slots: u32, channels: usize) -> u64 {
        let reserved = Event::SLOTS_RESERVED_LEN + u64::from(slots) * EncodedSlotUses::WIDTH as u64;
        let sent = Event::TOKENS_SENT_LEN + (channels * EncodedDeliveries::WIDTH) as u64;
        if channels == 0 { reserved } else { reserved + sent }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LobbyDefinition<'a> {
    pub(crate) lobby: u32,
    pub(crate) id: Id,
    pub(crate) namespace: Id,
    pub(crate) version: Id,
    pub(crate) mode: &'a str,
    pub(crate) region: &'a str,
    pub(crate) is_public: bool,
    pub(crate) is_join_enabled: bool,
    pub(crate) limits: [u32; 3],
    pub(crate) player_token_ttl_ms: u64,
    pub(crate) heartbeat_timeout_ms: u64,
    pub(crate) heartbeat_grace_ms: u64,
    pub(crate) create_ts_ms: u64,
    pub(crate) key_id: u16,
    pub(crate) tags: Vec<(&'a str, &'a str)>,
    pub(crate) ports: Vec<Port>,
}

pub(crate) trait Field<'a>: Sized {
    /// Encoded length in bytes, without variable-length contents.
    const LEN: u64 = panic!("this field has no bound");

    fn write(&self, w: &mut Writer<'_>);

    fn read(r: &mut Reader<'a>) -> Result<Self, ApplyError>;
}

macro_rules! number_fields {
    ($($number:ident)*) => {
        $(impl Field<'_> for $number {
            const LEN: u64 = size_of::<$number>() as u64;

            #[inline]
            fn write(&self, w: &mut Writer<'_>) {
                w.$number(*self);
            }

            #[inline]
            fn read(r: &mut Reader<'_>) -> Result<$number, ApplyError> {
                r.$number()
            }
        })*
    };
}

number_fields! { u8 u16 u32 u64 }

impl Field<'_> for i32 {
    const LEN: u64 = 4;

    fn write(&self, w: &mut Writer<'_>) {
        w.u32(*self as u32);
    }

    fn read(r: &mut Reader<'_>) -> Result<i32, ApplyError> {
        Ok(r.u32()? as i32)
    }
}

impl Field<'_> for bool {
    const LEN: u64 = 1;

    fn write(&self, w: &mut Writer<'_>) {
        w.flag(*self);
    }

    fn read(r: &mut Reader<'_>) -> Result<bool, ApplyError> {
        r.flag()
    }
}

impl Field<'_> for [u8; 16] {
    const LEN: u64 = 16;

    fn write(&self, w: &mut Writer<'_>) {
        w.raw(self);
    }

    fn read(r: &mut Reader<'_>) -> Result<[u8; 16], ApplyError> {
        Ok(r.id()?.0)
    }
}

impl Field<'_> for Id {
    const LEN: u64 = 16;

    fn write(&self, w: &mut Writer<'_>) {
        w.id(*self);
    }

    fn read(r: &mut Reader<'_>) -> Result<Id, ApplyError> {
        r.id()
    }
}

impl<'a> Field<'a> for &'a str {
    fn write(&self, w: &mut Writer<'_>) {
        w.short_bytes(self.as_bytes());
    }

    fn read(r: &mut Reader<'a>) -> Result<&'a str, ApplyError> {
        r.text()
    }
}

impl<'a> Field<'a> for &'a [u8] {
    const LEN: u64 = 4;

    fn write(&self, w: &mut Writer<'_>) {
        w.long_bytes(self);
    }

    fn read(r: &mut Reader<'a>) -> Result<&'a [u8], ApplyError> {
        r.long_bytes()
    }
}

impl Field<'_> for SlotUse {
    const LEN: u64 = 10;

    #[inline]
    fn write(&self, w: &mut Writer<'_>) {
        w.u32(self.lobby);
        w.u16(self.slot);
        w.u32(self.generation);
    }

    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<SlotUse, ApplyError> {
        Ok(SlotUse { lobby: r.u32()?, slot: r.u16()?, generation: r.u32()? })
    }
}

impl<'a> Field<'a> for EncodedSlotUses<'a> {
    const LEN: u64 = 1;

    #[inline]
    fn write(&self, w: &mut Writer<'_>) {
        w.u8(self.len() as u8);
        w.raw(self.0);
    }

    #[inline]
    fn read(r: &mut Reader<'a>) -> Result<EncodedSlotUses<'a>, ApplyError> {
        let count = usize::from(r.u8()?);
        Ok(EncodedSlotUses(r.take(count * EncodedSlotUses::WIDTH)?))
    }
}

impl<'a> Field<'a> for EncodedDeliveries<'a> {
    const LEN: u64 = 1;

    fn write(&self, w: &mut Writer<'_>) {
        w.u8((self.0.len() / EncodedDeliveries::WIDTH) as u8);
        w.raw(self.0);
    }

    fn read(r: &mut Reader<'a>) -> Result<EncodedDeliveries<'a>, ApplyError> {
        let count = usize::from(r.u8()?);
        Ok(EncodedDeliveries(r.take(count * EncodedDeliveries::WIDTH)?))
    }
}

impl Field<'_> for Option<KeyStamp> {
    const LEN: u64 = 22;

    #[inline]
    fn write(&self, w: &mut Writer<'_>) {
        w.flag(self.is_some());
        if let Some(stamp) = self {
            w.u64(stamp.key);
            w.u8(stamp.key_more);
            w.u32(stamp.message);
            w.u64(stamp.at);
        }
    }

    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<Option<KeyStamp>, ApplyError> {
        if !r.flag()? {
            return Ok(None);
        }
        Ok(Some(KeyStamp { key: r.u64()?, key_more: r.u8()?, message: r.u32()?, at: r.u64()? }))
    }
}

impl Field<'_> for SlotUseEnd {
    const LEN: u64 = 1;

    #[inline]
    fn write(&self, w: &mut Writer<'_>) {
        w.u8(*self as u8);
    }

    #[inline]
    fn read(r: &mut Reader<'_>) -> Result<SlotUseEnd, ApplyError> {
        SlotUseEnd::from_byte(r.u8()?).ok_or(ApplyError::Malformed("the end of a slot use is 0 to 3"))
    }
}

const END_REASONS: [EndReason; 5] =
    [EndReason::Exited, EndReason::StartTimeout, EndReason::Silent, EndReason::Removed, EndReason::Stopped];

impl Field<'_> for EndReason {
    const LEN: u64 = 1;

    fn write(&self, w: &mut Writer<'_>) {
        w.u8(END_REASONS.iter().position(|known| known == self).unwrap_or_default() as u8);
    }

    fn read(r: &mut Reader<'_>) -> Result<EndReason, ApplyError> {
        END_REASONS.get(usize::from(r.u8()?)).copied().ok_or(ApplyError::Malformed("an end reason is 0 to 4"))
    }
}

impl Field<'_> for Box<LeaseDefinition> {
    fn write(&self, w: &mut Writer<'_>) {
        encode_lease(w, self);
    }

    fn read(r: &mut Reader<'_>) -> Result<Box<LeaseDefinition>, ApplyError> {
        Ok(Box::new(decode_lease(r)?))
    }
}

impl Field<'_> for Vec<u16> {
    fn write(&self, w: &mut Writer<'_>) {
        w.u16(self.len() as u16);
        self.iter().for_each(|number| w.u16(*number));
    }

    fn read(r: &mut Reader<'_>) -> Result<Vec<u16>, ApplyError> {
        (0..r.u16()?).map(|_| r.u16()).collect()
    }
}

impl<'a> Field<'a> for Vec<(&'a str, &'a str, u16)> {
    fn write(&self, w: &mut Writer<'_>) {
        encode_backends(w, self.iter().copied());
    }

    fn read(r: &mut Reader<'a>) -> Result<Vec<(&'a str, &'a str, u16)>, ApplyError> {
        decode_backends(r)
    }
}

impl<'a> Field<'a> for Box<LobbyDefinition<'a>> {
    fn write(&self, w: &mut Writer<'_>) {
        w.u32(self.lobby);
        w.id(self.id);
        w.id(self.namespace);
        w.id(self.version);
        w.short_bytes(self.mode.as_bytes());
        w.short_bytes(self.region.as_bytes());
        w.flag(self.is_public);
        w.flag(self.is_join_enabled);
        self.limits.iter().for_each(|limit| w.u32(*limit));
        w.u64(self.player_token_ttl_ms);
        w.u64(self.heartbeat_timeout_ms);
        w.u64(self.heartbeat_grace_ms);
        w.u64(self.create_ts_ms);
        w.u16(self.key_id);
        w.u16(self.tags.len() as u16);
        for (name, value) in &self.tags {
            w.short_bytes(name.as_bytes());
            w.short_bytes(value.as_bytes());
        }
        w.u16(self.ports.len() as u16);
        for port in &self.ports {
            w.short_bytes(port.name.as_bytes());
            w.short_bytes(port.address.as_bytes());
            w.u16(port.port);
            w.flag(port.is_tls);
        }
    }

    fn read(r: &mut Reader<'a>) -> Result<Box<LobbyDefinition<'a>>, ApplyError> {
        Ok(Box::new(LobbyDefinition {
            lobby: r.u32()?,
            id: r.id()?,
            namespace: r.id()?,
            version: r.id()?,
            mode: r.text()?,
            region: r.text()?,
            is_public: r.flag()?,
            is_join_enabled: r.flag()?,
            limits: [r.u32()?, r.u32()?, r.u32()?],
            player_token_ttl_ms: r.u64()?,
            heartbeat_timeout_ms: r.u64()?,
            heartbeat_grace_ms: r.u64()?,
            create_ts_ms: r.u64()?,
            key_id: r.u16()?,
            tags: (0..r.u16()?).map(|_| Ok((r.text()?, r.text()?))).collect::<Result<_, ApplyError>>()?,
            ports: (0..r.u16()?).map(|_| read_port(r)).collect::<Result<_, ApplyError>>()?,
        }))
    }
}

fn read_port(r: &mut Reader<'_>) -> Result<Port, ApplyError> {
    Ok(Port { name: r.text()?.to_owned(), address: r.text()?.to_owned(), port: r.u16()?, is_tls: r.flag()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{LeasedPort, PortExposure, Protocol, SessionCounting};

    fn id(byte: u8) -> Id {
        Id([byte; 16])
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn event_bytes_never_change() {
        let slot_use = SlotUse { lobby: 0x0102_0304, slot: 0x0506, generation: 0x0708_090a };
        let stamp = Some(KeyStamp { key: 0x1112_1314_1516_1718, key_more: 0x19, message: 0x2122_2324, at: 0x31 });
        let uses = [1, 0, 2, 0, 0, 0, 3, 0, 4, 0, 0, 0];
        let deliveries: Vec<u8> = (0..22).collect();
        let definition = LobbyDefinition {
            lobby: 7,
            id: id(1),
            namespace: id(2),
            version: id(3),
            mode: "duel",
            region: "local",
            is_public: true,
            is_join_enabled: false,
            limits: [4, 5, 6],
            player_token_ttl_ms: 120_000,
            heartbeat_timeout_ms: 30_000,
            heartbeat_grace_ms: 10_000,
            create_ts_ms: 1_700_000_000_000,
            key_id: 9,
            tags: vec![("map", "lake")],
            ports: vec![Port { name: "game".into(), address: "192.0.2.1".into(), port: 7_777, is_tls: true }],
        };
        let port = |name: &str, protocol, exposure| LeasedPort {
            name: name.into(),
            protocol,
            exposure,
            sends_proxy_header: name == "d",
            counting: if name == "e" { SessionCounting::Required } else { SessionCounting::Uncounted },
            backend: None,
        };
        let lease =
            |ports| Box::new(LeaseDefinition { namespace: id(2), region: "local".into(), is_server: true, ports });
        let ports = vec![
            port("a", Protocol::Tcp, PortExposure::Number(26_000)),
            port("b", Protocol::Https, PortExposure::Host),
            port("c", Protocol::Udp, PortExposure::Range(20_000, 20_003)),
        ];
        let with_proxy_header = vec![port("d", Protocol::Tcp, PortExposure::Number(26_000))];
        let with_required_slots = vec![port("e", Protocol::Udp, PortExposure::Number(26_000))];
        let without_number = vec![port("f", Protocol::Udp, PortExposure::Number(0))];
        let events = [
            (
                "1e0700000001010101010101010101010101010101020202020202020202020202020202020303030303030303030303030303030304006475656c05006c6f63616c0100040000000500000006000000c0d4010000000000307500000000000010270000000000000068e5cf8b0100000900010003006d617004006c616b650100040067616d6509003139322e302e322e31611e010800000000000000",
                Event::TrialCreated { definition: Box::new(definition.clone()), until: 8 },
            ),
            (
                "010700000001010101010101010101010101010101020202020202020202020202020202020303030303030303030303030303030304006475656c05006c6f63616c0100040000000500000006000000c0d4010000000000307500000000000010270000000000000068e5cf8b0100000900010003006d617004006c616b650100040067616d6509003139322e302e322e31611e0101181716151413121119242322213100000000000000",
                Event::LobbyCreated { definition: Box::new(definition), stamp },
            ),
            ("0d070000000800000000000000", Event::LobbyReady { lobby: 7, at: 8 }),
            ("0e07000000010800000000000000", Event::LobbyClosed { lobby: 7, is_closed: true, at: 8 }),
            ("0407000000020000007b7d", Event::LobbyStateSet { lobby: 7, state: b"{}" }),
            ("0f070000000800000000000000", Event::LobbyStopping { lobby: 7, at: 8 }),
            ("0607000000080000000000000002", Event::LobbyEnded { lobby: 7, at: 8, reason: EndReason::Silent }),
            (
                "1207000000080000000000000000f7ffffff",
                Event::LobbyExited { lobby: 7, at: 8, reason: EndReason::Exited, exit_code: -9 },
            ),
            (
                "0707000000080000000000000009000a000000000000000201000200000003000400000001181716151413121119242322213100000000000000",
                Event::SlotsReserved {
                    lobby: 7,
                    deadline: 8,
                    key_id: 9,
                    source: 10,
                    uses: EncodedSlotUses(&uses),
                    stamp,
                },
            ),
            (
                "080403020106050a090807080000000000000001181716151413121119242322213100000000000000",
                Event::PlayerConnected { slot_use, at: 8, stamp },
            ),
            ("090403020106050a0908070000", Event::SlotUseEnded { slot_use, end: SlotUseEnd::Expired, stamp: None }),
            (
                "100403020106050a09080708000000000000000101181716151413121119242322213100000000000000",
                Event::PlayerLeft { slot_use, at: 8, end: SlotUseEnd::Consumed, stamp },
            ),
            (
                "110403020106050a0908070800000000000000090000000000000001181716151413121119242322213100000000000000",
                Event::SlotKept { slot_use, at: 8, deadline: 9, stamp },
            ),
            (
                "0b0403020106050a09080701181716151413121119242322213100000000000000",
                Event::DisconnectKeyStored { slot_use, stamp },
            ),
            ("0c08000000000000000900000000000000", Event::OldRecordsDropped { entries_up_to: 8, lobbies_up_to: 9 }),
            ("130800000000000000", Event::FactsAcknowledged { up_to: 8 }),
            (
                "1407000000080000000000000009000000000000000a000000000000000b0001000102030405060708090a0b0c0d0e0f101112131415",
                Event::TokensSent {
                    lobby: 7,
                    ts_ms: 8,
                    at: 9,
                    deadline: 10,
                    key_id: 11,
                    deliveries: EncodedDeliveries(&deliveries),
                },
            ),
            ("1507000000000000000800000000000000", Event::CaptchaPassed { source: 7, at: 8 }),
            ("160700000000000000", Event::CaptchaRequestCounted { source: 7 }),
            (
                "1707000000080000000000000009090909090909090909090909090909",
                Event::MockTokenConsumed { hour: 7, at: 8, mac: [9; 16] },
            ),
            ("1807000000020000007b7d", Event::LobbyManaged { lobby: 7, lobby_config: b"{}" }),
            (
                "19010101010101010101010101010101010202020202020202020202020202020205006c6f63616c0103000100610300906590650100620201000000000100630502204e234e",
                Event::PortsLeased { owner: id(1), lease: lease(ports) },
            ),
            (
                "19010101010101010101010101010101010202020202020202020202020202020205006c6f63616c010100010064830090659065",
                Event::PortsLeased { owner: id(1), lease: lease(with_proxy_header) },
            ),
            (
                "19010101010101010101010101010101010202020202020202020202020202020205006c6f63616c010100010065650090659065",
                Event::PortsLeased { owner: id(1), lease: lease(with_required_slots) },
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
            (
                "1f010101010101010101010101010101010202020202020202020202020202020205006c6f63616c010100010066050000000000",
                Event::PortsRequested { owner: id(1), lease: lease(without_number) },
            ),
            (
                "20010101010101010101010101010101010200713109003139322e302e322e31010090650800000000000000",
                Event::PortsBound { owner: id(1), node: "q1", host: "192.0.2.1", numbers: vec![26_000], at: 8 },
            ),
            (
                "2101010101010101010101010101010101020071310800000000000000",
                Event::NodePortsReturned { owner: id(1), node: "q1", until: 8 },
            ),
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
