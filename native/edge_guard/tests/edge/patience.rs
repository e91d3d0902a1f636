//! Waiting for what must come, and no longer than anybody would.

use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

/// Asks until there is an answer.
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
