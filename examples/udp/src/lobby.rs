//! What a lobby owes the hosting service, and in which order it is told. Pure: time is an argument, calls are made by
//! `calls`.
//!
//! Ready first and after every outage, heartbeats with the list of players, then players who come and go in the order
//! in which they did. A call without a decision lets the others have their turn, and all calls pause: it is one service
//! that they go to. A `connected` that is not decided within 10 s has failed, whatever may still come of it, and its
//! player is released (decisions 5.6).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::protocol::Refusal;
use crate::system::{Dice, idempotency_key};

/// Time between two heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(3);
/// A `connected` that is older has failed.
pub const CONFIRM: Duration = Duration::from_secs(10);
/// One call takes no longer.
pub const ATTEMPT: Duration = Duration::from_secs(3);
/// A release that is older is left to the heartbeats: their list frees the slot.
const RELEASE: Duration = Duration::from_secs(60);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(2);
const RETRY_AFTER_LONGEST: Duration = Duration::from_secs(30);

/// A call to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Players may come.
    Ready,
    /// No more players may come.
    Closed,
    /// The lobby lives, with these players.
    Heartbeat(Vec<String>),
    /// A player has come.
    Connected {
        /// The player's.
        token: String,
        /// The same each time that this is tried.
        key: String,
        /// No decision is taken after it.
        until: Instant,
    },
    /// A player has gone.
    Disconnected {
        /// The player's.
        token: String,
        /// Left to the heartbeats after it.
        until: Instant,
    },
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// 200.
    Done,
    /// The service decided against it.
    Refused {
        /// Of the answer.
        status: u16,
        /// Of the error.
        code: String,
    },
    /// No answer, or one that says to ask again.
    Undecided {
        /// Not before.
        retry_after: Option<Duration>,
    },
}

/// What the game has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Whether a player may come in.
    Decided {
        /// The player's.
        token: String,
        /// Why not.
        decision: Result<(), Refusal>,
    },
    /// Players may come.
    IsReady,
    /// The lobby has ended.
    LobbyEnded,
    /// The service does not take our token: the code.
    NotOurs(String),
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// This call.
    Call(Call),
    /// Nothing before then.
    Wait(Instant),
    /// Nothing, ever.
    Nothing,
}

/// All that is owed.
#[derive(Debug)]
pub struct Owed {
    line: VecDeque<Call>,
    here: Vec<String>,
    is_ready_told: bool,
    is_ending: bool,
    /// Ready or a heartbeat had no decision: whoever waits in line is tried before the next one.
    is_lines_turn: bool,
    heartbeat: Instant,
    paused_until: Instant,
    pause: Duration,
    dice: Dice,
    news: VecDeque<News>,
}

impl Owed {
    /// A lobby that nobody knows of yet.
    pub fn new(now: Instant) -> Self {
        Self {
            line: VecDeque::new(),
            here: Vec::new(),
            is_ready_told: false,
            is_ending: false,
            is_lines_turn: false,
            heartbeat: now,
            paused_until: now,
            pause: PAUSE_FIRST,
            dice: Dice::new(),
            news: VecDeque::new(),
        }
    }

    /// A player wants to come in: the news will say whether it may.
    pub fn ask(&mut self, token: String, now: Instant) {
        // A release under way would free the slot under the player that is let in meanwhile.
        let is_released = |call: &Call| matches!(call, Call::Disconnected { token: other, .. } if *other == token);
        if self.line.iter().any(is_released) {
            self.news.push_back(News::Decided { token, decision: Err(Refusal::Undecided) });
        } else {
            self.line.push_back(Call::Connected { token, key: idempotency_key(), until: now + CONFIRM });
        }
    }

    /// A player who was let in has gone.
    pub fn leave(&mut self, token: String, now: Instant) {
        self.here.retain(|other| *other != token);
        self.line.push_back(Call::Disconnected { token, until: now + RELEASE });
    }

    /// The server stops: nobody comes any more and everybody is released. `next` says when that is done.
    pub fn end(&mut self, now: Instant) {
        self.is_ending = true;
        let until = now + RELEASE;
        for call in &mut self.line {
            if let Call::Connected { token, .. } = call {
                *call = Call::Disconnected { token: std::mem::take(token), until };
            }
        }
        self.line.push_front(Call::Closed);
        self.line.extend(self.here.drain(..).map(|token| Call::Disconnected { token, until }));
    }

