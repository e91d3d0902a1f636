//! Calls that the front passes on to the gRPC servers of the Python processes.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, timeout_at};

use crate::grpc::call::Call;
use crate::grpc::call_head::set_deadline;
use crate::grpc::grpc_context::GrpcPlane;
use crate::grpc::message::{self, PREFIX_BYTES};
use crate::grpc::methods::Method;
use crate::grpc::passed_response::{Held, PassedResponse};
use crate::grpc::reply::{ReplyBody, new_response, trailers_only};
use crate::grpc::upstream::CallBody;
use crate::limits::body_budget::BodyBudget;
use crate::limits::failed_authentications::{Attempt, AttemptOutcome, FailedAuthentications};
use crate::limits::permits::{Permit, Permits};
use crate::long_polls::watches::{Park, Wake};
use crate::passing::upstream::{NoResponse, UpstreamBody, WHOLE_BYTES};
use crate::requests::internal_headers::{self, CHANGED, EXPIRED, PARK, REPEAT, remove_internal};
use crate::requests::request_form::header_bytes;
use crate::requests::routes::Plane;
use crate::responses::error_response::{self, DETAILS, GRPC_STATUS, STATUS_OK};
use crate::responses::problems::Problem;
use hosting_matchmaker::BearerProblem;

/// Time for which a stream without a response keeps the permit of a call.
const SILENT_STREAM: Duration = Duration::from_secs(1);

const DEADLINE_EXCEEDED: &[u8] = b"4";
const OK: &[u8] = STATUS_OK.as_bytes();
const UNAUTHENTICATED: &[u8] = b"16";

/// A call for a Python process.
pub struct PassedCall {
    call: Call,
    path: PathAndQuery,
    metadata: HeaderMap,
    token: Option<Box<str>>,
    plane: Plane,
    needs_token: bool,
    /// Whether the credentials are the secret of an event channel. A client can invent one.
    is_of_channel: bool,
    is_safe: bool,
}

/// Why a call has no response of its Python process.
enum Failure {
    Problem(Problem),
    Unavailable,
}

impl From<NoResponse> for Failure {
    fn from(_: NoResponse) -> Failure {
        Failure::Unavailable
    }
}

/// Response of a Python process to a call with one response message.
enum UnaryResponse {
    /// The call waits for a change.
    Parked(Rc<Park>),
    Complete {
        headers: HeaderMap,
        message: Option<Bytes>,
        trailers: HeaderMap,
    },
    /// The first part of a large message, and the rest of the response.
    Begun {
        headers: HeaderMap,
        /// Size of the whole message.
        bytes: usize,
        first: Bytes,
        rest: UpstreamBody,
    },
}

impl UnaryResponse {
    fn trailers(&self) -> Option<&HeaderMap> {
        match self {
            UnaryResponse::Complete { trailers, .. } => Some(trailers),
            UnaryResponse::Parked(_) | UnaryResponse::Begun { .. } => None,
        }
    }
}

impl PassedCall {
    pub fn new(
        call: Call,
        path: PathAndQuery,
        metadata: HeaderMap,
        token: Result<&str, BearerProblem>,
        method: Option<&Method>,
    ) -> PassedCall {
        let (plane, needs_token, is_safe) =
            method.map_or((Plane::Data, false, false), |method| (method.plane, method.needs_token, method.is_safe));
        let is_of_channel = method.is_some() && !needs_token;
        PassedCall {
            call,
            path,
            metadata,
            token: token.ok().map(Box::from),
            plane,
            needs_token,
            is_of_channel,
            is_safe,
        }
    }

    /// Passes on a call that may have many messages.
    pub async fn pass_stream(mut self, body: CallBody) -> Response<ReplyBody> {
        let context = self.call.context.clone();
        let outcome = context.thread.shutdown.within_grace(pin!(self.stream_response(body))).await;
        outcome.map_err(Failure::Problem).and_then(|outcome| outcome).unwrap_or_else(|failure| self.refuse(failure))
    }

