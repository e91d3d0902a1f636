//! Requests that the front does not answer itself: it checks their sizes, and passes them on to a Python process.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri, Version, response};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::answer_body::{AnswerBody, Content};
use crate::bearer_token::bearer_token;
use crate::body_budget::{BodyBudget, Reservation, SMALL_BYTES};
use crate::client_address::Peer;
use crate::client_stream::CountedRequest;
use crate::codes::Codes;
use crate::connection_budget::ClientKey;
use crate::cors::{self, Cors, DOCUMENT_METHODS};
use crate::failed_authentications::{FailedAuthentications, Outcome};
use crate::front::ThreadContext;
use crate::hot_request::HotRequest;
use crate::internal_headers::{self, CLIENT, HELD, OVER, PARK, RAY, RAY_ID, WOKEN, ray_id_value, remove_internal};
use crate::measuring::Measuring;
use crate::operations::Executed;
use crate::permits::PlanePermits;
use crate::plain_request::{Head, Operation};
use crate::problems::{Problem, Problems};
use crate::ray_id::RayId;
use crate::repeats::{RepeatKey, Repeats};
use crate::routes::{Plane, Route, Routes};
use crate::trace_context::{TRACEPARENT, trace_id_of};
use crate::upstream::{NoResponse, Upstream};
use crate::watches::{Park, Wake, Watches};

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
/// Bound on the number of headers. Each costs memory and time, however short it is.
pub const HEADERS_MAX: usize = 128;
/// A body in memory grows by this part of its bytes, or by some bytes.
const GROWTH_PART: usize = 8;
const GROWTH_BYTES_MIN: usize = 16 * 1024;
/// Overhead of a header beside its name and value.
const HEADER_OVERHEAD_BYTES: usize = 4;

pub struct PassingOptions {
    pub routes: Routes,
    pub codes: Codes,
    pub problems: Problems,
    pub cors: Cors,
    pub data_socket: PathBuf,
    pub control_socket: PathBuf,
    pub answer_timeout: Duration,
    pub limits: RequestLimits,
    pub bodies: Arc<BodyBudget>,
    pub answers: Arc<BodyBudget>,
    pub failed_authentications: FailedAuthentications,
    /// Number of parked requests of all threads.
    pub parked: Arc<AtomicUsize>,
}

#[derive(Clone, Copy)]
pub struct RequestLimits {
    pub url_bytes_max: usize,
    pub headers_bytes_max: usize,
    /// For a request without an operation.
    pub body_bytes_max: usize,
}

/// State of a thread that concerns passed requests.
pub struct Passing {
    pub options: Arc<PassingOptions>,
    permits: Arc<PlanePermits>,
    data: PassedPlane,
    control: PassedPlane,
}

struct PassedPlane {
    upstream: Upstream,
    watches: Watches,
    repeats: Repeats,
}

impl Passing {
    pub fn new(options: Arc<PassingOptions>, permits: Arc<PlanePermits>) -> Passing {
        let plane = |socket: &PathBuf| PassedPlane {
            upstream: Upstream::new(socket.clone(), options.answer_timeout),
            watches: Watches::new(options.parked.clone()),
            repeats: Repeats::default(),
        };
        Passing { data: plane(&options.data_socket), control: plane(&options.control_socket), options, permits }
    }

    pub fn watches(&self, plane: Plane) -> &Watches {
        &self.plane(plane).watches
    }

    fn plane(&self, plane: Plane) -> &PassedPlane {
        match plane {
            Plane::Data => &self.data,
            Plane::Control => &self.control,
        }
    }
}

