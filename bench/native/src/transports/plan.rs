//! Requests of the load: one `connected` request for each fresh player token.

use crate::{Failure, wrong};

pub struct Ask {
    pub lobby_token: String,
    pub player_token: String,
}

pub struct Plan(Vec<Vec<Ask>>);

impl Plan {
    /// Reads lines of lobby token, space and player token, and distributes them over the workers.
    pub fn read(path: &str, workers: usize) -> Result<Plan, Failure> {
        let mut plan: Vec<Vec<Ask>> = (0..workers).map(|_| Vec::new()).collect();
        for (number, line) in std::fs::read_to_string(path)?.lines().enumerate() {
            let (lobby_token, player_token) = line.split_once(' ').ok_or_else(|| wrong("two tokens make a line"))?;
            let ask = Ask { lobby_token: lobby_token.to_owned(), player_token: player_token.to_owned() };
            plan[number % workers].push(ask);
        }
        Ok(Plan(plan))
    }

    pub fn of(&self, worker: usize) -> &[Ask] {
        &self.0[worker]
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}
