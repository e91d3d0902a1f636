//! A server of routes in the place of the data plane: speaks the real protocol, remembers what it was told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::wait::wait_for;
use crate::wire::routes_server::{Routes, RoutesServer};
use crate::wire::{FollowRequest, FollowResponse, Outcome, OutcomeKind, Route};

/// What is served, whoever serves it just now.
#[derive(Debug, Default)]
pub struct Held {
    pub epoch: u64,
    version: u64,
    routes: BTreeMap<(String, String), Route>,
    changes: Vec<(u64, FollowResponse)>,
    /// Owners that have to go, until it is told that they have gone.
    going: BTreeSet<String>,
    /// Answered in the place of what would be, until somebody asks who has heard it: a question that was given up may
    /// still be answered.
    next: Option<FollowResponse>,
    outcomes: Vec<Outcome>,
    questions: u64,
    /// The newest one of whoever asks: one that was given up for it may be heard later.
    newest: (String, u64),
}

/// A source of routes that can be killed and started again.
pub struct RouteSource {
    socket: PathBuf,
    held: Arc<Mutex<Held>>,
    changed: Arc<Notify>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl RouteSource {
    /// One that nobody serves yet.
    pub fn new(socket: &Path) -> Self {
        let held = Held { epoch: 1, ..Held::default() };
        Self { socket: socket.to_owned(), held: Arc::new(Mutex::new(held)), changed: Arc::default(), runtime: None }
    }

    /// Serves; a start is an epoch.
    pub fn start(&mut self) {
        self.held.lock().unwrap().epoch += 1;
        self.serve();
    }

    fn serve(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let door = Door { held: self.held.clone(), changed: self.changed.clone() };
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&self.socket).unwrap()
        };
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(RoutesServer::new(door))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        self.runtime = Some(runtime);
    }

    /// Ends at once, as after a SIGKILL: connections break, nothing is said.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    /// Puts routes, in one change.
    pub fn put(&self, routes: &[Route]) {
        self.change(routes, &[]);
    }

    /// Removes owners by name, in one change.
    pub fn remove(&self, owners: &[&str]) {
        self.change(&[], owners);
    }

    fn change(&self, routes: &[Route], removed: &[&str]) {
        {
            let held = &mut *self.held.lock().unwrap();
            held.version += 1;
            for route in routes {
                held.routes.insert((route.owner_id.clone(), route.port_name.clone()), route.clone());
            }
            held.routes.retain(|(owner, _), _| !removed.contains(&owner.as_str()));
            held.going.extend(removed.iter().map(|owner| (*owner).to_owned()));
            let change = FollowResponse {
                epoch: held.epoch,
                version: held.version,
                is_complete: false,
                routes: routes.to_vec(),
                removed: removed.iter().map(|owner| (*owner).to_owned()).collect(),
            };
            held.changes.push((held.version, change));
        }
        self.changed.notify_waiters();
    }

    /// Takes an owner out of the memory of the source, without a word to anybody.
    pub fn lose(&self, owner: &str) {
        self.held.lock().unwrap().routes.retain(|(held, _), _| held != owner);
    }

    /// Answers this next. Its epoch and version are those of no other answer.
    pub fn answer_next(&self, answer: FollowResponse) {
        self.held.lock().unwrap().next = Some(answer);
        self.changed.notify_waiters();
    }

    /// What is held, to be read or changed.
    pub fn held<T>(&self, look: impl FnOnce(&mut Held) -> T) -> T {
        look(&mut self.held.lock().unwrap())
    }

    /// Waits until it was told this of a route.
    #[track_caller]
    pub fn wait_for(&self, owner: &str, kind: OutcomeKind) -> Outcome {
        wait_for(&format!("{owner} is {kind:?}"), || {
            let held = self.held.lock().unwrap();
            let last = held.outcomes.iter().rev().find(|outcome| outcome.owner_id == owner)?;
            (last.kind == i32::from(kind)).then(|| last.clone())
        })
    }

    /// Waits until it was told that a route leads to this back end.
    #[track_caller]
    pub fn wait_for_backend(&self, owner: &str, backend: Option<SocketAddr>) {
        let port = backend.map_or(0, |backend| backend.port().into());
        wait_for(&format!("{owner} leads to {backend:?}"), || {
            let held = self.held.lock().unwrap();
            let last = held.outcomes.iter().rev().find(|outcome| outcome.owner_id == owner)?;
            (last.kind == i32::from(OutcomeKind::Listening) && last.backend_port == port).then_some(())
        });
    }

    /// Puts a route and waits until it listens.
    #[track_caller]
    pub fn serve_route(&self, route: &Route) {
        self.put(std::slice::from_ref(route));
        self.wait_for(&route.owner_id, OutcomeKind::Listening);
    }

    /// Whether it was told this of an owner.
    pub fn was_told(&self, owner: &str, kind: OutcomeKind) -> bool {
        let held = self.held.lock().unwrap();
        held.outcomes.iter().any(|outcome| outcome.owner_id == owner && outcome.kind == i32::from(kind))
    }

    /// Forgets what it was told.
    pub fn forget_outcomes(&self) {
        self.held.lock().unwrap().outcomes.clear();
    }

    /// Waits until it was asked so many times more.
    #[track_caller]
    pub fn wait_for_questions(&self, more: u64) {
        let first = self.held.lock().unwrap().questions;
        wait_for("more questions", || (self.held.lock().unwrap().questions >= first + more).then_some(()));
    }
}

