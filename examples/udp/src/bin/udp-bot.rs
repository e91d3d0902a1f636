//! Bots of Stardust. They fly to the nearest star and measure the network.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hosting_example_udp::api::{Api, idempotency_key, plain_url};
use hosting_example_udp::protocol::{DATAGRAM_MAX, Pass, Place, Said, Told, read, write};
use hosting_example_udp::settings::{Settings, number, text};
use hosting_example_udp::{say, world};
use serde_json::{Value, json};

const USAGE: &str = "usage: udp-bot --api http://127.0.0.1:8080 --token-file FILE --mode MODE\n\
    [--count 1] [--seconds 10] [--json]\n\
    --seconds 0: until Ctrl-C.";
const FIND: Duration = Duration::from_secs(60);
/// Longer than the 10 s after which the server rejects an unconfirmed player.
const HELLOS: Duration = Duration::from_secs(15);
const HELLO: Duration = Duration::from_millis(250);
const INPUT: Duration = Duration::from_millis(50);
const PING: Duration = Duration::from_millis(200);

struct Plan {
    api: Api,
    mode: String,
    time: Option<Duration>,
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct Notes {
    failure: Option<String>,
    lobby_id: Option<String>,
    states: u64,
    /// States that did not arrive although a later state did.
    missed: u64,
    gap: Duration,
    round_trips: Vec<Duration>,
    score: u16,
    here: u16,
    moves: u64,
}

fn main() -> ExitCode {
    let mut settings = Settings::read();
    let url = settings.get("--api", "", plain_url);
    // The process list shows arguments, so the token is in a file.
    let token = settings.get("--token-file", "", |path| std::fs::read_to_string(path).map_err(|why| why.to_string()));
    let mode = settings.get("--mode", "", text);
    let count = settings.get("--count", "1", number(1..=10_000));
    let seconds = settings.get("--seconds", "10", number(0..=86_400));
    let is_json = settings.get("--json", "no", text) == "yes";
    let Some(stop) = settings.finish(USAGE) else { return ExitCode::from(2) };
    let time = (seconds > 0).then(|| Duration::from_secs(seconds));
    let plan = Plan { api: Api::new(&url, token.trim()), mode, time, stop };
    let all: Vec<Notes> = thread::scope(|scope| {
        let bots: Vec<_> = (0..count).map(|_| scope.spawn(|| play(&plan))).collect();
        bots.into_iter().filter_map(|bot| bot.join().ok()).collect()
    });
    let report = report(&all);
    match report.as_object() {
        Some(fields) if !is_json => fields.iter().for_each(|(name, value)| say(&format!("{name:<17} {value}"))),
        _ => say(&report.to_string()),
    }
    if report["played"] == count { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play(plan: &Plan) -> Notes {
    let mut notes = Notes::default();
    notes.failure = find(plan).and_then(|found| play_at(plan, &found, &mut notes)).err();
    notes
}

fn find(plan: &Plan) -> Result<Value, String> {
    let (until, key, body) = (Instant::now() + FIND, idempotency_key(), json!({"game_modes": [plan.mode]}));
    let mut tries = 0;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let answer = plan.api.call("lobbies/find", &body, Some(&key), left);
        let pause = answer.pause(tries);
        match answer.status {
            200 => return Ok(answer.body),
            _ if answer.is_decided() => return Err(format!("find: {}", answer.code())),
            status if Instant::now() + pause >= until => return Err(format!("find: STATUS_{status}")),
            _ => thread::sleep(pause),
        }
        tries += 1;
    }
}

fn play_at(plan: &Plan, found: &Value, notes: &mut Notes) -> Result<(), String> {
    let port = &found["ports"]["game"];
    let place = (port["hostname"].as_str(), port["port"].as_u64(), found["player"]["token"].as_str());
    let (Some(host), Some(port), Some(token)) = place else { return Err("find: NO_PLACE".to_owned()) };
    let socket = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect((host, port as u16))?;
        Ok(socket)
    });
    let socket = socket.map_err(|error| format!("failed: {error}"))?;
    let pass = enter(plan, &socket, token)?;
    notes.lobby_id = found["lobby"]["lobby_id"].as_str().map(str::to_owned);
    fly(plan, &socket, pass, notes)?;
    (0..2).for_each(|_| tell(&socket, &Said::Bye(pass)));
    Ok(())
}

fn enter(plan: &Plan, socket: &UdpSocket, token: &str) -> Result<Pass, String> {
    let until = Instant::now() + HELLOS;
    while Instant::now() < until && !plan.stop.load(Ordering::Relaxed) {
        tell(socket, &Said::Hello { token: token.to_owned() });
        match hear(socket, Instant::now() + HELLO) {
            Some(Told::Welcome { pass, .. }) => return Ok(pass),
            Some(Told::Refused(why)) => return Err(format!("refused: {why}")),
            _ => {}
        }
    }
    Err("no answer".to_owned())
}

