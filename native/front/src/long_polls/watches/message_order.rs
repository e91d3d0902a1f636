//! No change is missed in any order of parked requests, changes, messages and restarts of the process.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const TOPICS: [&str; 3] = ["a", "b", "c"];
/// Polls after which a request that was woken without a change waits again.
const POLLS_MAX: usize = 3;

/// The process that numbers the changes. It stores the last ones.
struct Process {
    run: usize,
    capacity: usize,
    sequence: u64,
    /// Changes up to this number are forgotten.
    floor: u64,
    changed: BTreeMap<usize, u64>,
}

impl Process {
    fn new(run: usize, capacity: usize) -> Process {
        Process { run, capacity, sequence: 0, floor: 0, changed: BTreeMap::new() }
    }

    fn change(&mut self, topic: usize) {
        self.sequence += 1;
        self.changed.insert(topic, self.sequence);
        while self.changed.len() > self.capacity {
            let oldest = self.changed.iter().min_by_key(|(_, number)| **number);
            let (topic, number) = oldest.map(|(topic, number)| (*topic, *number)).expect("it has topics");
            self.changed.remove(&topic);
            self.floor = number;
        }
    }

    fn changes_after(&self, (run, after): (usize, u64)) -> Message {
        let is_complete = run == self.run && after >= self.floor;
        let topics = self.changed.iter().filter(|(_, number)| is_complete && **number > after);
        let topics = topics.map(|(topic, number)| (TOPICS[*topic].to_owned(), *number)).collect();
        let changes = Changes { run: run_name(self.run), sequence: self.sequence, topics, is_complete };
        Message { position: (self.run, self.sequence), changes }
    }
}

fn run_name(run: usize) -> String {
    format!("run-{run}")
}

/// An answer of the process that the front does not have yet.
struct Message {
    position: (usize, u64),
    changes: Changes,
}

/// A request of a client that knows the changes up to `seen`.
#[derive(Clone)]
struct Request {
    topics: Vec<usize>,
    run: usize,
    seen: u64,
    stale_in: Option<Rc<str>>,
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Option<Rc<str>>> + 'a>>;

/// The front and the process, with all that is between them.
struct Simulation<'a> {
    watches: &'a Watches,
    process: Process,
    /// Position of the last message that the front has.
    known: (usize, u64),
    /// The front polls again after the message.
    message: Option<Message>,
    /// Requests that the process has parked, and that the front does not have yet.
    parks: Vec<(Request, Rc<Park>)>,
    waiting: Vec<(Request, Waiting<'a>)>,
    woken: Vec<Request>,
}

#[derive(Debug, Clone)]
enum Step {
    Change(usize),
    /// A client sends a request.
    Send(Vec<usize>),
    Park(usize),
    Repeat(usize),
    Poll,
    Deliver,
    Lose,
    Leave(usize),
    Restart,
}

impl<'a> Simulation<'a> {
    fn run(&mut self, step: Step) {
        match step {
            Step::Change(topic) => self.process.change(topic),
            Step::Send(topics) => {
                let last = topics.iter().filter_map(|topic| self.process.changed.get(topic)).max();
                let seen = last.copied().unwrap_or(self.process.floor);
                self.send(Request { topics, run: self.process.run, seen, stale_in: None });
            }
            Step::Park(number) => {
                if let Some((request, park)) = take(&mut self.parks, number) {
                    let waiting = Box::pin(wait(self.watches, park, request.stale_in.clone()));
                    self.waiting.push((request, waiting));
                }
            }
            Step::Repeat(number) => {
                if let Some(request) = take(&mut self.woken, number) {
                    self.send(request);
                }
            }
            Step::Poll if self.message.is_none() => self.message = Some(self.process.changes_after(self.known)),
            Step::Poll => {}
            Step::Deliver => {
                if let Some(message) = self.message.take() {
                    self.known = message.position;
                    self.watches.take(message.changes);
                }
            }
            Step::Lose => self.message = None,
            Step::Leave(number) => drop(take(&mut self.waiting, number)),
            Step::Restart => self.process = Process::new(self.process.run + 1, self.process.capacity),
        }
        self.wake();
    }

