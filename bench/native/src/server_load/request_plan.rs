//! Requests of the load: one `connected` request for each fresh player token, or joins and finds.

use crate::{Failure, failure};

pub struct PlannedRequest {
    pub operation: Operation,
    pub token: String,
    /// Player token, lobby id or game mode.
    pub value: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Connected,
    Join,
    Find,
}

impl Operation {
    fn named(word: &str) -> Result<Operation, Failure> {
        match word {
            "connected" => Ok(Operation::Connected),
            "join" => Ok(Operation::Join),
            "find" => Ok(Operation::Find),
            _ => Err(failure(format!("{word} is no operation of the load"))),
        }
    }
}

pub struct RequestPlan(Vec<Vec<PlannedRequest>>);

impl RequestPlan {
    /// Reads lines of operation, token and value, and distributes them over the workers.
    pub fn read(path: &str, workers: usize) -> Result<RequestPlan, Failure> {
        let mut plan: Vec<Vec<PlannedRequest>> = (0..workers).map(|_| Vec::new()).collect();
        for (number, line) in std::fs::read_to_string(path)?.lines().enumerate() {
            let [operation, token, value] = line.split(' ').collect::<Vec<_>>()[..] else {
                return Err(failure("a line has an operation, a token and a value"));
            };
            let operation = Operation::named(operation)?;
            let planned = PlannedRequest { operation, token: token.to_owned(), value: value.to_owned() };
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
