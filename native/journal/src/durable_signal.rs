//! Event descriptors that wake event loops when an event for which they wait is durable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lsn::Lsn;
use crate::mutex::lock;

const NONE: Lsn = Lsn::MAX;

/// Subscription of one consumer: a non-blocking eventfd, which the writer signals after a durable batch with a requested
/// event. Dropping the last clone ends the subscription.
#[derive(Clone)]
pub struct DurableSignal {
    position: Arc<DurablePosition>,
    requests: Arc<Requests>,
}

/// Durable position of a journal, and the consumers that wait for a later one. Each consumer has its own descriptor, so
/// that no consumer takes the wake-up of another.
pub(crate) struct DurablePosition {
    lsn: AtomicU64,
    consumers: Mutex<Vec<Weak<Requests>>>,
}

/// Requested events of a consumer that were not signalled yet. Only the first and the last one are known.
struct Requests {
    first: AtomicU64,
    last: AtomicU64,
    event_fd: EventFd,
}

impl DurableSignal {
    /// Requests one signal when an event is durable. Returns false, and needs no signal, if the event already is.
    ///
    /// The event must be submitted. Any thread can request. A signal serves all requests of events that are durable by then.
    /// If the segment changes between two requested events, the signal for the first one can come with the second one.
    #[must_use]
    pub fn request(&self, lsn: Lsn) -> bool {
        if self.position.get() >= lsn {
            return false;
        }
        self.requests.last.fetch_max(lsn, Ordering::SeqCst);
        self.requests.first.fetch_min(lsn, Ordering::SeqCst);
        self.position.lsn.load(Ordering::SeqCst) < lsn
    }

    /// Signals at once.
    pub fn signal(&self) {
        self.requests.event_fd.signal();
    }
}

impl AsRawFd for DurableSignal {
    fn as_raw_fd(&self) -> RawFd {
        self.requests.event_fd.raw()
    }
}

impl AsFd for DurableSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.event_fd.0.as_fd()
    }
}

impl DurablePosition {
    pub fn new(lsn: Lsn) -> Arc<Self> {
        Arc::new(Self { lsn: AtomicU64::new(lsn), consumers: Mutex::default() })
    }

    pub fn get(&self) -> Lsn {
        self.lsn.load(Ordering::Acquire)
    }

    pub fn set(&self, lsn: Lsn) {
        self.lsn.store(lsn, Ordering::SeqCst);
    }

    pub fn subscribe(self: &Arc<Self>) -> io::Result<DurableSignal> {
        let requests = Requests { first: AtomicU64::new(NONE), last: AtomicU64::new(0), event_fd: EventFd::new()? };
        let requests = Arc::new(requests);
        lock(&self.consumers).push(Arc::downgrade(&requests));
        Ok(DurableSignal { position: Arc::clone(self), requests })
    }

    /// Signals the consumers with a request up to the current position. Only the writer calls this, after [`Self::set`].
    ///
    /// No request is lost, because all accesses to `lsn`, `first` and `last` have one total order (`SeqCst`):
    /// - A request changes `first` and then reads `lsn`. The writer changes `lsn` and then reads `first`. So at least one of
    ///   them sees the change of the other. Either the request finds its event durable, or the writer finds the request.
    /// - The writer empties `first` and then reads `last`. A request changes `last` and then `first`. So a request that the
    ///   writer removes from `first` is at most the `last` that the writer reads. If that one is not durable yet, the writer
    ///   puts it back into `first`. The next batch contains it, as all events that are submitted by now.
    pub fn signal_consumers(&self) {
        let durable = self.lsn.load(Ordering::SeqCst);
        lock(&self.consumers).retain(|consumer| {
            let Some(requests) = consumer.upgrade() else { return false };
            if requests.first.load(Ordering::SeqCst) <= durable {
                requests.first.store(NONE, Ordering::SeqCst);
                let last = requests.last.load(Ordering::SeqCst);
                if last > durable {
                    requests.first.fetch_min(last, Ordering::SeqCst);
                }
                requests.event_fd.signal();
            }
            true
        });
    }
}

struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<Self> {
        // SAFETY: plain call without pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Wakes the event loop that waits for this descriptor. Ignores a full counter (`EAGAIN`), which also wakes it.
    pub fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: pointer and length belong to one live array.
        unsafe { libc::write(self.raw(), one.as_ptr().cast(), one.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: u64 = 200_000;

    /// Start line of two threads, which they pass at about the same time.
    #[derive(Default)]
    struct StartLine(AtomicU64);

    impl StartLine {
        fn pass(&self, round: u64) {
            self.0.fetch_add(1, Ordering::SeqCst);
            for spins in 1_u32.. {
                if self.0.load(Ordering::SeqCst) >= 2 * round {
                    return;
                }
                if spins % 100 == 0 {
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Returns whether a signal arrived since the last call.
    fn take(signal: &DurableSignal) -> bool {
        let mut counter = [0_u8; 8];
        // SAFETY: pointer and length belong to one live array.
        unsafe { libc::read(signal.as_raw_fd(), counter.as_mut_ptr().cast(), counter.len()) > 0 }
    }

    fn pause(random: &mut u64) {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (0..*random >> 58).for_each(|_| std::hint::spin_loop());
    }

    /// In round `n`, the event `n` becomes durable while another thread requests it, or the event of the next round.
    #[test]
    fn request_during_a_publication_is_not_lost() {
        let position = DurablePosition::new(0);
        let signal = position.subscribe().unwrap();
        let (start, end) = (StartLine::default(), StartLine::default());
        let (requested, requested_before) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut lost = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = 7;
                for round in 1..=ROUNDS {
                    start.pass(round);
                    pause(&mut random);
                    if random >> 40 & 1 == 0 && signal.request(round) {
                        requested.store(round, Ordering::SeqCst);
                    }
                    if random >> 41 & 1 == 0 && signal.request(round + 1) {
                        requested_before.store(round + 1, Ordering::SeqCst);
                    }
                    end.pass(round);
                }
            });
            let mut random = 8;
            for round in 1..=ROUNDS {
                let is_awaited = requested_before.load(Ordering::SeqCst) == round;
                start.pass(round);
                pause(&mut random);
                position.set(round);
                position.signal_consumers();
                end.pass(round);
                let is_signalled = take(&signal);
                let is_due = is_awaited || requested.load(Ordering::SeqCst) == round;
                lost += u64::from(is_due && !is_signalled);
            }
        });
        assert_eq!(lost, 0);
    }
}
