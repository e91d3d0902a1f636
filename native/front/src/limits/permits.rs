//! Limit on the requests that the front passes on at once. One client address and one token have only a share of it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::limits::permit_queue::{Keys, Overload, Queue};
use crate::requests::routes::ByPlane;
use hosting_matchmaker::ClientKey;

/// Open gRPC streams of all clients to one plane, and as many of event channels. Each is a task in Python.
const STREAMS_AT_ONCE: usize = 1_024;
/// Open gRPC streams with a token that the front cannot verify. So invented tokens take none of the permits of others.
const UNVERIFIED_STREAMS_AT_ONCE: usize = 256;
/// Limit of the requests of one protocol to one plane that a change has woken and that Python answers at a time. Over HTTP,
/// [`EXTRA_PERMITS_DIVISOR`] may give a lower one.
const WOKEN_AT_ONCE: usize = 256;
/// Divisor of the limit of HTTP requests. The result is the limit of long responses, and that of repeats.
const EXTRA_PERMITS_DIVISOR: usize = 4;
/// Time that a request waits for its permit.
const WAIT: Duration = Duration::from_secs(2);
/// Time for which a cancelled request keeps its permit, because Python may have it in a queue. Without it, a client that
/// cancels its requests at once would fill the queues of Python, and the requests of others would wait behind.
const KEPT_AFTER_CANCELLATION: Duration = Duration::from_secs(1);
/// Limit of waiting requests, as a multiple of the permits.
const WAITING_FACTOR: usize = 2;

/// Permits of HTTP. All threads share them.
pub struct HttpPermits {
    pub requests: ByPlane<Arc<Permits>>,
    /// For long responses, until their clients have received them.
    pub long_responses: ByPlane<Arc<Permits>>,
    /// For requests that a change has woken, which wait for any time.
    pub woken: ByPlane<Arc<Permits>>,
}

impl HttpPermits {
    /// `requests_max` limits the requests of all clients that run at a time.
    pub fn new(requests_max: ByPlane<usize>) -> HttpPermits {
        let part = |most: usize| (most / EXTRA_PERMITS_DIVISOR).max(1);
        HttpPermits {
            requests: requests_max.map(|most| Permits::new(most, WAIT)),
            long_responses: requests_max.map(|most| Permits::new(part(most), WAIT)),
            woken: requests_max.map(|most| Permits::patient(part(most).min(WOKEN_AT_ONCE))),
        }
    }
}

/// Permits of gRPC. All threads share them.
pub struct GrpcPermits {
    pub calls: ByPlane<Arc<Permits>>,
    /// For open streams, which do not wait for a permit.
    pub streams: ByPlane<Arc<Permits>>,
    /// For open streams of event channels. A client can invent a channel, so they take no permits of others, and end in time.
    pub channel_streams: ByPlane<Arc<Permits>>,
    /// For open streams with a token that the front cannot verify.
    pub unverified_streams: ByPlane<Arc<Permits>>,
    /// For calls that a change has woken, which wait for any time.
    pub woken: ByPlane<Arc<Permits>>,
}

impl GrpcPermits {
    /// `requests_max` limits the requests of all clients that run at a time.
    pub fn new(requests_max: ByPlane<usize>) -> GrpcPermits {
        GrpcPermits {
            calls: requests_max.map(|most| Permits::new(most, WAIT)),
            streams: requests_max.map(|_| Permits::new(STREAMS_AT_ONCE, Duration::ZERO)),
            channel_streams: requests_max.map(|_| Permits::new(STREAMS_AT_ONCE, Duration::ZERO)),
            unverified_streams: requests_max.map(|_| Permits::new(UNVERIFIED_STREAMS_AT_ONCE, Duration::ZERO)),
            woken: requests_max.map(|_| Permits::patient(WOKEN_AT_ONCE)),
        }
    }
}

pub struct Permits {
    most: usize,
    /// None: any number of requests waits, for any time.
    wait: Option<Duration>,
    queue: Mutex<Queue<Permit>>,
}