impl Drop for RouteSource {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Door {
    held: Arc<Mutex<Held>>,
    changed: Arc<Notify>,
}

impl Door {
    fn answer(&self, question: &FollowRequest) -> Option<FollowResponse> {
        let held = &mut *self.held.lock().unwrap();
        if held.next.is_some() {
            return held.next.clone();
        }
        if question.epoch != held.epoch || question.version > held.version {
            return Some(FollowResponse {
                epoch: held.epoch,
                version: held.version,
                is_complete: true,
                routes: held.routes.values().cloned().collect(),
                removed: held.going.iter().cloned().collect(),
            });
        }
        if question.version == held.version {
            return None;
        }
        let mut answer = FollowResponse { epoch: held.epoch, version: held.version, ..FollowResponse::default() };
        for (_, change) in held.changes.iter().filter(|(version, _)| *version > question.version) {
            answer.routes.retain(|route| !change.removed.contains(&route.owner_id));
            answer.routes.extend(change.routes.iter().cloned());
            answer.removed.extend(change.removed.iter().cloned());
        }
        Some(answer)
    }
}

#[tonic::async_trait]
impl Routes for Door {
    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<FollowResponse>, Status> {
        let question = request.into_inner();
        {
            let held = &mut *self.held.lock().unwrap();
            if held.newest.0 != question.instance {
                held.newest = (question.instance.clone(), 0);
            }
            held.newest.1 = held.newest.1.max(question.question);
            let counts = question.question == held.newest.1;
            for outcome in question.outcomes.iter().filter(|_| counts) {
                if outcome.kind == i32::from(OutcomeKind::Removed) {
                    held.going.remove(&outcome.owner_id);
                }
                held.outcomes.push(outcome.clone());
            }
            held.questions += 1;
            // Who has heard a part alone asks for the whole.
            let heard = |next: &FollowResponse| if next.is_complete { (next.epoch, next.version) } else { (0, 0) };
            held.next.take_if(|next| heard(next) == (question.epoch, question.version));
        }
        let end = tokio::time::Instant::now() + Duration::from_millis(question.wait_ms.into());
        loop {
            let changed = self.changed.notified();
            if let Some(answer) = self.answer(&question) {
                return Ok(Response::new(answer));
            }
            if tokio::time::timeout_at(end, changed).await.is_err() {
                let held = self.held.lock().unwrap();
                let (epoch, version) = (held.epoch, held.version);
                return Ok(Response::new(FollowResponse { epoch, version, ..FollowResponse::default() }));
            }
        }
    }
}
