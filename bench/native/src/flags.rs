//! `--name value` words of a measurement's command line.

use std::str::FromStr;

use crate::{Failure, wrong};

/// The words after the name of what is measured.
pub struct Flags(Vec<String>);

impl Flags {
    /// What is measured (the first word), and its flags.
    pub fn of_process() -> (String, Flags) {
        let mut words = std::env::args().skip(1);
        (words.next().unwrap_or_default(), Flags(words.collect()))
    }

    /// The value of a flag as text.
    pub fn text(&self, name: &str) -> Result<&str, Failure> {
        let at = self.0.iter().position(|word| word.strip_prefix("--") == Some(name));
        at.and_then(|at| self.0.get(at + 1)).map(String::as_str).ok_or_else(|| wrong(format!("--{name} is missing")))
    }

    /// The value of a flag, or what holds without it.
    pub fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T, Failure> {
        match self.text(name) {
            Err(_) => Ok(default),
            Ok(text) => text.parse().map_err(|_| wrong(format!("--{name} does not take {text}"))),
        }
    }

    /// Whether a flag without a value is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|word| word.strip_prefix("--") == Some(name))
    }
}
