//! Shares of tokens and of addresses, and the queue.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use proptest::prelude::*;
use tokio::runtime;
use tokio::task::unconstrained;

use super::*;
use crate::limits::permit_queue::Counts;

const NEVER: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(10);

type Waiter = Pin<Box<dyn Future<Output = Result<Permit, Overload>>>>;

fn address(number: u8) -> ClientKey {
    ClientKey::V4([192, 0, 2, number])
}

/// Returns the processor time of this thread. Other programs do not add to it.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    // Otherwise polls return early after a while.
    runtime.block_on(unconstrained(test));
}

/// Returns the permit of a request that needs not wait.
async fn permit(permits: &Arc<Permits>, token: &str, number: u8) -> Permit {
    let token = Some(token).filter(|token| !token.is_empty());
    poll_fn(|context| match pin!(permits.acquire(token, address(number))).as_mut().poll(context) {
        Poll::Ready(Ok(permit)) => Poll::Ready(permit),
        Poll::Ready(Err(overload)) => panic!("{overload:?}"),
        Poll::Pending => panic!("the request waits"),
    })
    .await
}

/// Returns the permits of requests with these tokens, each of an address of its own from this number on.
async fn permits_of(permits: &Arc<Permits>, tokens: [&str; 4], first: u8) -> Vec<Permit> {
    let mut held = Vec::new();
    for (number, token) in (first..).zip(tokens) {
        held.push(permit(permits, token, number).await);
    }
    held
}

async fn refusal(permits: &Arc<Permits>, token: &str, number: u8) -> Overload {
    let token = Some(token).filter(|token| !token.is_empty());
    permits.acquire(token, address(number)).await.err().expect("a limit is reached")
}

/// Returns a request that waits.
async fn waiter(permits: &Arc<Permits>, token: &str, number: u8) -> Waiter {
    waiter_of(permits, token.to_owned(), address(number)).await
}

async fn waiter_of(permits: &Arc<Permits>, token: String, client: ClientKey) -> Waiter {
    let permits = permits.clone();
    let mut waiter: Waiter = Box::pin(async move { permits.acquire(Some(&token), client).await });
    assert!(poll_once(&mut waiter).await.is_none());
    waiter
}

/// Returns one of 65,536 client addresses.
fn one_of_many(number: usize) -> ClientKey {
    let [.., high, low] = number.to_be_bytes();
    ClientKey::V4([198, 18, high, low])
}