/// Answers one request that hyper has read.
pub async fn answer(
    context: Rc<ThreadContext>,
    peer: Peer,
    counted: CountedRequest,
    request: Request<Incoming>,
) -> io::Result<Response<AnswerBody>> {
    let traced = trace_id_of(request.headers());
    let ray_id = match traced {
        Some(ray_id) => ray_id,
        None => context.ray_ids.next()?,
    };
    let (answering, busy) = (context.clone().begin_answer(), context.begin_request());
    counted.wait_if_slowed_down().await;
    let (parts, body) = request.into_parts();
    let origin = parts.headers.get(ORIGIN).cloned();
    let path = parts.uri.path();
    let path_of_cors = (origin.is_some() || cors::is_document(path)).then(|| path.to_owned());
    let options = context.passing.options.clone();
    let mut exchange = Exchange {
        measuring: Measuring::new(&context, ThreadContext::measurer, ray_id, Some(options.routes.unrouted())),
        context: &context,
        options: &options,
        ray_id,
        is_traced: traced.is_some(),
        peer,
        client: context.addresses.client_of(peer, &parts.headers),
        is_received: body.is_end_stream(),
    };
    let version = parts.version;
    let outcome = tokio::select! {
        biased;
        outcome = exchange.run(parts, body) => outcome,
        () = context.end_of_grace() => Err(Problem::ShuttingDown),
    };
    let mut response = match outcome {
        Ok(response) => response,
        Err(problem) => exchange.refuse(problem),
    };
    if let Some(path) = path_of_cors
        && !response.headers().contains_key(http::header::ACCESS_CONTROL_ALLOW_ORIGIN)
    {
        options.cors.add(&path, origin.as_ref(), response.headers_mut());
    }
    let is_last = version == Version::HTTP_10
        || !exchange.is_received
        || context.is_stopping.get()
        || context.timeouts.keep_alive.is_zero();
    if version <= Version::HTTP_11 && is_last {
        response.headers_mut().insert(CONNECTION, CLOSE);
    }
    // Otherwise hyper keeps a connection of HTTP/1.0 open if the client asks for it.
    *response.version_mut() = version;
    if response.status() == StatusCode::TOO_MANY_REQUESTS && matches!(peer, Peer::Client(_)) {
        counted.slow_down_next();
    }
    let counted = (counted, answering, busy);
    Ok(response.map(|content| AnswerBody::new(content, counted)))
}

struct Exchange<'a> {
    context: &'a Rc<ThreadContext>,
    options: &'a PassingOptions,
    measuring: Measuring,
    ray_id: RayId,
    /// Whether the ray id is the trace id of the client.
    is_traced: bool,
    peer: Peer,
    client: IpAddr,
    /// Whether the whole request has arrived. Otherwise the connection ends with the response.
    is_received: bool,
}

