//! The server of Stardust: settings, socket and game loop.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use hosting_example_udp::api::{Api, plain_url};
use hosting_example_udp::protocol::{DATAGRAM_MAX, LOBBY_ENDED, SERVER_STOPS, read, write};
use hosting_example_udp::settings::{Settings, number, text};
use hosting_example_udp::{say, seats::Seats, service, service::News, world::TICKS_PER_SECOND};

const USAGE: &str = "usage: udp-server [--address 127.0.0.1] [--silence-ms 10000]\n\
    The rest is in the environment: HOSTING_API_URL, HOSTING_LOBBY_ID, HOSTING_LOBBY_TOKEN, PORT_GAME or PORT,\n\
    HOSTING_MAX_PLAYERS, HOSTING_MAX_PLAYERS_DIRECT, HOSTING_MAX_PLAYERS_PARTY (32 when not given).";
const TICK: Duration = Duration::from_millis(1000 / TICKS_PER_SECOND);
/// Poll interval for signals and news without players.
const REST: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let mut settings = Settings::read();
    let url = settings.get("HOSTING_API_URL", "", plain_url);
    let lobby_id = settings.get("HOSTING_LOBBY_ID", "", text);
    let token = settings.get("HOSTING_LOBBY_TOKEN", "", text);
    let port = if std::env::var_os("PORT_GAME").is_some() { "PORT_GAME" } else { "PORT" };
    let port = settings.get(port, "", number(1..=u16::MAX.into())) as u16;
    let find = settings.get("HOSTING_MAX_PLAYERS", "32", number(1..=256));
    // The limits for joins of one player and of a party can exceed the limit of find.
    let above = ["HOSTING_MAX_PLAYERS_DIRECT", "HOSTING_MAX_PLAYERS_PARTY"];
    let [direct, party] = above.map(|name| settings.get(name, &find.to_string(), number(1..=256)));
    let address = settings.get("--address", "127.0.0.1", text);
    let silence = Duration::from_millis(settings.get("--silence-ms", "10000", number(100..=3_600_000)));
    let Some(stop) = settings.finish(USAGE) else { return ExitCode::FAILURE };
    let socket = match UdpSocket::bind((address.as_str(), port)) {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("cannot bind {address} {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    say(&format!("listening on {address}:{port}, lobby {lobby_id}"));
    match play(&socket, Seats::new(find.max(direct).max(party) as u16, silence), Api::new(&url, &token), &stop) {
        Ok(why) => {
            say(&format!("ended: {why}"));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn play(socket: &UdpSocket, mut seats: Seats, api: Api, stop: &AtomicBool) -> Result<&'static str, String> {
    let (orders, news, calls) = service::start(api);
    let mut next_step = Instant::now();
    let over = loop {
        let now = Instant::now();
        match news.try_recv() {
            _ if stop.load(Ordering::Relaxed) => break Ok("asked to stop"),
            Ok(News::Decided(token, decision)) => seats.decided(token, decision, now),
            Ok(News::Over(why)) => break why,
            Err(TryRecvError::Disconnected) => break Err("the connection to the service ended".to_owned()),
            Err(TryRecvError::Empty) => {}
        }
        if now >= next_step {
            seats.step(now);
            // After a stall, missed steps are skipped.
            next_step = (next_step + TICK).max(now);
        }
        tell(socket, &mut seats);
        // If the service thread has ended, `news` reports the end.
        seats.orders.drain(..).for_each(|order| drop(orders.send(order)));
        let wait = if seats.is_idle() { REST } else { next_step.saturating_duration_since(now) };
        listen(socket, &mut seats, wait);
    };
    // Closing the channel starts the final calls. Meanwhile the end is sent three times, as a datagram may be lost.
    drop(orders);
    for _ in 0..3 {
        seats.end(if stop.load(Ordering::Relaxed) { SERVER_STOPS } else { LOBBY_ENDED });
        tell(socket, &mut seats);
        std::thread::sleep(TICK);
    }
    calls.join().map_err(|_| "the thread of calls has failed")?;
    over
}

fn listen(socket: &UdpSocket, seats: &mut Seats, time: Duration) {
    // A timeout of zero is an error. The extra byte detects datagrams that are too long.
    let (time, mut datagram) = (time.max(Duration::from_millis(1)), [0; DATAGRAM_MAX + 1]);
    let heard = socket.set_read_timeout(Some(time)).and_then(|()| socket.recv_from(&mut datagram));
    // An error means a timeout, a signal, or an earlier datagram that was not delivered.
    if let Ok((length, from)) = heard
        && let Some(said) = read(&datagram[..length])
    {
        seats.take(said, from, Instant::now());
    }
}

fn tell(socket: &UdpSocket, seats: &mut Seats) {
    seats.told.drain(..).for_each(|(to, told)| drop(socket.send_to(&write(&told), to)));
}
