//! Reader of one JSON object that collects all problems instead of stopping at the first.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

pub struct Fields<'a> {
    place: String,
    object: Map<String, Value>,
    problems: &'a mut Vec<String>,
}

impl<'a> Fields<'a> {
    /// An empty `place` is the whole file.
    pub fn new(place: &str, value: Value, problems: &'a mut Vec<String>) -> Self {
        let object = match value {
            Value::Object(object) => object,
            _ => {
                let name = if place.is_empty() { "settings" } else { place };
                problems.push(format!("{name}: must be an object"));
                Map::new()
            }
        };
        Self { place: place.to_owned(), object, problems }
    }

    /// Reports unknown fields.
    pub fn end(mut self) {
        for name in std::mem::take(&mut self.object).keys() {
            self.problem(name, "is not a setting");
        }
    }

    pub fn problem(&mut self, name: &str, text: &str) {
        let place = self.place_of(name);
        self.problems.push(format!("{place}: {text}"));
    }

    pub fn path(&mut self, name: &str) -> PathBuf {
        match self.object.remove(name) {
            Some(Value::String(text)) if text.starts_with('/') => return PathBuf::from(text),
            Some(_) => self.problem(name, "must be an absolute path"),
            None => self.problem(name, "is required"),
        }
        PathBuf::new()
    }

    pub fn text_or(&mut self, name: &str, default: &str, length: RangeInclusive<usize>) -> String {
        match self.object.remove(name) {
            None => return default.to_owned(),
            Some(Value::String(text)) if length.contains(&text.len()) => return text,
            Some(_) => self.problem(name, &format!("must be a text of {} to {} bytes", length.start(), length.end())),
        }
        default.to_owned()
    }

    pub fn parsed<T: FromStr>(&mut self, name: &str, what: &str) -> Option<T> {
        let value = self.object.remove(name)?;
        let parsed = value.as_str().and_then(|text| text.parse().ok());
        if parsed.is_none() {
            self.problem(name, &format!("must be {what}"));
        }
        parsed
    }

    pub fn parsed_or<T: FromStr>(&mut self, name: &str, what: &str, default: T) -> T {
        self.parsed(name, what).unwrap_or(default)
    }

    pub fn all_parsed<T: FromStr>(&mut self, name: &str, what: &str) -> Vec<T> {
        let mut all = Vec::new();
        for (index, value) in self.list(name).into_iter().enumerate() {
            match value.as_str().and_then(|text| text.parse().ok()) {
                Some(parsed) => all.push(parsed),
                None => self.problem(&format!("{name}.{index}"), &format!("must be {what}")),
            }
        }
        all
    }

    /// Host names, converted to lower case.
    pub fn names(&mut self, name: &str) -> Vec<String> {
        let values = self.list(name);
        if values.is_empty() {
            self.problem(name, "must name at least one");
        }
        let mut names = Vec::new();
        for (index, value) in values.iter().enumerate() {
            match value.as_str() {
                Some(text) if !text.is_empty() && text.len() <= 253 => names.push(text.to_ascii_lowercase()),
                _ => self.problem(&format!("{name}.{index}"), "must be a host name"),
            }
        }
        names
    }

    pub fn truth_or(&mut self, name: &str, default: bool) -> bool {
        match self.object.remove(name) {
            None => default,
            Some(Value::Bool(truth)) => truth,
            Some(_) => {
                self.problem(name, "must be true or false");
                default
            }
        }
    }

    pub fn number_or(&mut self, name: &str, default: usize, range: RangeInclusive<usize>) -> usize {
        let Some(value) = self.object.remove(name) else { return default };
        match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) if range.contains(&number) => number,
            _ => {
                self.problem(name, &format!("must be a number from {} to {}", range.start(), range.end()));
                default
            }
        }
    }

    pub fn nice_or(&mut self, name: &str, default: i8) -> i8 {
        let Some(value) = self.object.remove(name) else { return default };
        match value.as_i64().and_then(|number| i8::try_from(number).ok()) {
            Some(number) if (-20..=19).contains(&number) => number,
            _ => {
                self.problem(name, "must be a number from -20 to 19");
                default
            }
        }
    }

    /// Milliseconds, at most 30 days.
    pub fn ms_or(&mut self, name: &str, default: u64) -> Duration {
        const MOST: usize = 30 * 24 * 3_600_000;
        let default = usize::try_from(default).unwrap_or(MOST);
        Duration::from_millis(self.number_or(name, default, 1..=MOST) as u64)
    }

    pub fn each<T>(&mut self, name: &str, read: fn(&mut Fields<'_>) -> T) -> Vec<T> {
        let values = self.list(name);
        let place = self.place_of(name);
        let mut all = Vec::new();
        for (index, value) in values.into_iter().enumerate() {
            let mut fields = Fields::new(&format!("{place}.{index}"), value, self.problems);
            all.push(read(&mut fields));
            fields.end();
        }
        all
    }

    /// A missing object is an empty one.
    pub fn inner<T>(&mut self, name: &str, read: fn(&mut Fields<'_>) -> T) -> T {
        let value = self.object.remove(name).unwrap_or_else(|| Value::Object(Map::new()));
        let place = self.place_of(name);
        let mut fields = Fields::new(&place, value, self.problems);
        let inner = read(&mut fields);
        fields.end();
        inner
    }

    fn list(&mut self, name: &str) -> Vec<Value> {
        match self.object.remove(name) {
            None => Vec::new(),
            Some(Value::Array(values)) => values,
            Some(_) => {
                self.problem(name, "must be a list");
                Vec::new()
            }
        }
    }

    fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }
}
