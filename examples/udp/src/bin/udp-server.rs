//! The server of Stardust: settings, socket and game loop.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use hosting_example_udp::api::{Api, check_http_url};
use hosting_example_udp::protocol::{DATAGRAM_MAX, END_LOBBY_ENDED, END_SERVER_STOPS, read, write};
use hosting_example_udp::settings::{Settings, number, text};
use hosting_example_udp::{log_line, service, service::ServiceEvent, sessions::SessionTable, world::TICKS_PER_SECOND};

const USAGE: &str = "usage: udp-server [--address 127.0.0.1] [--silence-ms 10000]\n\
    The rest is in the environment: HOSTING_API_URL, HOSTING_LOBBY_ID, HOSTING_LOBBY_TOKEN, PORT_GAME or PORT,\n\
    HOSTING_MAX_PLAYERS, HOSTING_MAX_PLAYERS_DIRECT, HOSTING_MAX_PLAYERS_PARTY (32 when not given).";
const TICK: Duration = Duration::from_millis(1000 / TICKS_PER_SECOND);
/// Poll interval for signals and news without players.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let mut settings = Settings::read();
    let url = settings.get("HOSTING_API_URL", "", check_http_url);
    let lobby_id = settings.get("HOSTING_LOBBY_ID", "", text);
    let token = settings.get("HOSTING_LOBBY_TOKEN", "", text);
    let port = if std::env::var_os("PORT_GAME").is_some() { "PORT_GAME" } else { "PORT" };
    let port = settings.get(port, "", number(1..=u16::MAX.into())) as u16;
    let find_limit = settings.get("HOSTING_MAX_PLAYERS", "32", number(1..=256));
    // The limits for joins of one player and of a party can exceed the limit of find.
    let higher_limits = ["HOSTING_MAX_PLAYERS_DIRECT", "HOSTING_MAX_PLAYERS_PARTY"];
    let [direct_limit, party_limit] =
        higher_limits.map(|name| settings.get(name, &find_limit.to_string(), number(1..=256)));
    let bind_address = settings.get("HOSTING_BIND_ADDRESS", "127.0.0.1", text);
    let address = settings.get("--address", &bind_address, text);
    let silence_timeout = Duration::from_millis(settings.get("--silence-ms", "10000", number(100..=3_600_000)));
    let Some(stop) = settings.finish(USAGE) else { return ExitCode::FAILURE };
    let socket = match UdpSocket::bind((address.as_str(), port)) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("cannot bind {address} {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    log_line(&format!("listening on {address}:{port}, lobby {lobby_id}"));
    match play(
        &socket,
        SessionTable::new(find_limit.max(direct_limit).max(party_limit) as u16, silence_timeout),
        Api::new(&url, &token),
        &stop,
    ) {
        Ok(reason) => {
            log_line(&format!("ended: {reason}"));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn play(socket: &UdpSocket, mut sessions: SessionTable, api: Api, stop: &AtomicBool) -> Result<&'static str, String> {
    let (request_sender, events, service_thread) = service::start(api);
    let mut next_step = Instant::now();
    let result = loop {
        let now = Instant::now();
        match events.try_recv() {
            _ if stop.load(Ordering::Relaxed) => break Ok("asked to stop"),
            Ok(ServiceEvent::PlayerDecided(token, decision)) => sessions.apply_decision(token, decision, now),
            Ok(ServiceEvent::LobbyEnded(reason)) => break reason,
            Err(TryRecvError::Disconnected) => break Err("the connection to the service ended".to_owned()),
            Err(TryRecvError::Empty) => {}
        }
        if now >= next_step {
            sessions.step(now);
            // After a stall, missed steps are skipped.
            next_step = (next_step + TICK).max(now);
        }
        send_messages(socket, &mut sessions);
        // If the service thread has ended, `events` reports the end.
        sessions.service_requests.drain(..).for_each(|request| request_sender.send(request));
        let wait = if sessions.is_idle() { IDLE_POLL_INTERVAL } else { next_step.saturating_duration_since(now) };
        receive_message(socket, &mut sessions, wait);
    };
    // Dropping the sender starts the final calls. Meanwhile the end is sent three times, as a datagram may be lost.
    drop(request_sender);
    for _ in 0..3 {
        sessions.end(if stop.load(Ordering::Relaxed) { END_SERVER_STOPS } else { END_LOBBY_ENDED });
        send_messages(socket, &mut sessions);
        std::thread::sleep(TICK);
    }
    service_thread.join().map_err(|_| "the thread of calls has failed")?;
    result
}

fn receive_message(socket: &UdpSocket, sessions: &mut SessionTable, time: Duration) {
    // A timeout of zero is an error. The extra byte detects datagrams that are too long.
    let (time, mut datagram) = (time.max(Duration::from_millis(1)), [0; DATAGRAM_MAX + 1]);
    let received = socket.set_read_timeout(Some(time)).and_then(|()| socket.recv_from(&mut datagram));
    // An error means a timeout, a signal, or an earlier datagram that was not delivered.
    if let Ok((length, from)) = received
        && let Some(message) = read(&datagram[..length])
    {
        sessions.handle_message(message, from, Instant::now());
    }
}

fn send_messages(socket: &UdpSocket, sessions: &mut SessionTable) {
    sessions.outgoing.drain(..).for_each(|(to, message)| drop(socket.send_to(&write(&message), to)));
}