impl Exchange<'_> {
    async fn run(&mut self, mut parts: Parts, body: Incoming) -> Result<Response<Content>, Problem> {
        let options = self.options;
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
            return self.answer_preflight(path, origin);
        }
        let route = options.routes.find(&parts.method, path);
        if let Some(route) = route {
            self.measuring.operation = Some(route.operation);
        }
        let client = ClientKey::of(self.client);
        if !options.answers.has_room(client) {
            return Err(Problem::Overloaded);
        }
        let receiving = Box::pin(self.receive(&parts.headers, route, client, body));
        let (body, _reservation) = receiving.await?;
        self.is_received = true;
        if let Some(operation) = route.and_then(|route| Operation::ALL.get(route.operation))
            && let Some(executed) = self.execute(*operation, &parts, &body)
        {
            return Ok(self.answer_executed(&executed).await);
        }
        let (plane, needs_token) = route.map_or((Plane::Data, false), |route| (route.plane, route.needs_token));
        let headers = self.passed_headers(&parts.headers);
        let is_safe = matches!(parts.method, Method::GET | Method::HEAD);
        let passed = Passed { method: parts.method.clone(), path_and_query, headers, body };
        // Its values keep the buffer of the connection in memory.
        drop(parts);
        let response = self.pass_until_answered(plane, passed, is_safe, needs_token).await?;
        Ok(self.answer_with(response, client))
    }

    /// Returns None for a request that is not plain.
    fn execute(&self, operation: Operation, parts: &Parts, body: &Bytes) -> Option<Executed> {
        let fields = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let head = Head::read(fields).filter(|_| parts.uri.query().is_none())?;
        let request = HotRequest::from_json(operation, body)?;
        self.context.operations().execute(&request, head.token, self.client)
    }

    async fn answer_executed(&mut self, executed: &Executed) -> Response<Content> {
        let run = std::time::Instant::now();
        self.context.waiters.wait(executed.wait).await;
        self.measuring.end_executed(executed, run);
        self.context.operations().answers.response(executed, self.ray_id).map(|body| Content::Whole(Some(body)))
    }

    fn answer_preflight(&mut self, path: &str, origin: &HeaderValue) -> Result<Response<Content>, Problem> {
        let methods =
            if cors::is_document(path) { DOCUMENT_METHODS.to_vec() } else { self.options.routes.methods(path) };
        if methods.is_empty() {
            return Err(Problem::NotFound);
        }
        let mut response = Response::new(Content::Whole(None));
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().insert(RAY_ID, ray_id_value(self.ray_id));
        self.options.cors.add_preflight(path, origin, &methods, response.headers_mut());
        self.measuring.end_here(0);
        Ok(response)
    }

    /// Returns the body of a request. The reservation counts a large one until the response.
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
        let limit = route.map_or(self.options.limits.body_bytes_max, |route| route.body_bytes_max);
        let needs_token = route.is_some_and(|route| route.needs_token);
        let check = |bytes: usize| {
            if bytes > limit {
                return Err(Problem::BodyTooLarge);
            }
            // A large body is only received with a token of the usual form.
            if bytes > SMALL_BYTES && needs_token { Ok(bearer_token(headers).map(drop)?) } else { Ok(()) }
        };
        check(usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX))?;
        let mut reservation = self.options.bodies.reserve(client);
        let receiving = collect(body, &mut reservation, check);
        let bytes = timeout(self.context.timeouts.receive, receiving).await.map_err(|_| Problem::RequestTimeout)??;
        let is_small = bytes.len() <= SMALL_BYTES;
        Ok((bytes, (!is_small).then_some(reservation)))
    }

    fn passed_headers(&self, headers: &HeaderMap) -> HeaderMap {
        let of_connection: Vec<&str> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|v| v.split(','))
            .collect();
        let is_of_connection = |name: &HeaderName| {
            *name != AUTHORIZATION && of_connection.iter().any(|one| one.trim().eq_ignore_ascii_case(name.as_str()))
        };
        let trusts_peer = matches!(self.peer, Peer::Proxy(proxy) if self.context.addresses.trusts(proxy));
        let mut passed = HeaderMap::with_capacity(headers.len() + 2);
        for (name, value) in headers {
            let is_dropped = HOP_BY_HOP.contains(name)
                || internal_headers::is_of_front(name, trusts_peer, self.is_traced)
                || is_of_connection(name);
            if !is_dropped {
                passed.append(name.clone(), value.clone());
            }
        }
        internal_headers::add_internal(&mut passed, self.client, self.ray_id, self.is_traced);
        passed
    }

    /// Passes a request on. While Python parks it, waits for a change, and passes it on again.
    async fn pass_until_answered(
        &mut self,
        plane: Plane,
        mut passed: Passed,
        is_safe: bool,
        needs_token: bool,
    ) -> Result<Response<PassedBody>, Problem> {
        let PassedPlane { upstream, watches, repeats } = self.context.passing.plane(plane);
        let client = ClientKey::of(self.client);
        let unavailable = |reason| match reason {
            NoResponse::Late => Problem::DeadlineExceeded,
            NoResponse::Stopped if plane == Plane::Data => Problem::Overloaded,
            _ if plane == Plane::Data => Problem::Internal,
            NoResponse::Lost | NoResponse::Stopped if !is_safe => Problem::ControlPlaneUnavailableSent,
            _ => Problem::ControlPlaneUnavailable,
        };
        let until = Instant::now() + self.context.timeouts.parked;
        let mut stale_in = None;
        let permit = self.context.passing.permits.of(plane).acquire(bearer_token(&passed.headers).ok(), client).await;
        let permit = permit.map_err(|overload| Problem::overloaded(plane, overload))?;
        let attempt = self.options.failed_authentications.admit(client, &passed.headers).map_err(|_| {
            self.context.measurer().count_limited_failure();
            Problem::RateLimitedFailures
        })?;
        // Boxed, like each large part of a request, so that a parked one takes little memory.
        let sent = Box::pin(upstream.send(passed.request(), is_safe)).await;
        if let Some(attempt) = attempt {
            attempt.end(sent.as_ref().map_or(Outcome::Unknown, |response| outcome(response, needs_token)));
        }
        drop(permit);
        let mut response = sent.map_err(unavailable)?.map(PassedBody::Streamed);
        loop {
            if !response.headers().contains_key(RAY_ID) {
                // The answer of uvicorn itself. Its parser refuses some requests that hyper takes, such as unknown methods.
                let is_refused = response.status() == StatusCode::BAD_REQUEST;
                return Err(if is_refused { Problem::NotHttp } else { Problem::Internal });
            }
            let Some(park) = park_of(&response)? else { return Ok(response) };
            drop(response);
            passed.keep_only_key();
            let wake = if self.context.is_stopping.get() {
                Wake::Expired
            } else {
                watches.wait(park, until, &mut stale_in).await
            };
            let is_over = wake == Wake::Expired || self.context.is_stopping.get();
            passed.headers.insert(HELD, if is_over { OVER } else { WOKEN });
            let sending = || upstream.send(passed.request(), is_safe);
            let repeated = Box::pin(repeats.send(passed.key(is_over), sending)).await;
            response = repeated.map_err(unavailable)?.map(PassedBody::Whole);
        }
    }

    fn answer_with(&mut self, response: Response<PassedBody>, client: ClientKey) -> Response<Content> {
        let (mut parts, body) = response.into_parts();
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        self.measuring.end_passed(&parts.headers, !is_error);
        HOP_BY_HOP.iter().for_each(|name| drop(parts.headers.remove(name)));
        remove_internal(&mut parts.headers);
        let content = match body {
            PassedBody::Streamed(body) => {
                let mut unwritten = self.options.answers.reserve(client);
                unwritten.add(usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX));
                Content::Passed(body, unwritten)
            }
            PassedBody::Whole(body) => Content::Whole(Some(self.with_own_ray_id(&mut parts, body))),
        };
        Response::from_parts(parts, content)
    }

    /// Puts the ray id of this request in place of that in a shared response.
    fn with_own_ray_id(&self, parts: &mut response::Parts, body: Bytes) -> Bytes {
        let Some(shared) = parts.headers.insert(RAY_ID, ray_id_value(self.ray_id)) else { return body };
        let at = memchr::memmem::find(&body, shared.as_bytes()).filter(|_| !parts.status.is_success());
        let Some(at) = at else { return body };
        Bytes::from([&body[..at], &self.ray_id.digits(), &body[at + shared.len()..]].concat())
    }

    fn refuse(&mut self, problem: Problem) -> Response<Content> {
        self.measuring.end_here(self.options.problems.code(problem));
        self.options.problems.response(problem, self.ray_id).map(|body| Content::Whole(Some(body)))
    }
}

