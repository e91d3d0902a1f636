//! Route that is being served: its backend, and the tasks of its connections. The end of the route aborts these tasks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::address::BackendAddress;
use crate::player_sessions::PlayerSessions;
use crate::traffic::Traffic;

#[derive(Debug)]
pub struct LiveRoute {
    /// Number of the route, unique in this process.
    pub number: u64,
    pub is_tls: bool,
    pub sends_proxy_header: bool,
    /// True for the API and sites, for which a share of the connections is reserved.
    pub is_reserved: bool,
    /// Counters of the lobby or server to which the route belongs.
    pub traffic: Arc<Traffic>,
    /// Sessions of the lobby's players, if the port counts them.
    pub players: Option<Arc<PlayerSessions>>,
    state: Mutex<State>,
    all_tasks_ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    backend: Option<BackendAddress>,
    is_ended: bool,
    tasks: Slab<Option<AbortHandle>>,
}

impl LiveRoute {
    #[must_use]
    pub fn new(is_tls: bool, backend: Option<BackendAddress>) -> Arc<Self> {
        Self::with(is_tls, backend, false, false, (Arc::default(), None))
    }

    /// Creates the route of a port of a game server.
    #[must_use]
    pub fn for_port(
        is_tls: bool,
        backend: Option<BackendAddress>,
        sends_proxy_header: bool,
        traffic: Arc<Traffic>,
        players: Option<Arc<PlayerSessions>>,
    ) -> Arc<Self> {
        Self::with(is_tls, backend, sends_proxy_header, false, (traffic, players))
    }

    /// Creates the route of a configured backend, such as the API.
    #[must_use]
    pub fn for_backend(backend: BackendAddress, sends_proxy_header: bool) -> Arc<Self> {
        Self::with(false, Some(backend), sends_proxy_header, true, (Arc::default(), None))
    }

    fn with(
        is_tls: bool,
        backend: Option<BackendAddress>,
        sends_proxy_header: bool,
        is_reserved: bool,
        (traffic, players): (Arc<Traffic>, Option<Arc<PlayerSessions>>),
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            number: NEXT.fetch_add(1, Relaxed),
            is_tls,
            sends_proxy_header,
            is_reserved,
            traffic,
            players,
            state: Mutex::new(State { backend, ..State::default() }),
            all_tasks_ended: Notify::new(),
        })
    }

    #[must_use]
    pub fn backend(&self) -> Option<BackendAddress> {
        self.state().backend.clone()
    }

    /// Changes the backend for new connections. Open connections keep their backend.
    pub fn set_backend(&self, backend: Option<BackendAddress>) {
        self.state().backend = backend;
    }

    /// Spawns a task that the end of the route aborts. Does nothing if the route has ended.
    pub fn spawn(
        self: &Arc<Self>,
        runtime: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        let mut state = self.state();
        if state.is_ended {
            return None;
        }
        // The lock is held until the handle is stored, so a task that ends at once finds its entry.
        let index = state.tasks.insert(None);
        let guard = TaskGuard { live: self.clone(), index };
        let handle = runtime.spawn(async move {
            let _guard = guard;
            task.await;
        });
        state.tasks[index] = Some(handle.abort_handle());
        Some(handle.abort_handle())
    }

    pub fn end(&self) {
        let mut state = self.state();
        state.is_ended = true;
        state.backend = None;
        // Each task is dropped by its own thread, which then removes the entry.
        state.tasks.iter().filter_map(|(_, handle)| handle.as_ref()).for_each(AbortHandle::abort);
    }

    pub async fn wait_ended(&self) {
        loop {
            let notified = self.all_tasks_ended.notified();
            if self.state().tasks.is_empty() {
                return;
            }
            notified.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskGuard {
    live: Arc<LiveRoute>,
    index: usize,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let mut state = self.live.state();
        state.tasks.remove(self.index);
        if state.tasks.is_empty() {
            self.live.all_tasks_ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test]
    async fn end_aborts_all_tasks() {
        let live = LiveRoute::new(false, None);
        let drop_count = Arc::new(AtomicUsize::new(0));
        struct DropCounter(Arc<AtomicUsize>);
        impl Drop for DropCounter {
            fn drop(&mut self) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        for _ in 0..3 {
            let guard = DropCounter(drop_count.clone());
            live.spawn(&Handle::current(), async move {
                let _guard = guard;
                std::future::pending().await
            });
        }
        live.end();
        live.wait_ended().await;
        assert_eq!(drop_count.load(Relaxed), 3);
        live.spawn(&Handle::current(), async { panic!("runs after the end") });
        live.wait_ended().await;
    }

    #[tokio::test]
    async fn ended_task_is_removed() {
        let live = LiveRoute::new(false, None);
        live.spawn(&Handle::current(), async {});
        live.wait_ended().await;
        assert!(live.state().tasks.is_empty());
    }
}
