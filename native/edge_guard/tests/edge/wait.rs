//! Waiting for what must come, and no longer than anybody would.

use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

/// Asks until there is an answer.
#[track_caller]
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Asks until the answer has stayed the same for many looks in a row: what it is about has come to rest.
#[track_caller]
pub fn wait_until_stable<T: PartialEq>(what: &str, mut ask: impl FnMut() -> T) -> T {
    const LOOKS: u32 = 25;
    let (mut last, mut same) = (ask(), 0);
    wait_for(what, || {
        let now = ask();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        (same >= LOOKS).then_some(())
    });
    last
}
