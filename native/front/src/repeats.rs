//! Repeats of long polls that have woken. Equal ones share one response, and a bounded number runs at a time.
//!
//! One change can wake ten thousand requests. Without this bound each would open a connection to Python at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::body_budget::BodyBudget;
use crate::connection_budget::ClientKey;
use crate::permits::Permits;
use crate::problems::Problem;

/// Requests with the same key get the same response.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RepeatKey {
    pub method: Method,
    pub path_and_query: String,
    pub origin: Option<Vec<u8>>,
    pub caller: RepeatCaller,
    pub is_over: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum RepeatCaller {
    /// Value of the header `authorization`.
    Own(Option<Vec<u8>>),
    /// Callers that share a response, by their key.
    Sharing(Rc<str>),
}

type Shared = Result<Response<Bytes>, Problem>;

/// A request that waits for the response to an equal one.
struct Follower {
    client: ClientKey,
    sender: oneshot::Sender<Shared>,
}

/// Repeats to one Python process.
pub struct Repeats {
    permits: Arc<Permits>,
    /// The followers of each request that is not sent yet.
    followers: RefCell<HashMap<RepeatKey, Vec<Follower>>>,
    answers: Arc<BodyBudget>,
}

impl Repeats {
    /// `answers` counts the bytes of responses until all clients have them.
    pub fn new(answers: Arc<BodyBudget>, permits: Arc<Permits>) -> Repeats {
        Repeats { permits, followers: RefCell::default(), answers }
    }

    /// Sends a request, or waits for the response to an equal one. Each equal request has the same `send`. Returns whether
    /// this request was sent too.
    pub async fn send<S>(
        &self,
        key: RepeatKey,
        token: Option<&str>,
        client: ClientKey,
        send: impl Fn() -> S,
    ) -> (Shared, bool)
    where
        S: Future<Output = Shared>,
    {
        loop {
            // Boxed, because ten thousand followers would have memory for it too.
            let leading = || Box::pin(self.lead(&key, token, client, send()));
            let Some(shared) = self.follow(&key, client) else { return (leading().await, true) };
            // The equal request may have ended without a response for this client.
            if let Ok(shared) = shared.await {
                return (shared, false);
            }
        }
    }

    /// Returns None if the caller is the first with this key.
    fn follow(&self, key: &RepeatKey, client: ClientKey) -> Option<oneshot::Receiver<Shared>> {
        let mut followers = self.followers.borrow_mut();
        let Some(equal) = followers.get_mut(key) else {
            followers.insert(key.clone(), Vec::new());
            return None;
        };
        let (sender, shared) = oneshot::channel();
        equal.push(Follower { client, sender });
        Some(shared)
    }

    async fn lead(
        &self,
        key: &RepeatKey,
        token: Option<&str>,
        client: ClientKey,
        sending: impl Future<Output = Shared>,
    ) -> Shared {
        let leader = Leader { repeats: self, key };
        // Equal requests that were woken by the same change run before this one goes on.
        yield_now().await;
        let permit = self.permits.acquire(token, client).await.map_err(|_| Problem::Overloaded)?;
        // A request that wakes from now on needs a response of its own: this one may be older than its change.
        let followers = leader.end();
        let (shared, _permit) = match self.answers.check_room(client) {
            Ok(()) => permit.run(sending).await,
            Err(full) => (Err(Problem::unread(full)), permit),
        };
        // Other clients may have read their responses. Their requests try again.
        let is_of_client = matches!(shared, Err(Problem::OverloadedUnread));
        for follower in followers {
            if !is_of_client || follower.client == client {
                let _ = follower.sender.send(shared.clone());
            }
        }
        shared
    }
}

/// The first request with a key, until it is sent. Its followers try again if it is dropped before.
struct Leader<'a> {
    repeats: &'a Repeats,
    key: &'a RepeatKey,
}

impl Leader<'_> {
    /// Returns the followers.
    fn end(self) -> Vec<Follower> {
        let followers = self.take_followers();
        std::mem::forget(self);
        followers
    }

    fn take_followers(&self) -> Vec<Follower> {
        self.repeats.followers.borrow_mut().remove(self.key).unwrap_or_default()
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.take_followers();
    }
}

#[cfg(test)]
mod tests;
