//! Responses to find and join: the lobby with its ports, and the player tokens.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hosting_core::{Id, LeasedPorts, LobbyView};
use parking_lot::Mutex;
use prost::Message as _;
use prost::encoding::{self, WireType};
use uuid::Uuid;

use crate::player_addresses::{OwnerKind, PlayerAddress, PlayerAddresses, PlayerPort, PortOwner};
use crate::proto;
use crate::regions::Regions;

/// Bound of each half of the cache.
const CACHED_MAX: usize = 10_000;
// Numbers of protobuf fields.
const LOBBY_PLAYER: u32 = 4;
const RESPONSE_LOBBY: u32 = 1;
const RESPONSE_PLAYER: u32 = 3;
const RESPONSE_PLAYERS: u32 = 4;

/// Stands for the player token during the encoding. A token has other characters.
const TOKEN: &str = "<token>";

/// Settings of the responses: regions and addresses.
pub struct Places {
    pub regions: Regions,
    pub addresses: PlayerAddresses,
}

/// The parts of a response that are equal for all players of a lobby.
pub struct LobbyAnswer {
    /// The JSON response, split where a player token belongs.
    json: Vec<Vec<u8>>,
    /// The protobuf message of the lobby, without its player.
    proto_lobby: Vec<u8>,
    /// The protobuf field of the ports in the response.
    proto_ports: Vec<u8>,
}

impl LobbyAnswer {
    pub fn new(places: &Places, lobby: &LobbyView) -> LobbyAnswer {
        let region_id = lobby.region.to_string();
        let display_name = places.regions.display_name(&region_id).to_owned();
        LobbyAnswer::of(lobby.id, proto::Region { region_id, display_name }, ports(places, lobby))
    }

    /// Returns the parts of the response to a `dev_` token. The ports are on the machine of a developer.
    pub fn of_mock((region_id, display_name): (String, String), ports: Vec<(String, PlayerAddress)>) -> LobbyAnswer {
        let ports = ports.into_iter().map(|(name, address)| (name, address.into())).collect();
        LobbyAnswer::of(Id::default(), proto::Region { region_id, display_name }, ports)
    }

    fn of(lobby: Id, region: proto::Region, ports: BTreeMap<String, proto::Port>) -> LobbyAnswer {
        let player = Some(proto::Player { token: TOKEN.to_owned() });
        let with_player = proto::Lobby {
            lobby_id: Uuid::from_bytes(lobby.0).to_string(),
            region: Some(region),
            ports: ports.clone(),
            player: player.clone(),
        };
        let mut response =
            proto::FindLobbyResponse { lobby: Some(with_player), ports, player, ..proto::FindLobbyResponse::default() };
        let text = serde_json::to_string(&response).expect("the response has only text keys");
        // Both tokens come after the name of the region, which may contain any text.
        let mut json: Vec<_> = text.rsplitn(3, TOKEN).map(|part| part.as_bytes().to_vec()).collect();
        json.reverse();
        response.player = None;
        let lobby = response.lobby.take().map(|lobby| proto::Lobby { player: None, ..lobby }).unwrap_or_default();
        LobbyAnswer { json, proto_lobby: lobby.encode_to_vec(), proto_ports: response.encode_to_vec() }
    }

    /// Returns the JSON response for the player tokens of a party.
    pub fn json(&self, tokens: &[String]) -> Vec<u8> {
        let mut body = Vec::new();
        let own = tokens.first().map_or("", String::as_str);
        for (number, part) in self.json.iter().enumerate() {
            if number > 0 {
                body.extend_from_slice(own.as_bytes());
            }
            body.extend_from_slice(part);
        }
        if tokens.len() < 2 {
            return body;
        }
        body.pop();
        body.extend_from_slice(b",\"players\":[");
        for (number, token) in tokens.iter().enumerate() {
            body.extend_from_slice(if number == 0 { b"{\"token\":\"" } else { b",{\"token\":\"" });
            body.extend_from_slice(token.as_bytes());
            body.extend_from_slice(b"\"}");
        }
        body.extend_from_slice(b"]}");
        body
    }

