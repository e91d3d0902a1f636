//! What the server is told: its environment, which the hosting service sets for every lobby process (decisions 5.10),
//! and its flags. All of it is read before anything is done, and every problem is told at once.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::http::Address;
use crate::world::PLAYERS_MAX;

/// How the server is used.
pub const USAGE: &str = "usage: udp-server [--address 127.0.0.1] [--silence-ms 10000]\n\
    The rest is in the environment: HOSTING_API_URL, HOSTING_LOBBY_ID, HOSTING_LOBBY_TOKEN, PORT_GAME or PORT,\n\
    HOSTING_MAX_PLAYERS, HOSTING_MAX_PLAYERS_DIRECT, HOSTING_MAX_PLAYERS_PARTY (32 when not given).";

/// A token is at most so long.
const LOBBY_TOKEN_BYTES_MAX: usize = 512;

/// All of it.
#[derive(PartialEq, Eq)]
pub struct Settings {
    /// Where the hosting service is.
    pub api: Address,
    /// Which lobby we are.
    pub lobby_id: String,
    /// With which we speak for it: a secret.
    pub lobby_token: String,
    /// Which address to bind.
    pub address: IpAddr,
    /// Which port.
    pub port: u16,
    /// For how many players there are places: the largest of the limits.
    pub places: usize,
    /// Whoever says nothing for so long is gone.
    pub silence: Duration,
}

impl fmt::Debug for Settings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Settings of lobby {} on {}:{}", self.lobby_id, self.address, self.port)
    }
}

impl Settings {
    /// Of the words after the program's name and of the environment. None of the environment: it is not Unicode.
    ///
    /// # Errors
    /// A sentence for each problem.
    pub fn read(words: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut environment = Environment { variable: &variable, problems: &mut problems };
        let api = environment.parsed("HOSTING_API_URL", None, Address::of_url);
        let lobby_id = environment.parsed("HOSTING_LOBBY_ID", None, |text| Ok(text.to_owned()));
        let lobby_token = environment.parsed("HOSTING_LOBBY_TOKEN", None, lobby_token);
        let port = if variable("PORT_GAME").is_some() { "PORT_GAME" } else { "PORT" };
        let port = environment.parsed(port, None, |text| must_be(number(text, 1..=u16::MAX)));
        let limit = |text: &str| must_be(number(text, 1..=PLAYERS_MAX));
        let find = environment.parsed("HOSTING_MAX_PLAYERS", Some("32"), limit).unwrap_or(1);
        // Whoever joins directly or with a party may come in above the limit of find.
        let same = find.to_string();
        let direct = environment.parsed("HOSTING_MAX_PLAYERS_DIRECT", Some(&same), limit).unwrap_or(1);
        let party = environment.parsed("HOSTING_MAX_PLAYERS_PARTY", Some(&same), limit).unwrap_or(1);
        let mut flags = Flags::read(words, &["address", "silence-ms"], &mut problems);
        let address = flags.parsed("address", "127.0.0.1", |text| text.parse().map_err(|_| "an IP address".to_owned()));
        let silence = flags.parsed("silence-ms", "10000", |text| number(text, 100..=3_600_000_u64));
        match (api, lobby_id, lobby_token, port, address, silence) {
            (Some(api), Some(lobby_id), Some(lobby_token), Some(port), Some(address), Some(silence))
                if problems.is_empty() =>
            {
                let silence = Duration::from_millis(silence);
                Ok(Self { api, lobby_id, lobby_token, address, port, places: find.max(direct).max(party), silence })
            }
            _ => Err(problems),
        }
    }
}

struct Environment<'a, F> {
    variable: &'a F,
    problems: &'a mut Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Environment<'_, F> {
    fn parsed<T>(&mut self, name: &str, default: Option<&str>, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = (self.variable)(name).filter(|text| !text.is_empty());
        match text.as_deref().or(default).map(parse) {
            Some(Ok(value)) => return Some(value),
            Some(Err(problem)) => self.problems.push(format!("{name} {problem}")),
            None => self.problems.push(format!("{name} must be set")),
        }
        None
    }
}

/// Flags, each a name and a value in a word of its own.
pub struct Flags<'a> {
    given: Vec<(&'a str, &'a str)>,
    problems: &'a mut Vec<String>,
}