    /// Passes on a call with one message. While Python parks it, waits for a change, and passes it on again.
    pub async fn pass_unary(mut self, message: Bytes) -> Response<ReplyBody> {
        let context = self.call.context.clone();
        let outcome = context.thread.shutdown.within_grace(pin!(self.unary_response(message))).await;
        outcome.map_err(Failure::Problem).and_then(|outcome| outcome).unwrap_or_else(|failure| self.refuse(failure))
    }

    fn refuse(&mut self, failure: Failure) -> Response<ReplyBody> {
        match failure {
            Failure::Problem(problem) => self.call.refuse(problem),
            Failure::Unavailable => self.call.refuse(self.unavailable()),
        }
    }

    fn unavailable(&self) -> Problem {
        match self.plane {
            Plane::Control => Problem::ControlPlaneUnavailable,
            // The data plane's server is in this process, so it is stopped or overloaded.
            Plane::Data => Problem::Overloaded,
        }
    }

    async fn stream_response(&mut self, body: CallBody) -> Result<Response<ReplyBody>, Failure> {
        self.check_failures()?;
        let GrpcPlane { permits, streams, channel_streams, unverified_streams, .. } = self.grpc_plane();
        let (open, has_end) = match self.is_of_channel {
            true => (channel_streams, true),
            false if self.is_verified() => (streams, false),
            false => (unverified_streams, true),
        };
        let stream = self.permit(open).await?;
        let context = self.call.context.clone();
        let end = has_end.then(|| Instant::now() + context.thread.timeouts.unverified_stream);
        let permit = self.permit(permits).await?;
        let attempt = self.admit(&context.thread.options.failed_authentications)?;
        let deadline = self.call.deadline;
        // The permit is given back when the response begins, or before, because a stream may be silent for long.
        let sending = permit.run_at_most(SILENT_STREAM, self.send(body));
        let sending = async {
            match end {
                Some(end) => timeout_at(end, sending).await.unwrap_or(Err(Failure::Unavailable)),
                None => sending.await,
            }
        };
        let response = until(deadline, sending).await.and_then(|response| response);
        let outcome = match &response {
            // Its status comes later.
            Ok((headers, _)) if !headers.contains_key(GRPC_STATUS) => Some(AttemptOutcome::Unknown),
            response => self.outcome(response.as_ref().map(|(headers, _)| Some(headers))),
        };
        end_attempt(attempt, outcome);
        let (headers, rest) = response?;
        if headers.contains_key(GRPC_STATUS) {
            return self.checked(headers).map(trailers_only);
        }
        Ok(self.begun(headers, None, rest, Held::Stream(stream), end))
    }

    async fn unary_response(&mut self, message: Bytes) -> Result<Response<ReplyBody>, Failure> {
        let context = self.call.context.clone();
        let thread = &*context.thread;
        let until_parked = Instant::now() + thread.timeouts.parked;
        let (mut parked, mut stale_in) = (None, None);
        loop {
            self.check_failures()?;
            // Woken calls have a queue of their own, because many wake at once.
            let GrpcPlane { permits, woken, .. } = self.grpc_plane();
            let permit = self.permit(if parked.is_some() { woken } else { permits }).await?;
            self.answers()
                .check_room(self.call.client_key())
                .map_err(|full| Failure::Problem(Problem::unread(full)))?;
            let attempt = self.admit(&context.thread.options.failed_authentications)?;
            let deadline = Some(self.answer_deadline());
            let response = until(deadline, permit.run(self.send_unary(message.clone()))).await;
            let response = response.and_then(|(response, _permit)| response);
            end_attempt(attempt, self.outcome(response.as_ref().map(UnaryResponse::trailers)));
            let park = match response? {
                UnaryResponse::Parked(park) => park,
                UnaryResponse::Complete { headers, message, trailers } => {
                    return Ok(complete(headers, message, self.checked(trailers)?));
                }
                UnaryResponse::Begun { headers, bytes, first, rest } => {
                    let unwritten = thread.options.reserve_answer(self.call.client_key(), bytes, self.is_safe);
                    let unwritten = unwritten.map_err(Failure::Problem)?;
                    let first = Some(Frame::data(first));
                    return Ok(self.begun(headers, first, rest, Held::Answer(unwritten), None));
                }
            };
            if parked.is_none() {
                let bytes = header_bytes(&self.metadata) + message.len();
                let reserved = thread.options.reserve_parked(self.call.client_key(), bytes);
                parked = Some(reserved.map_err(|full| Failure::Problem(full.into()))?);
            }
            let waiting = thread.planes.of(self.plane).watches.wait(&park, until_parked, &mut stale_in);
            let is_over = until(self.call.deadline, waiting).await? == Wake::Expired;
            self.metadata.insert(REPEAT, if is_over { EXPIRED } else { CHANGED });
        }
    }

