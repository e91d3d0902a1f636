//! Bots of Stardust. They fly to the nearest star and measure the network.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hosting_example_udp::api::{Api, check_http_url, idempotency_key};
use hosting_example_udp::protocol::{ClientMessage, DATAGRAM_MAX, Position, ServerMessage, SessionPass, read, write};
use hosting_example_udp::settings::{Settings, number, text};
use hosting_example_udp::{log_line, world};
use serde_json::{Value, json};

const USAGE: &str = "usage: udp-bot --api http://127.0.0.1:8080 --token-file FILE --mode MODE\n\
    [--count 1] [--seconds 10] [--json]\n\
    --seconds 0: until Ctrl-C.";
const FIND_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than the 10 s after which the server rejects an unconfirmed player.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const HELLO_INTERVAL: Duration = Duration::from_millis(250);
const INPUT_INTERVAL: Duration = Duration::from_millis(50);
const PING_INTERVAL: Duration = Duration::from_millis(200);

struct BotOptions {
    api: Api,
    mode: String,
    time: Option<Duration>,
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct BotResult {
    failure: Option<String>,
    lobby_id: Option<String>,
    states: u64,
    /// States that did not arrive although a later state did.
    missed_states: u64,
    longest_gap: Duration,
    round_trips: Vec<Duration>,
    score: u16,
    player_total: u16,
    address_changes: u64,
}

fn main() -> ExitCode {
    let mut settings = Settings::read();
    let url = settings.get("--api", "", check_http_url);
    // The process list shows arguments, so the token is in a file.
    let token =
        settings.get("--token-file", "", |path| std::fs::read_to_string(path).map_err(|reason| reason.to_string()));
    let mode = settings.get("--mode", "", text);
    let count = settings.get("--count", "1", number(1..=10_000));
    let seconds = settings.get("--seconds", "10", number(0..=86_400));
    let is_json = settings.get("--json", "no", text) == "yes";
    let Some(stop) = settings.finish(USAGE) else { return ExitCode::from(2) };
    let time = (seconds > 0).then(|| Duration::from_secs(seconds));
    let options = BotOptions { api: Api::new(&url, token.trim()), mode, time, stop };
    let results: Vec<BotResult> = thread::scope(|scope| {
        let bots: Vec<_> = (0..count).map(|_| scope.spawn(|| run_bot(&options))).collect();
        bots.into_iter().filter_map(|bot| bot.join().ok()).collect()
    });
    let report = report(&results);
    match report.as_object() {
        Some(fields) if !is_json => fields.iter().for_each(|(name, value)| log_line(&format!("{name:<17} {value}"))),
        _ => log_line(&report.to_string()),
    }
    if report["played"] == count { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_bot(options: &BotOptions) -> BotResult {
    let mut result = BotResult::default();
    result.failure = find_lobby(options).and_then(|reservation| play_lobby(options, &reservation, &mut result)).err();
    result
}

fn find_lobby(options: &BotOptions) -> Result<Value, String> {
    let (deadline, key, body) =
        (Instant::now() + FIND_TIMEOUT, idempotency_key(), json!({"game_modes": [options.mode]}));
    let mut attempts = 0;
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let response = options.api.call("lobbies/find", &body, Some(&key), remaining);
        let pause = response.retry_delay(attempts);
        match response.status {
            200 => return Ok(response.body),
            _ if response.is_outcome_known() => return Err(format!("find: {}", response.error_code())),
            status if Instant::now() + pause >= deadline => return Err(format!("find: STATUS_{status}")),
            _ => thread::sleep(pause),
        }
        attempts += 1;
    }
}

fn play_lobby(options: &BotOptions, reservation: &Value, result: &mut BotResult) -> Result<(), String> {
    let port = &reservation["ports"]["game"];
    let endpoint = (port["hostname"].as_str(), port["port"].as_u64(), reservation["player"]["token"].as_str());
    let (Some(host), Some(port), Some(token)) = endpoint else { return Err("find: NO_PLACE".to_owned()) };
    let socket = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect((host, port as u16))?;
        Ok(socket)
    });
    let socket = socket.map_err(|error| format!("failed: {error}"))?;
    let pass = connect(options, &socket, token)?;
    result.lobby_id = reservation["lobby"]["lobby_id"].as_str().map(str::to_owned);
    play_game(options, &socket, pass, result)?;
    (0..2).for_each(|_| send(&socket, &ClientMessage::Bye(pass)));
    Ok(())
}

fn connect(options: &BotOptions, socket: &UdpSocket, token: &str) -> Result<SessionPass, String> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    while Instant::now() < deadline && !options.stop.load(Ordering::Relaxed) {
        send(socket, &ClientMessage::Hello { token: token.to_owned() });
        match receive(socket, Instant::now() + HELLO_INTERVAL) {
            Some(ServerMessage::Welcome { pass, .. }) => return Ok(pass),
            Some(ServerMessage::Refused(reason)) => return Err(format!("refused: {reason}")),
            _ => {}
        }
    }
    Err("no answer".to_owned())
}