    /// Appends the protobuf response for the player tokens of a party. The responses of find and of join have the same
    /// fields.
    pub fn write_proto(&self, tokens: &[String], message: &mut Vec<u8>) {
        let player = |token: &String| proto::Player { token: token.clone() };
        let own = tokens.first().map(player).unwrap_or_default();
        let lobby_length = self.proto_lobby.len() + encoding::message::encoded_len(LOBBY_PLAYER, &own);
        encoding::encode_key(RESPONSE_LOBBY, WireType::LengthDelimited, message);
        encoding::encode_varint(lobby_length as u64, message);
        message.extend_from_slice(&self.proto_lobby);
        encoding::message::encode(LOBBY_PLAYER, &own, message);
        message.extend_from_slice(&self.proto_ports);
        encoding::message::encode(RESPONSE_PLAYER, &own, message);
        if tokens.len() > 1 {
            tokens.iter().for_each(|token| encoding::message::encode(RESPONSE_PLAYERS, &player(token), message));
        }
    }
}

fn ports(places: &Places, lobby: &LobbyView) -> BTreeMap<String, proto::Port> {
    let attached = lobby.ports.iter().map(|port| (port.name.clone(), numbered(&port.address, port.port, port.is_tls)));
    let mut ports: BTreeMap<_, _> = attached.collect();
    if let Some(LeasedPorts { ports: leased, node }) = lobby.own.as_ref().map(|own| &own.leased) {
        let kind = OwnerKind::Lobby;
        let owner = PortOwner { id: lobby.id, kind, region: &lobby.region, node_host: &node.host };
        ports.extend(leased.iter().map(|port| {
            let address = places.addresses.address_of(&port.name, port.protocol, port.exposure, owner);
            (port.name.to_string(), address.into())
        }));
    }
    ports
}

impl From<PlayerAddress> for proto::Port {
    fn from(PlayerAddress { hostname, port, is_tls }: PlayerAddress) -> proto::Port {
        match port {
            PlayerPort::Number(number) => numbered(&hostname, number, is_tls),
            PlayerPort::Range(min, max) => {
                let port_range = Some(proto::PortRange { min: min.into(), max: max.into() });
                proto::Port { hostname, port_range, is_tls, ..proto::Port::default() }
            }
        }
    }
}

fn numbered(hostname: &str, number: u16, is_tls: bool) -> proto::Port {
    let is_ipv6 = hostname.contains(':');
    let host = if is_ipv6 { format!("[{hostname}]:{number}") } else { format!("{hostname}:{number}") };
    proto::Port { host: Some(host), hostname: hostname.to_owned(), port: Some(number.into()), port_range: None, is_tls }
}

/// Answers of lobbies that recently got players. These parts of a lobby never change.
#[derive(Default)]
pub struct LobbyAnswers(Mutex<Halves>);

#[derive(Default)]
struct Halves {
    young: HashMap<Id, Arc<LobbyAnswer>>,
    old: HashMap<Id, Arc<LobbyAnswer>>,
}

impl LobbyAnswers {
    pub fn get(&self, lobby: Id) -> Option<Arc<LobbyAnswer>> {
        let halves = self.0.lock();
        if let Some(answer) = halves.young.get(&lobby) {
            return Some(answer.clone());
        }
        let answer = halves.old.get(&lobby)?.clone();
        drop(halves);
        Some(self.insert(lobby, answer))
    }

    pub fn add(&self, lobby: Id, answer: LobbyAnswer) -> Arc<LobbyAnswer> {
        self.insert(lobby, Arc::new(answer))
    }

    fn insert(&self, lobby: Id, answer: Arc<LobbyAnswer>) -> Arc<LobbyAnswer> {
        let mut halves = self.0.lock();
        let mut replaced = HashMap::new();
        if halves.young.len() >= CACHED_MAX {
            replaced = std::mem::take(&mut halves.young);
            std::mem::swap(&mut replaced, &mut halves.old);
        }
        halves.young.insert(lobby, answer.clone());
        drop(halves);
        drop(replaced);
        answer
    }
}

#[cfg(test)]
mod tests;