impl<'a> Flags<'a> {
    /// Of the words after the program's name. What is not known is a problem.
    pub fn read(words: &'a [String], known: &[&str], problems: &'a mut Vec<String>) -> Self {
        let mut given = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").filter(|name| known.contains(name));
            match (name, words.next()) {
                (Some(name), Some(value)) => given.push((name, value.as_str())),
                (Some(name), None) => problems.push(format!("--{name} needs a value")),
                (None, _) => problems.push(format!("{word} is not known")),
            }
        }
        Self { given, problems }
    }

    /// The value, or the default; None is a problem that is noted.
    pub fn parsed<T>(&mut self, name: &str, default: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.given.iter().rev().find(|(other, _)| *other == name).map_or(default, |(_, value)| value);
        match parse(text) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.problems.push(format!("--{name} must be {problem}"));
                None
            }
        }
    }
}

/// A whole number in a range, without a sign.
///
/// # Errors
/// The words that say which numbers there are.
pub fn number<T: FromStr + PartialOrd + fmt::Display>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|number| is_plain && range.contains(number))
        .ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
}

fn must_be<T>(read: Result<T, String>) -> Result<T, String> {
    read.map_err(|words| format!("must be {words}"))
}

fn lobby_token(text: &str) -> Result<String, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain && text.len() <= LOBBY_TOKEN_BYTES_MAX {
        Ok(text.to_owned())
    } else {
        Err("must be a token as the hosting service gave it".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 4] = [
        ("HOSTING_API_URL", "http://127.0.0.1:8080"),
        ("HOSTING_LOBBY_ID", "0192f000-0000-4000-8000-000000000001"),
        ("HOSTING_LOBBY_TOKEN", "lobby_secret"),
        ("PORT", "12001"),
    ];

    fn read(words: &[&str], more: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let all: Vec<_> = GOOD.iter().chain(more).collect();
        let last =
            |name: &str| all.iter().rev().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
        Settings::read(&words, last)
    }

    #[test]
    fn the_environment_of_a_lobby_is_enough() {
        let settings = read(&[], &[]).unwrap();
        assert_eq!((settings.address.to_string().as_str(), settings.port, settings.places), ("127.0.0.1", 12_001, 32));
        assert_eq!(settings.silence, Duration::from_secs(10));
        assert!(!format!("{settings:?}").contains("lobby_secret"));
    }

    #[test]
    fn the_port_by_name_comes_first_and_there_are_places_for_the_largest_limit() {
        let more = [("PORT_GAME", "12002"), ("HOSTING_MAX_PLAYERS", "4"), ("HOSTING_MAX_PLAYERS_PARTY", "6")];
        let settings = read(&["--address", "::1", "--silence-ms", "500"], &more).unwrap();
        assert_eq!((settings.port, settings.places), (12_002, 6));
        assert_eq!(settings.silence, Duration::from_millis(500));
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let problems = Settings::read(&["--loud".to_owned(), "--address".to_owned()], |_| None).unwrap_err();
        assert_eq!(
            problems,
            [
                "HOSTING_API_URL must be set",
                "HOSTING_LOBBY_ID must be set",
                "HOSTING_LOBBY_TOKEN must be set",
                "PORT must be set",
                "--loud is not known",
            ]
        );
        let wrong = [
            ("HOSTING_API_URL", "https://127.0.0.1"),
            ("HOSTING_LOBBY_TOKEN", "two words\r\nx: y"),
            ("PORT_GAME", "0"),
            ("HOSTING_MAX_PLAYERS", "257"),
            ("HOSTING_MAX_PLAYERS_DIRECT", "+3"),
        ];
        let problems = read(&["--silence-ms", "1", "--address", "here"], &wrong).unwrap_err();
        let names: Vec<_> = problems.iter().map(|problem| problem.split(' ').next().unwrap()).collect();
        let expected = wrong.iter().map(|(name, _)| *name).chain(["--address", "--silence-ms"]);
        assert_eq!(names, expected.collect::<Vec<_>>());
        assert!(problems[0].contains("https") && !problems.concat().contains("two words"), "{problems:?}");
    }
}
