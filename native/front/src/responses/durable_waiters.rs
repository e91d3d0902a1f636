//! Requests of one thread that wait until their events are durable. The journal wakes the thread once for each batch with
//! such an event.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hosting_core::Lsn;
use hosting_journal::DurableSignal;
use hosting_shard::Shard;
use tokio::io::unix::AsyncFd;

pub struct DurableWaiters {
    signal: DurableSignal,
    durable: Cell<Lsn>,
    /// Sorted by number.
    waiting: RefCell<Vec<Waiting>>,
    last_number: Cell<u64>,
}

struct Waiting {
    number: u64,
    lsn: Lsn,
    waker: Waker,
}

impl DurableWaiters {
    pub fn new(signal: DurableSignal, durable: Lsn) -> Rc<DurableWaiters> {
        let (durable, last_number) = (Cell::new(durable), Cell::new(0));
        Rc::new(DurableWaiters { signal, durable, waiting: RefCell::default(), last_number })
    }

    pub fn wait(&self, lsn: Lsn) -> WaitDurable<'_> {
        self.last_number.update(|number| number + 1);
        WaitDurable { waiters: self, number: self.last_number.get(), lsn }
    }

    /// Wakes the requests with durable events at each signal of the journal.
    pub async fn run(self: Rc<Self>, shard: Arc<Shard>, signal: AsyncFd<DurableSignal>) -> io::Result<()> {
        loop {
            let mut ready = signal.readable().await?;
            ready.clear_ready();
            read_counter(signal.get_ref());
            self.wake_until(shard.durable());
        }
    }

    fn wake_until(&self, durable: Lsn) {
        self.durable.set(durable);
        self.waiting.borrow_mut().retain(|Waiting { lsn, waker, .. }| {
            let is_waiting = *lsn > durable;
            if !is_waiting {
                waker.wake_by_ref();
            }
            is_waiting
        });
    }
}

/// Resets the eventfd. Without a new signal there is nothing to read.
fn read_counter(signal: &DurableSignal) {
    let mut counter = [0_u8; 8];
    // SAFETY: pointer and length belong to one live array.
    unsafe { libc::read(signal.as_raw_fd(), counter.as_mut_ptr().cast(), counter.len()) };
}

pub struct WaitDurable<'a> {
    waiters: &'a DurableWaiters,
    number: u64,
    lsn: Lsn,
}

impl Future for WaitDurable<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.lsn <= self.waiters.durable.get() {
            return Poll::Ready(());
        }
        let WaitDurable { waiters, number, lsn } = *self;
        let mut waiting = waiters.waiting.borrow_mut();
        match waiting.binary_search_by_key(&number, |one| one.number) {
            Ok(at) => waiting[at].waker.clone_from(context.waker()),
            Err(_) if !waiters.signal.request(lsn) => return Poll::Ready(()),
            Err(at) => waiting.insert(at, Waiting { number, lsn, waker: context.waker().clone() }),
        }
        Poll::Pending
    }
}

/// A call that ends before its event is durable leaves nothing.
impl Drop for WaitDurable<'_> {
    fn drop(&mut self) {
        if self.lsn > self.waiters.durable.get() {
            let mut waiting = self.waiters.waiting.borrow_mut();
            if let Ok(at) = waiting.binary_search_by_key(&self.number, |one| one.number) {
                waiting.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use hosting_core::{Engine, EngineConfig, KeyRing};
    use hosting_journal::Options;

    use super::*;

    fn waiters() -> Rc<DurableWaiters> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keys = KeyRing::new(vec![(1, [7; 32])], 1).expect("one key");
        let options = Options { segment_bytes: 256 * 1024, ..Options::new(folder.path(), 1, Engine::EVENT_KINDS) };
        let (shard, _) = Shard::open(Engine::new(EngineConfig::new(1, keys)), options).expect("a new journal");
        let signal = shard.journal().expect("opened with a journal").subscribe().expect("a free descriptor");
        DurableWaiters::new(signal, 0)
    }

    #[test]
    fn task_that_is_polled_again_waits_once() {
        let waiters = waiters();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = pin!(waiters.wait(1));
        for _ in 0..3 {
            assert!(waiting.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(waiters.waiting.borrow().len(), 1);
        waiters.wake_until(1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn call_that_ends_early_leaves_no_waker() {
        let waiters = waiters();
        let mut context = Context::from_waker(Waker::noop());
        let mut calls: Vec<_> = (0..3).map(|_| Box::pin(waiters.wait(1))).collect();
        for call in &mut calls {
            assert!(call.as_mut().poll(&mut context).is_pending());
        }
        drop(calls.remove(1));
        assert_eq!(waiters.waiting.borrow().len(), 2);
        drop(calls);
        assert!(waiters.waiting.borrow().is_empty());
    }
}
