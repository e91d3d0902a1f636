//! Requests of the load: one `connected` request for each fresh player token.

use crate::{Failure, failure};

pub struct PlannedRequest {
    pub lobby_token: String,
    pub player_token: String,
}

pub struct RequestPlan(Vec<Vec<PlannedRequest>>);

impl RequestPlan {
    /// Reads lines of lobby token, space and player token, and distributes them over the workers.
    pub fn read(path: &str, workers: usize) -> Result<RequestPlan, Failure> {
        let mut plan: Vec<Vec<PlannedRequest>> = (0..workers).map(|_| Vec::new()).collect();
        for (number, line) in std::fs::read_to_string(path)?.lines().enumerate() {
            let (lobby_token, player_token) = line.split_once(' ').ok_or_else(|| failure("two tokens make a line"))?;
            let planned = PlannedRequest { lobby_token: lobby_token.to_owned(), player_token: player_token.to_owned() };
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
