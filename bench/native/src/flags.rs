//! Command-line flags of the form `--name value`.

use std::str::FromStr;

use crate::{Failure, failure};

pub struct Flags(Vec<String>);

impl Flags {
    /// Returns the name of the measurement, which is the first word, and the flags.
    pub fn of_process() -> (String, Flags) {
        let mut words = std::env::args().skip(1);
        (words.next().unwrap_or_default(), Flags(words.collect()))
    }

    pub fn new<'a>(words: impl Iterator<Item = &'a str>) -> Flags {
        Flags(words.map(str::to_owned).collect())
    }

    pub fn text(&self, name: &str) -> Result<&str, Failure> {
        let at = self.0.iter().position(|word| word.strip_prefix("--") == Some(name));
        at.and_then(|at| self.0.get(at + 1)).map(String::as_str).ok_or_else(|| failure(format!("--{name} is missing")))
    }

    pub fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T, Failure> {
        match self.text(name) {
            Err(_) => Ok(default),
            Ok(text) => text.parse().map_err(|_| failure(format!("--{name} does not take {text}"))),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|word| word.strip_prefix("--") == Some(name))
    }
}
