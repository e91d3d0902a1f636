//! What the journal asks the machine besides files: three clocks and random bits.
//! A trait, so that tests hold time still and step it; the real one calls libc by name.

/// Clocks and randomness.
pub trait Machine: Send + Sync + 'static {
    /// `CLOCK_BOOTTIME` in milliseconds: runs on while the machine sleeps, starts anew at a boot.
    fn boot_ms(&self) -> u64;
    /// `CLOCK_REALTIME` in milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;
    /// `CLOCK_MONOTONIC` in nanoseconds, for durations only.
    fn elapsed_ns(&self) -> u64;
    /// Random bits that nobody outside can foresee.
    fn random(&self) -> std::io::Result<u64>;
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealMachine;

fn read_clock(clock: libc::clockid_t) -> (u64, u64) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call. The three clocks asked for exist on every supported kernel.
    unsafe { libc::clock_gettime(clock, &mut now) };
    (now.tv_sec.max(0) as u64, now.tv_nsec as u64)
}

fn read_clock_ms(clock: libc::clockid_t) -> u64 {
    let (seconds, nanoseconds) = read_clock(clock);
    seconds * 1_000 + nanoseconds / 1_000_000
}

impl Machine for RealMachine {
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
        // SAFETY: pointer and length are those of one live array.
        let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if read == 8 { Ok(u64::from_le_bytes(bytes)) } else { Err(std::io::Error::last_os_error()) }
    }
}
