//! Server of the `Routes` service instead of the data plane. Remembers the reported outcomes.

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
use crate::wire::{
    CountSessionsRequest, CountSessionsResponse, FollowRequest, FollowResponse, LobbyAdmissions, Outcome, OutcomeKind,
    Route,
};

/// State of the route source, which survives restarts of the source.
#[derive(Debug, Default)]
pub struct ServedRoutes {
    pub epoch: u64,
    version: u64,
    routes: BTreeMap<(String, String), Route>,
    changes: Vec<(u64, FollowResponse)>,
    /// Owners to remove, until their removal is reported.
    going: BTreeSet<String>,
    /// Response to send instead of the state, until the client has received it.
    next: Option<FollowResponse>,
    outcomes: Vec<Outcome>,
    questions: u64,
    /// Newest request of the client. Older requests can arrive later.
    newest: (String, u64),
    /// Clients with a slot, by their bytes.
    pub slots: BTreeSet<Vec<u8>>,
    /// Sessions of the last report about an owner, by client.
    pub sessions: BTreeMap<String, Vec<(Vec<u8>, u32)>>,
    pub is_settled: bool,
}

pub struct RouteSource {
    socket: PathBuf,
    state: Arc<Mutex<ServedRoutes>>,
    changed: Arc<Notify>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl RouteSource {
    pub fn new(socket: &Path) -> Self {
        let state = ServedRoutes { epoch: 1, ..ServedRoutes::default() };
        Self { socket: socket.to_owned(), state: Arc::new(Mutex::new(state)), changed: Arc::default(), runtime: None }
    }

    /// Starts the route source with a new epoch.
    pub fn start(&mut self) {
        self.state.lock().unwrap().epoch += 1;
        self.serve();
    }

    fn serve(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = RoutesService { state: self.state.clone(), changed: self.changed.clone() };
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&self.socket).unwrap()
        };
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(RoutesServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        self.runtime = Some(runtime);
    }

    /// Ends the route source at once, like a SIGKILL.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    pub fn put(&self, routes: &[Route]) {
        self.change(routes, &[]);
    }

    pub fn remove(&self, owners: &[&str]) {
        self.change(&[], owners);
    }

    fn change(&self, routes: &[Route], removed: &[&str]) {
        {
            let state = &mut *self.state.lock().unwrap();
            state.version += 1;
            for route in routes {
                state.routes.insert((route.owner_id.clone(), route.port_name.clone()), route.clone());
            }
            state.routes.retain(|(owner, _), _| !removed.contains(&owner.as_str()));
            state.going.extend(removed.iter().map(|owner| (*owner).to_owned()));
            let change = FollowResponse {
                epoch: state.epoch,
                version: state.version,
                is_complete: false,
                routes: routes.to_vec(),
                removed: removed.iter().map(|owner| (*owner).to_owned()).collect(),
                ..FollowResponse::default()
            };
            state.changes.push((state.version, change));
        }
        self.changed.notify_waiters();
    }

    /// Removes an owner from the state without a report to the client.
    pub fn lose(&self, owner: &str) {
        self.state.lock().unwrap().routes.retain(|(route_owner, _), _| route_owner != owner);
    }

    /// Sends `answer` as the next response. Its epoch and version must be unique.
    pub fn answer_next(&self, answer: FollowResponse) {
        self.state.lock().unwrap().next = Some(answer);
        self.changed.notify_waiters();
    }

    pub fn with_state<T>(&self, inspect: impl FnOnce(&mut ServedRoutes) -> T) -> T {
        inspect(&mut self.state.lock().unwrap())
    }

    #[track_caller]
    pub fn wait_for(&self, owner: &str, kind: OutcomeKind) -> Outcome {
        wait_for(&format!("{owner} is {kind:?}"), || {
            let state = self.state.lock().unwrap();
            let last = state.outcomes.iter().rev().find(|outcome| outcome.owner_id == owner)?;
            (last.kind == i32::from(kind)).then(|| last.clone())
        })
    }

    #[track_caller]
    pub fn wait_for_backend(&self, owner: &str, backend: Option<SocketAddr>) {
        self.wait_for_backend_port(owner, backend.map_or(0, |backend| backend.port().into()));
    }

    #[track_caller]
    fn wait_for_backend_port(&self, owner: &str, port: u32) {
        wait_for(&format!("{owner} leads to backend port {port}"), || {
            let state = self.state.lock().unwrap();
            let last = state.outcomes.iter().rev().find(|outcome| outcome.owner_id == owner)?;
            (last.kind == i32::from(OutcomeKind::Listening) && last.backend_port == port).then_some(())
        });
    }

    #[track_caller]
    pub fn serve_route(&self, route: &Route) {
        self.put(std::slice::from_ref(route));
        // An outcome can be reported twice, so `Listening` alone may be of the backend before.
        self.wait_for_backend_port(&route.owner_id, route.backend_port);
    }

    /// Waits until the last report about an owner has these sessions.
    #[track_caller]
    pub fn wait_for_sessions(&self, owner: &str, expected: &[(Vec<u8>, u32)]) {
        wait_for(&format!("{owner} has the sessions {expected:?}"), || {
            self.with_state(|state| state.sessions.get(owner).is_some_and(|is| is == expected)).then_some(())
        });
    }

    pub fn has_outcome(&self, owner: &str, kind: OutcomeKind) -> bool {
        let state = self.state.lock().unwrap();
        state.outcomes.iter().any(|outcome| outcome.owner_id == owner && outcome.kind == i32::from(kind))
    }

    pub fn forget_outcomes(&self) {
        self.state.lock().unwrap().outcomes.clear();
    }

    #[track_caller]
    pub fn wait_for_questions(&self, more: u64) {
        let first = self.state.lock().unwrap().questions;
        wait_for("more questions", || (self.state.lock().unwrap().questions >= first + more).then_some(()));
    }
}

