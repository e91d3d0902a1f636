//! Settings from environment variables and flags. All problems are reported together.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, atomic::AtomicBool};

use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Default)]
pub struct Settings {
    flags: HashMap<String, String>,
    problems: Vec<String>,
}

impl Settings {
    pub fn read() -> Self {
        let mut arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let mut settings = Self::default();
        while let Some(flag) = arguments.next() {
            let value = if flag == "--json" { Some("yes".to_owned()) } else { arguments.next() };
            settings.flags.insert(flag, value.unwrap_or_default());
        }
        settings
    }

    /// Returns the value of a flag or variable. Notes a problem if the value is not valid.
    pub fn get<T: Default>(&mut self, name: &str, default: &str, parse: impl Fn(&str) -> Result<T, String>) -> T {
        let value = self.flags.remove(name).or_else(|| std::env::var(name).ok()).filter(|text| !text.is_empty());
        let result = match value.as_deref().unwrap_or(default) {
            "" => Err("must be set".to_owned()),
            text => parse(text),
        };
        result.map_err(|problem| self.problems.push(format!("{name} {problem}"))).unwrap_or_default()
    }

    /// Returns a boolean that SIGTERM and SIGINT set, or prints all problems.
    pub fn finish(mut self, usage: &str) -> Option<Arc<AtomicBool>> {
        let stop = Arc::new(AtomicBool::new(false));
        let registrations = [SIGTERM, SIGINT].map(|signal| signal_hook::flag::register(signal, stop.clone()));
        self.problems
            .extend(registrations.into_iter().filter_map(Result::err).map(|error| format!("no signals: {error}")));
        self.problems.extend(self.flags.into_keys().map(|flag| format!("{flag} is not known")));
        if !self.problems.is_empty() {
            eprintln!("{}\n{usage}", self.problems.join("\n"));
        }
        self.problems.is_empty().then_some(stop)
    }
}

pub fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

pub fn number(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> {
    let problem = format!("must be a whole number from {} to {}", range.start(), range.end());
    move |text| text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| problem.clone())
}