fn fly(plan: &Plan, socket: &UdpSocket, pass: Pass, notes: &mut Notes) -> Result<(), String> {
    let began = Instant::now();
    let (mut cookie, mut seq, mut direction) = (0, 0, 1 + (pass.id % 8) as u8);
    let (mut next_input, mut next_ping, mut newest) = (began, began, (0, began));
    while !plan.stop.load(Ordering::Relaxed) && plan.time.is_none_or(|time| began.elapsed() < time) {
        let now = Instant::now();
        if now >= next_input {
            (seq, next_input) = (seq + 1, now + INPUT);
            tell(socket, &Said::Input { pass, cookie, seq, direction });
        }
        if now >= next_ping {
            next_ping = now + PING;
            tell(socket, &Said::Ping((began.elapsed().as_nanos() as u64).to_be_bytes().to_vec()));
        }
        match hear(socket, next_input.min(next_ping)) {
            Some(Told::Ended(why)) => return Err(format!("ended: {why}")),
            Some(Told::Path(shown)) => (cookie, notes.moves) = (shown, notes.moves + 1),
            Some(Told::Pong(sent)) => {
                let sent = sent.try_into().map(|sent| Duration::from_nanos(u64::from_be_bytes(sent)));
                notes.round_trips.extend(sent.ok().and_then(|sent| began.elapsed().checked_sub(sent)));
            }
            Some(Told::State { tick, here, players, stars, .. }) if !players.is_empty() => {
                (notes.states, notes.here) = (notes.states + 1, notes.here.max(here));
                if tick <= newest.0 {
                    // A late state was counted as missed when the newer one arrived.
                    notes.missed = notes.missed.saturating_sub(1);
                } else {
                    notes.missed += if newest.0 > 0 { u64::from(tick - newest.0 - 1) } else { 0 };
                    notes.gap = notes.gap.max(newest.1.elapsed());
                    newest = (tick, Instant::now());
                    notes.score = players[0].score;
                    direction = stars.first().map_or(direction, |star| direction_to(players[0].place, *star));
                }
            }
            _ => {}
        }
    }
    notes.gap = notes.gap.max(newest.1.elapsed());
    Ok(())
}

fn direction_to(from: Place, to: Place) -> u8 {
    let (east, south) = world::way(from, to);
    let part = |way: i32, other: i32| if way.abs() > (other.abs() / 2).max(200) { way.signum() } else { 0 };
    let wanted = (part(east, south), part(south, east));
    world::STEPS.iter().position(|(x, y)| (x.signum().into(), y.signum().into()) == wanted).unwrap_or(0) as u8
}

fn tell(socket: &UdpSocket, said: &Said) {
    let _ = socket.send(&write(said));
}

fn hear(socket: &UdpSocket, until: Instant) -> Option<Told> {
    let mut datagram = [0; DATAGRAM_MAX + 1];
    // A timeout of zero is an error.
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    socket.set_read_timeout(Some(left)).ok()?;
    let length = socket.recv(&mut datagram).ok()?;
    read(&datagram[..length])
}

fn report(all: &[Notes]) -> Value {
    let sum = |count: fn(&Notes) -> u64| all.iter().map(count).sum::<u64>();
    let milliseconds = |time: &Duration| time.as_micros() as f64 / 1e3;
    let (mut failures, mut lobbies) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
    all.iter().filter_map(|one| one.failure.as_ref()).for_each(|why| *failures.entry(why).or_default() += 1);
    all.iter().filter_map(|one| one.lobby_id.as_ref()).for_each(|id| *lobbies.entry(id).or_default() += 1);
    let mut round_trips: Vec<_> = all.iter().flat_map(|one| &one.round_trips).collect();
    round_trips.sort_unstable();
    let quantile = |part: f64| round_trips.get((round_trips.len() as f64 * part) as usize).copied().map(milliseconds);
    json!({
        "bots": all.len(),
        "joined": sum(|one| one.lobby_id.is_some().into()),
        "played": sum(|one| one.failure.is_none().into()),
        "failures": failures,
        "lobbies": lobbies,
        "players_here_max": all.iter().map(|one| one.here).max(),
        "score": sum(|one| one.score.into()),
        "states": sum(|one| one.states),
        "states_missed": sum(|one| one.missed),
        "gap_ms_max": all.iter().map(|one| &one.gap).max().map(milliseconds),
        "pongs": round_trips.len(),
        "rtt_ms_p50": quantile(0.50),
        "rtt_ms_p99": quantile(0.99),
        "moves": sum(|one| one.moves),
    })
}
