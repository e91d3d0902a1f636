//! Output of a measurement: one flat JSON object.

use std::fmt;

#[derive(Default)]
pub struct Measurement(Vec<(&'static str, String)>);

impl Measurement {
    pub fn new() -> Measurement {
        Measurement::default()
    }

    pub fn number(mut self, name: &'static str, value: f64) -> Measurement {
        self.0.push((name, if value.is_finite() { format!("{value}") } else { "null".to_owned() }));
        self
    }

    pub fn count(mut self, name: &'static str, value: u64) -> Measurement {
        self.0.push((name, value.to_string()));
        self
    }

    pub fn text(mut self, name: &'static str, value: &str) -> Measurement {
        self.0.push((name, quoted(value)));
        self
    }

    pub fn counts<'a>(mut self, name: &'static str, counts: impl Iterator<Item = (&'a str, u64)>) -> Measurement {
        let members: Vec<String> = counts.map(|(word, count)| format!("{}: {count}", quoted(word))).collect();
        self.0.push((name, format!("{{{}}}", members.join(", "))));
        self
    }

    pub fn and(mut self, other: Measurement) -> Measurement {
        self.0.extend(other.0);
        self
    }
}

fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json.extend(['\\', letter]),
            control if control < ' ' => json.push_str(&format!("\\u{:04x}", control as u32)),
            plain => json.push(plain),
        }
    }
    json.push('"');
    json
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self.0.iter().map(|(name, value)| format!("{}: {value}", quoted(name))).collect();
        write!(f, "{{{}}}", members.join(", "))
    }
}
