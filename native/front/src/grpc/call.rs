//! One gRPC call: its checks, and its answer by the front or by a Python process.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::Bytes;
use hosting_matchmaker::{Body, ClientKey, Operation, Reply, ServiceError};
use http::header::{HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method as HttpMethod, Request, Response};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::bearer_header::bearer_token;
use crate::client_address::Peer;
use crate::code_number;
use crate::decisions::{DECIDED_BYTES_MAX, Decided, EffectiveHeaders, decide};
use crate::error_response;
use crate::front::ThreadContext;
use crate::grpc::GrpcServer;
use crate::grpc::call_head::{self, CallHead};
use crate::grpc::health;
use crate::grpc::message::{self, Message, MessageFailure, read_message};
use crate::grpc::passing::PassedCall;
use crate::grpc::reply::{self, ReplyBody, new_response};
use crate::grpc::upstream::{CallBody, ClientMessages};
use crate::internal_headers::{ADMITTED, YES};
use crate::measuring::Measuring;
use crate::pass_reason::PassReason;
use crate::problems::Problem;
use crate::ray_id::RayId;
use crate::trace_context::trace_of;

const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
/// Memory of a call that waits for its message, beside its metadata.
const CALL_BYTES: usize = 16 * 1024;

/// A call that has no answer yet.
pub struct Call {
    pub server: Rc<GrpcServer>,
    pub client: IpAddr,
    pub ray_id: RayId,
    /// Time at which the client no longer waits.
    pub deadline: Option<Instant>,
    pub measuring: Measuring,
}

/// Limit of the message of a health check: the name of a service.
const HEALTH_BYTES_MAX: usize = 4 * 1024;

/// Answers a call. Fails without random bytes for its ray id, or for a client that has gone.
pub async fn answer(server: Rc<GrpcServer>, peer: Peer, request: Request<Incoming>) -> io::Result<Response<ReplyBody>> {
    let (parts, mut body) = request.into_parts();
    if parts.method != HttpMethod::POST || !call_head::is_grpc(&parts.headers) {
        return Ok(reply::not_grpc());
    }
    let started = Instant::now();
    let head = CallHead::read(&parts.headers, &server.context.addresses, peer);
    let trace = trace_of(&parts.headers);
    let ray_id = trace.map_or_else(|| server.context.ray_ids.next(), |trace| Ok(trace.id))?;
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let method = server.methods.get(path.as_str());
    let measuring = Measuring::new(
        &server.context,
        ThreadContext::grpc_measurer,
        ray_id,
        trace,
        method.map(|method| method.number),
    );
    let deadline = head.timeout.and_then(|timeout| started.checked_add(timeout));
    let mut call = Call { server: server.clone(), client: head.client, ray_id, deadline, measuring };
    if head.metadata_bytes > server.limits.metadata_bytes {
        return Ok(call.refuse(Problem::HeadersTooLarge));
    }
    if matches!(path.as_str(), health::CHECK | health::WATCH) {
        return call.answer_health(path.as_str(), &mut body).await;
    }
    let token = bearer_token(&parts.headers);
    let metadata = || call_head::passed_metadata(&parts.headers, peer, head.client, ray_id, trace.is_some());
    let Some(method) = method else {
        let body = CallBody::Many(ClientMessages::new(body, server.context.timeouts.receive));
        let passed = PassedCall::new(call, path, metadata(), token, None);
        return Ok(Box::pin(passed.pass_stream(body)).await);
    };
    if method.needs_token
        && let Err(problem) = token
    {
        return Ok(call.refuse(problem.into()));
    }
    let mut reservation = server.bodies.reserve_for_call(ClientKey::of(head.client));
    let until = started + server.context.timeouts.receive;
    let waiting_bytes = CALL_BYTES + head.metadata_bytes;
    let read = tokio::select! {
        biased;
        read = read_message(&mut body, method.message_bytes_max, until, waiting_bytes, &mut reservation) => read,
        () = server.context.end_of_grace() => Err(MessageFailure::Problem(Problem::ShuttingDown)),
    };
    let message = match read {
        Ok(message) => message,
        Err(MessageFailure::Problem(problem)) => return Ok(call.refuse(problem)),
        Err(MessageFailure::TooLarge(length)) => {
            let sentence = format!("Send at most {} bytes, not {length}.", method.message_bytes_max);
            return Ok(call.refuse_with(Problem::BodyTooLarge, sentence));
        }
        Err(MessageFailure::Gone) => return Err(io::ErrorKind::ConnectionReset.into()),
    };
    drop(body);
    let mut passed_on = metadata();
    if let Some(operation) = method.operation {
        let headers = EffectiveHeaders::of(&parts.headers, matches!(peer, Peer::Proxy(_)), |_| false);
        let has_encoding = parts.headers.get(GRPC_ENCODING).is_some_and(|encoding| encoding != IDENTITY);
        let decided = match has_encoding || message.is_compressed {
            true => Err(PassReason::Compression),
            false => call.answer_decided(operation, &headers, &message).await,
        };
        match decided {
            Ok(response) => return Ok(response),
            Err(reason) => call.measuring.reason = reason,
        }
        if call.measuring.reason.is_paid() {
            passed_on.insert(ADMITTED, YES);
        }
    }
    let passed = PassedCall::new(call, path, passed_on, token, Some(method));
    drop(parts);
    // Boxed, because the future of each call is moved several times.
    if method.is_stream {
        return Ok(Box::pin(passed.pass_stream(CallBody::One(Some(message.framed)))).await);
    }
    Ok(Box::pin(passed.pass_unary(message.framed)).await)
}