impl Drop for RouteSource {
    fn drop(&mut self) {
        self.kill();
    }
}

struct RoutesService {
    state: Arc<Mutex<ServedRoutes>>,
    changed: Arc<Notify>,
}

impl RoutesService {
    fn answer(&self, question: &FollowRequest) -> Option<FollowResponse> {
        let state = &mut *self.state.lock().unwrap();
        if state.next.is_some() {
            return state.next.clone();
        }
        if question.epoch != state.epoch || question.version > state.version {
            return Some(FollowResponse {
                epoch: state.epoch,
                version: state.version,
                is_complete: true,
                routes: state.routes.values().cloned().collect(),
                removed: state.going.iter().cloned().collect(),
                ..FollowResponse::default()
            });
        }
        if question.version == state.version {
            return None;
        }
        let mut answer = FollowResponse { epoch: state.epoch, version: state.version, ..FollowResponse::default() };
        for (_, change) in state.changes.iter().filter(|(version, _)| *version > question.version) {
            answer.routes.retain(|route| !change.removed.contains(&route.owner_id));
            answer.routes.extend(change.routes.iter().cloned());
            answer.removed.extend(change.removed.iter().cloned());
        }
        Some(answer)
    }
}

#[tonic::async_trait]
impl Routes for RoutesService {
    async fn count_sessions(
        &self,
        request: Request<CountSessionsRequest>,
    ) -> Result<Response<CountSessionsResponse>, Status> {
        let request = request.into_inner();
        let state = &mut *self.state.lock().unwrap();
        state.is_settled = request.is_settled;
        let mut lobbies = Vec::new();
        for lobby in request.lobbies {
            let has_slot = lobby.addresses.iter().map(|address| state.slots.contains(&address.client)).collect();
            lobbies.push(LobbyAdmissions { has_slot });
            let sessions = lobby.addresses.into_iter().map(|address| (address.client, address.sessions)).collect();
            state.sessions.insert(lobby.owner_id, sessions);
        }
        Ok(Response::new(CountSessionsResponse { lobbies }))
    }

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<FollowResponse>, Status> {
        let question = request.into_inner();
        {
            let state = &mut *self.state.lock().unwrap();
            if state.newest.0 != question.instance {
                state.newest = (question.instance.clone(), 0);
            }
            state.newest.1 = state.newest.1.max(question.question);
            let counts = question.question == state.newest.1;
            for outcome in question.outcomes.iter().filter(|_| counts) {
                if outcome.kind == i32::from(OutcomeKind::Removed) {
                    state.going.remove(&outcome.owner_id);
                }
                state.outcomes.push(outcome.clone());
            }
            state.questions += 1;
            // A client that received a partial response requests everything.
            let received_version =
                |next: &FollowResponse| if next.is_complete { (next.epoch, next.version) } else { (0, 0) };
            state.next.take_if(|next| received_version(next) == (question.epoch, question.version));
        }
        let end = tokio::time::Instant::now() + Duration::from_millis(question.wait_ms.into());
        loop {
            let changed = self.changed.notified();
            if let Some(answer) = self.answer(&question) {
                return Ok(Response::new(answer));
            }
            if tokio::time::timeout_at(end, changed).await.is_err() {
                let state = self.state.lock().unwrap();
                let (epoch, version) = (state.epoch, state.version);
                return Ok(Response::new(FollowResponse { epoch, version, ..FollowResponse::default() }));
            }
        }
    }
}
