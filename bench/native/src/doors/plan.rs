//! Who asks what: `connected` for one fresh player token after the other, in the name of that token's lobby.

use crate::{Failure, wrong};

/// One request.
pub struct Ask {
    /// The lobby server's token.
    pub lobby_token: String,
    /// The player's token.
    pub player_token: String,
}

/// The requests of every worker.
pub struct Plan(Vec<Vec<Ask>>);

impl Plan {
    /// Reads lines of lobby token, space, player token, and deals them out in turn.
    pub fn read(path: &str, workers: usize) -> Result<Plan, Failure> {
        let mut plan: Vec<Vec<Ask>> = (0..workers).map(|_| Vec::new()).collect();
        for (number, line) in std::fs::read_to_string(path)?.lines().enumerate() {
            let (lobby_token, player_token) = line.split_once(' ').ok_or_else(|| wrong("two tokens make a line"))?;
            let ask = Ask { lobby_token: lobby_token.to_owned(), player_token: player_token.to_owned() };
            plan[number % workers].push(ask);
        }
        Ok(Plan(plan))
    }

    /// The requests of one worker.
    pub fn of(&self, worker: usize) -> &[Ask] {
        &self.0[worker]
    }

    /// All requests.
    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}
