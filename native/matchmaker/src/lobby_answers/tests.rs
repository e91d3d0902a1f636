//! Response bodies of find and join, and the cache of their equal parts.

use hosting_core::{LeaseNode, LeasedPort, ManagedLobbyView, Port, PortExposure, Protocol, Publicity, SessionCounting};
use serde_json::{Value, json};

use super::*;
use crate::player_addresses::PlayerAddresses;
use crate::regions::Region;

const LOBBY: Id = Id([0, 1, 0x22, 0x33, 0x44, 0x55, 0x46, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
const LOBBY_TEXT: &str = "00012233-4455-4677-8899-aabbccddeeff";

fn places() -> Places {
    Places {
        regions: Regions::new(vec![Region {
            id: "eu".into(),
            provider_display_name: "Frankfurt".into(),
            display_name: "Europe \"West\" <token>".into(),
            coordinates: (50.1, 8.7),
        }]),
        addresses: PlayerAddresses {
            job_domain: Some("play.example.com".into()),
            advertised: "192.0.2.1".into(),
            node: "2001:db8::1".into(),
            has_certificate: false,
        },
    }
}

fn lobby(ports: Vec<Port>, own: Option<Vec<LeasedPort>>) -> LobbyView {
    lobby_at(LeaseNode::default(), ports, own)
}

fn lobby_at(node: LeaseNode, ports: Vec<Port>, own: Option<Vec<LeasedPort>>) -> LobbyView {
    LobbyView {
        id: LOBBY,
        namespace: Id([1; 16]),
        version: Id([2; 16]),
        mode: "duel".into(),
        region: "eu".into(),
        ports,
        max_players: [4; 3],
        is_open: true,
        is_ready: true,
        is_closed: false,
        players: [0; 4],
        create_ts_ms: 0,
        own: own.map(|ports| Box::new(ManagedLobbyView { leased: LeasedPorts { ports, node }, lobby_config: None })),
        publicity: Publicity::Public,
        is_stopping: false,
        is_trial: false,
        tags: Vec::new(),
    }
}

fn attached(name: &str, address: &str, port: u16, is_tls: bool) -> Port {
    Port { name: name.into(), address: address.into(), port, is_tls }
}

fn leased(name: &str, protocol: Protocol, exposure: PortExposure) -> LeasedPort {
    LeasedPort {
        name: name.into(),
        protocol,
        exposure,
        sends_proxy_header: false,
        counting: SessionCounting::Uncounted,
        backend: None,
    }
}

fn body_text(places: &Places, lobby: &LobbyView, tokens: &[&str]) -> String {
    let tokens: Vec<_> = tokens.iter().map(|token| (*token).to_owned()).collect();
    String::from_utf8(LobbyAnswer::new(places, lobby).json(&tokens)).expect("text")
}

fn body(lobby: &LobbyView, tokens: &[&str]) -> Value {
    serde_json::from_str(&body_text(&places(), lobby, tokens)).expect("JSON")
}

/// Returns the ports of a response, which has them twice.
fn ports_of(lobby: &LobbyView) -> Value {
    let body = body(lobby, &["player_a"]);
    assert_eq!(body["ports"], body["lobby"]["ports"]);
    body["ports"].clone()
}

#[test]
fn response_for_one_player() {
    let lobby = lobby(vec![attached("game", "203.0.113.5", 7_777, false)], None);
    let port =
        r#"{"game":{"host":"203.0.113.5:7777","hostname":"203.0.113.5","port":7777,"port_range":null,"is_tls":false}}"#;
    let region = r#"{"region_id":"eu","display_name":"Europe \"West\" <token>"}"#;
    let player = r#"{"token":"player_a"}"#;
    assert_eq!(
        body_text(&places(), &lobby, &["player_a"]),
        format!(
            r#"{{"lobby":{{"lobby_id":"{LOBBY_TEXT}","region":{region},"ports":{port},"player":{player}}},"ports":{port},"player":{player}}}"#
        )
    );
}

#[test]
fn response_for_a_party_lists_all_players() {
    let lobby = lobby(vec![attached("game", "203.0.113.5", 7_777, false)], None);
    let one = body(&lobby, &["player_a"]);
    assert_eq!(one.get("players"), None);
    for party in [&["player_a", "player_b"][..], &["player_a", "player_b", "player_c"]] {
        let mut expected = one.clone();
        expected["players"] = party.iter().map(|token| json!({ "token": token })).collect();
        assert_eq!(body(&lobby, party), expected);
    }
}

#[test]
fn lobby_without_ports_has_an_empty_object() {
    assert_eq!(ports_of(&lobby(vec![], None)), json!({}));
    assert_eq!(ports_of(&lobby(vec![], Some(vec![]))), json!({}));
}

#[test]
fn attached_ports_have_the_address_of_the_lobby_server() {
    let ports = vec![
        attached("web", "lobby.example.com", 443, true),
        attached("game", "2001:db8::7", 7_777, false),
        attached("voice", "203.0.113.5", 1, false),
    ];
    let port = |host: &str, hostname: &str, port: u16, is_tls: bool| json!({ "host": host, "hostname": hostname, "port": port, "port_range": null, "is_tls": is_tls });
    let expected = json!({
        "web": port("lobby.example.com:443", "lobby.example.com", 443, true),
        "game": port("[2001:db8::7]:7777", "2001:db8::7", 7_777, false),
        "voice": port("203.0.113.5:1", "203.0.113.5", 1, false),
    });
    assert_eq!(ports_of(&lobby(ports, None)), expected);
}

#[test]
fn leased_ports_have_their_player_addresses() {
    let ports = vec![
        leased("a", Protocol::Udp, PortExposure::Number(20_001)),
        leased("b", Protocol::TcpTls, PortExposure::Number(20_002)),
        leased("c", Protocol::Https, PortExposure::Host),
        leased("d", Protocol::Udp, PortExposure::Range(30_000, 30_009)),
    ];
    let host = format!("{LOBBY_TEXT}-c.lobby.eu.play.example.com");
    let expected = json!({
        "a": { "host": "eu.play.example.com:20001", "hostname": "eu.play.example.com", "port": 20_001,
               "port_range": null, "is_tls": false },
        "b": { "host": "eu.play.example.com:20002", "hostname": "eu.play.example.com", "port": 20_002,
               "port_range": null, "is_tls": true },
        "c": { "host": format!("{host}:443"), "hostname": host, "port": 443, "port_range": null, "is_tls": true },
        "d": { "host": null, "hostname": "2001:db8::1", "port": null,
               "port_range": { "min": 30_000, "max": 30_009 }, "is_tls": false },
    });
    assert_eq!(ports_of(&lobby(vec![], Some(ports))), expected);
}

#[test]
fn leased_port_of_a_node_is_at_the_host_of_the_node() {
    let node = LeaseNode { name: "node-1".into(), host: "198.51.100.7".into() };
    let port = leased("game", Protocol::Udp, PortExposure::Number(26_001));
    let game = &ports_of(&lobby_at(node, vec![], Some(vec![port])))["game"];
    assert_eq!((&game["host"], &game["port"]), (&json!("198.51.100.7:26001"), &json!(26_001)));
}

#[test]
fn leased_port_at_an_ipv6_address_has_brackets() {
    let mut places = places();
    (places.addresses.job_domain, places.addresses.advertised) = (None, "2001:db8::2".into());
    let lobby = lobby(vec![], Some(vec![leased("game", Protocol::Tcp, PortExposure::Number(20_001))]));
    let body: Value = serde_json::from_str(&body_text(&places, &lobby, &["player_a"])).expect("JSON");
    let game = &body["ports"]["game"];
    assert_eq!((&game["host"], &game["hostname"]), (&json!("[2001:db8::2]:20001"), &json!("2001:db8::2")));
}

#[test]
fn removed_region_has_its_id_as_name() {
    let removed = LobbyView { region: "us".into(), ..lobby(vec![], None) };
    let region = body(&removed, &["player_a"])["lobby"]["region"].clone();
    assert_eq!(region, json!({ "region_id": "us", "display_name": "us" }));
}

fn id(number: usize) -> Id {
    Id((number as u128).to_be_bytes())
}

fn answer(number: usize) -> LobbyAnswer {
    LobbyAnswer { json: vec![number.to_be_bytes().to_vec()], proto_lobby: Vec::new(), proto_ports: Vec::new() }
}

fn cached_number(answers: &LobbyAnswers, number: usize) -> Option<Vec<u8>> {
    answers.get(id(number)).map(|answer| answer.json[0].clone())
}

#[test]
fn cache_returns_the_answer_of_the_lobby() {
    let answers = LobbyAnswers::default();
    assert_eq!(cached_number(&answers, 1), None);
    answers.add(id(1), answer(1));
    answers.add(id(2), answer(2));
    assert_eq!(cached_number(&answers, 1), Some(1_usize.to_be_bytes().to_vec()));
    assert_eq!(cached_number(&answers, 2), Some(2_usize.to_be_bytes().to_vec()));
    assert_eq!(cached_number(&answers, 3), None);
}

#[test]
fn cache_is_bounded_and_keeps_recent_lobbies() {
    let answers = LobbyAnswers::default();
    for number in 0..5 * CACHED_MAX {
        answers.add(id(number), answer(number));
        assert_eq!(cached_number(&answers, 0), Some(0_usize.to_be_bytes().to_vec()), "a lobby in use, {number}");
        let halves = answers.0.lock();
        assert!(halves.young.len() <= CACHED_MAX && halves.old.len() <= CACHED_MAX);
    }
    let last = 5 * CACHED_MAX - 1;
    let recent = last - CACHED_MAX + 2..=last;
    assert!(recent.into_iter().all(|number| answers.0.lock().has(id(number))));
    assert_eq!(cached_number(&answers, 1), None, "a lobby that no player joins");
}

impl Halves {
    fn has(&self, lobby: Id) -> bool {
        self.young.contains_key(&lobby) || self.old.contains_key(&lobby)
    }
}

#[test]
fn protobuf_response_has_the_fields_of_the_json_one() {
    let lobby = lobby(
        vec![attached("game", "203.0.113.5", 7_777, true)],
        Some(vec![leased("d", Protocol::Udp, PortExposure::Range(30_000, 30_009))]),
    );
    for tokens in [&["player_a"][..], &["player_a", "player_b", "player_c"]] {
        let tokens: Vec<_> = tokens.iter().map(|token| (*token).to_owned()).collect();
        let (mut message, answer) = (b"before ".to_vec(), LobbyAnswer::new(&places(), &lobby));
        answer.write_proto(&tokens, &mut message);
        let message = message.strip_prefix(b"before ").expect("the message is appended");
        let response = proto::FindLobbyResponse::decode(message).expect("a message");
        assert_eq!(message, response.encode_to_vec(), "the fields are in order");
        let json: Value = serde_json::from_slice(&answer.json(&tokens)).expect("JSON");
        assert_eq!(serde_json::to_value(response).expect("JSON"), json);
    }
}
