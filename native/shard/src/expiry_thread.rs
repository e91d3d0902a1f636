//! Start, sleep and stop of the expiry thread.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use hosting_core::Ms;
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
pub struct ExpiryThread {
    /// Time until which the thread sleeps. A command with an earlier deadline wakes the thread.
    target: AtomicU64,
    thread_wake: Condvar,
    requests: Mutex<Requests>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Requests to the expiry thread. A caller sets a request before it wakes the thread, so that no request is lost.
#[derive(Default)]
struct Requests {
    has_earlier_deadline: bool,
    is_stopped: bool,
}

impl ExpiryThread {
    pub fn start(&self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        *self.thread.lock() = Some(Builder::new().name("expiry".into()).spawn(run)?);
        Ok(())
    }

    pub fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            self.requests.lock().is_stopped = true;
            self.thread_wake.notify_one();
            let _ = thread.join();
        }
    }

    pub fn wake_before(&self, deadline: Option<Ms>) {
        if deadline.is_some_and(|deadline| deadline < self.target.load(Ordering::Acquire)) {
            self.requests.lock().has_earlier_deadline = true;
            self.thread_wake.notify_one();
        }
    }

    /// From here on, every command with a deadline wakes the thread, so that it misses no deadline before its wait.
    pub fn stay_awake(&self) {
        self.target.store(Ms::MAX, Ordering::Release);
    }

    /// Waits until `target` or a wake-up. Returns false if the thread must stop.
    pub fn sleep_until(&self, target: Ms, now: impl Fn() -> Ms) -> bool {
        self.target.store(target, Ordering::Release);
        let mut requests = self.requests.lock();
        if !requests.has_earlier_deadline && !requests.is_stopped {
            let pause = Duration::from_millis(target.saturating_sub(now()));
            self.thread_wake.wait_for(&mut requests, pause);
        }
        requests.has_earlier_deadline = false;
        !requests.is_stopped
    }
}
