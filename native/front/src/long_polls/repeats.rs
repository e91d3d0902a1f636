//! Repeats of long polls that have woken. Equal ones share one response, and a bounded number runs at a time.
//!
//! One change can wake ten thousand requests. Without this bound each would open a connection to Python at once.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::limits::body_budget::BodyBudget;
use crate::limits::permits::Permits;
use crate::responses::problems::Problem;
use hosting_matchmaker::ClientKey;

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
    sender: oneshot::Sender<Turn>,
}

enum Turn {
    Take(Shared),
    /// The equal request ended without a response for this client. It is the next to be sent.
    Lead(Leader),
}

/// The followers of each request that is not sent yet.
type Followers = RefCell<HashMap<RepeatKey, VecDeque<Follower>>>;

/// Repeats to one Python process.
pub struct Repeats {
    permits: Arc<Permits>,
    followers: Rc<Followers>,
    answers: Arc<BodyBudget>,
}

impl Repeats {
    /// `answers` counts the bytes of responses until all clients have them.
    pub fn new(answers: Arc<BodyBudget>, permits: Arc<Permits>) -> Repeats {
        Repeats { permits, followers: Rc::default(), answers }
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
        let leader = match self.follow(&key, client) {
            None => Leader { all: self.followers.clone(), key, own: None },
            Some(turn) => match turn.await {
                Ok(Turn::Take(shared)) => return (shared, false),
                Ok(Turn::Lead(leader)) => leader,
                // Not reached: a leader shares its response or hands over.
                Err(_) => return (Err(Problem::Internal), false),
            },
        };
        // Boxed, because ten thousand followers would have memory for it too.
        (Box::pin(self.lead(leader, token, client, send())).await, true)
    }

    /// Returns None if the caller is the first with this key.
    fn follow(&self, key: &RepeatKey, client: ClientKey) -> Option<oneshot::Receiver<Turn>> {
        let mut followers = self.followers.borrow_mut();
        let Some(equal) = followers.get_mut(key) else {
            followers.insert(key.clone(), VecDeque::new());
            return None;
        };
        let (sender, turn) = oneshot::channel();
        equal.push_back(Follower { client, sender });
        Some(turn)
    }

    async fn lead(
        &self,
        mut leader: Leader,
        token: Option<&str>,
        client: ClientKey,
        sending: impl Future<Output = Shared>,
    ) -> Shared {
        // Equal requests that were woken by the same change run before this one goes on.
        yield_now().await;
        let permit = self.permits.acquire(token, client).await.map_err(|_| Problem::Overloaded)?;
        // A request that wakes from now on needs a response of its own: this one may be older than its change.
        leader.begin();
        let (shared, _permit) = match self.answers.check_room(client) {
            Ok(()) => permit.run(sending).await,
            Err(full) => (Err(Problem::unread(full)), permit),
        };
        leader.share(&shared, client);
        shared
    }
}

/// The equal request that is sent first. If it ends without a response for some followers, the first of them is sent next.
struct Leader {
    all: Rc<Followers>,
    key: RepeatKey,
    /// The followers once the request is sent.
    own: Option<VecDeque<Follower>>,
}

impl Leader {
    fn begin(&mut self) {
        self.own = self.all.borrow_mut().remove(&self.key);
    }

    /// Sends the response to the followers. If `client` alone is refused, other clients may have read their responses.
    fn share(&mut self, shared: &Shared, client: ClientKey) {
        let is_of_client = matches!(shared, Err(Problem::OverloadedUnread));
        let takes = |follower: &Follower| !is_of_client || follower.client == client;
        let (takers, others): (VecDeque<_>, VecDeque<_>) = self.own.take().into_iter().flatten().partition(takes);
        self.own = Some(others);
        for follower in takers {
            let _ = follower.sender.send(Turn::Take(shared.clone()));
        }
    }

    /// Returns the next follower of the requests that are not sent, or removes their entry.
    fn next_follower(&self) -> Option<Follower> {
        let mut all = self.all.borrow_mut();
        let next = all.get_mut(&self.key)?.pop_front();
        if next.is_none() {
            all.remove(&self.key);
        }
        next
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            let mut all = self.all.borrow_mut();
            match all.get_mut(&self.key) {
                // An equal request that woke later has a newer response.
                Some(equal) => return equal.extend(own),
                None if own.is_empty() => return,
                None => all.insert(self.key.clone(), own),
            };
        }
        while let Some(follower) = self.next_follower() {
            let leader = Leader { all: self.all.clone(), key: self.key.clone(), own: None };
            let Err(Turn::Lead(mut unsent)) = follower.sender.send(Turn::Lead(leader)) else { return };
            // This follower has left.
            unsent.own = Some(VecDeque::new());
        }
    }
}

#[cfg(test)]
mod tests;
