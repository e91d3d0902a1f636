//! Waiting for conditions, with a time limit.

use std::time::{Duration, Instant};

/// Time limit of a wait, longer than any step takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

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

/// Waits until a value stays the same for many polls.
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
