//! Parked long polls: requests that wait for a change of one of their topics.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// Bound of the stored changes. Without them, a request that parks now may be woken although nothing has changed.
const RECENT_MAX: usize = 65_536;

/// Longest wait for changes that a process has named in a response.
const REACH_WAIT: Duration = Duration::from_secs(1);

/// Wait of a request, as Python describes it: `<run>.<sequence> <topic>,<topic>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Park {
    /// Execution of the process that numbers the changes.
    pub run: Rc<str>,
    pub sequence: u64,
    pub topics: Vec<Rc<str>>,
    pub share: Option<Share>,
}

/// Other requests with the same key get the same response, as long as no topic has changed: those of the caller's rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub key: Rc<str>,
    topics: Vec<Rc<str>>,
}

/// Number of a change: `<run>.<sequence>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position<'a> {
    run: &'a str,
    sequence: u64,
}

impl Position<'_> {
    pub fn parse(text: &str) -> Option<Position<'_>> {
        let (run, sequence) = text.split_once('.')?;
        Some(Position { run, sequence: sequence.parse().ok()? })
    }
}

impl Park {
    /// `share` is `<key> <topic>,<topic>`. Each of its topics is one of the wait too.
    pub fn parse(text: &str, share: Option<&str>) -> Option<Rc<Park>> {
        let (position, topics) = text.split_once(' ')?;
        let Position { run, sequence } = Position::parse(position)?;
        let topics: Vec<Rc<str>> = topics.split(',').map(Rc::from).collect();
        let share = match share {
            Some(share) => Some(Share::parse(share, &topics)?),
            None => None,
        };
        Some(Rc::new(Park { run: run.into(), sequence, topics, share }))
    }
}

impl Share {
    fn parse(text: &str, known: &[Rc<str>]) -> Option<Share> {
        let (key, topics) = text.split_once(' ')?;
        let topic = |text: &str| known.iter().find(|topic| ***topic == *text).cloned();
        Some(Share { key: key.into(), topics: topics.split(',').map(topic).collect::<Option<_>>()? })
    }
}

/// Changes since the last ones, as the process answers.
#[derive(Debug, Clone)]
pub struct Changes {
    pub run: String,
    pub sequence: u64,
    pub topics: Vec<(String, u64)>,
    /// False if other topics may have changed too.
    pub is_complete: bool,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    Changed,
    Expired,
}

/// Waiting requests of one process. A request is never woken too late, and sometimes too early.
///
/// A change may arrive before the request that waits for it, so recent changes are stored.
#[derive(Default)]
pub struct Watches {
    state: RefCell<State>,
    /// Number of waiting requests, of all users of this counter.
    count: Arc<AtomicUsize>,
    taken: Notify,
    is_ended: Cell<bool>,
}

#[derive(Default)]
struct State {
    run: Rc<str>,
    /// Number of the last change that is known.
    after: u64,
    /// Changes up to this number are not stored.
    floor: u64,
    recent: HashMap<Rc<str>, u64>,
    waiting: HashMap<u64, Waiting>,
    last_number: u64,
    /// Numbers of the waiting requests, each with its topics. A set of sets would take more memory.
    by_topic: BTreeSet<(Rc<str>, u64)>,
}

struct Waiting {
    park: Rc<Park>,
    wake: oneshot::Sender<()>,
}

impl Watches {
    pub fn new(count: Arc<AtomicUsize>) -> Watches {
        Watches { count, ..Watches::default() }
    }

    /// Waits until a topic changes, until the deadline, or until all waits end. `stale_in` is the state of one request over
    /// its waits: the run in which it was woken at once because it waits in another run.
    pub async fn wait(&self, park: &Rc<Park>, until: Instant, stale_in: &mut Option<Rc<str>>) -> Wake {
        if self.is_ended.get() {
            return Wake::Expired;
        }
        let Some((number, woken)) = self.state.borrow_mut().add(park.clone(), stale_in) else { return Wake::Changed };
        self.count.fetch_add(1, Ordering::Relaxed);
        let _entry = Entry { watches: self, number };
        match timeout_at(until, woken).await {
            Ok(_) if !self.is_ended.get() => Wake::Changed,
            _ => Wake::Expired,
        }
    }

    pub fn take(&self, changes: Changes) {
        self.state.borrow_mut().take(changes);
        self.taken.notify_waiters();
    }

    /// Waits until all changes up to a position are known, but not for long.
    pub async fn reach(&self, position: Position<'_>) {
        let reaching = async {
            while !self.state.borrow().has_reached(position) {
                self.taken.notified().await;
            }
        };
        let _ = timeout(REACH_WAIT, reaching).await;
    }

