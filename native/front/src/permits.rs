//! Limit on the requests that the front passes on at once. One client address and one token have only a share of it.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::connection_budget::ClientKey;
use crate::namespaces::PUBLIC_TOKEN;
use crate::routes::ByPlane;

/// Open gRPC streams of all clients to one plane. Each is a task in Python, and may have no end.
const STREAMS_AT_ONCE: usize = 1_024;
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
const ADDRESS_PART: usize = 2;
const TOKEN_PART: usize = 4;
/// Limit of waiting requests, as a multiple of the permits.
const WAITING_FACTOR: usize = 2;

/// The limit that keeps a request from its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overload {
    All,
    Address,
    Token,
    /// Requests of one address with a public token, or without a token, count like those of one token.
    NoOwnToken,
}

/// Counters of a request, next to that of all requests.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Keys {
    address: ClientKey,
    tenant: Tenant,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Tenant {
    Token(Arc<str>),
    NoOwnToken(ClientKey),
}

#[derive(Default)]
struct Counts {
    all: usize,
    by_address: HashMap<ClientKey, usize>,
    by_tenant: HashMap<Tenant, usize>,
}

#[derive(Default)]
struct State {
    running: Counts,
    waiting: Counts,
    lines: HashMap<Keys, Line>,
    addresses: HashMap<ClientKey, Address>,
    /// Client addresses with lines, by the numbers of their turns. A full address is skipped as a whole, however many lines
    /// it has.
    turns: BTreeMap<u64, ClientKey>,
    /// The next number of a request or of a turn.
    next_number: u64,
}

/// Waiting requests with the same keys.
struct Line {
    /// Its number among the lines of its address.
    turn: u64,
    /// By their numbers, in order of arrival.
    requests: BTreeMap<u64, oneshot::Sender<Permit>>,
}

/// A client address with lines.
struct Address {
    turn: u64,
    /// The first line that may run gets the next permit of the address, and moves to the end.
    lines: BTreeMap<u64, Keys>,
}

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
    /// For calls that a change has woken, which wait for any time.
    pub woken: ByPlane<Arc<Permits>>,
}

impl GrpcPermits {
    /// `requests_max` limits the requests of all clients that run at a time.
    pub fn new(requests_max: ByPlane<usize>) -> GrpcPermits {
        GrpcPermits {
            calls: requests_max.map(|most| Permits::new(most, WAIT)),
            streams: requests_max.map(|_| Permits::new(STREAMS_AT_ONCE, Duration::ZERO)),
            woken: requests_max.map(|_| Permits::patient(WOKEN_AT_ONCE)),
        }
    }
}

pub struct Permits {
    most: usize,
    /// None: any number of requests waits, for any time.
    wait: Option<Duration>,
    state: Mutex<State>,
}

/// Right to run a request until the permit is dropped.
pub struct Permit {
    permits: Arc<Permits>,
    keys: Keys,
}

impl Permits {
    /// A request waits for `wait`, if that is not zero, and twice as many requests as permits wait.
    pub fn new(most: usize, wait: Duration) -> Arc<Permits> {
        Arc::new(Permits { most, wait: Some(wait), state: Mutex::default() })
    }

    /// Any number of requests waits, for any time.
    pub fn patient(most: usize) -> Arc<Permits> {
        Arc::new(Permits { most, wait: None, state: Mutex::default() })
    }

    /// Waits for a permit. `token` has the form of a token.
    pub async fn acquire(self: &Arc<Self>, token: Option<&str>, client: ClientKey) -> Result<Permit, Overload> {
        // All players of a game have the same public token, so one player could use up its share.
        let own_token = token.filter(|token| !token.starts_with(PUBLIC_TOKEN));
        let tenant = own_token.map_or(Tenant::NoOwnToken(client), |token| Tenant::Token(token.into()));
        self.acquire_for(Keys { address: client, tenant }).await
    }

    /// Waits for a permit for the client and the token of another one.
    pub async fn acquire_for_same_client(self: &Arc<Self>, other: &Permit) -> Result<Permit, Overload> {
        self.acquire_for(other.keys.clone()).await
    }

    async fn acquire_for(self: &Arc<Self>, keys: Keys) -> Result<Permit, Overload> {
        let (number, turn) = {
            let mut state = self.state.lock();
            if !state.is_waiting(&keys) && state.running.full_limit(&keys, self.most).is_none() {
                state.running.add(&keys);
                return Ok(Permit { permits: self.clone(), keys });
            }
            let is_queue_full = || state.waiting.full_limit(&keys, WAITING_FACTOR * self.most).is_some();
            if self.wait.is_some_and(|wait| wait.is_zero() || is_queue_full()) {
                return Err(state.running.full_limit(&keys, self.most).unwrap_or(Overload::All));
            }
            state.enqueue(&keys)
        };
        let mut waiting = Waiting { permits: self, keys: &keys, number, has_turn: false };
        let granted = match self.wait {
            Some(wait) => timeout(wait, turn).await.ok().and_then(Result::ok),
            None => turn.await.ok(),
        };
        waiting.has_turn = granted.is_some();
        granted.ok_or_else(|| self.state.lock().running.full_limit(&keys, self.most).unwrap_or(Overload::All))
    }

    fn release(self: &Arc<Self>, keys: &Keys) {
        self.state.lock().running.remove(keys);
        // One permit can free both a token and an address.
        while let Some((keys, turn)) = self.take_turn() {
            // If the request has given up meanwhile, its permit is dropped, which runs the next one.
            let _ = turn.send(Permit { permits: self.clone(), keys });
        }
    }

