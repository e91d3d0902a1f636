//! Whether a Python process is stopped, for example by SIGSTOP. Its sockets still accept connections then, so requests would
//! wait without end.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::sleep;

/// A request to a stopped process waits up to twice this time.
const CHECK_INTERVAL: Duration = Duration::from_millis(40);
const UNKNOWN: i32 = 0;

/// State of the process behind a Unix socket. It is only read while requests wait for the process.
pub struct ProcessState {
    pid: Arc<AtomicI32>,
    waiting: Cell<usize>,
    is_checking: Cell<bool>,
    is_stopped: Cell<bool>,
    has_stopped: Notify,
}

/// The process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// Remembers the process at the other end of connections.
#[derive(Clone)]
pub struct PeerProcess(Arc<AtomicI32>);

impl PeerProcess {
    pub fn set(&self, connection: &UnixStream) {
        let pid = connection.peer_cred().ok().and_then(|peer| peer.pid());
        self.0.store(pid.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }
}

impl ProcessState {
    pub fn new() -> Rc<ProcessState> {
        Rc::new(ProcessState {
            pid: Arc::new(AtomicI32::new(UNKNOWN)),
            waiting: Cell::new(0),
            is_checking: Cell::new(false),
            is_stopped: Cell::new(false),
            has_stopped: Notify::new(),
        })
    }

    pub fn peer(&self) -> PeerProcess {
        PeerProcess(self.pid.clone())
    }

    /// Runs `work` until it ends or the process stops.
    pub async fn unless_stopped<T>(self: &Rc<Self>, work: impl Future<Output = T>) -> Result<T, Stopped> {
        tokio::select! {
            biased;
            outcome = work => Ok(outcome),
            () = self.clone().stopped() => Err(Stopped),
        }
    }

    /// Waits until the process stops.
    pub async fn stopped(self: Rc<Self>) {
        let _waiting = Waiting::begin(&self);
        let has_stopped = self.has_stopped.notified();
        // The process may continue since the last check.
        if !self.is_stopped.get() || !self.read() {
            has_stopped.await;
        }
    }

    fn read(&self) -> bool {
        let is_stopped = is_stopped(self.pid.load(Ordering::Relaxed));
        self.is_stopped.set(is_stopped);
        is_stopped
    }

    async fn check(self: Rc<Self>) {
        while self.waiting.get() > 0 {
            sleep(CHECK_INTERVAL).await;
            if self.read() {
                self.has_stopped.notify_waiters();
            }
        }
        self.is_checking.set(false);
        self.is_stopped.set(false);
    }
}

struct Waiting<'a>(&'a ProcessState);

impl Waiting<'_> {
    fn begin(state: &Rc<ProcessState>) -> Waiting<'_> {
        state.waiting.set(state.waiting.get() + 1);
        if !state.is_checking.replace(true) {
            spawn_local(state.clone().check());
        }
        Waiting(state)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// Reads the state of a process from proc(5): `T` stopped by a signal, `t` stopped by a tracer.
fn is_stopped(pid: i32) -> bool {
    if pid == UNKNOWN {
        return false;
    }
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program before the state may have parentheses itself.
    let end_of_name = stat.iter().rposition(|byte| *byte == b')');
    let state = end_of_name.and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'T' | b't'))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use tokio::task::LocalSet;
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    struct Process(Child);

    impl Process {
        fn start() -> Process {
            Process(Command::new("sleep").arg("600").spawn().expect("sleep(1) starts"))
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.0.id()).expect("a PID")
        }

        fn send(&self, signal: i32) {
            // SAFETY: a signal to a child that is not waited for yet.
            assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn requests_to_a_stopped_process_end_until_it_continues() {
        let process = Process::start();
        let state = ProcessState::new();
        state.pid.store(process.pid(), Ordering::Relaxed);
        LocalSet::new()
            .run_until(async {
                process.send(libc::SIGSTOP);
                let waits = state.unless_stopped(std::future::pending::<()>());
                assert_eq!(timeout(LIMIT, waits).await, Ok(Err(Stopped)));
                process.send(libc::SIGCONT);
                let continues = async {
                    while state.unless_stopped(sleep(2 * CHECK_INTERVAL)).await.is_err() {
                        tokio::task::yield_now().await;
                    }
                };
                assert_eq!(timeout(LIMIT, continues).await, Ok(()));
            })
            .await;
    }

    #[test]
    fn running_and_unknown_processes_are_not_stopped() {
        let this = i32::try_from(std::process::id()).expect("a PID");
        assert!(!is_stopped(this) && !is_stopped(UNKNOWN) && !is_stopped(i32::MAX));
    }
}