    /// What the game has to know; ask until there is nothing.
    pub fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// What is to be done now.
    pub fn next(&mut self, now: Instant) -> Next {
        self.give_up(now);
        if self.is_ending && self.line.is_empty() {
            return Next::Nothing;
        }
        if now < self.paused_until {
            let deadlines = self.line.iter().filter_map(until);
            return Next::Wait(deadlines.chain([self.paused_until]).min().unwrap_or(self.paused_until));
        }
        let is_line_first = self.is_ending || std::mem::take(&mut self.is_lines_turn) && !self.line.is_empty();
        if !self.is_ready_told && !is_line_first {
            return Next::Call(Call::Ready);
        }
        if now >= self.heartbeat && !is_line_first {
            return Next::Call(Call::Heartbeat(self.here.clone()));
        }
        match self.line.pop_front() {
            Some(call) => Next::Call(call),
            None => Next::Wait(self.heartbeat),
        }
    }

    /// What became of the call that `next` gave.
    pub fn settle(&mut self, call: Call, outcome: Outcome, now: Instant) {
        if let Outcome::Undecided { retry_after } = outcome {
            self.pause_all(retry_after, now);
            match call {
                // They are due until they are told.
                Call::Ready | Call::Heartbeat(_) => self.is_lines_turn = true,
                Call::Closed => self.line.push_front(call),
                Call::Connected { .. } | Call::Disconnected { .. } => self.line.push_back(call),
            }
            return self.give_up(now);
        }
        self.pause = PAUSE_FIRST;
        match (call, outcome) {
            (Call::Connected { token, until, .. }, outcome) => self.settle_connected(token, until, outcome, now),
            (Call::Ready, Outcome::Done) => {
                self.is_ready_told = true;
                self.news.push_back(News::IsReady);
            }
            (Call::Heartbeat(_), Outcome::Done) => self.heartbeat = now + HEARTBEAT,
            (Call::Ready | Call::Heartbeat(_), Outcome::Refused { status: 410, .. }) => {
                self.news.push_back(News::LobbyEnded);
            }
            (Call::Ready | Call::Heartbeat(_), Outcome::Refused { status: 401 | 403 | 404, code }) => {
                self.news.push_back(News::NotOurs(code));
            }
            // A mistake of ours: asking at once would not mend it.
            (Call::Ready | Call::Heartbeat(_), _) => self.pause_all(Some(HEARTBEAT), now),
            (Call::Closed | Call::Disconnected { .. }, _) => {}
        }
    }

    fn settle_connected(&mut self, token: String, until: Instant, outcome: Outcome, now: Instant) {
        let decision = match outcome {
            // Too late: nobody waits for it any more.
            _ if now >= until => return self.fail(token, now),
            Outcome::Refused { code, .. } => Err(Refusal::of_code(&code)),
            _ => Ok(()),
        };
        if decision.is_ok() {
            self.here.push(token.clone());
        }
        self.news.push_back(News::Decided { token, decision });
    }

    /// Everything whose time is over.
    fn give_up(&mut self, now: Instant) {
        for _ in 0..self.line.len() {
            match self.line.pop_front() {
                Some(Call::Connected { token, until, .. }) if now >= until => self.fail(token, now),
                Some(Call::Disconnected { until, .. }) if now >= until => {}
                Some(call) => self.line.push_back(call),
                None => {}
            }
        }
    }

    /// The service may have marked the slot, and the player is not let in.
    fn fail(&mut self, token: String, now: Instant) {
        self.news.push_back(News::Decided { token: token.clone(), decision: Err(Refusal::Undecided) });
        self.line.push_back(Call::Disconnected { token, until: now + RELEASE });
    }

    fn pause_all(&mut self, retry_after: Option<Duration>, now: Instant) {
        let pause = self.dice.jitter(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        self.paused_until = now + pause.max(retry_after.unwrap_or_default().min(RETRY_AFTER_LONGEST));
        // Nobody knows what the service still knows.
        self.is_ready_told = false;
    }
}

fn until(call: &Call) -> Option<Instant> {
    match call {
        Call::Connected { until, .. } | Call::Disconnected { until, .. } => Some(*until),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
