//! Requests that hyper reads. The front checks their sizes, and answers them itself or passes them on to a Python process.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use hosting_matchmaker::{ClientKey, Operation};
use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, CONNECTION, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version, response};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::connections::client_address::Peer;
use crate::connections::client_stream::CountedRequest;
use crate::limits::body_budget::{Reservation, SMALL_BYTES};
use crate::limits::failed_authentications::AttemptOutcome;
use crate::limits::permits::Permit;
use crate::long_polls::parked_request::{ParkedRequest, park_of};
use crate::measurements::code_number;
use crate::measurements::pass_reason::PassReason;
use crate::measurements::request_measurement::RequestMeasurement;
use crate::passing::passed_request::{KeptRequest, PASSED, PassedRequest, headers_of_connection, is_safe};
use crate::passing::upstream::{NoResponse, UpstreamContent};
use crate::requests::bearer_header::bearer_token;
use crate::requests::internal_headers::{self, ADMITTED, RAY_ID, RequestSource, YES, ray_id_value, remove_internal};
use crate::requests::request_form::{check_headers, collect, target};
use crate::requests::routes::{Plane, Route};
use crate::requests::trace_context::trace_of;
use crate::responses::answer_body::{AnswerBody, Content, Counts, StreamedBody};
use crate::responses::cors::{self, DOCUMENT_METHODS};
use crate::responses::decider::{Content as Decidable, Decided, EffectiveHeaders};
use crate::responses::error_response;
use crate::responses::problems::Problem;
use crate::thread_context::ThreadContext;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// Headers of one connection (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
];
/// Place for a parked request that leaves hyper.
pub type Parking = Cell<Option<Box<ParkedExchange>>>;

/// Parts of a request over HTTP/1.1 beside its bytes.
pub struct Http1Request {
    pub parking: Rc<Parking>,
    /// Why the request is passed on, if that is decided.
    pub reason: Option<PassReason>,
}

/// Answers one request that hyper has read. A parked request over HTTP/1.1 may leave hyper: then the answer is an error, so
/// that hyper gives the connection back.
pub async fn answer(
    context: Rc<ThreadContext>,
    peer: Peer,
    counted: CountedRequest,
    request: Request<Incoming>,
    http1: Option<Http1Request>,
) -> io::Result<Response<AnswerBody>> {
    let trace = trace_of(request.headers());
    let ray_id = trace.map_or_else(|| context.ray_ids.next(), |trace| Ok(trace.id))?;
    let (answering, busy) = (context.measurer.begin(1), context.shutdown.begin_request());
    counted.wait_if_slowed_down().await;
    let (parts, body) = request.into_parts();
    let can_leave = can_leave_hyper(&parts);
    let client = context.addresses.client_of(peer, &parts.headers);
    let mut exchange = Exchange {
        measurement: RequestMeasurement::new(&context.measurer, ray_id, trace, Some(context.options.routes.unrouted())),
        source: RequestSource { client, ray_id, is_traced: trace.is_some() },
        peer,
        is_received: body.is_end_stream(),
        version: parts.version,
        is_head: parts.method == Method::HEAD,
        cors: CorsRequest::of(&parts),
        counted: (counted, answering, busy),
        context,
    };
    let context = exchange.context.clone();
    let reason = http1.as_ref().and_then(|http1| http1.reason);
    let outcome = context.shutdown.within_grace(pin!(exchange.run(parts, body, reason))).await;
    let parked = match outcome.unwrap_or_else(Err) {
        Ok(Begun::Answered(response)) => return Ok(exchange.finish(Ok(response))),
        Ok(Begun::Parked(parked)) => parked,
        Err(problem) => return Ok(exchange.finish(Err(problem))),
    };
    let http1 = http1.filter(|_| can_leave && !exchange.counted.0.has_unread_answer());
    let parked = Box::new(ParkedExchange { exchange, parked });
    let Some(http1) = http1 else { return Ok(parked.answer().await) };
    http1.parking.set(Some(parked));
    Err(io::Error::other("the parked request leaves hyper"))
}

