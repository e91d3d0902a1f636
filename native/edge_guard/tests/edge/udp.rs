//! UDP sessions: separation of players, floods, and changes of backends.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::backends::{ask_datagram, connect_datagram, echo_datagram, speak_from, udp, udp_echo};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::wait::wait_for;

#[test]
fn each_player_has_a_separate_session() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let server = udp(|datagram, from| Some(format!("{} {}", String::from_utf8_lossy(datagram), from.port()).into()));
    guard.source.serve_route(&route("a", "udp", port, Some(server)));
    let exchange = |socket: &UdpSocket, text: &str| {
        socket.send(text.as_bytes()).unwrap();
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    let players: Vec<_> = (0..20).map(|_| connect_datagram(port)).collect();
    let first: Vec<String> = players.iter().enumerate().map(|(n, player)| exchange(player, &n.to_string())).collect();
    let repeated: Vec<String> =
        players.iter().enumerate().map(|(n, player)| exchange(player, &n.to_string())).collect();
    assert_eq!(first, repeated, "a session changed its address");
    let seen: std::collections::BTreeSet<&str> = first.iter().map(|text| text.split(' ').nth(1).unwrap()).collect();
    assert_eq!(seen.len(), 20, "the server cannot tell players apart");
    assert_eq!(guard.figure("datagram_sessions"), 20);
}

#[test]
fn largest_and_empty_datagrams_are_relayed() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    let player = connect_datagram(port);
    for length in [65_507, 0, 1_472] {
        let sent: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        player.send(&sent).unwrap();
        let mut answer = vec![0; 65_536];
        let received = player.recv(&mut answer).unwrap();
        assert!(answer[..received] == sent, "{length} bytes came back as {received}");
    }
}

#[test]
fn backend_burst_arrives_complete_and_in_order() {
    const BURST: u32 = 200;
    let guard = EdgeProcess::start_with(json!({"workers": 1}));
    let port = free_port();
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    guard.source.serve_route(&route("a", "udp", port, server.local_addr().ok()));
    let players = [connect_datagram(port), connect_datagram(port)];
    let sessions = players.each_ref().map(|player| {
        player.send(b"in").unwrap();
        server.recv_from(&mut [0; 8]).unwrap().1
    });
    for number in 0..BURST {
        server.send_to(&number.to_le_bytes(), sessions[0]).unwrap();
    }
    server.send_to(b"one", sessions[1]).unwrap();
    let mut answer = [0; 8];
    for number in 0..BURST {
        assert_eq!(players[0].recv(&mut answer).unwrap(), 4, "the rest of {BURST} after {number}");
        assert_eq!(answer[..4], number.to_le_bytes());
    }
    assert_eq!(players[1].recv(&mut answer).unwrap(), 3);
}

#[test]
fn sessions_survive_a_short_backend_outage() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    guard.source.serve_route(&route("a", "udp", port, Some(address)));
    let player = connect_datagram(port);
    player.send(b"one").unwrap();
    let (_, session) = server.recv_from(&mut [0; 8]).unwrap();
    drop(server);
    // The kernel reports the closed port to the session's socket.
    (0..10).for_each(|_| drop(player.send(b"lost")));
    guard.wait_for_figure("datagrams_total{way=\"in\"}", |passed| passed >= 10);
    let server = UdpSocket::bind(address).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let repeated = wait_for("the process receives the datagram", || {
        player.send(b"two").unwrap();
        Some(server.recv_from(&mut [0; 8]).ok()?.1)
    });
    assert_eq!(repeated, session, "the player has another session");
    server.send_to(b"welcome back", repeated).unwrap();
    assert_eq!(player.recv(&mut [0; 32]).unwrap(), 12);
}

#[test]
fn idle_session_ends() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"datagram_idle_ms": 300}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    echo_datagram(&connect_datagram(port), "hello");
    guard.wait_for_figure("datagram_sessions_ended_total{reason=\"idle\"}", |ended| ended == 1);
    assert_eq!(guard.figure("datagram_sessions"), 0);
}