    /// Returns the share of a request, unless the rights of its caller have changed since it was parked.
    pub fn share_of<'a>(&self, park: &'a Park) -> Option<&'a Share> {
        park.share.as_ref().filter(|share| self.state.borrow().has_no_change(park, &share.topics))
    }

    /// Returns whether the caller's rights were the same up to a position.
    pub fn has_same_rights(&self, park: &Park, position: Position<'_>) -> bool {
        self.state.borrow().has_reached(position) && self.share_of(park).is_some()
    }

    /// Ends all waits. Further ones expire at once.
    pub fn end(&self) {
        self.is_ended.set(true);
        self.state.borrow_mut().wake_all();
    }
}

struct Entry<'a> {
    watches: &'a Watches,
    number: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.watches.state.borrow_mut().remove(self.number);
        self.watches.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    /// Returns None if the request must not wait.
    fn add(&mut self, park: Rc<Park>, stale_in: &mut Option<Rc<str>>) -> Option<(u64, oneshot::Receiver<()>)> {
        if park.run != self.run {
            if stale_in.as_ref() != Some(&self.run) {
                *stale_in = Some(self.run.clone());
                return None;
            }
            // The process has restarted, and no answer has named its new run yet.
            self.restart(park.run.clone(), park.sequence);
            self.wake_all();
        }
        if !self.has_no_change(&park, &park.topics) {
            return None;
        }
        let (wake, woken) = oneshot::channel();
        self.last_number += 1;
        let number = self.last_number;
        self.by_topic.extend(park.topics.iter().map(|topic| (topic.clone(), number)));
        self.waiting.insert(number, Waiting { park, wake });
        Some((number, woken))
    }

    /// Returns whether no topic has changed since a request was parked.
    fn has_no_change(&self, park: &Park, topics: &[Rc<str>]) -> bool {
        let has_changed = |topic: &Rc<str>| self.recent.get(topic).is_some_and(|change| *change > park.sequence);
        park.run == self.run && park.sequence >= self.floor && !topics.iter().any(has_changed)
    }

    fn has_reached(&self, position: Position<'_>) -> bool {
        position.run == &*self.run && position.sequence <= self.after
    }

    /// Removes a request unless it is removed already.
    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        for topic in &waiting.park.topics {
            self.by_topic.remove(&(topic.clone(), number));
        }
        Some(waiting)
    }

    fn take(&mut self, changes: Changes) {
        if changes.run != *self.run || !changes.is_complete {
            self.restart(changes.run.into(), changes.sequence);
            self.wake_all();
            return;
        }
        for (topic, sequence) in changes.topics {
            let topic = Rc::<str>::from(topic);
            let waiting =
                self.by_topic.range((topic.clone(), 0)..=(topic.clone(), u64::MAX)).map(|(_, number)| *number);
            let woken: Vec<_> = waiting.filter(|number| self.waiting[number].park.sequence < sequence).collect();
            for number in woken {
                self.wake(number);
            }
            if sequence > self.floor {
                self.recent.insert(topic, sequence);
            }
        }
        self.after = self.after.max(changes.sequence);
        if self.recent.len() > RECENT_MAX {
            self.floor = self.after;
            self.recent.clear();
        }
    }

    fn restart(&mut self, run: Rc<str>, sequence: u64) {
        self.run = run;
        (self.after, self.floor) = (sequence, sequence);
        self.recent.clear();
    }

    fn wake_all(&mut self) {
        let numbers: Vec<_> = self.waiting.keys().copied().collect();
        for number in numbers {
            self.wake(number);
        }
    }

    fn wake(&mut self, number: u64) {
        if let Some(waiting) = self.remove(number) {
            let _ = waiting.wake.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn park(text: &str) -> Rc<Park> {
        Park::parse(text, None).unwrap_or_else(|| panic!("{text}"))
    }

    fn changes(run: &str, sequence: u64, topics: &[(&str, u64)]) -> Changes {
        let topics = topics.iter().map(|(topic, number)| ((*topic).to_owned(), *number)).collect();
        Changes { run: run.to_owned(), sequence, topics, is_complete: true }
    }

    /// Returns watches of the run `a`.
    fn watches() -> Watches {
        let watches = Watches::default();
        watches.take(Changes { is_complete: false, ..changes("a", 10, &[]) });
        watches
    }

    /// Returns the outcome of a wait during which `change` happens.
    async fn wait(watches: &Watches, text: &str, change: impl FnOnce()) -> Wake {
        let until = Instant::now() + Duration::from_millis(20);
        let mut stale_in = None;
        let park = park(text);
        let waiting = watches.wait(&park, until, &mut stale_in);
        let changing = async {
            tokio::task::yield_now().await;
            change();
        };
        tokio::join!(waiting, changing).0
    }

    #[tokio::test(flavor = "current_thread")]
    async fn change_of_a_topic_wakes_its_requests_only() {
        let watches = watches();
        let change = || watches.take(changes("a", 12, &[("one", 12)]));
        assert_eq!(wait(&watches, "a.11 two,one", change).await, Wake::Changed);
        assert_eq!(wait(&watches, "a.12 two", change).await, Wake::Expired);
        assert_eq!(wait(&watches, "a.12 one", || ()).await, Wake::Expired);
        assert_eq!(watches.count.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn change_before_the_wait_wakes_at_once() {
        let watches = watches();
        watches.take(changes("a", 12, &[("one", 12)]));
        assert_eq!(wait(&watches, "a.11 one", || ()).await, Wake::Changed);
        assert_eq!(wait(&watches, "a.9 two", || ()).await, Wake::Changed, "older changes are not known");
        assert_eq!(wait(&watches, "a.10 two", || ()).await, Wake::Expired);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn missed_changes_and_a_new_run_wake_all() {
        let watches = watches();
        let missed = || watches.take(Changes { is_complete: false, ..changes("a", 20, &[]) });
        assert_eq!(wait(&watches, "a.10 one", missed).await, Wake::Changed);
        let restart = || watches.take(changes("b", 0, &[]));
        assert_eq!(wait(&watches, "a.20 one", restart).await, Wake::Changed);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn end_expires_all_waits() {
        let watches = watches();
        assert_eq!(wait(&watches, "a.10 one", || watches.end()).await, Wake::Expired);
        watches.take(changes("a", 12, &[("one", 12)]));
        assert_eq!(wait(&watches, "a.11 one", || ()).await, Wake::Expired);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn request_of_another_run_is_repeated_once_and_then_waits() {
        let watches = watches();
        let (mut stale_in, until) = (None, Instant::now());
        assert_eq!(watches.wait(&park("b.3 one"), until, &mut stale_in).await, Wake::Changed);
        assert_eq!(watches.wait(&park("b.3 one"), until, &mut stale_in).await, Wake::Expired);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn abandoned_requests_are_forgotten() {
        let watches = watches();
        let (mut stale_in, until) = (None, Instant::now() + Duration::from_secs(60));
        {
            let park = park("a.10 one");
            let waiting = std::pin::pin!(watches.wait(&park, until, &mut stale_in));
            assert!(futures_poll(waiting).is_none());
            assert_eq!(watches.count.load(Ordering::Relaxed), 1);
        }
        assert_eq!(watches.count.load(Ordering::Relaxed), 0);
        assert!(watches.state.borrow().by_topic.is_empty());
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn rights_are_the_same_until_one_of_their_topics_changes() {
        let watches = watches();
        let park = Park::parse("a.10 one,token,identity", Some("key token,identity")).expect("valid");
        let position = |text| Position::parse(text).expect("valid");
        watches.take(changes("a", 12, &[("one", 12)]));
        assert!(watches.share_of(&park).is_some_and(|share| &*share.key == "key"));
        for (at, expected) in [("a.12", true), ("a.13", false), ("b.1", false)] {
            assert_eq!(watches.has_same_rights(&park, position(at)), expected, "{at}");
        }
        watches.take(changes("a", 14, &[("token", 13), ("one", 14)]));
        assert_eq!(watches.share_of(&park), None);
        let park = Park::parse("a.13 one,token", Some("key token")).expect("valid");
        assert!(watches.has_same_rights(&park, position("a.14")));
        watches.take(changes("b", 1, &[]));
        assert_eq!(watches.share_of(&park), None, "the changes of the new run are not known");
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn position_is_waited_for() {
        let watches = watches();
        let changing = async {
            tokio::task::yield_now().await;
            watches.take(changes("a", 12, &[]));
        };
        let started = Instant::now();
        tokio::join!(watches.reach(Position::parse("a.12").expect("valid")), changing);
        assert!(started.elapsed() < REACH_WAIT);
    }

    #[test]
    fn other_texts_are_no_parks() {
        for text in ["", "a.1", "a one", "a.x one"] {
            assert_eq!(Park::parse(text, None), None, "{text}");
        }
        for share in ["", "key", "key two", "key one,two"] {
            assert_eq!(Park::parse("a.1 one", Some(share)), None, "{share}");
        }
    }
}

#[cfg(test)]
mod message_order;
