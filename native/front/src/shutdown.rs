//! The stop of one thread, and the connections for which it waits.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{Instant, sleep_until, timeout};

use crate::responses::problems::Problem;

/// Time to write the last responses at the end of the grace.
const LAST_RESPONSES_WAIT: Duration = Duration::from_secs(1);
/// Turns of the event loop until it has read all that clients have sent: one polls the sockets, one runs the connections.
const SETTLING_TURNS: usize = 2;

#[derive(Default)]
pub struct Shutdown {
    is_begun: Cell<bool>,
    begun: Notify,
    is_grace_over: Cell<bool>,
    grace_over: Notify,
    /// Open connections.
    open_http: Cell<usize>,
    open_grpc: Cell<usize>,
    /// Connections with a request that is received in part or not answered.
    busy: Cell<usize>,
    /// One of these counts is 0 now.
    is_quieter: Notify,
}

impl Shutdown {
    pub fn begin(&self) {
        self.is_begun.set(true);
        self.begun.notify_waiters();
    }

    pub fn is_begun(&self) -> bool {
        self.is_begun.get()
    }

    /// Waits until the front stops.
    pub async fn begun(&self) {
        if !self.is_begun.get() {
            self.begun.notified().await;
        }
    }

    /// Runs a part of a request until its end, or until the grace of a stop is over.
    pub async fn within_grace<T>(&self, part: impl Future<Output = T>) -> Result<T, Problem> {
        let end_of_grace = async {
            if !self.is_grace_over.get() {
                self.grace_over.notified().await;
            }
        };
        tokio::select! {
            biased;
            done = part => Ok(done),
            () = end_of_grace => Err(Problem::ShuttingDown),
        }
    }

    /// Counts a connection as busy. A stop waits for busy connections during its whole grace.
    pub fn begin_request(self: &Rc<Self>) -> Counted {
        Counted::new(self.clone(), |shutdown| &shutdown.busy)
    }

    /// Runs a connection, which counts as open until its end.
    pub fn serve_http(self: &Rc<Self>, serving: impl Future<Output = ()> + 'static) {
        serve_open(Counted::new(self.clone(), |shutdown| &shutdown.open_http), serving);
    }

    pub fn serve_grpc(self: &Rc<Self>, serving: impl Future<Output = ()> + 'static) {
        serve_open(Counted::new(self.clone(), |shutdown| &shutdown.open_grpc), serving);
    }

    /// Waits for the connections, at most for the grace in `stopped`, and for idle ones at most for `idle_grace`.
    pub async fn drain(&self, idle_grace: Duration, mut stopped: watch::Receiver<Option<Duration>>) {
        let began = Instant::now();
        while self.open_http.get() + self.open_grpc.get() > 0 {
            let grace = stopped.borrow_and_update().unwrap_or_default();
            let idle_end = began + grace.min(idle_grace);
            if Instant::now() >= began + grace || (Instant::now() >= idle_end && self.is_idle().await) {
                break;
            }
            let is_idle = self.busy.get() == 0;
            tokio::select! {
                () = self.is_quieter.notified() => {}
                () = sleep_until(if is_idle { idle_end } else { began + grace }) => {}
                _ = stopped.changed() => {}
            }
        }
        self.is_grace_over.set(true);
        self.grace_over.notify_waiters();
        // Idle connections of gRPC close on their own, after the last answers.
        let ending = async {
            while self.busy.get() + self.open_grpc.get() > 0 {
                self.is_quieter.notified().await;
            }
        };
        let _ = timeout(LAST_RESPONSES_WAIT, ending).await;
    }

    /// Returns whether all connections are idle, after the front has read all that their clients have sent.
    async fn is_idle(&self) -> bool {
        for _ in 0..SETTLING_TURNS {
            if self.busy.get() > 0 {
                return false;
            }
            yield_now().await;
        }
        self.busy.get() == 0
    }
}

fn serve_open(open: Counted, serving: impl Future<Output = ()> + 'static) {
    spawn_local(async move {
        serving.await;
        drop(open);
    });
}

/// Part of a count, until it is dropped.
pub struct Counted {
    shutdown: Rc<Shutdown>,
    count: fn(&Shutdown) -> &Cell<usize>,
}

impl Counted {
    fn new(shutdown: Rc<Shutdown>, count: fn(&Shutdown) -> &Cell<usize>) -> Counted {
        count(&shutdown).update(|count| count + 1);
        Counted { shutdown, count }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = (self.count)(&self.shutdown);
        count.update(|count| count - 1);
        if count.get() == 0 {
            self.shutdown.is_quieter.notify_one();
        }
    }
}