fn play_game(
    options: &BotOptions,
    socket: &UdpSocket,
    pass: SessionPass,
    result: &mut BotResult,
) -> Result<(), String> {
    let started = Instant::now();
    let (mut cookie, mut seq, mut direction) = (0, 0, 1 + (pass.id % 8) as u8);
    let (mut next_input, mut next_ping, mut newest) = (started, started, (0, started));
    while !options.stop.load(Ordering::Relaxed) && options.time.is_none_or(|time| started.elapsed() < time) {
        let now = Instant::now();
        if now >= next_input {
            (seq, next_input) = (seq + 1, now + INPUT_INTERVAL);
            send(socket, &ClientMessage::Input { pass, cookie, seq, direction });
        }
        if now >= next_ping {
            next_ping = now + PING_INTERVAL;
            send(socket, &ClientMessage::Ping((started.elapsed().as_nanos() as u64).to_be_bytes().to_vec()));
        }
        match receive(socket, next_input.min(next_ping)) {
            Some(ServerMessage::Ended(reason)) => return Err(format!("ended: {reason}")),
            Some(ServerMessage::Path(new_cookie)) => {
                (cookie, result.address_changes) = (new_cookie, result.address_changes + 1)
            }
            Some(ServerMessage::Pong(sent)) => {
                let sent = sent.try_into().map(|sent| Duration::from_nanos(u64::from_be_bytes(sent)));
                result.round_trips.extend(sent.ok().and_then(|sent| started.elapsed().checked_sub(sent)));
            }
            Some(ServerMessage::State { tick, player_total, players, stars, .. }) if !players.is_empty() => {
                (result.states, result.player_total) = (result.states + 1, result.player_total.max(player_total));
                if tick <= newest.0 {
                    // A late state was counted as missed when the newer one arrived.
                    result.missed_states = result.missed_states.saturating_sub(1);
                } else {
                    result.missed_states += if newest.0 > 0 { u64::from(tick - newest.0 - 1) } else { 0 };
                    result.longest_gap = result.longest_gap.max(newest.1.elapsed());
                    newest = (tick, Instant::now());
                    result.score = players[0].score;
                    direction = stars.first().map_or(direction, |star| direction_to(players[0].position, *star));
                }
            }
            _ => {}
        }
    }
    result.longest_gap = result.longest_gap.max(newest.1.elapsed());
    Ok(())
}

fn direction_to(from: Position, to: Position) -> u8 {
    let (east, south) = world::offset(from, to);
    let axis_step =
        |component: i32, other: i32| if component.abs() > (other.abs() / 2).max(200) { component.signum() } else { 0 };
    let step = (axis_step(east, south), axis_step(south, east));
    world::STEPS.iter().position(|(x, y)| (x.signum().into(), y.signum().into()) == step).unwrap_or(0) as u8
}

fn send(socket: &UdpSocket, message: &ClientMessage) {
    let _ = socket.send(&write(message));
}

fn receive(socket: &UdpSocket, deadline: Instant) -> Option<ServerMessage> {
    let mut datagram = [0; DATAGRAM_MAX + 1];
    // A timeout of zero is an error.
    let remaining = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    socket.set_read_timeout(Some(remaining)).ok()?;
    let length = socket.recv(&mut datagram).ok()?;
    read(&datagram[..length])
}

fn report(results: &[BotResult]) -> Value {
    let sum = |count: fn(&BotResult) -> u64| results.iter().map(count).sum::<u64>();
    let milliseconds = |time: &Duration| time.as_micros() as f64 / 1e3;
    let (mut failures, mut lobbies) = (BTreeMap::<_, u64>::new(), BTreeMap::<_, u64>::new());
    results.iter().filter_map(|bot| bot.failure.as_ref()).for_each(|reason| *failures.entry(reason).or_default() += 1);
    results.iter().filter_map(|bot| bot.lobby_id.as_ref()).for_each(|id| *lobbies.entry(id).or_default() += 1);
    let mut round_trips: Vec<_> = results.iter().flat_map(|bot| &bot.round_trips).collect();
    round_trips.sort_unstable();
    let quantile = |share: f64| round_trips.get((round_trips.len() as f64 * share) as usize).copied().map(milliseconds);
    json!({
        "bots": results.len(),
        "joined": sum(|bot| bot.lobby_id.is_some().into()),
        "played": sum(|bot| bot.failure.is_none().into()),
        "failures": failures,
        "lobbies": lobbies,
        "players_here_max": results.iter().map(|bot| bot.player_total).max(),
        "score": sum(|bot| bot.score.into()),
        "states": sum(|bot| bot.states),
        "states_missed": sum(|bot| bot.missed_states),
        "gap_ms_max": results.iter().map(|bot| &bot.longest_gap).max().map(milliseconds),
        "pongs": round_trips.len(),
        "rtt_ms_p50": quantile(0.50),
        "rtt_ms_p99": quantile(0.99),
        "moves": sum(|bot| bot.address_changes),
    })
}
