//! What is owed, in which order, and what becomes of it in good and bad times.

use super::*;

fn away() -> Outcome {
    Outcome::Undecided { retry_after: None }
}

fn refused(status: u16, code: &str) -> Outcome {
    Outcome::Refused { status, code: code.to_owned() }
}

/// A lobby and its clock.
struct Play {
    owed: Owed,
    now: Instant,
}

impl Play {
    fn begin() -> Self {
        let now = Instant::now();
        Self { owed: Owed::new(now), now }
    }

    /// One that is ready and has just told that it lives.
    fn ready() -> Self {
        let mut play = Self::begin();
        assert_eq!(play.call(Outcome::Done), Call::Ready);
        assert_eq!(play.call(Outcome::Done), Call::Heartbeat(vec![]));
        assert_eq!(play.owed.news(), Some(News::IsReady));
        play
    }

    /// The next call, which has this outcome; pauses pass.
    fn call(&mut self, outcome: Outcome) -> Call {
        loop {
            match self.owed.next(self.now) {
                Next::Call(call) => {
                    self.owed.settle(call.clone(), outcome, self.now);
                    return call;
                }
                Next::Wait(until) => {
                    assert!(until > self.now, "it waits for what has passed");
                    self.now = until;
                }
                Next::Nothing => panic!("nothing is owed"),
            }
        }
    }

    fn ask(&mut self, token: &str) {
        self.owed.ask(token.to_owned(), self.now);
    }

    fn decision(&mut self) -> Option<(String, Result<(), Refusal>)> {
        loop {
            match self.owed.news()? {
                News::Decided { token, decision } => return Some((token, decision)),
                _ => continue,
            }
        }
    }
}

fn token_of(call: &Call) -> &str {
    match call {
        Call::Connected { token, .. } | Call::Disconnected { token, .. } => token,
        _ => "",
    }
}

#[test]
fn a_lobby_says_that_it_is_ready_and_then_every_three_seconds_that_it_lives() {
    let mut play = Play::ready();
    let began = play.now;
    for beat in 1..4 {
        assert_eq!(play.call(Outcome::Done), Call::Heartbeat(vec![]));
        assert_eq!(play.now, began + beat * HEARTBEAT);
    }
}

#[test]
fn heartbeats_list_whom_the_service_let_in_and_nobody_else() {
    let mut play = Play::ready();
    for token in ["in", "out", "gone"] {
        play.ask(token);
    }
    play.call(Outcome::Done);
    play.call(refused(409, "PLAYER_TOKEN_CONSUMED"));
    play.call(Outcome::Done);
    play.owed.leave("gone".to_owned(), play.now);
    assert!(matches!(play.call(Outcome::Done), Call::Disconnected { token, .. } if token == "gone"));
    assert_eq!(play.decision(), Some(("in".to_owned(), Ok(()))));
    assert_eq!(play.decision(), Some(("out".to_owned(), Err(Refusal::TokenUsed))));
    assert_eq!(play.call(Outcome::Done), Call::Heartbeat(vec!["in".to_owned()]));
}

#[test]
fn a_refused_token_is_never_released() {
    let mut play = Play::ready();
    play.ask("one");
    play.call(refused(410, "PLAYER_TOKEN_EXPIRED"));
    assert_eq!(play.decision(), Some(("one".to_owned(), Err(Refusal::TokenExpired))));
    assert!(matches!(play.call(Outcome::Done), Call::Heartbeat(_)));
}

#[test]
fn an_undecided_player_is_asked_for_under_one_key_then_refused_and_released() {
    let mut play = Play::ready();
    play.ask("one");
    let began = play.now;
    let Call::Connected { key, .. } = play.call(away()) else { panic!("it is asked for") };
    let mut tries = 1;
    while play.decision().is_none() {
        if let Call::Connected { key: again, .. } = play.call(away()) {
            assert_eq!(again, key);
            tries += 1;
        }
    }
    assert!(tries > 2, "{tries} tries");
    assert!(play.now >= began + CONFIRM, "not before its time");
    while !matches!(play.call(Outcome::Done), Call::Disconnected { token, .. } if token == "one") {}
}

#[test]
fn an_acceptance_that_comes_after_ten_seconds_lets_nobody_in() {
    let mut play = Play::ready();
    play.ask("one");
    let Next::Call(call) = play.owed.next(play.now) else { panic!("it is asked for") };
    play.now += CONFIRM;
    play.owed.settle(call, Outcome::Done, play.now);
    assert_eq!(play.decision(), Some(("one".to_owned(), Err(Refusal::Undecided))));
    assert_eq!(play.call(Outcome::Done), Call::Heartbeat(vec![]));
    assert_eq!(token_of(&play.call(Outcome::Done)), "one");
}