impl Call {
    /// Answers a call of the health service.
    async fn answer_health(&mut self, path: &str, body: &mut Incoming) -> io::Result<Response<ReplyBody>> {
        let server = self.server.clone();
        let mut reservation = server.bodies.reserve_for_call(ClientKey::of(self.client));
        let until = Instant::now() + server.context.timeouts.receive;
        let message = match read_message(body, HEALTH_BYTES_MAX, until, CALL_BYTES, &mut reservation).await {
            Ok(message) => message,
            Err(MessageFailure::Problem(problem)) => return Ok(self.refuse(problem)),
            Err(MessageFailure::TooLarge(_)) => return Ok(self.refuse(Problem::BodyTooLarge)),
            Err(MessageFailure::Gone) => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        if path == health::WATCH {
            let watch = server.health.watch(message.content(), self.deadline);
            return Ok(new_response(ReplyBody::Health(Box::new(watch))));
        }
        Ok(match server.health.check(message.content()) {
            Ok(response) => reply::message(response, self.ray_id),
            Err(trailers) => reply::trailers_only(trailers),
        })
    }

    /// Answers a call that the rules decide at once. Otherwise returns why it is passed on.
    async fn answer_decided(
        &mut self,
        operation: Operation,
        headers: &EffectiveHeaders<'_>,
        message: &Message,
    ) -> Result<Response<ReplyBody>, PassReason> {
        if message.framed.len() > DECIDED_BYTES_MAX {
            return Err(PassReason::LargeBody);
        }
        let context = self.server.context.clone();
        let options = &context.passing.options;
        if operation.has_content()
            && let Err(full) = options.answers.check_room(ClientKey::of(self.client))
        {
            return Ok(self.refuse(Problem::unread(full)));
        }
        let call = headers.call(operation, self.client, Body::Proto(message.content()));
        let failed_authentications = &options.failed_authentications;
        let mut decided = decide(context.matchmaker(), failed_authentications, context.grpc_measurer(), &call)?;
        let decided_at = Instant::now().into_std();
        decided.complete(&context.matchmaker().shard, &context.pages).await;
        let durable = context.waiters.wait(decided.wait);
        let in_time = match self.deadline {
            Some(deadline) => timeout_at(deadline, durable).await.is_ok(),
            None => {
                durable.await;
                true
            }
        };
        if !in_time {
            return Ok(self.refuse(Problem::DeadlineExceeded));
        }
        self.measuring.end_decided(&decided, decided_at);
        Ok(self.reply(&decided))
    }

    fn reply(&self, decided: &Decided) -> Response<ReplyBody> {
        match &decided.result {
            Ok(Reply::Empty) => reply::message(Bytes::from_static(&message::EMPTY), self.ray_id),
            Ok(reply) => {
                let write = |bytes: &mut Vec<u8>| reply.write_proto(bytes);
                let reservation = self.server.context.passing.options.answers.reserve(ClientKey::of(self.client));
                reply::message(reservation.hold(message::framed(write)), self.ray_id)
            }
            Err(error) => reply::trailers_only(error_response::trailers(error, self.ray_id)),
        }
    }

    pub fn refuse(&mut self, problem: Problem) -> Response<ReplyBody> {
        self.refuse_as(problem, &problem.error())
    }

    pub fn refuse_with(&mut self, problem: Problem, sentence: String) -> Response<ReplyBody> {
        self.refuse_as(problem, &problem.error().with_detail(sentence))
    }

    fn refuse_as(&mut self, problem: Problem, error: &ServiceError) -> Response<ReplyBody> {
        self.measuring.end_here(code_number::of(problem.code()));
        reply::trailers_only(error_response::trailers(error, self.ray_id))
    }
}
