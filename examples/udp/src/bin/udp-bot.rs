//! Bots in one process: flags in, a report out. Exit status 0 when all of them played to the end; Ctrl-C is an end too.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use hosting_example_udp::bot::{Notes, Plan, play};
use hosting_example_udp::http::Address;
use hosting_example_udp::report::Report;
use hosting_example_udp::settings::{Flags, number};
use hosting_example_udp::system::{Waker, say};

const USAGE: &str = "usage: udp-bot --api http://127.0.0.1:8080 --token-file FILE --mode MODE\n\
    [--port game] [--count 1] [--seconds 10] [--json]\n\
    --seconds 0: until Ctrl-C.";
const STACK: usize = 128 << 10;

fn main() -> ExitCode {
    let mut words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let given = words.len();
    words.retain(|word| word != "--json");
    let is_json = words.len() < given;
    let (plan, count) = match read(&words) {
        Ok(read) => read,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let report = match play_all(plan, count) {
        Ok(notes) => Report::of(notes),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    say(&if is_json { report.json() } else { report.text() });
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read(words: &[String]) -> Result<(Plan, usize), Vec<String>> {
    let mut problems = Vec::new();
    let known = ["api", "token-file", "mode", "port", "count", "seconds"];
    let mut flags = Flags::read(words, &known, &mut problems);
    let api = flags.parsed("api", "", |url| Address::of_url(url).map_err(|_| "like http://127.0.0.1:8080".to_owned()));
    let public_token = flags.parsed("token-file", "", token);
    let mode = flags.parsed("mode", "", name);
    let port_name = flags.parsed("port", "game", name);
    let count = flags.parsed("count", "1", |text| number(text, 1..=10_000_usize));
    let seconds = flags.parsed("seconds", "10", |text| number(text, 0..=86_400_u64));
    match (api, public_token, mode, port_name, count, seconds) {
        (Some(api), Some(public_token), Some(mode), Some(port_name), Some(count), Some(seconds))
            if problems.is_empty() =>
        {
            let time = (seconds > 0).then(|| Duration::from_secs(seconds));
            Ok((Plan { api, public_token, mode, port_name, time }, count))
        }
        _ => Err(problems),
    }
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("a name".to_owned()) } else { Ok(text.to_owned()) }
}

/// The token is in a file, so that no list of processes shows it.
fn token(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("a file with a public token: {error}"))?;
    let token = text.trim();
    let is_plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain { Ok(token.to_owned()) } else { Err("a file with a public token and nothing else".to_owned()) }
}

/// Each has a thread of its own: they wait nearly always.
fn play_all(plan: Plan, count: usize) -> io::Result<Vec<Notes>> {
    Waker::new()?.end_on_signals()?;
    let plan = Arc::new(plan);
    let start = |_| {
        let plan = plan.clone();
        Builder::new().stack_size(STACK).spawn(move || play(&plan))
    };
    let bots: Vec<JoinHandle<Notes>> = (0..count).map(start).collect::<Result<_, _>>()?;
    let lost = |_| io::Error::other("a bot has failed");
    bots.into_iter().map(|bot| bot.join().map_err(lost)).collect()
}