/// Other requests are rare. Hyper knows how to answer them.
fn can_leave_hyper(parts: &Parts) -> bool {
    let has_close = |value: &HeaderValue| value.as_bytes().to_ascii_lowercase().windows(5).any(|part| part == b"close");
    parts.version == Version::HTTP_11
        && parts.method == Method::GET
        && !parts.headers.get_all(CONNECTION).iter().any(has_close)
}

/// An exchange that waits for a change.
pub struct ParkedExchange {
    exchange: Exchange,
    parked: ParkedRequest,
}

impl ParkedExchange {
    /// Waits, and returns the response to a repeat.
    pub async fn answer(self: Box<Self>) -> Response<AnswerBody> {
        let ParkedExchange { mut exchange, mut parked } = *self;
        let context = exchange.context.clone();
        let (plane, source) = (context.planes.of(parked.plane), &exchange.source);
        let outcome = context.shutdown.within_grace(pin!(parked.response(plane, &context.options, source))).await;
        let answered =
            outcome.unwrap_or_else(Err).map(|response| exchange.answer_with(response.map(PassedBody::Whole)));
        exchange.finish(answered)
    }
}

/// One request that hyper has read, until its response.
struct Exchange {
    context: Rc<ThreadContext>,
    measurement: RequestMeasurement,
    source: RequestSource,
    peer: Peer,
    /// Whether the whole request has arrived. Otherwise the connection ends with the response.
    is_received: bool,
    version: Version,
    is_head: bool,
    cors: Option<Box<CorsRequest>>,
    counted: Counts,
}

/// Parts of a request that its response needs for CORS.
struct CorsRequest {
    path: Box<str>,
    origin: Option<HeaderValue>,
}

impl CorsRequest {
    fn of(parts: &Parts) -> Option<Box<CorsRequest>> {
        let (path, origin) = (parts.uri.path(), parts.headers.get(ORIGIN));
        let is_needed = origin.is_some() || cors::is_document(path);
        is_needed.then(|| Box::new(CorsRequest { path: path.into(), origin: origin.map(own_value) }))
    }
}

/// Returns a value of its own. The values of a request keep its whole head in memory.
fn own_value(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).expect("it was a valid value")
}

/// Outcome of the first attempt.
enum Begun {
    Answered(Response<Content>),
    Parked(ParkedRequest),
}

impl Exchange {
    /// Returns the response with all that the front adds.
    fn finish(mut self, outcome: Result<Response<Content>, Problem>) -> Response<AnswerBody> {
        let mut response = match outcome {
            Ok(response) => response,
            Err(problem) => self.refuse(problem),
        };
        let context = &self.context;
        if let Some(cors) = &self.cors
            && !response.headers().contains_key(http::header::ACCESS_CONTROL_ALLOW_ORIGIN)
        {
            context.options.cors.add(&cors.path, cors.origin.as_ref(), response.headers_mut());
        }
        let is_last = self.version == Version::HTTP_10
            || !self.is_received
            || context.shutdown.is_begun()
            || context.timeouts.keep_alive.is_zero();
        if self.version <= Version::HTTP_11 && is_last {
            response.headers_mut().insert(CONNECTION, CLOSE);
        }
        // Otherwise hyper keeps a connection of HTTP/1.0 open if the client asks for it.
        *response.version_mut() = self.version;
        if self.is_head {
            response = without_content(response);
        }
        if response.status() == StatusCode::TOO_MANY_REQUESTS && matches!(self.peer, Peer::Client(_)) {
            self.counted.0.slow_down_next();
        }
        response.map(|content| AnswerBody::new(content, self.counted))
    }