    fn take_turn(&self) -> Option<(Keys, oneshot::Sender<Permit>)> {
        self.state.lock().next_turn(self.most)
    }
}

impl Permit {
    /// Runs a request, and returns the permit with its output. Keeps the permit for a second if the request is cancelled.
    pub async fn run<T>(self, request: impl Future<Output = T>) -> (T, Permit) {
        let mut running = Running(Some(self));
        let output = request.await;
        (output, running.0.take().expect("only the end of the request takes it"))
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
        self.permits.release(&self.keys);
    }
}

/// A request in a line, also if it gives up.
struct Waiting<'a> {
    permits: &'a Permits,
    keys: &'a Keys,
    number: u64,
    has_turn: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.has_turn {
            self.permits.state.lock().leave(self.keys, self.number);
        }
    }
}

impl State {
    fn is_waiting(&self, keys: &Keys) -> bool {
        self.lines.contains_key(keys)
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Returns the number of the request, and its turn.
    fn enqueue(&mut self, keys: &Keys) -> (u64, oneshot::Receiver<Permit>) {
        let (sender, granted) = oneshot::channel();
        let number = self.take_number();
        self.waiting.add(keys);
        let line = self.lines.entry(keys.clone()).or_insert_with(|| {
            // A new line is the last one of its address, and a new address the last one of all.
            let new_address = || Address { turn: number, lines: BTreeMap::new() };
            let address = self.addresses.entry(keys.address).or_insert_with(new_address);
            self.turns.entry(address.turn).or_insert(keys.address);
            address.lines.insert(number, keys.clone());
            Line { turn: number, requests: BTreeMap::new() }
        });
        line.requests.insert(number, sender);
        (number, granted)
    }

    /// Counts the next request that may run as running.
    fn next_turn(&mut self, most: usize) -> Option<(Keys, oneshot::Sender<Permit>)> {
        let keys = self.next_line(most)?.clone();
        let line = self.lines.get_mut(&keys)?;
        let (_, sender) = line.requests.pop_first()?;
        let is_empty = line.requests.is_empty();
        self.move_to_end(&keys);
        if is_empty {
            self.remove_line(&keys);
        }
        self.waiting.remove(&keys);
        self.running.add(&keys);
        Some((keys, sender))
    }

    fn next_line(&self, most: usize) -> Option<&Keys> {
        let may_run = |keys: &&Keys| self.running.full_limit(keys, most).is_none();
        let of_address = |address: &ClientKey| {
            let is_full = self.running.is_address_full(address, most);
            if is_full { None } else { self.addresses[address].lines.values().find(may_run) }
        };
        if self.running.all < most { self.turns.values().find_map(of_address) } else { None }
    }

    /// Gives the last turn to a line and to its address.
    fn move_to_end(&mut self, keys: &Keys) {
        let turn = self.take_number();
        let (Some(line), Some(address)) = (self.lines.get_mut(keys), self.addresses.get_mut(&keys.address)) else {
            return;
        };
        address.lines.remove(&line.turn);
        address.lines.insert(turn, keys.clone());
        self.turns.remove(&address.turn);
        self.turns.insert(turn, keys.address);
        (line.turn, address.turn) = (turn, turn);
    }

    /// Removes a request that gives up, if it still waits.
    fn leave(&mut self, keys: &Keys, number: u64) {
        let Some(line) = self.lines.get_mut(keys) else { return };
        if line.requests.remove(&number).is_none() {
            return;
        }
        if line.requests.is_empty() {
            self.remove_line(keys);
        }
        self.waiting.remove(keys);
    }

    fn remove_line(&mut self, keys: &Keys) {
        let (Some(line), Some(address)) = (self.lines.remove(keys), self.addresses.get_mut(&keys.address)) else {
            return;
        };
        address.lines.remove(&line.turn);
        if address.lines.is_empty() {
            self.turns.remove(&address.turn);
            self.addresses.remove(&keys.address);
        }
    }
}

impl Counts {
    fn add(&mut self, keys: &Keys) {
        self.all += 1;
        *self.by_address.entry(keys.address).or_default() += 1;
        *self.by_tenant.entry(keys.tenant.clone()).or_default() += 1;
    }

    fn remove(&mut self, keys: &Keys) {
        self.all -= 1;
        decrement(&mut self.by_address, &keys.address);
        decrement(&mut self.by_tenant, &keys.tenant);
    }

    fn is_address_full(&self, address: &ClientKey, most: usize) -> bool {
        self.by_address.get(address).is_some_and(|count| *count >= (most / ADDRESS_PART).max(1))
    }

    /// Returns the reached limit, first that of all requests. A token is named before its address.
    fn full_limit(&self, keys: &Keys, most: usize) -> Option<Overload> {
        let of_token = if matches!(keys.tenant, Tenant::Token(_)) { Overload::Token } else { Overload::NoOwnToken };
        let count_of = |count: Option<&usize>| count.copied().unwrap_or_default();
        [
            (self.all, most, Overload::All),
            (count_of(self.by_tenant.get(&keys.tenant)), (most / TOKEN_PART).max(1), of_token),
            (count_of(self.by_address.get(&keys.address)), (most / ADDRESS_PART).max(1), Overload::Address),
        ]
        .into_iter()
        .find_map(|(count, limit, overload)| (count >= limit).then_some(overload))
    }
}

fn decrement<Key: Hash + Eq>(counts: &mut HashMap<Key, usize>, key: &Key) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