#[test]
fn nobody_is_let_in_under_a_release_that_is_under_way() {
    let mut play = Play::ready();
    play.ask("one");
    play.now += CONFIRM;
    play.owed.next(play.now);
    assert_eq!(play.decision(), Some(("one".to_owned(), Err(Refusal::Undecided))));
    play.ask("one");
    assert_eq!(play.decision(), Some(("one".to_owned(), Err(Refusal::Undecided))));
}

#[test]
fn after_an_outage_the_lobby_says_again_that_it_is_ready() {
    let mut play = Play::ready();
    assert!(matches!(play.call(away()), Call::Heartbeat(_)));
    assert_eq!(play.call(away()), Call::Ready);
    assert_eq!(play.call(Outcome::Done), Call::Ready);
    assert!(matches!(play.call(Outcome::Done), Call::Heartbeat(_)));
}

#[test]
fn pauses_grow_to_two_seconds_and_are_never_shorter_than_the_service_asks_for() {
    let mut play = Play::begin();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        play.call(away());
        let Next::Wait(until) = play.owed.next(play.now) else { panic!("it pauses") };
        pauses.push(until - play.now);
    }
    assert!(pauses[0] <= PAUSE_FIRST && pauses[0] >= PAUSE_FIRST / 2, "{pauses:?}");
    assert!(pauses[7] <= PAUSE_LONGEST && pauses[7] >= PAUSE_LONGEST / 2, "{pauses:?}");
    play.call(Outcome::Undecided { retry_after: Some(Duration::from_secs(7)) });
    assert_eq!(play.owed.next(play.now), Next::Wait(play.now + Duration::from_secs(7)));
    play.call(Outcome::Undecided { retry_after: Some(Duration::from_secs(7_000)) });
    assert_eq!(play.owed.next(play.now), Next::Wait(play.now + RETRY_AFTER_LONGEST));
}

#[test]
fn one_call_that_is_never_decided_does_not_keep_the_others_from_their_turn() {
    let mut play = Play::ready();
    play.owed.leave("bad".to_owned(), play.now);
    play.ask("good");
    let mut order = Vec::new();
    while order.last() != Some(&"good".to_owned()) {
        let Next::Call(call) = play.owed.next(play.now) else {
            play.now += Duration::from_millis(10);
            continue;
        };
        order.push(token_of(&call).to_owned());
        let outcome = if token_of(&call) == "bad" { away() } else { Outcome::Done };
        play.owed.settle(call, outcome, play.now);
    }
    assert_eq!(play.decision(), Some(("good".to_owned(), Ok(()))));
}

#[test]
fn a_release_that_is_a_minute_old_is_left_to_the_heartbeats() {
    let mut play = Play::ready();
    play.owed.leave("one".to_owned(), play.now);
    play.now += RELEASE;
    assert!(matches!(play.call(Outcome::Done), Call::Heartbeat(_)));
    assert!(matches!(play.owed.next(play.now), Next::Wait(_)));
}

#[test]
fn the_end_of_the_lobby_and_a_token_that_is_not_good_are_news() {
    for status in [401, 403, 404] {
        let mut play = Play::begin();
        play.call(refused(status, "TOKEN_INVALID"));
        assert_eq!(play.owed.news(), Some(News::NotOurs("TOKEN_INVALID".to_owned())));
    }
    let mut play = Play::ready();
    play.call(refused(410, "MATCHMAKER_LOBBY_STOPPED"));
    assert_eq!(play.owed.news(), Some(News::LobbyEnded));
}

#[test]
fn an_ending_lobby_closes_releases_everybody_once_and_is_done() {
    let mut play = Play::ready();
    play.ask("in");
    play.call(Outcome::Done);
    play.ask("waiting");
    play.owed.leave("gone".to_owned(), play.now);
    play.owed.end(play.now);
    assert_eq!(play.call(away()), Call::Closed);
    assert_eq!(play.call(Outcome::Done), Call::Closed);
    let released: Vec<_> = (0..3).map(|_| play.call(Outcome::Done)).collect();
    assert_eq!(released.iter().map(token_of).collect::<Vec<_>>(), ["waiting", "gone", "in"]);
    assert!(released.iter().all(|call| matches!(call, Call::Disconnected { .. })));
    assert_eq!(play.owed.next(play.now), Next::Nothing);
}