enum PassedBody {
    Streamed(Incoming),
    /// Several requests may share it.
    Whole(Bytes),
}

/// A request for Python.
struct Passed {
    method: Method,
    path_and_query: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Passed {
    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::builder()
            .scheme("http")
            .authority("python")
            .path_and_query(self.path_and_query.as_str())
            .build()
            .expect("the parts are valid");
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// Returns the key of a repeat, which has no body.
    fn key(&self, is_over: bool) -> RepeatKey {
        let value = |name| self.headers.get(name).map(|value: &HeaderValue| value.as_bytes().to_vec());
        let credentials = [value(AUTHORIZATION), value(ORIGIN)];
        RepeatKey { method: self.method.clone(), path_and_query: self.path_and_query.clone(), credentials, is_over }
    }

    /// Drops the parts that a repeated request does not need. It may wait for long.
    fn keep_only_key(&mut self) {
        self.body = Bytes::new();
        let mut headers = HeaderMap::with_capacity(6);
        for name in [HOST, AUTHORIZATION, ORIGIN, CLIENT, RAY, TRACEPARENT] {
            if let Some(value) = self.headers.remove(&name) {
                // A value of its own, because this one keeps the whole head of the request in memory.
                let value = HeaderValue::from_bytes(value.as_bytes()).expect("it was a valid value");
                headers.insert(name, value);
            }
        }
        self.headers = headers;
    }
}

/// Returns the target that Python gets, or None for a target without a path. Uvicorn takes only ASCII. A CONNECT would
/// reach Python with the host in place of the path.
fn target(parts: &Parts) -> Option<&str> {
    let target = parts.uri.path_and_query()?.as_str();
    (target.starts_with('/') && target.is_ascii() && parts.method != Method::CONNECT).then_some(target)
}

fn check_headers(parts: &mut Parts, bytes_max: usize) -> Result<(), Problem> {
    let headers = &mut parts.headers;
    let bytes: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES).sum();
    if bytes > bytes_max || headers.len() > HEADERS_MAX {
        return Err(Problem::HeadersTooLarge);
    }
    if let (Version::HTTP_2, Some(authority)) = (parts.version, parts.uri.authority()) {
        let host = HeaderValue::try_from(authority.as_str()).map_err(|_| Problem::NotHttp)?;
        headers.insert(HOST, host);
    }
    match headers.get_all(HOST).iter().count() {
        0 if parts.version >= Version::HTTP_11 => Err(Problem::NoHost),
        0 | 1 => Ok(()),
        _ => Err(Problem::TwoHosts),
    }
}

async fn collect(
    mut body: Incoming,
    reservation: &mut Reservation,
    check: impl Fn(usize) -> Result<(), Problem>,
) -> Result<Bytes, Problem> {
    let mut collected = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::NotHttp)?;
        let Ok(data) = frame.into_data() else { continue };
        let bytes = collected.len() + data.len();
        check(bytes)?;
        reservation.grow_to(bytes)?;
        if collected.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        if collected.capacity() < bytes {
            // Doubling would take up to twice the memory that the budget counts.
            collected.reserve_exact(data.len() + (bytes / GROWTH_PART).max(GROWTH_BYTES_MIN));
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.into())
}

fn outcome(response: &Response<Incoming>, needs_token: bool) -> Outcome {
    let (status, code) = (response.status(), internal_headers::code(response.headers()));
    Outcome::of(status.is_success(), status == StatusCode::UNAUTHORIZED, code, needs_token)
}

fn park_of(response: &Response<PassedBody>) -> Result<Option<Park>, Problem> {
    let Some(park) = response.headers().get(PARK) else { return Ok(None) };
    let park = park.to_str().ok().and_then(Park::parse);
    park.map(Some).ok_or(Problem::Internal)
}
