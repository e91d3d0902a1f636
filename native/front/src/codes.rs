//! Numbers of error codes, for counting.

use std::collections::HashMap;

use hosting_core::Refusal;

pub const OK: &str = "OK";
/// Code of a request if its client disconnects before the response.
pub const CANCELLED: &str = "CANCELLED";

/// All codes of responses. `OK` is number 0, then come the refusals of the engine.
pub struct Codes {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Codes {
    pub fn new(codes: impl IntoIterator<Item = String>) -> Codes {
        let of_engine = Refusal::SLUGS.iter().map(|slug| (*slug).to_owned());
        let mut numbered = Codes { names: Vec::new(), numbers: HashMap::new() };
        for name in [OK.to_owned()].into_iter().chain(of_engine).chain([CANCELLED.to_owned()]).chain(codes) {
            if !numbered.numbers.contains_key(&name) {
                numbered.numbers.insert(name.clone(), numbered.names.len());
                numbered.names.push(name);
            }
        }
        numbered
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }
}
