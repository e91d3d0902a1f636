//! Equal repeats when a client has too many unread responses.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};

use tokio::runtime;

use super::*;

const MIB: usize = 1024 * 1024;

type Repeat = Pin<Box<dyn Future<Output = (Shared, bool)>>>;

fn client(number: u8) -> ClientKey {
    ClientKey::V4([192, 0, 2, number])
}

struct World {
    permits: Arc<Permits>,
    answers: Arc<BodyBudget>,
    repeats: Rc<Repeats>,
    sent: Rc<Cell<usize>>,
}

impl World {
    fn new() -> World {
        let (permits, answers) = (Permits::patient(1), BodyBudget::new(16 * MIB, MIB));
        let repeats = Rc::new(Repeats::new(answers.clone(), permits.clone()));
        World { permits, answers, repeats, sent: Rc::default() }
    }

    /// Returns a repeat that waits.
    async fn repeat(&self, number: u8) -> Repeat {
        let key = RepeatKey {
            method: Method::GET,
            path_and_query: "/a".to_owned(),
            origin: None,
            caller: RepeatCaller::Own(None),
            is_over: false,
        };
        let (repeats, sent) = (self.repeats.clone(), self.sent.clone());
        let send = move || {
            let sent = sent.clone();
            async move {
                sent.set(sent.get() + 1);
                Ok(Response::new(Bytes::new()))
            }
        };
        let mut repeat: Repeat = Box::pin(async move { repeats.send(key, None, client(number), send).await });
        // The first poll ends at the yield before the permit, the second one waits for the permit.
        assert!(outcome(&mut repeat).await.is_none() && outcome(&mut repeat).await.is_none());
        repeat
    }
}

/// Returns the outcome of a repeat if it does not wait, without the response.
async fn outcome(repeat: &mut Repeat) -> Option<Result<(), Problem>> {
    poll_fn(|context| {
        Poll::Ready(match repeat.as_mut().poll(context) {
            Poll::Ready((shared, _)) => Some(shared.map(drop)),
            Poll::Pending => None,
        })
    })
    .await
}

fn run(test: impl Future<Output = ()>) {
    let runtime = runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(test);
}

/// Each of ten thousand followers asked again, and woke all others each time.
#[test]
fn client_with_too_many_unread_responses_is_refused_once_for_all() {
    run(async {
        let world = World::new();
        let mut unread = world.answers.reserve(client(1));
        unread.add(2 * MIB);
        let held = world.permits.acquire(None, client(9)).await.expect("a permit");
        let mut repeats = [world.repeat(1).await, world.repeat(1).await, world.repeat(2).await, world.repeat(1).await];
        let mut last_in_line = Box::pin(world.permits.acquire(None, client(8)));
        assert!(poll_fn(|context| Poll::Ready(last_in_line.as_mut().poll(context).is_pending())).await);
        drop(held);
        let [first, second, other, third] = &mut repeats;
        assert_eq!(outcome(first).await, Some(Err(Problem::OverloadedUnread)));
        let next = last_in_line.await.expect("its turn");
        for follower in [second, third] {
            assert_eq!(outcome(follower).await, Some(Err(Problem::OverloadedUnread)), "without a permit");
        }
        assert_eq!((outcome(other).await, world.sent.get()), (None, 0));
        drop(next);
        assert_eq!((outcome(other).await, world.sent.get()), (Some(Ok(())), 1));
    });
}

#[test]
fn full_budget_refuses_all_clients_at_once() {
    run(async {
        let world = World::new();
        let mut unread = world.answers.reserve(client(7));
        unread.add(16 * MIB);
        let held = world.permits.acquire(None, client(9)).await.expect("a permit");
        let mut repeats = [world.repeat(1).await, world.repeat(2).await, world.repeat(3).await];
        drop(held);
        for repeat in &mut repeats {
            assert_eq!(outcome(repeat).await, Some(Err(Problem::Overloaded)));
        }
        assert_eq!(world.sent.get(), 0);
    });
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Each leader that left woke all followers. Then all of them followed the next one.
#[test]
fn leader_that_leaves_wakes_one_follower() {
    run(async {
        let world = World::new();
        let held = world.permits.acquire(None, client(9)).await.expect("a permit");
        let leader = world.repeat(1).await;
        let mut followers = [world.repeat(1).await, world.repeat(1).await, world.repeat(1).await];
        let wakes = Arc::new(Wakes::default());
        let waker = wakes.clone().into();
        for follower in &mut followers {
            assert!(follower.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(leader);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let [first, second, third] = followers;
        // It leaves before it knows that it leads.
        drop(first);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        let mut rest = [second, third];
        for _ in 0..2 {
            assert!(outcome(&mut rest[0]).await.is_none(), "it leads, and waits for a permit");
        }
        drop(held);
        for follower in &mut rest {
            assert_eq!(outcome(follower).await, Some(Ok(())));
        }
        assert_eq!(world.sent.get(), 1);
        assert!(world.repeats.followers.borrow().is_empty());
    });
}