/// Right to run a request until the permit is dropped.
pub struct Permit {
    permits: Arc<Permits>,
    keys: Keys,
}

impl Permits {
    /// A request waits for `wait`, if that is not zero, and twice as many requests as permits wait.
    pub fn new(most: usize, wait: Duration) -> Arc<Permits> {
        Arc::new(Permits { most, wait: Some(wait), queue: Mutex::default() })
    }

    /// Any number of requests waits, for any time.
    pub fn patient(most: usize) -> Arc<Permits> {
        Arc::new(Permits { most, wait: None, queue: Mutex::default() })
    }

    /// Waits for a permit. `token` has the form of a token.
    pub async fn acquire(self: &Arc<Self>, token: Option<&str>, client: ClientKey) -> Result<Permit, Overload> {
        self.acquire_for(Keys::new(token, client)).await
    }

    /// Waits for a permit for the client and the token of another one.
    pub async fn acquire_for_same_client(self: &Arc<Self>, other: &Permit) -> Result<Permit, Overload> {
        self.acquire_for(other.keys.clone()).await
    }

    async fn acquire_for(self: &Arc<Self>, keys: Keys) -> Result<Permit, Overload> {
        let (number, turn) = {
            let mut queue = self.queue.lock();
            if queue.start(&keys, self.most) {
                return Ok(Permit { permits: self.clone(), keys });
            }
            let is_full = || !queue.may_wait(&keys, WAITING_FACTOR * self.most);
            if self.wait.is_some_and(|wait| wait.is_zero() || is_full()) {
                return Err(queue.reached_limit(&keys, self.most));
            }
            queue.enqueue(&keys, self.most)
        };
        let mut waiting = Waiting { permits: self, keys: &keys, number, has_turn: false };
        let granted = match self.wait {
            Some(wait) => timeout(wait, turn).await.ok().and_then(Result::ok),
            None => turn.await.ok(),
        };
        waiting.has_turn = granted.is_some();
        granted.ok_or_else(|| self.queue.lock().reached_limit(&keys, self.most))
    }

    /// Changes the queue, and runs all requests that may run then. One permit can free both a token and an address.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Queue<Permit>)) {
        let take_turn = |queue: &mut Queue<Permit>| queue.next_turn(self.most);
        let mut next = {
            let mut queue = self.queue.lock();
            change(&mut queue);
            take_turn(&mut queue)
        };
        while let Some((keys, turn)) = next {
            // If the request has given up meanwhile, its permit is dropped, which runs the next one.
            let _ = turn.send(Permit { permits: self.clone(), keys });
            next = take_turn(&mut self.queue.lock());
        }
    }
}

impl Permit {
    /// Runs a request, and returns the permit with its output. Keeps the permit for a second if the request is cancelled.
    pub async fn run<T>(self, request: impl Future<Output = T>) -> (T, Permit) {
        let mut running = Running(Some(self));
        let output = request.await;
        (output, running.0.take().expect("only the end of the request takes it"))
    }

    /// Runs a request like [`Permit::run`], but gives the permit back at its end, or after `longest`.
    pub async fn run_at_most<T>(self, longest: Duration, request: impl Future<Output = T>) -> T {
        let mut running = Running(Some(self));
        let mut request = pin!(request);
        let output = timeout(longest, &mut request).await;
        drop(running.0.take());
        match output {
            Ok(output) => output,
            Err(_) => request.await,
        }
    }
}

/// The permit of a request, until the request has ended.
struct Running(Option<Permit>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            spawn_local(async move {
                sleep(KEPT_AFTER_CANCELLATION).await;
                drop(permit);
            });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.change(|queue| queue.end(&self.keys, self.permits.most));
    }
}

/// A request in a line, also if it gives up.
struct Waiting<'a> {
    permits: &'a Arc<Permits>,
    keys: &'a Keys,
    number: u64,
    has_turn: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.has_turn {
            self.permits.change(|queue| queue.leave(self.keys, self.number, self.permits.most));
        }
    }
}

#[cfg(test)]
mod tests;
