//! What the standard library does not have: waiting for a socket or a wake-up, signals, and randomness; and a line
//! of the log. All unsafe code is here.

use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

static ASKED_TO_STOP: AtomicBool = AtomicBool::new(false);
static WOKEN_BY_SIGNALS: AtomicI32 = AtomicI32::new(-1);

/// Wakes the thread that waits in `wait`, from any thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// The thread wakes, now or when it would next go to sleep.
    pub fn wake(&self) {
        add_one(self.0.as_raw_fd());
    }

    /// Returns when the socket can be read, somebody woke us, or the time is over. None: no end.
    ///
    /// # Errors
    /// The system cannot wait: nothing that goes away by itself.
    pub fn wait(&self, socket: &UdpSocket, timeout: Option<Duration>) -> io::Result<()> {
        let asked = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [asked(socket.as_raw_fd()), asked(self.0.as_raw_fd())];
        let time = timeout.map(|time| libc::timespec {
            tv_sec: time.as_secs().min(3600) as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the array and the time live until the call returns.
        if unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, ptr::null()) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        let mut count = [0_u8; 8];
        // SAFETY: eight writable bytes. Nothing to read is no fault: it is non-blocking.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        Ok(())
    }

    /// From now on SIGTERM and SIGINT wake the thread, and `is_asked_to_stop` says so.
    ///
    /// # Errors
    /// The system takes no handler.
    pub fn end_on_signals(&self) -> io::Result<()> {
        // The handler writes to this descriptor for as long as the process lives: this copy is never dropped.
        std::mem::forget(self.clone());
        WOKEN_BY_SIGNALS.store(self.0.as_raw_fd(), Ordering::Relaxed);
        let handler = on_signal as extern "C" fn(libc::c_int);
        for number in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: the handler does only what a handler may: an atomic store and one write.
            if unsafe { libc::signal(number, handler as libc::sighandler_t) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// Whether SIGTERM or SIGINT came.
pub fn is_asked_to_stop() -> bool {
    ASKED_TO_STOP.load(Ordering::Relaxed)
}

extern "C" fn on_signal(_number: libc::c_int) {
    ASKED_TO_STOP.store(true, Ordering::Relaxed);
    // SAFETY: errno belongs to the interrupted thread; what it had is given back.
    unsafe {
        let errno = *libc::__errno_location();
        add_one(WOKEN_BY_SIGNALS.load(Ordering::Relaxed));
        *libc::__errno_location() = errno;
    }
}

fn add_one(fd: libc::c_int) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: eight readable bytes. It fails only when the count is at its end, and then the thread is awake.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// A line for whoever reads the log. A log that nobody takes is no reason to end.
pub fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Bytes that nobody can guess.
///
/// # Panics
/// The kernel gives none: then no secret can be made, and nothing may go on.
pub fn secret<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: N writable bytes; up to 256 come at once or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    assert!(got == N as isize, "the kernel gives no random bytes");
    bytes
}

/// A new key for one thing that must be done once, however often it is asked for.
pub fn idempotency_key() -> String {
    format!("{:032x}", u128::from_ne_bytes(secret()))
}

/// Numbers that are quick to make and need not be secret: splitmix64.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Not the same twice.
    pub fn new() -> Self {
        Self(u64::from_ne_bytes(secret()))
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Between half of it and all of it, so that many who wait do not all come back at the same instant.
    pub fn jitter(&mut self, longest: Duration) -> Duration {
        longest / 2 + (longest / 2).mul_f64((self.roll() >> 40) as f64 / (1_u64 << 24) as f64)
    }
}

impl Default for Dice {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn whoever_waits_is_woken_by_another_thread_and_by_a_wake_up_that_came_before() {
        let (waker, socket) = (Waker::new().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        waker.wait(&socket, None).unwrap();
        thread.join().unwrap();
        waker.wake();
        waker.wait(&socket, None).unwrap();
        let began = Instant::now();
        waker.wait(&socket, Some(Duration::from_millis(5))).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(5), "a wake-up counts once");
    }

    #[test]
    fn a_pause_with_jitter_is_between_half_and_whole() {
        let mut dice = Dice::new();
        let pauses: Vec<_> = (0..100).map(|_| dice.jitter(Duration::from_millis(100))).collect();
        assert!(pauses.iter().all(|one| (50..=100).contains(&one.as_millis())));
        assert!(pauses.iter().any(|one| one != &pauses[0]));
    }
}
