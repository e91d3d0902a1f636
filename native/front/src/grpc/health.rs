//! The health service of gRPC. The front answers it itself, so that its calls, which may never end, cost Python nothing.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::HeaderMap;
use http_body::Frame;
use prost::Message;
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::{Instant, timeout_at};

use crate::grpc::message;
use crate::responses::error_response::status_trailers;

pub const CHECK: &str = "/grpc.health.v1.Health/Check";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";
const DEADLINE_EXCEEDED: (i32, &str) = (4, "");
const NOT_FOUND: (i32, &str) = (5, "no service of this name is served here");
const DAMAGED: (i32, &str) = (13, "the message is no HealthCheckRequest");
const UNAVAILABLE: (i32, &str) = (14, "the server is stopping");
// Numbers of `HealthCheckResponse.ServingStatus`.
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Serving,
    NotServing,
    /// Each watch ends.
    Ending,
}

/// State that all threads share.
pub struct Health {
    state: Sender<State>,
    services: HashSet<String>,
}

#[derive(Message)]
struct HealthCheckRequest {
    #[prost(string, tag = 1)]
    service: String,
}

#[derive(Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = 1)]
    status: i32,
}

impl Health {
    /// `paths` are those of all methods, such as `/<service>/<method>`.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> Health {
        let service = |path: &'a str| path.split('/').nth(1).unwrap_or_default().to_owned();
        // The empty name stands for the whole server.
        let services = paths.into_iter().map(service).chain([String::new()]).collect();
        Health { state: channel(State::Serving).0, services }
    }

    pub fn set_serving(&self, is_serving: bool) {
        let wanted = if is_serving { State::Serving } else { State::NotServing };
        self.state.send_if_modified(|state| *state != State::Ending && std::mem::replace(state, wanted) != wanted);
    }

    pub fn end(&self) {
        self.state.send_replace(State::Ending);
    }

    /// Returns the response message of a check, or trailers.
    pub fn check(&self, request: &[u8]) -> Result<Bytes, HeaderMap> {
        if self.is_known(request)? {
            Ok(response(status_of(*self.state.borrow())))
        } else {
            Err(status_trailers(NOT_FOUND))
        }
    }

    /// Returns the response to a watch, or trailers.
    pub fn watch(&self, request: &[u8], deadline: Option<Instant>) -> Result<HealthWatch, HeaderMap> {
        let is_known = self.is_known(request)?;
        Ok(HealthWatch { next: Next::Look(self.state.subscribe()), is_known, last: None, deadline })
    }

    fn is_known(&self, request: &[u8]) -> Result<bool, HeaderMap> {
        let request = HealthCheckRequest::decode(request).map_err(|_| status_trailers(DAMAGED))?;
        Ok(self.services.contains(&request.service))
    }
}

fn status_of(state: State) -> i32 {
    if state == State::Serving { SERVING } else { NOT_SERVING }
}

fn response(status: i32) -> Bytes {
    message::framed(|bytes| HealthCheckResponse { status }.encode(bytes).expect("a vector grows"))
}

/// Response to a watch: the status now, and after each change.
pub struct HealthWatch {
    next: Next,
    is_known: bool,
    last: Option<i32>,
    /// Time at which the client no longer waits.
    deadline: Option<Instant>,
}

enum Next {
    Look(Receiver<State>),
    /// Returns None after the deadline.
    Wait(Pin<Box<dyn Future<Output = Option<Receiver<State>>>>>),
    Ended,
}

impl HealthWatch {
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        loop {
            let mut state = match std::mem::replace(&mut self.next, Next::Ended) {
                Next::Ended => return Poll::Ready(None),
                Next::Look(state) => state,
                Next::Wait(mut changed) => match changed.as_mut().poll(context) {
                    Poll::Ready(Some(state)) => state,
                    Poll::Ready(None) => return Poll::Ready(Some(Frame::trailers(status_trailers(DEADLINE_EXCEEDED)))),
                    Poll::Pending => {
                        self.next = Next::Wait(changed);
                        return Poll::Pending;
                    }
                },
            };
            let current = *state.borrow_and_update();
            let status = if self.is_known { status_of(current) } else { SERVICE_UNKNOWN };
            if self.last != Some(status) {
                (self.last, self.next) = (Some(status), Next::Look(state));
                return Poll::Ready(Some(Frame::data(response(status))));
            }
            if current == State::Ending {
                return Poll::Ready(Some(Frame::trailers(status_trailers(UNAVAILABLE))));
            }
            let deadline = self.deadline;
            self.next = Next::Wait(Box::pin(async move {
                let changed = state.changed();
                match deadline {
                    Some(deadline) => timeout_at(deadline, changed).await.ok()?.ok()?,
                    None => changed.await.ok()?,
                }
                Some(state)
            }));
        }
    }
}