    /// `reason` says why the request is passed on, if that is decided.
    async fn run(&mut self, mut parts: Parts, body: Incoming, reason: Option<PassReason>) -> Result<Begun, Problem> {
        let context = self.context.clone();
        let options = &context.options;
        let path_and_query = target(&parts).ok_or(Problem::NotFound)?.to_owned();
        if path_and_query.len() > options.limits.url_bytes_max {
            return Err(Problem::UriTooLong);
        }
        check_headers(&mut parts, options.limits.headers_bytes_max)?;
        let path = parts.uri.path();
        if parts.method == Method::OPTIONS
            && let Some(origin) = parts.headers.get(ORIGIN)
            && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        {
            return self.answer_preflight(path, origin).map(Begun::Answered);
        }
        let route = options.routes.find(&parts.method, path);
        if let Some(route) = route {
            self.measurement.operation = Some(route.operation);
        }
        let client = self.client_key();
        let operation = route.and_then(|route| Operation::ALL.get(route.operation));
        // Others have no content.
        if operation.is_none_or(|operation| operation.has_content()) {
            options.answers.check_room(client).map_err(Problem::unread)?;
        }
        let receiving = Box::pin(self.receive(&parts.headers, route, client, body));
        let (body, _reservation) = receiving.await?;
        self.is_received = true;
        let decided = match (operation, reason) {
            (None, _) => Err(PassReason::Operation),
            (_, Some(reason)) => Err(reason),
            (Some(operation), None) => self.decide(*operation, &parts, &body).await,
        };
        let reason = match decided {
            Ok(decided) => return Ok(Begun::Answered(self.answer_decided(decided).await)),
            Err(reason) => reason,
        };
        self.measurement.reason = reason;
        let (plane, needs_token) = route.map_or((Plane::Data, false), |route| (route.plane, route.needs_token));
        let mut headers = self.passed_headers(&parts.headers);
        if reason.is_paid() {
            headers.insert(ADMITTED, YES);
        }
        let passed = PassedRequest { method: parts.method.clone(), path_and_query, headers, body };
        // Its values keep the buffer of the connection in memory.
        drop(parts);
        self.pass(plane, passed, needs_token).await
    }

    async fn decide(&self, operation: Operation, parts: &Parts, body: &Bytes) -> Result<Decided, PassReason> {
        let query = parts.uri.query().unwrap_or_default();
        if !query.is_empty() && !operation.is_read() {
            return Err(PassReason::Query);
        }
        let content = if operation.is_read() {
            Decidable::Target { path: parts.uri.path(), query }
        } else {
            Decidable::Json(body)
        };
        let of_connection = headers_of_connection(&parts.headers);
        let is_dropped = |name: &HeaderName| of_connection.contains(name.as_str());
        let headers = EffectiveHeaders::of(&parts.headers, self.trusts_peer(), is_dropped);
        self.context.decider.decide_any(headers, operation, self.source.client, content).await
    }

    async fn answer_decided(&mut self, mut decided: Decided) -> Response<Content> {
        let decided_at = std::time::Instant::now();
        decided.complete(&self.context.matchmaker.shard, &self.context.pages).await;
        self.context.waiters.wait(decided.wait).await;
        self.measurement.end_decided(&decided, decided_at);
        decided.response(self.source.ray_id).map(|body| Content::Whole(Some(self.counted_until_written(body))))
    }

    fn client_key(&self) -> ClientKey {
        ClientKey::of(self.source.client)
    }

    fn trusts_peer(&self) -> bool {
        matches!(self.peer, Peer::Proxy(proxy) if self.context.addresses.trusts(proxy))
    }

    fn answer_preflight(&mut self, path: &str, origin: &HeaderValue) -> Result<Response<Content>, Problem> {
        let options = &self.context.options;
        let methods = if cors::is_document(path) { DOCUMENT_METHODS.to_vec() } else { options.routes.methods(path) };
        if methods.is_empty() {
            return Err(Problem::NotFound);
        }
        let mut response = Response::new(Content::Whole(None));
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().insert(RAY_ID, ray_id_value(self.source.ray_id));
        options.cors.add_preflight(path, origin, &methods, response.headers_mut());
        self.measurement.end_here(code_number::OK);
        Ok(response)
    }

