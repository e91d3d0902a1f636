//! The thread that speaks to the hosting service, so that the game never waits for it.
//!
//! Orders come through a bounded queue; when it is full the game goes on without: a hello comes again, and a release
//! that is lost is made good by the next heartbeats. News go back with a wake-up. When the game lets go of the queue,
//! the thread releases everybody and ends.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::http::{Service, outcome};
use crate::lobby::{ATTEMPT, Call, News, Next, Owed};
use crate::system::Waker;

/// Orders that wait at one time.
const QUEUE: usize = 256;
/// How long the end may take.
const END: Duration = Duration::from_secs(5);
/// A page or two are used.
const STACK: usize = 128 << 10;

/// What the game wants the service to be told.
#[derive(Debug)]
enum Order {
    Ask(String),
    Leave(String),
}

/// The game's end of it.
#[derive(Debug)]
pub struct Desk {
    orders: SyncSender<Order>,
    news: Receiver<News>,
    thread: JoinHandle<()>,
}

/// The thread is gone: it never ends by itself without saying why.
#[derive(Debug)]
pub struct Lost;

impl Desk {
    /// Starts the thread. It begins with saying that the lobby is ready.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn open(service: Service, waker: Waker) -> io::Result<Self> {
        let (orders, ordered) = sync_channel(QUEUE);
        let (tell, news) = channel();
        let clerk = Clerk { service, ordered, tell, waker, owed: Owed::new(Instant::now()), end: None };
        let thread = Builder::new().name("calls".to_owned()).stack_size(STACK).spawn(move || clerk.work())?;
        Ok(Self { orders, news, thread })
    }

    /// Whether a player may come in will be told. False: too many orders wait.
    pub fn ask(&self, token: &str) -> bool {
        self.orders.try_send(Order::Ask(token.to_owned())).is_ok()
    }

    /// A player has gone. False: too many orders wait.
    pub fn leave(&self, token: String) -> bool {
        self.orders.try_send(Order::Leave(token)).is_ok()
    }

    /// What there is to know, if anything.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn news(&self) -> Result<Option<News>, Lost> {
        match self.news.try_recv() {
            Ok(news) => Ok(Some(news)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Lost),
        }
    }

    /// No more orders: everybody is released. The thread is done when it ends, within some seconds.
    pub fn close(self) -> JoinHandle<()> {
        self.thread
    }
}

struct Clerk {
    service: Service,
    ordered: Receiver<Order>,
    tell: Sender<News>,
    waker: Waker,
    owed: Owed,
    end: Option<Instant>,
}

impl Clerk {
    fn work(mut self) {
        loop {
            self.take_orders();
            let now = Instant::now();
            let next = self.owed.next(now);
            if self.tell_news() || self.end.is_some_and(|end| now >= end) {
                return;
            }
            match next {
                Next::Call(call) => self.make(call),
                Next::Wait(until) => self.wait(until),
                Next::Nothing => return,
            }
        }
    }

    fn take_orders(&mut self) {
        loop {
            match self.ordered.try_recv() {
                Ok(order) => self.take(order),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.begin_to_end(),
            }
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Ask(token) => self.owed.ask(token, Instant::now()),
            Order::Leave(token) => self.owed.leave(token, Instant::now()),
        }
    }

    fn begin_to_end(&mut self) {
        if self.end.is_none() {
            let now = Instant::now();
            self.end = Some(now + END);
            self.owed.end(now);
        }
    }

    fn wait(&mut self, until: Instant) {
        let left = until.min(self.end.unwrap_or(until)).saturating_duration_since(Instant::now());
        if self.end.is_some() {
            return std::thread::sleep(left);
        }
        match self.ordered.recv_timeout(left) {
            Ok(order) => self.take(order),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.begin_to_end(),
        }
    }

    fn make(&mut self, call: Call) {
        let (method, path, body, key, until) = match &call {
            Call::Ready => ("POST", "lobbies/ready", "{}".to_owned(), None, None),
            Call::Closed => ("PUT", "lobbies/closed", "{\"is_closed\":true}".to_owned(), None, None),
            Call::Heartbeat(tokens) => ("POST", "lobbies/heartbeat", heartbeat(tokens), None, None),
            Call::Connected { token, key, until } => {
                ("POST", "players/connected", player(token), Some(key.as_str()), Some(*until))
            }
            Call::Disconnected { token, .. } => ("POST", "players/disconnected", player(token), None, None),
        };
        let last = until.into_iter().chain(self.end).min();
        let left = last.map_or(ATTEMPT, |last| last.saturating_duration_since(Instant::now()));
        let called = self.service.call(method, &format!("/matchmaker/{path}"), &body, key, left.min(ATTEMPT));
        self.owed.settle(call, outcome(&called), Instant::now());
    }

    /// Whether it was the last.
    fn tell_news(&mut self) -> bool {
        let mut is_last = false;
        while let Some(news) = self.owed.news() {
            is_last |= matches!(news, News::LobbyEnded | News::NotOurs(_));
            // A game that is gone needs no news.
            let _ = self.tell.send(news);
            self.waker.wake();
        }
        is_last
    }
}

// Tokens need no quoting: see `protocol`.

fn player(token: &str) -> String {
    format!("{{\"player_token\":\"{token}\"}}")
}

fn heartbeat(tokens: &[String]) -> String {
    let quoted: Vec<_> = tokens.iter().map(|token| format!("\"{token}\"")).collect();
    format!("{{\"player_tokens\":[{}]}}", quoted.join(","))
}