    fn grpc_plane(&self) -> &GrpcPlane {
        self.call.context.planes.of(self.plane)
    }

    /// Returns the budget of responses that clients have not read.
    fn answers(&self) -> &Arc<BodyBudget> {
        &self.call.context.thread.options.answers
    }

    async fn permit(&self, permits: &Arc<Permits>) -> Result<Permit, Failure> {
        let acquiring = permits.acquire(self.token.as_deref(), self.call.client_key());
        let acquired = until(self.call.deadline, acquiring).await?;
        acquired.map_err(|overload| Failure::Problem(Problem::overloaded(self.plane, overload)))
    }

    /// Refuses a call of an address with many failed authentications before it waits for a permit.
    fn check_failures(&self) -> Result<(), Failure> {
        let failed_authentications = &self.call.context.thread.options.failed_authentications;
        let checked = failed_authentications.check(self.call.client_key(), &self.metadata, || self.is_valid_client());
        checked.map_err(|_| self.too_many_failures())
    }

    /// Returns whether the front knows that the token is valid. It knows the tokens of the control plane only after a success.
    fn is_verified(&self) -> bool {
        let options = &self.call.context.thread.options;
        options.failed_authentications.have_succeeded(&self.metadata) || self.is_valid_client()
    }

    fn is_valid_client(&self) -> bool {
        let matchmaker = &self.call.context.thread.matchmaker;
        self.token.as_deref().is_some_and(|token| matchmaker.is_client_token(token))
    }