    /// Returns the body of a request. The reservation counts it until the response.
    async fn receive(
        &self,
        headers: &HeaderMap,
        route: Option<&Route>,
        client: ClientKey,
        body: Incoming,
    ) -> Result<(Bytes, Option<Reservation>), Problem> {
        if body.is_end_stream() {
            return Ok((Bytes::new(), None));
        }
        let options = &self.context.options;
        let limit = route.map_or(options.limits.body_bytes_max, |route| route.body_bytes_max);
        let needs_token = route.is_some_and(|route| route.needs_token);
        let check = |bytes: usize| {
            if bytes > limit {
                return Err(Problem::BodyTooLarge);
            }
            // A large body is only received with a token of the usual form.
            if bytes > SMALL_BYTES && needs_token { Ok(bearer_token(headers).map(drop)?) } else { Ok(()) }
        };
        check(usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX))?;
        let mut reservation = options.bodies.reserve(client);
        let receiving = collect(body, &mut reservation, check);
        let bytes = timeout(self.context.timeouts.receive, receiving).await.map_err(|_| Problem::RequestTimeout)??;
        Ok((bytes, Some(reservation)))
    }

    fn passed_headers(&self, headers: &HeaderMap) -> HeaderMap {
        let of_connection = headers_of_connection(headers);
        let trusts_peer = self.trusts_peer();
        let mut passed = HeaderMap::with_capacity(PASSED.len() + 3);
        for name in &PASSED {
            let is_dropped = of_connection.contains(name.as_str())
                || internal_headers::is_of_front(name, trusts_peer, self.source.is_traced);
            if !is_dropped {
                passed.extend(headers.get_all(name).iter().map(|value| (name.clone(), value.clone())));
            }
        }
        self.source.add_to(&mut passed);
        passed
    }

    /// Passes a request on. Python answers it, or parks it.
    async fn pass(&mut self, plane: Plane, passed: PassedRequest, needs_token: bool) -> Result<Begun, Problem> {
        let until = Instant::now() + self.context.timeouts.parked;
        let is_safe = is_safe(&passed.method);
        let kept = KeptRequest::of(&passed);
        let (response, permit) = self.send(plane, passed, is_safe, needs_token).await?;
        if let Some(park) = park_of(&response)? {
            let _reservation = self.context.options.reserve_parked(self.client_key(), kept.bytes())?;
            return Ok(Begun::Parked(ParkedRequest { plane, kept, park, until, _reservation }));
        }
        let response = self.receive_answer(plane, response, permit, is_safe).await?;
        Ok(Begun::Answered(self.answer_with(response)))
    }

    /// Sends a request to Python, with a permit. Refuses it after too many failed authentications of its client.
    async fn send(
        &self,
        plane: Plane,
        passed: PassedRequest,
        is_safe: bool,
        needs_token: bool,
    ) -> Result<(Response<UpstreamContent>, Permit), Problem> {
        let (context, client) = (&*self.context, self.client_key());
        let failed_authentications = &context.options.failed_authentications;
        let too_many_failures = |_| {
            context.measurer.count_limited_failure();
            Problem::RateLimitedFailures
        };
        let token = bearer_token(&passed.headers).ok();
        let is_valid = || token.is_some_and(|token| context.matchmaker.is_client_token(token));
        failed_authentications.check(client, &passed.headers, is_valid).map_err(too_many_failures)?;
        let permit = context.permits.requests.of(plane).acquire(token, client).await;
        let permit = permit.map_err(|overload| Problem::overloaded(plane, overload))?;
        // Others may have failed while the request waited for its permit.
        let attempt = failed_authentications.admit(client, &passed.headers, is_valid).map_err(too_many_failures)?;
        let sending = context.planes.of(plane).upstream.send(passed.into_request(), is_safe);
        // Boxed, like each large part of a request, so that a waiting one takes little memory.
        let (sent, permit) = permit.run(Box::pin(sending)).await;
        // Python may have looked up the token of a late response, so it counts as failed.
        if let Some(attempt) = attempt.filter(|_| !matches!(sent, Err(NoResponse::Late))) {
            attempt.end(sent.as_ref().map_or(AttemptOutcome::Unknown, |response| outcome(response, needs_token)));
        }
        let response = sent.map_err(|reason| reason.problem(plane, is_safe))?;
        Ok((response, permit))
    }

    /// Counts the bytes of a response until they are written. A streamed one holds the permit of a long response in place of
    /// that of its request.
    async fn receive_answer(
        &self,
        plane: Plane,
        response: Response<UpstreamContent>,
        permit: Permit,
        is_safe: bool,
    ) -> Result<Response<PassedBody>, Problem> {
        let context = &*self.context;
        let unwritten = context.options.reserve_answer(self.client_key(), response.body().bytes(), is_safe)?;
        let (parts, content) = response.into_parts();
        let body = match content {
            UpstreamContent::Whole(content) => PassedBody::Whole(unwritten.hold(content)),
            UpstreamContent::Streamed(body) => {
                let long = context.permits.long_responses.of(plane).acquire_for_same_client(&permit).await;
                // A change has happened, so its response is sent.
                let permit = match long {
                    Err(overload) if is_safe => return Err(Problem::overloaded(plane, overload)),
                    long => long.unwrap_or(permit),
                };
                PassedBody::Streamed(StreamedBody { body, unwritten, _permit: permit })
            }
        };
        Ok(Response::from_parts(parts, body))
    }

    fn answer_with(&mut self, response: Response<PassedBody>) -> Response<Content> {
        let (mut parts, body) = response.into_parts();
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        self.measurement.end_passed(&parts.headers, !is_error);
        HOP_BY_HOP.iter().for_each(|name| drop(parts.headers.remove(name)));
        remove_internal(&mut parts.headers);
        let content = match body {
            PassedBody::Streamed(body) => Content::Passed(body),
            PassedBody::Whole(body) => Content::Whole(Some(self.with_own_ray_id(&mut parts, body))),
        };
        Response::from_parts(parts, content)
    }

    /// Puts the ray id of this request in place of that in a shared response.
    fn with_own_ray_id(&self, parts: &mut response::Parts, body: Bytes) -> Bytes {
        let own = ray_id_value(self.source.ray_id);
        let shared = parts.headers.insert(RAY_ID, own.clone()).filter(|shared| *shared != own);
        let Some(shared) = shared else { return body };
        let at = memchr::memmem::find(&body, shared.as_bytes()).filter(|_| !parts.status.is_success());
        let Some(at) = at else { return body };
        let with_own = [&body[..at], &self.source.ray_id.digits(), &body[at + shared.len()..]].concat();
        self.counted_until_written(with_own.into())
    }

    fn refuse(&mut self, problem: Problem) -> Response<Content> {
        self.measurement.end_here(code_number::of(problem.code()));
        let response = error_response::response(&problem.error(), self.source.ray_id);
        response.map(|body| Content::Whole(Some(self.counted_until_written(body))))
    }

    fn counted_until_written(&self, body: Bytes) -> Bytes {
        self.context.options.answers.reserve(self.client_key()).hold(body)
    }
}

/// Returns the response to a HEAD. hyper leaves out the content only in HTTP/1.1.
fn without_content(mut response: Response<Content>) -> Response<Content> {
    if let Content::Whole(Some(content)) = response.body()
        && !content.is_empty()
    {
        let length = content.len();
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    response.map(|_| Content::Whole(None))
}

enum PassedBody {
    Streamed(StreamedBody),
    /// Several requests may share it.
    Whole(Bytes),
}

fn outcome<T>(response: &Response<T>, needs_token: bool) -> AttemptOutcome {
    let (status, code) = (response.status(), internal_headers::code(response.headers()));
    AttemptOutcome::of(status.is_success(), status == StatusCode::UNAUTHORIZED, code, needs_token)
}
