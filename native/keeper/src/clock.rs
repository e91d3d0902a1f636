//! Wall clock for timestamps, and the boot-time clock for deadlines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_gettime};

pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// Returns the time since the machine was booted. Includes suspended time, unlike `std::time::Instant`.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec as u32)
}

/// Returns the time until a time of [`now`], for `poll`. It is zero if that has passed.
pub fn time_until(at: Duration) -> Timespec {
    let left = at.saturating_sub(now());
    Timespec { tv_sec: left.as_secs().min(i32::MAX as u64) as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}