    /// Others may have failed while the call waited for its permit.
    fn admit<'a>(&self, failed_authentications: &'a FailedAuthentications) -> Result<Option<Attempt<'a>>, Failure> {
        let admitted = failed_authentications.admit(self.call.client_key(), &self.metadata, || self.is_valid_client());
        admitted.map_err(|_| self.too_many_failures())
    }

    fn too_many_failures(&self) -> Failure {
        self.call.context.measurer.count_limited_failure();
        Failure::Problem(Problem::RateLimitedFailures)
    }

    /// Returns None if the call was given up while Python had it. `response` has the trailers, unless it goes on.
    fn outcome(&self, response: Result<Option<&HeaderMap>, &Failure>) -> Option<AttemptOutcome> {
        let trailers = match response {
            Ok(trailers) => trailers,
            Err(Failure::Unavailable) => return Some(AttemptOutcome::Unknown),
            Err(_) => return None,
        };
        let status = trailers.and_then(|trailers| trailers.get(GRPC_STATUS)).map_or(OK, HeaderValue::as_bytes);
        let code = trailers.and_then(internal_headers::code);
        let outcome = AttemptOutcome::of(status == OK, status == UNAUTHENTICATED, code, self.needs_token);
        (status != DEADLINE_EXCEEDED).then_some(outcome)
    }

    fn answer_deadline(&self) -> Instant {
        let latest = Instant::now() + self.call.context.thread.options.answer_timeout;
        self.call.deadline.map_or(latest, |deadline| deadline.min(latest))
    }

    async fn send(&mut self, body: CallBody) -> Result<(HeaderMap, UpstreamBody), Failure> {
        if let Some(deadline) = self.call.deadline {
            set_deadline(&mut self.metadata, deadline);
        }
        let request = self.request(body);
        let response = self.grpc_plane().upstream.send(request).await?;
        if response.status() != StatusCode::OK {
            return Err(Failure::Unavailable);
        }
        let (head, body) = response.into_parts();
        Ok((head.headers, body))
    }

    async fn send_unary(&mut self, message: Bytes) -> Result<UnaryResponse, Failure> {
        let (headers, mut rest) = self.send(CallBody::One(Some(message))).await?;
        if headers.contains_key(GRPC_STATUS) {
            return Ok(UnaryResponse::Complete { headers: HeaderMap::new(), message: None, trailers: headers });
        }
        let mut received = BytesMut::new();
        let trailers = loop {
            match next_frame(&mut rest).await?.into_trailers() {
                Ok(trailers) => break trailers,
                Err(frame) => received.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
            if received.len() > WHOLE_BYTES {
                let bytes = PREFIX_BYTES + message::length(&received).unwrap_or(0);
                return Ok(UnaryResponse::Begun { headers, bytes, first: received.freeze(), rest });
            }
        };
        // A parked call has an empty message too.
        if let Some(park) = trailers.get(PARK).filter(|_| *received == message::EMPTY) {
            let park = park.to_str().ok().and_then(|park| Park::parse(park, None));
            return park.map(UnaryResponse::Parked).ok_or(Failure::Problem(Problem::Internal));
        }
        let message =
            (!received.is_empty()).then(|| self.answers().reserve(self.call.client_key()).hold(received.freeze()));
        Ok(UnaryResponse::Complete { headers, message, trailers })
    }

    fn request(&self, body: CallBody) -> Request<CallBody> {
        let uri = Uri::builder().scheme("http").authority("localhost").path_and_query(self.path.clone()).build();
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = uri.expect("the path is one of a request");
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.metadata.clone();
        request
    }

    /// Returns the trailers for the client, and counts the call. An error without details does not come from the handlers
    /// of the control plane.
    fn checked(&mut self, mut trailers: HeaderMap) -> Result<HeaderMap, Failure> {
        let status = trailers.get(GRPC_STATUS).map_or(&b""[..], HeaderValue::as_bytes);
        if self.plane == Plane::Control && status != OK && !trailers.contains_key(DETAILS) {
            return Err(match status {
                DEADLINE_EXCEEDED => Failure::Problem(Problem::DeadlineExceeded),
                _ => Failure::Unavailable,
            });
        }
        self.call.measurement.end_passed(&trailers, status == OK);
        remove_internal(&mut trailers);
        Ok(trailers)
    }

    fn begun(
        &mut self,
        mut headers: HeaderMap,
        first: Option<Frame<Bytes>>,
        rest: UpstreamBody,
        held: Held,
        end: Option<Instant>,
    ) -> Response<ReplyBody> {
        remove_internal(&mut headers);
        let problem = self.unavailable();
        let Call { source, measurement, .. } = &mut self.call;
        let unavailable = error_response::trailers(&problem.error(), source.ray_id);
        let passed = PassedResponse::new(first, rest, unavailable, measurement.take(), held, end);
        let mut response = new_response(ReplyBody::Passed(Box::new(passed)));
        *response.headers_mut() = headers;
        response
    }
}

fn end_attempt(attempt: Option<Attempt<'_>>, outcome: Option<AttemptOutcome>) {
    if let (Some(attempt), Some(outcome)) = (attempt, outcome) {
        attempt.end(outcome);
    }
}

fn complete(mut headers: HeaderMap, message: Option<Bytes>, trailers: HeaderMap) -> Response<ReplyBody> {
    remove_internal(&mut headers);
    let mut response = match message {
        Some(_) => new_response(ReplyBody::Message(message, Some(trailers))),
        None => trailers_only(trailers),
    };
    response.headers_mut().extend(headers);
    response
}

async fn until<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Result<T, Failure> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.map_err(|_| Failure::Problem(Problem::DeadlineExceeded)),
        None => Ok(future.await),
    }
}

async fn next_frame(body: &mut UpstreamBody) -> Result<Frame<Bytes>, NoResponse> {
    let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
    frame.and_then(Result::ok).ok_or(NoResponse::Lost)
}