/// Sends datagrams from many sources like a spoofer, which receives no replies, and sends them again after `meanwhile`.
fn spoof(ports: &[u16], sources: std::ops::Range<u32>, meanwhile: impl FnOnce()) {
    let spoofed: Vec<_> = sources
        .map(|source| {
            let [_, a, b, c] = source.to_be_bytes();
            let from = UdpSocket::bind((std::net::Ipv4Addr::new(127, 1 + a, b, c), 0)).unwrap();
            (from, ("127.0.0.1", ports[source as usize % ports.len()]))
        })
        .collect();
    let connect_datagram = || spoofed.iter().for_each(|(from, to)| drop(from.send_to(b"who are you", to)));
    connect_datagram();
    meanwhile();
    connect_datagram();
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn spoofed_flood_is_bounded_and_evicts_no_player() {
    let bounds = json!({"limits": {"datagram_sessions": 600, "datagram_sessions_per_second": 100_000}});
    let guard = EdgeProcess::start_with(bounds);
    let (port, quiet) = (free_port(), free_port());
    // Sends the session's address to real players only.
    let server = || udp(|datagram, from| datagram.starts_with(b"play").then(|| from.port().to_string().into()));
    guard.source.put(&[route("a", "udp", port, Some(server())), route("b", "udp", quiet, Some(server()))]);
    guard.source.wait_for("a", crate::wire::OutcomeKind::Listening);
    guard.source.wait_for("b", crate::wire::OutcomeKind::Listening);
    let players: Vec<_> = (0..50).map(|n| connect_datagram(if n % 2 == 0 { port } else { quiet })).collect();
    let session_of = || -> Vec<String> { players.iter().map(|player| ask_datagram(player, "play")).collect() };
    let first = session_of();
    assert_eq!(session_of(), first);
    let (memory, descriptors) = (guard.memory(), guard.descriptors());
    for chunk in 0..1_000 {
        spoof(&[port], chunk * 100..(chunk + 1) * 100, || ());
        if chunk % 50 == 0 {
            assert_eq!(session_of(), first, "a player was moved to another session");
        }
    }
    assert_eq!(session_of(), first, "a player was moved to another session");
    assert!(guard.figure("datagram_sessions") <= 600);
    guard.has_at_most(descriptors + 600);
    assert!(guard.memory() < memory + 8 * 1024 * 1024, "{} from {memory}", guard.memory());
    assert!(guard.figure("datagram_sessions_ended_total{reason=\"displaced\"}") > 10_000);
}

/// Starts one UDP thread with flooded ports and a quiet port. Backends reply with the address of the session.
fn with_ports(flooded: usize, limits: serde_json::Value) -> (EdgeProcess, Vec<u16>, u16) {
    let guard = EdgeProcess::start_with(json!({"workers": 1, "limits": limits}));
    let ports: Vec<u16> = (0..=flooded).map(|_| free_port()).collect();
    let server = || udp(|_, from| Some(from.port().to_string().into()));
    let owners: Vec<String> = ports.iter().map(|port| format!("of {port}")).collect();
    let routes = owners.iter().zip(&ports).map(|(owner, port)| route(owner, "udp", *port, Some(server())));
    guard.source.put(&routes.collect::<Vec<_>>());
    owners.iter().for_each(|owner| drop(guard.source.wait_for(owner, crate::wire::OutcomeKind::Listening)));
    (guard, ports[..flooded].to_vec(), ports[flooded])
}

#[test]
fn answered_flood_fills_only_its_own_port() {
    let limits = json!({
        "datagram_sessions": 400, "datagram_sessions_per_route": 100, "datagram_sessions_per_second": 100_000,
    });
    let (guard, flooded, quiet) = with_ports(1, limits);
    let session_of = |player: &UdpSocket| ask_datagram(player, "who am I");
    let mut players: Vec<_> = (0..20).map(|n| connect_datagram(if n % 2 == 0 { flooded[0] } else { quiet })).collect();
    let descriptors = guard.descriptors();
    let mut first: Vec<String> = players.iter().map(session_of).collect();
    // In chunks that fit, so that sessions do not evict each other before they speak again.
    for chunk in 0..200 {
        spoof(&flooded, chunk * 10..(chunk + 1) * 10, || {
            assert_eq!(
                players.iter().map(session_of).collect::<Vec<_>>(),
                first,
                "a player was moved to another session"
            );
        });
        if chunk % 5 == 4 {
            players.push(connect_datagram(quiet));
            first.push(session_of(players.last().unwrap()));
        }
    }
    assert_eq!(players.iter().map(session_of).collect::<Vec<_>>(), first, "{}", guard.ask("GET", "/metrics"));
    // The sessions of the flooded port, and 10 earlier and 40 concurrent players.
    let most = 100 + 50;
    assert!(guard.figure("datagram_sessions") <= most, "{}", guard.figure("datagram_sessions"));
    guard.has_at_most(descriptors + most as usize);
    assert!(guard.figure("datagrams_dropped_total{reason=\"sessions_per_route\"}") > 1_000);
    assert_eq!(guard.figure("datagrams_dropped_total{reason=\"sessions_full\"}"), 0);
}

#[test]
fn flooded_ports_make_room_for_players_of_other_ports() {
    // The thread is full before any port is.
    let limits = json!({"datagram_sessions": 300, "datagram_sessions_per_second": 100_000});
    let (guard, flooded, quiet) = with_ports(3, limits);
    let session_of = |player: &UdpSocket| ask_datagram(player, "who am I");
    let descriptors = guard.descriptors();
    let mut players: Vec<_> = flooded.iter().map(|port| connect_datagram(*port)).collect();
    let mut first: Vec<String> = players.iter().map(session_of).collect();
    for chunk in 0..100 {
        spoof(&flooded, chunk * 10..(chunk + 1) * 10, || {
            assert_eq!(
                players.iter().map(session_of).collect::<Vec<_>>(),
                first,
                "a player was moved to another session"
            );
        });
        if chunk >= 40 {
            let started = Instant::now();
            players.push(connect_datagram(quiet));
            first.push(session_of(players.last().unwrap()));
            assert!(started.elapsed() < Duration::from_secs(5), "it waited until the flood was no longer in use");
        }
    }
    assert_eq!(players.iter().map(session_of).collect::<Vec<_>>(), first, "{}", guard.ask("GET", "/metrics"));
    assert_eq!(guard.figure("datagram_sessions"), 300);
    guard.has_at_most(descriptors + 300);
    assert_eq!(guard.figure("datagrams_dropped_total{reason=\"sessions_per_route\"}"), 0);
}

#[test]
fn flood_above_the_session_rate_does_not_block_other_ports() {
    let limits = json!({"datagram_sessions_per_route": 50, "datagram_sessions_per_second": 100});
    let (guard, flooded, quiet) = with_ports(1, limits);
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flood = std::thread::spawn({
        let (is_over, flooded) = (is_over.clone(), flooded[0]);
        // Each datagram has another source.
        move || {
            for source in (0_u32..).take_while(|_| !is_over.load(SeqCst)) {
                let [_, a, b, c] = source.to_be_bytes();
                let from = UdpSocket::bind((std::net::Ipv4Addr::new(127, 1 + a, b, c), 0)).unwrap();
                drop(from.send_to(b"who are you", ("127.0.0.1", flooded)));
            }
        }
    });
    let refused = || guard.figure("datagrams_dropped_total{reason=\"sessions_rate\"}");
    for count in 1..=20 {
        wait_for("the flood has all that it may have", || (refused() > count * 100).then_some(()));
        // With its first datagram, which is not repeated.
        let newcomer = connect_datagram(quiet);
        newcomer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        newcomer.send(b"let me in").unwrap();
        newcomer.recv(&mut [0; 16]).expect("it was not let in");
    }
    // The flooded port gets new players as well, beyond the reserved rate.
    guard.wait_for_figure("datagram_sessions_ended_total{reason=\"displaced\"}", |displaced| displaced > 0);
    is_over.store(true, SeqCst);
    flood.join().unwrap();
}

#[test]
fn session_rate_is_limited() {
    let guard = EdgeProcess::start_with(json!({"workers": 1, "limits": {"datagram_sessions_per_second": 5}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    for source in 1..=200 {
        speak_from(&format!("127.3.0.{source}"), port).send(b"new").unwrap();
    }
    guard.wait_for_figure("datagrams_dropped_total{reason=\"sessions_rate\"}", |dropped| dropped > 100);
}

#[test]
fn sessions_per_address_are_limited() {
    let guard = EdgeProcess::start_with(json!({"limits": {"datagram_sessions_per_address": 3}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    let players: Vec<_> = (0..3).map(|_| connect_datagram(port)).collect();
    players.iter().for_each(|player| (0..2).for_each(|_| echo_datagram(player, "in")));
    connect_datagram(port).send(b"one too many").unwrap();
    guard.wait_for_figure("datagrams_dropped_total{reason=\"sessions_per_address\"}", |dropped| dropped == 1);
    echo_datagram(&speak_from("127.4.4.4", port), "another client");
}

#[test]
fn spoofed_source_ports_do_not_keep_their_address_out() {
    let guard = EdgeProcess::start_with(json!({"workers": 1, "limits": {"datagram_sessions_per_address": 8}}));
    let (port, other) = (free_port(), free_port());
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    guard.source.serve_route(&route("b", "udp", other, Some(udp_echo())));
    let player = connect_datagram(port);
    (0..2).for_each(|_| echo_datagram(&player, "confirmed"));
    let spoofed: Vec<_> = (0..40).map(|n| connect_datagram(if n % 2 == 0 { port } else { other })).collect();
    spoofed.iter().for_each(|source| assert_eq!(source.send(b"spoofed").unwrap(), 7));
    guard.wait_for_figure("datagram_sessions_ended_total{reason=\"displaced\"}", |ended| ended == 33);
    assert_eq!(guard.figure("datagram_sessions"), 8);
    let late = connect_datagram(other);
    (0..2).for_each(|_| echo_datagram(&late, "a late player of this address"));
    echo_datagram(&player, "still there");
    assert_eq!(guard.figure("datagrams_dropped_total{reason=\"sessions_per_address\"}"), 0);
}

#[test]
fn packets_of_a_session_and_a_port_are_limited() {
    for (limit, reason) in [("session", "session_rate"), ("port", "port_rate")] {
        let name = format!("datagram_{limit}_packets_per_second");
        let guard = EdgeProcess::start_with(json!({"workers": 1, "limits": {name: 20}}));
        let (port, other) = (free_port(), free_port());
        guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
        guard.source.serve_route(&route("b", "udp", other, Some(udp_echo())));
        let player = connect_datagram(port);
        (0..100).for_each(|_| assert_eq!(player.send(b"flood").unwrap(), 5));
        guard.wait_for_figure(&format!("datagrams_dropped_total{{reason=\"{reason}\"}}"), |dropped| dropped >= 60);
        echo_datagram(&connect_datagram(other), "another port");
        assert_eq!(ask_datagram(&player, "flood"), "flood", "a later second");
    }
}

#[test]
fn flood_of_new_sources_leaves_half_of_the_port_rate_to_established_sessions() {
    let guard = EdgeProcess::start_with(json!({"workers": 1, "limits": {"datagram_port_packets_per_second": 40}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    let player = connect_datagram(port);
    // The second datagram comes after a reply, and establishes the session.
    (0..2).for_each(|_| echo_datagram(&player, "established"));
    for _ in 0..4 {
        let sources: Vec<_> = (0..80).map(|_| connect_datagram(port)).collect();
        sources.iter().for_each(|source| assert_eq!(source.send(b"flood").unwrap(), 5));
        echo_datagram(&player, "within the reserved half");
    }
    assert!(guard.figure("datagrams_dropped_total{reason=\"port_rate\"}") > 0);
}

#[test]
fn sessions_per_port_are_limited_also_after_sighup() {
    let limits = |per_route| json!({"datagram_sessions_per_route": per_route});
    let (mut guard, full, other) = with_ports(1, limits(2));
    let inside = [connect_datagram(full[0]), connect_datagram(full[0])];
    let session_of = |player: &UdpSocket| ask_datagram(player, "who am I");
    let first = inside.each_ref().map(session_of);
    assert_eq!(inside.each_ref().map(session_of), first);
    let late = connect_datagram(full[0]);
    late.send(b"one too many").unwrap();
    guard.wait_for_figure("datagrams_dropped_total{reason=\"sessions_per_route\"}", |dropped| dropped == 1);
    session_of(&connect_datagram(other));
    guard.set("limits", limits(3));
    guard.signal(libc::SIGHUP);
    session_of(&late);
    assert_eq!(inside.each_ref().map(session_of), first, "no session is evicted");
}

#[test]
fn unanswered_session_sends_nothing_to_the_player() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let received = Arc::new(AtomicU64::new(0));
    let sum = received.clone();
    let server = udp(move |datagram, _: SocketAddr| {
        sum.fetch_add(datagram.len() as u64, SeqCst);
        None
    });
    guard.source.serve_route(&route("a", "udp", port, Some(server)));
    let player = connect_datagram(port);
    (0..50).for_each(|_| assert_eq!(player.send(&[1; 100]).unwrap(), 100));
    wait_for("all of it arrives", || (received.load(SeqCst) == 5_000).then_some(()));
    assert_eq!(guard.figure("datagram_bytes_total{way=\"out\"}"), 0);
    player.set_nonblocking(true).unwrap();
    assert!(player.recv(&mut [0; 8]).is_err(), "an unexpected datagram arrived");
}

#[test]
fn old_datagrams_never_reach_the_next_lobby_of_a_port() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    guard.source.serve_route(&route("a", "udp", port, first.local_addr().ok()));
    let old = connect_datagram(port);
    old.send(b"of the first lobby").unwrap();
    let (_, session) = first.recv_from(&mut [0; 32]).unwrap();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flood = std::thread::spawn({
        let (is_over, old) = (is_over.clone(), old.try_clone().unwrap());
        // A closed port fails the next call.
        move || {
            while !is_over.load(SeqCst) {
                let _ = old.send(b"of the first lobby");
            }
        }
    });
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", crate::wire::OutcomeKind::Removed);
    // The quarantine of the port between two lobbies is longer than the flood.
    is_over.store(true, SeqCst);
    flood.join().unwrap();
    let second = UdpSocket::bind("127.0.0.1:0").unwrap();
    guard.source.serve_route(&route("b", "udp", port, second.local_addr().ok()));
    let new = connect_datagram(port);
    new.send(b"of the second lobby").unwrap();
    let mut buffer = [0; 64];
    let (length, of_new) = second.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"of the second lobby", "the new datagram arrived first, so no old one was stored");
    assert_ne!(of_new, session);
    // The process of the first lobby still sends to its player.
    first.send_to(b"late", session).unwrap();
    second.send_to(b"welcome", of_new).unwrap();
    assert_eq!(new.recv(&mut buffer).unwrap(), 7);
    old.set_nonblocking(true).unwrap();
    let is_echo = |received: &std::io::Result<usize>| {
        received.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    let received = std::iter::repeat_with(|| old.recv(&mut [0; 64])).find(|received| !is_echo(received)).unwrap();
    assert_eq!(received.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it receives a datagram of an ended game");
}

#[test]
fn changed_backend_receives_the_players() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let named = |name: &'static str| udp(move |_, _| Some(name.into()));
    guard.source.serve_route(&route("a", "udp", port, Some(named("first"))));
    let player = connect_datagram(port);
    assert_eq!(ask_datagram(&player, "who"), "first");
    guard.source.serve_route(&route("a", "udp", port, Some(named("second"))));
    wait_for("the second answers", || (ask_datagram(&player, "who") == "second").then_some(()));
    assert_eq!(guard.figure("datagram_sessions"), 1);
}
