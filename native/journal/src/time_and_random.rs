//! Clocks and random numbers of the machine, behind a trait so that tests can control time.

pub trait TimeAndRandom: Send + Sync + 'static {
    /// Returns `CLOCK_BOOTTIME` in milliseconds. This clock includes suspend and restarts at each boot.
    fn boot_ms(&self) -> u64;
    /// Returns `CLOCK_REALTIME` in milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;
    /// Returns `CLOCK_MONOTONIC` in nanoseconds. Only for durations.
    fn elapsed_ns(&self) -> u64;
    fn random(&self) -> std::io::Result<u64>;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct RealTimeAndRandom;

fn read_clock(clock: libc::clockid_t) -> (u64, u64) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call. The three clocks exist on every supported kernel.
    unsafe { libc::clock_gettime(clock, &mut now) };
    (now.tv_sec.max(0) as u64, now.tv_nsec as u64)
}

fn read_clock_ms(clock: libc::clockid_t) -> u64 {
    let (seconds, nanoseconds) = read_clock(clock);
    seconds * 1_000 + nanoseconds / 1_000_000
}

impl TimeAndRandom for RealTimeAndRandom {
    fn boot_ms(&self) -> u64 {
        read_clock_ms(libc::CLOCK_BOOTTIME)
    }

    fn wall_ms(&self) -> u64 {
        read_clock_ms(libc::CLOCK_REALTIME)
    }

    fn elapsed_ns(&self) -> u64 {
        let (seconds, nanoseconds) = read_clock(libc::CLOCK_MONOTONIC);
        seconds * 1_000_000_000 + nanoseconds
    }

    fn random(&self) -> std::io::Result<u64> {
        let mut bytes = [0_u8; 8];
        // SAFETY: pointer and length belong to one live array.
        let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if read == 8 { Ok(u64::from_le_bytes(bytes)) } else { Err(std::io::Error::last_os_error()) }
    }
}
