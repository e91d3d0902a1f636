//! Numbers of error codes, for counting.

use std::collections::HashMap;

use hosting_core::Refusal;

const OK: &str = "OK";
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

    /// Returns the number of an outcome of the engine.
    pub fn of_engine(result: &Result<(), Refusal>) -> usize {
        let Err(refusal) = result else { return 0 };
        let slug = refusal.slug();
        1 + Refusal::SLUGS.iter().position(|code| *code == slug).expect("each refusal has a code")
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_the_engine_have_their_codes() {
        let codes = Codes::new(["MATCHMAKER_LOBBY_FULL".to_owned(), "OTHER".to_owned()]);
        assert_eq!(codes.names()[1..=Refusal::SLUGS.len()], *Refusal::SLUGS);
        for (result, name) in [(Ok(()), OK), (Err(Refusal::LobbyFull), "MATCHMAKER_LOBBY_FULL")] {
            assert_eq!(codes.names()[Codes::of_engine(&result)], name);
        }
        assert_eq!(codes.number("OTHER"), Some(codes.names().len() - 1));
    }
}
