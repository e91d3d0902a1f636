//! Requests of the load: one `connected` request for each player token, or joins, finds and lists.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Failure, failure};

pub struct PlannedRequest {
    pub operation: Operation,
    pub token: String,
    /// Player token, lobby id, game mode, game mode with two tags (`mode,map,rank`), or length of a page.
    pub value: String,
    /// Idempotency key, in the form of a UUID.
    pub key: String,
    /// Code of the error that the request gets. None: a success.
    pub expected: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Connected,
    Join,
    Find,
    FindWithTags,
    List,
}

impl Operation {
    fn named(word: &str) -> Result<Operation, Failure> {
        match word {
            "connected" => Ok(Operation::Connected),
            "join" => Ok(Operation::Join),
            "find" => Ok(Operation::Find),
            "find_with_tags" => Ok(Operation::FindWithTags),
            "list" => Ok(Operation::List),
            _ => Err(failure(format!("{word} is no operation of the load"))),
        }
    }
}

pub struct RequestPlan(Vec<Vec<PlannedRequest>>);

impl RequestPlan {
    /// Reads lines of operation, token, value and perhaps a code, and distributes them over the workers.
    pub fn read(path: &str, workers: usize) -> Result<RequestPlan, Failure> {
        let mut plan: Vec<Vec<PlannedRequest>> = (0..workers).map(|_| Vec::new()).collect();
        // Each run has keys of its own.
        let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
        for (number, line) in std::fs::read_to_string(path)?.lines().enumerate() {
            let (operation, token, value, expected) = match line.split(' ').collect::<Vec<_>>()[..] {
                [operation, token, value] => (operation, token, value, None),
                [operation, token, value, code] => (operation, token, value, Some(code.to_owned())),
                _ => return Err(failure("a line has an operation, a token, a value and perhaps a code")),
            };
            let operation = Operation::named(operation)?;
            let (token, value, key) = (token.to_owned(), value.to_owned(), key_of(seed, number as u64));
            let planned = PlannedRequest { operation, token, value, key, expected };
            plan[number % workers].push(planned);
        }
        Ok(RequestPlan(plan))
    }

    pub fn for_worker(&self, worker: usize) -> &[PlannedRequest] {
        &self.0[worker]
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

fn key_of(seed: u64, number: u64) -> String {
    let (a, b) = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), number.wrapping_mul(0xd6e8_feb8_6659_fd93));
    let bits = (u128::from(a ^ b) << 64) | u128::from(a.rotate_left(32) ^ number);
    let text = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}
