//! Client of the data plane's `Routes` service.
//!
//! It long polls for routes, and reports the outcome of each route until the data plane acknowledges it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::data_plane_contact::DataPlaneContact;
use crate::route_listeners::RouteOutcome;
use crate::route_set::RouteUpdate;
use crate::wire;
use crate::wire::routes_client::RoutesClient;

/// Duration of a long poll in milliseconds.
const WAIT_MS: u32 = 15_000;

/// Extra time for the response to a long poll. After it, the request counts as failed.
const RESPONSE_GRACE: Duration = Duration::from_secs(5);

/// Delay before the first retry. All delays are short, because starting lobbies wait for their routes.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(250);

const OUTCOMES_PER_REQUEST: usize = 2_000;

const RESPONSE_BYTES_MAX: usize = 256 * 1024 * 1024;

#[derive(Debug)]
pub struct RouteClient {
    client: RoutesClient<Channel>,
    edge_id: String,
    instance: String,
    outcomes: Vec<RouteOutcome>,
    request_count: u64,
    pause: Duration,
    not_before: Option<Instant>,
    contact: Arc<DataPlaneContact>,
}

#[derive(Debug)]
pub struct FollowCall {
    request: wire::FollowRequest,
    outcomes: usize,
}

impl RouteClient {
    #[must_use]
    pub fn new(socket: &Path, edge_id: &str, instance: &str, contact: Arc<DataPlaneContact>) -> Self {
        Self {
            client: RoutesClient::new(connect_lazy(socket)).max_decoding_message_size(RESPONSE_BYTES_MAX),
            edge_id: edge_id.to_owned(),
            instance: instance.to_owned(),
            outcomes: Vec::new(),
            request_count: 0,
            pause: FIRST_RETRY_DELAY,
            not_before: None,
            contact,
        }
    }

    /// Reports whether new sessions are refused, because the data plane has been silent for too long.
    #[must_use]
    pub fn has_lost_contact(&self) -> bool {
        self.contact.is_lost()
    }

    pub fn report(&mut self, outcome: RouteOutcome) {
        self.outcomes.push(outcome);
    }

    /// Returns the next request, for routes that are newer than a restore, epoch and version.
    ///
    /// The request reports removed routes only if the route set is saved (`is_saved`). Otherwise a restart could restore
    /// a route that was reported as removed.
    pub fn next_call(&mut self, (restore_id, epoch, version): (&str, u64, u64), is_saved: bool) -> FollowCall {
        if !is_saved {
            // Removals sort last, and wait.
            self.outcomes.sort_by_key(|outcome| matches!(outcome, RouteOutcome::Removed(_)));
        }
        let sendable =
            self.outcomes.iter().filter(|outcome| is_saved || !matches!(outcome, RouteOutcome::Removed(_))).count();
        let outcomes = sendable.min(OUTCOMES_PER_REQUEST);
        self.request_count += 1;
        let request = wire::FollowRequest {
            edge_id: self.edge_id.clone(),
            instance: self.instance.clone(),
            epoch,
            version,
            // More outcomes follow at once.
            wait_ms: if sendable > outcomes { 0 } else { self.contact.wait_ms(WAIT_MS) },
            outcomes: self.outcomes[..outcomes].iter().map(to_wire).collect(),
            question: self.request_count,
            restore_id: restore_id.to_owned(),
            // On another machine, the part of the service that passes the request on adds its name.
            node: String::new(),
        };
        FollowCall { request, outcomes }
    }

    /// Sends a request, after the retry delay if the last request failed. The next request repeats the route outcomes
    /// of a failed or cancelled request.
    pub async fn send(&self, next_call: &FollowCall) -> Result<RouteUpdate, String> {
        if let Some(not_before) = self.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        let mut client = self.client.clone();
        let call = client.follow(next_call.request.clone());
        let limit = Duration::from_millis(u64::from(next_call.request.wait_ms)) + RESPONSE_GRACE;
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => Ok(RouteUpdate::from_wire(response.into_inner())),
            Ok(Err(status)) => Err(format!("{}: {}", status.code(), status.message())),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    pub fn succeeded(&mut self, next_call: &FollowCall) {
        self.contact.record_response();
        self.outcomes.drain(..next_call.outcomes);
        self.pause = FIRST_RETRY_DELAY;
        self.not_before = None;
    }

    pub fn failed(&mut self) {
        self.not_before = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RETRY_DELAY_MAX);
    }
}

/// Returns a channel to the data plane, which connects with the first request and again after an end.
pub fn connect_lazy(socket: &Path) -> Channel {
    let path = PathBuf::from(socket);
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The host name is a placeholder: the connector uses the socket.
    Endpoint::from_static("http://data-plane").connect_with_connector_lazy(connector)
}

fn to_wire(outcome: &RouteOutcome) -> wire::Outcome {
    use wire::OutcomeKind::{Listening, Refused, Removed, Unserved};
    let (owner, port_name, port, kind, reason) = match outcome {
        RouteOutcome::Listening(key, port, _) => (&key.owner, &*key.port_name, u32::from(*port), Listening, ""),
        RouteOutcome::Refused(key, port, reason) => (&key.owner, &*key.port_name, *port, Refused, &**reason),
        RouteOutcome::Unserved(key, port, reason) => (&key.owner, &*key.port_name, *port, Unserved, &**reason),
        RouteOutcome::Removed(owner) => (owner, "", 0, Removed, ""),
    };
    let backend_port = match outcome {
        RouteOutcome::Listening(_, _, Some(backend)) => backend.port().into(),
        _ => 0,
    };
    wire::Outcome {
        owner_id: owner.clone(),
        port_name: port_name.to_owned(),
        port,
        kind: kind.into(),
        reason: reason.to_owned(),
        backend_port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route_set::RouteKey;

    fn source() -> RouteClient {
        RouteClient::new(Path::new("/nowhere"), "local", "one", Arc::default())
    }

    #[tokio::test]
    async fn outcomes_are_repeated_until_acknowledged() {
        let mut source = source();
        let key = RouteKey { owner: "a".to_owned(), port_name: "game".to_owned() };
        source.report(RouteOutcome::Listening(key, 26_000, None));
        let next_call = source.next_call(("", 0, 0), true);
        assert!(source.send(&next_call).await.is_err(), "no server listens");
        source.failed();
        let repeated_call = source.next_call(("", 0, 0), true);
        assert_eq!(repeated_call.request.outcomes, next_call.request.outcomes);
        assert!(
            repeated_call.request.question > next_call.request.question,
            "which of both is the newer one can be seen"
        );
        source.report(RouteOutcome::Removed("b".to_owned()));
        source.succeeded(&repeated_call);
        assert_eq!(
            source.outcomes,
            [RouteOutcome::Removed("b".to_owned())],
            "outcomes after the request are not reported yet"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn retry_delay_is_bounded() {
        let mut source = source();
        (0..1_000).for_each(|_| source.failed());
        let next_call = source.next_call(("", 0, 0), true);
        let started = Instant::now();
        assert!(source.send(&next_call).await.is_err(), "no server listens");
        let waited = started.elapsed();
        assert!(waited <= Duration::from_millis(250), "{waited:?} without a question");
        assert!(waited >= Duration::from_millis(200), "{waited:?}: questions do not wait for each other");
    }

    #[tokio::test]
    async fn removal_is_reported_after_the_set_is_saved() {
        let mut source = source();
        source.report(RouteOutcome::Removed("b".to_owned()));
        assert_eq!(source.next_call(("", 0, 0), false).outcomes, 0);
        assert_eq!(source.next_call(("", 0, 0), true).outcomes, 1);
    }
}