async fn poll_once(waiter: &mut Waiter) -> Option<Permit> {
    poll_fn(|context| match waiter.as_mut().poll(context) {
        Poll::Ready(permit) => Poll::Ready(Some(permit.unwrap_or_else(|overload| panic!("{overload:?}")))),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn counts(permits: &Permits) -> (usize, usize) {
    let queue = permits.queue.lock();
    (queue.running.all, queue.waiting.all)
}

#[test]
fn token_has_a_quarter_and_others_continue() {
    run(async {
        let permits = Permits::new(8, SHORT);
        let held = [permit(&permits, "cloud_a", 1).await, permit(&permits, "cloud_a", 2).await];
        assert_eq!(refusal(&permits, "cloud_a", 9).await, Overload::Token);
        drop(permit(&permits, "cloud_b", 1).await);
        drop(held);
        assert_eq!(counts(&permits), (0, 0));
        permit(&permits, "cloud_a", 1).await;
    });
}

#[test]
fn address_has_half_with_any_number_of_tokens() {
    run(async {
        let permits = Permits::new(8, SHORT);
        let mut held = Vec::new();
        for token in ["cloud_0", "cloud_1", "cloud_2", "cloud_3"] {
            held.push(permit(&permits, token, 1).await);
        }
        assert_eq!(refusal(&permits, "cloud_x", 1).await, Overload::Address);
        permit(&permits, "cloud_0", 2).await;
    });
}

#[test]
fn requests_without_a_token_count_by_address() {
    run(async {
        let permits = Permits::new(8, SHORT);
        let _held = [permit(&permits, "", 1).await, permit(&permits, "", 1).await];
        assert_eq!(refusal(&permits, "", 1).await, Overload::NoOwnToken);
        assert_eq!(refusal(&permits, "pub_a", 1).await, Overload::NoOwnToken);
        let _others = [permit(&permits, "", 2).await, permit(&permits, "cloud_a", 1).await];
    });
}

/// All players of a game have its public token.
#[test]
fn players_of_one_address_leave_permits_for_others() {
    run(async {
        let permits = Permits::new(8, NEVER);
        let _held = [permit(&permits, "pub_a", 1).await, permit(&permits, "pub_a", 1).await];
        let mut waiters = Vec::new();
        for _ in 0..4 {
            waiters.push(waiter(&permits, "pub_a", 1).await);
        }
        assert_eq!(refusal(&permits, "pub_a", 1).await, Overload::NoOwnToken);
        permit(&permits, "pub_a", 2).await;
    });
}

#[test]
fn total_number_is_limited() {
    run(async {
        let permits = Permits::new(4, SHORT);
        let _held = permits_of(&permits, ["cloud_0", "cloud_1", "cloud_2", "cloud_3"], 1).await;
        assert_eq!(refusal(&permits, "cloud_9", 9).await, Overload::All);
    });
}

#[test]
fn waiting_requests_of_one_token_are_served_in_order() {
    run(async {
        let permits = Permits::new(8, NEVER);
        let (first, second) = (permit(&permits, "cloud_a", 1).await, permit(&permits, "cloud_a", 1).await);
        let (mut third, mut fourth) = (waiter(&permits, "cloud_a", 1).await, waiter(&permits, "cloud_a", 1).await);
        assert_eq!(counts(&permits), (2, 2));
        drop(first);
        assert_eq!(counts(&permits), (2, 1));
        assert!(poll_once(&mut fourth).await.is_none());
        let _third = poll_once(&mut third).await.expect("its turn");
        drop(second);
        poll_once(&mut fourth).await.expect("its turn");
    });
}

#[test]
fn queue_of_twice_the_share_refuses_further_requests() {
    run(async {
        let permits = Permits::new(8, NEVER);
        let _held = [permit(&permits, "cloud_a", 1).await, permit(&permits, "cloud_a", 1).await];
        let mut waiters = Vec::new();
        for _ in 0..4 {
            waiters.push(waiter(&permits, "cloud_a", 1).await);
        }
        assert_eq!(refusal(&permits, "cloud_a", 1).await, Overload::Token);
        drop(waiters);
        assert_eq!(counts(&permits), (2, 0));
    });
}

#[test]
fn tokens_take_turns() {
    run(async {
        let permits = Permits::new(4, NEVER);
        let mut held = permits_of(&permits, ["cloud_w", "cloud_x", "cloud_y", "cloud_z"], 11).await;
        let mut of_a = [waiter(&permits, "cloud_a", 1).await, waiter(&permits, "cloud_a", 1).await];
        let mut of_b = waiter(&permits, "cloud_b", 2).await;
        held.pop();
        let first = poll_once(&mut of_a[0]).await.expect("its turn");
        held.pop();
        let second = poll_once(&mut of_b).await.expect("its turn");
        drop((first, second));
        poll_once(&mut of_a[1]).await.expect("its turn");
    });
}

#[test]
fn returned_permit_may_serve_a_token_and_an_address() {
    run(async {
        let permits = Permits::new(8, NEVER);
        let first = permit(&permits, "env_a", 1).await;
        let mut held = vec![permit(&permits, "env_a", 1).await];
        held.push(permit(&permits, "env_b", 1).await);
        held.push(permit(&permits, "env_b", 1).await);
        let (mut of_address, mut of_token) = (waiter(&permits, "env_c", 1).await, waiter(&permits, "env_a", 2).await);
        drop(first);
        held.push(poll_once(&mut of_address).await.expect("its turn"));
        held.push(poll_once(&mut of_token).await.expect("its turn"));
        assert_eq!(counts(&permits), (5, 0));
    });
}

/// Each release looked at all lines of an address that may not run.
#[test]
fn lines_of_a_full_address_cost_others_nothing() {
    const LINES: usize = 4_000;
    run(async {
        let permits = Permits::new(2 * LINES, NEVER);
        let tokens: Vec<&str> = (0..2 * LINES).map(|number| &*format!("env_{number}").leak()).collect();
        let (mut held, mut waiters) = (Vec::new(), Vec::new());
        for token in &tokens[..LINES] {
            held.push(permit(&permits, token, 1).await);
        }
        for token in &tokens[LINES..] {
            waiters.push(waiter(&permits, token, 1).await);
        }
        let began = processor_time();
        for _ in 0..LINES {
            drop(permit(&permits, "env_other", 2).await);
        }
        let used = processor_time() - began;
        assert!(used < Duration::from_secs(2), "{used:?}");
        assert_eq!(counts(&permits), (LINES, LINES));
        drop(held.pop());
        assert_eq!(counts(&permits), (LINES, LINES - 1));
    });
}

/// Each request that gave up looked at all lines of its address, and at all addresses.
#[test]
fn lines_and_addresses_that_give_up_do_not_search_others() {
    const LINES: usize = 30_000;
    run(async {
        let permits = Permits::patient(1);
        let held = permit(&permits, "env_held", 1).await;
        let numbers: Vec<usize> = (0..LINES).collect();
        let of_one_address = numbers.iter().map(|number| (format!("env_{number}"), address(2)));
        let of_one_token = numbers.iter().map(|number| ("env_a".to_owned(), one_of_many(*number)));
        let mut waiters: Vec<Waiter> = Vec::new();
        for (token, client) in of_one_address.chain(of_one_token) {
            waiters.push(waiter_of(&permits, token, client).await);
        }
        let began = processor_time();
        drop(waiters);
        let used = processor_time() - began;
        assert!(used < Duration::from_secs(2), "{used:?}");
        assert_eq!(counts(&permits), (1, 0));
        let queue = permits.queue.lock();
        assert!(queue.lines.is_empty() && queue.addresses.is_empty() && queue.turns.is_empty());
        drop((queue, held));
    });
}

/// Each release looked at all addresses with the token.
#[test]
fn lines_of_a_full_token_cost_others_nothing() {
    const ADDRESSES: usize = 20_000;
    run(async {
        let permits = Permits::patient(8);
        let held = [permit(&permits, "env_a", 1).await, permit(&permits, "env_a", 2).await];
        let mut waiters = Vec::new();
        for number in 0..ADDRESSES {
            waiters.push(waiter_of(&permits, "env_a".to_owned(), one_of_many(number)).await);
        }
        assert!(permits.queue.lock().addresses.is_empty(), "all are blocked at once");
        let began = processor_time();
        for _ in 0..1_000 {
            drop(permit(&permits, "env_other", 3).await);
        }
        assert_eq!(counts(&permits), (2, ADDRESSES));
        drop(held);
        for waiter in &mut waiters {
            drop(poll_once(waiter).await.expect("its turn"));
        }
        assert_eq!(counts(&permits), (0, 0));
        let used = processor_time() - began;
        assert!(used < Duration::from_secs(2), "{used:?}");
        let queue = permits.queue.lock();
        assert!(queue.lines.is_empty() && queue.addresses.is_empty() && queue.blocked.is_empty());
    });
}

#[test]
fn line_that_is_unblocked_and_gives_up_unblocks_the_next() {
    run(async {
        let permits = Permits::patient(4);
        let of_a = permit(&permits, "env_a", 1).await;
        let mut held = vec![permit(&permits, "env_b", 2).await, permit(&permits, "env_c", 2).await];
        let freed = permit(&permits, "env_d", 3).await;
        let (first, mut second) = (waiter(&permits, "env_a", 4).await, waiter(&permits, "env_a", 5).await);
        // Both have come while their token is full.
        drop(freed);
        assert!(permits.queue.lock().blocked.values().all(|lines| lines.len() == 2));
        held.push(permit(&permits, "env_d", 3).await);
        let mut earlier = waiter(&permits, "env_e", 6).await;
        // The permit goes to the earlier turn. The first line of the token stays unblocked.
        drop(of_a);
        let of_e = poll_once(&mut earlier).await.expect("its turn");
        drop(first);
        drop(of_e);
        poll_once(&mut second).await.expect("its turn");
    });
}

/// Four addresses filled the queue, and a fifth one was refused although its turn would come next.
#[test]
fn address_without_a_waiting_request_may_wait_in_a_full_queue() {
    run(async {
        let permits = Permits::new(4, NEVER);
        let held = permits_of(&permits, ["cloud_a", "cloud_b", "cloud_c", "cloud_d"], 1).await;
        let mut waiters = Vec::new();
        for (number, token) in (1..).zip(["cloud_a", "cloud_b", "cloud_c", "cloud_d"]) {
            waiters.push(waiter(&permits, token, number).await);
            waiters.push(waiter(&permits, token, number).await);
        }
        assert_eq!(refusal(&permits, "cloud_e", 1).await, Overload::All);
        let mut newcomer = waiter(&permits, "cloud_e", 5).await;
        assert_eq!(refusal(&permits, "cloud_f", 5).await, Overload::All);
        assert_eq!(refusal(&permits, "cloud_a", 6).await, Overload::All);
        drop(held);
        drop(poll_once(&mut waiters[0]).await.expect("its turn"));
        poll_once(&mut newcomer).await.expect("its turn, before the second one of another address");
    });
}

#[test]
fn request_that_waits_too_long_leaves_the_queue() {
    run(async {
        let permits = Permits::new(4, SHORT);
        let held = permit(&permits, "cloud_a", 1).await;
        assert_eq!(refusal(&permits, "cloud_a", 1).await, Overload::Token);
        assert_eq!(counts(&permits), (1, 0));
        drop(held);
        assert_eq!(counts(&permits), (0, 0));
    });
}

#[test]
fn permit_of_a_cancelled_request_passes_to_the_next() {
    run(async {
        let permits = Permits::new(4, NEVER);
        let held = permit(&permits, "cloud_a", 1).await;
        let cancelled = waiter(&permits, "cloud_a", 1).await;
        let granted = waiter(&permits, "cloud_a", 1).await;
        drop(cancelled);
        let mut last = waiter(&permits, "cloud_a", 1).await;
        drop(held);
        assert_eq!(counts(&permits), (1, 1));
        // The permit has come, but the request is dropped before it sees it.
        drop(granted);
        drop(poll_once(&mut last).await.expect("its turn"));
        assert_eq!(counts(&permits), (0, 0));
    });
}

proptest! {
    /// Any order of requests, of their ends and of those that give up.
    #[test]
    fn limits_hold_and_every_waiting_request_runs(
        most in 1_usize..9,
        steps in prop::collection::vec((0_u8..4, 0_usize..4, 0_u8..4, any::<prop::sample::Index>()), 0..60),
    ) {
        run(async move {
            let permits = Permits::patient(most);
            let (mut held, mut waiters) = (Vec::new(), Vec::new());
            for (kind, token, number, index) in steps {
                match kind {
                    0 if !held.is_empty() => drop(held.remove(index.index(held.len()))),
                    1 if !waiters.is_empty() => drop(waiters.remove(index.index(waiters.len()))),
                    _ => {
                        let token = [None, Some("cloud_a"), Some("cloud_b"), Some("pub_c")][token];
                        let permits = permits.clone();
                        waiters.push(Box::pin(async move { permits.acquire(token, address(number)).await }) as Waiter);
                    }
                }
                poll_all(&mut waiters, &mut held).await;
                let queue = permits.queue.lock();
                assert!(queue.running.is_within(most), "a limit is exceeded");
            }
            while !held.is_empty() {
                held.clear();
                poll_all(&mut waiters, &mut held).await;
            }
            assert!(waiters.is_empty(), "{} requests wait for ever", waiters.len());
            let queue = permits.queue.lock();
            assert!(queue.lines.is_empty() && queue.addresses.is_empty() && queue.turns.is_empty());
            assert!(queue.blocked.is_empty() && queue.waiting.all == 0);
        });
    }
}

/// Moves the permits of waiting requests that run now.
async fn poll_all(waiters: &mut Vec<Waiter>, held: &mut Vec<Permit>) {
    let mut waiting = Vec::new();
    for mut waiter in waiters.drain(..) {
        match poll_once(&mut waiter).await {
            Some(permit) => held.push(permit),
            None => waiting.push(waiter),
        }
    }
    *waiters = waiting;
}

impl Counts {
    fn is_within(&self, most: usize) -> bool {
        let by_address = self.by_address.values().all(|count| *count <= (most / 2).max(1));
        let by_tenant = self.by_tenant.values().all(|count| *count <= (most / 4).max(1));
        self.all <= most && by_address && by_tenant
    }
}