    /// The process answers a request that does not know the last change, and parks all others.
    fn send(&mut self, request: Request) {
        let is_old = |topic| self.process.changed.get(topic).is_some_and(|number| *number > request.seen);
        if request.run != self.process.run || request.seen < self.process.floor || request.topics.iter().any(is_old) {
            return;
        }
        let topics: Vec<_> = request.topics.iter().map(|topic| TOPICS[*topic]).collect();
        let text = format!("{}.{} {}", run_name(self.process.run), self.process.sequence, topics.join(","));
        self.parks.push((request, Park::parse(&text, None).expect("a park")));
    }

    fn wake(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = Vec::new();
        for (mut request, mut future) in std::mem::take(&mut self.waiting) {
            match future.as_mut().poll(&mut context) {
                Poll::Pending => waiting.push((request, future)),
                Poll::Ready(stale_in) => {
                    request.stale_in = stale_in;
                    self.woken.push(request);
                }
            }
        }
        self.waiting = waiting;
    }

    /// Delivers all that is on its way. After one more poll the front knows every change.
    fn arrive(&mut self) {
        while !self.parks.is_empty() {
            self.run(Step::Park(0));
        }
        self.run(Step::Deliver);
        for _ in 0..2 {
            self.run(Step::Poll);
            self.run(Step::Deliver);
        }
    }

    /// Checks that no waiting request has missed a change.
    fn check(&self) {
        assert_eq!(self.watches.count.load(Ordering::Relaxed), self.waiting.len());
        for (request, _) in &self.waiting {
            assert_eq!(request.run, self.process.run, "a request of an earlier run waits");
            let last = request.topics.iter().filter_map(|topic| self.process.changed.get(topic)).max();
            assert!(last.is_none_or(|last| *last <= request.seen), "a request has missed change {last:?}");
        }
    }
}

async fn wait(watches: &Watches, park: Rc<Park>, mut stale_in: Option<Rc<str>>) -> Option<Rc<str>> {
    let until = Instant::now() + Duration::from_secs(600);
    watches.wait(&park, until, &mut stale_in).await;
    stale_in
}

fn take<T>(list: &mut Vec<T>, number: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.remove(number % list.len()))
}

fn step() -> impl Strategy<Value = Step> {
    let topic = 0..TOPICS.len();
    prop_oneof![
        3 => topic.clone().prop_map(Step::Change),
        4 => prop::collection::vec(topic, 1..3).prop_map(Step::Send),
        4 => (0..6_usize).prop_map(Step::Park),
        2 => (0..6_usize).prop_map(Step::Repeat),
        3 => Just(Step::Poll),
        3 => Just(Step::Deliver),
        1 => Just(Step::Lose),
        1 => (0..6_usize).prop_map(Step::Leave),
    ]
}

/// Returns the steps of up to three runs of the process.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let run = prop::collection::vec(step(), 10..60);
    let runs = prop::collection::vec(run, 1..4);
    runs.prop_map(|runs| runs.join(&Step::Restart))
}

fn check_steps(steps: Vec<Step>, capacity: usize) {
    let watches = Watches::default();
    let mut simulation = Simulation {
        watches: &watches,
        process: Process::new(0, capacity),
        known: (usize::MAX, 0),
        message: None,
        parks: Vec::new(),
        waiting: Vec::new(),
        woken: Vec::new(),
    };
    steps.into_iter().for_each(|step| simulation.run(step));
    simulation.arrive();
    simulation.check();
    for _ in 0..POLLS_MAX {
        std::mem::take(&mut simulation.woken).into_iter().for_each(|request| simulation.send(request));
        simulation.arrive();
        simulation.check();
    }
    assert!(simulation.woken.is_empty(), "a request is woken again and again");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_is_missed_in_any_order_of_messages(
        steps in steps(),
        capacity in prop::sample::select(vec![2, 1_000]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let _entered = runtime.enter();
        check_steps(steps, capacity);
    }
}
