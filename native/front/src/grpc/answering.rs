//! Answers of gRPC calls: their checks, and their answers by the front or by a Python process.

use std::io;
use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use hosting_matchmaker::contract::too_large;
use hosting_matchmaker::{Operation, Reply};
use http::header::HeaderMap;
use http::uri::PathAndQuery;
use http::{Method as HttpMethod, Request, Response};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::connections::client_address::Peer;
use crate::grpc::call::Call;
use crate::grpc::call_head::{self, CallHead};
use crate::grpc::compression::{self, GRPC_ENCODING, decompressed};
use crate::grpc::grpc_context::GrpcContext;
use crate::grpc::health;
use crate::grpc::message::{self, Message, MessageFailure, PREFIX_BYTES, read_message};
use crate::grpc::passed_call::PassedCall;
use crate::grpc::reply::{self, ReplyBody, new_response};
use crate::grpc::upstream::{CallBody, ClientMessages};
use crate::measurements::code_number;
use crate::measurements::pass_reason::PassReason;
use crate::measurements::request_measurement::RequestMeasurement;
use crate::requests::bearer_header::bearer_token;
use crate::requests::internal_headers::{ADMITTED, RequestSource, YES};
use crate::requests::trace_context::trace_of;
use crate::responses::decider::{Content, Decided, EffectiveHeaders};
use crate::responses::error_response;
use crate::responses::problems::Problem;

/// Memory of a call that waits for its message, beside its metadata.
const CALL_BYTES: usize = 16 * 1024;

/// Limit of the message of a health check: the name of a service.
const HEALTH_BYTES_MAX: usize = 4 * 1024;

/// Answers a call. Fails without random bytes for its ray id, or for a client that has gone.
pub async fn answer(
    context: Rc<GrpcContext>,
    peer: Peer,
    request: Request<Incoming>,
) -> io::Result<Response<ReplyBody>> {
    let (parts, mut body) = request.into_parts();
    if parts.method != HttpMethod::POST || !call_head::is_grpc(&parts.headers) {
        return Ok(reply::not_grpc());
    }
    let started = Instant::now();
    let thread = &*context.thread;
    let head = CallHead::read(&parts.headers, &thread.addresses, peer);
    let trace = trace_of(&parts.headers);
    let ray_id = trace.map_or_else(|| thread.ray_ids.next(), |trace| Ok(trace.id))?;
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let method = context.methods.get(path.as_str());
    let measurement = RequestMeasurement::new(&context.measurer, ray_id, trace, method.map(|method| method.number));
    let source = RequestSource { client: head.client, ray_id, is_traced: trace.is_some() };
    let deadline = head.timeout.and_then(|timeout| started.checked_add(timeout));
    let mut call = Call { context: context.clone(), source, deadline, measurement };
    if head.metadata_bytes > context.limits.metadata_bytes {
        return Ok(call.refuse(Problem::HeadersTooLarge));
    }
    if matches!(path.as_str(), health::CHECK | health::WATCH) {
        return call.answer_health(path.as_str(), &parts.headers, &mut body).await;
    }
    let token = bearer_token(&parts.headers);
    let metadata = || call_head::passed_metadata(&parts.headers, peer, &source);
    let Some(method) = method else {
        let body = CallBody::Many(ClientMessages::new(body, thread.timeouts.receive));
        let passed = PassedCall::new(call, path, metadata(), token, None);
        return Ok(Box::pin(passed.pass_stream(body)).await);
    };
    if method.needs_token
        && let Err(problem) = token
    {
        return Ok(call.refuse(problem.into()));
    }
    let mut reservation = context.bodies.reserve_for_call(call.client_key());
    let until = started + thread.timeouts.receive;
    let waiting_bytes = CALL_BYTES + head.metadata_bytes;
    let reading = read_message(&mut body, method.message_bytes_max, until, waiting_bytes, &mut reservation);
    let read = thread.shutdown.within_grace(pin!(reading)).await.map_err(MessageFailure::Problem);
    let mut message = match read.and_then(|message| message) {
        Ok(message) => message,
        Err(MessageFailure::Problem(problem)) => return Ok(call.refuse(problem)),
        Err(MessageFailure::TooLarge(length)) => {
            let sentence = too_large(method.message_bytes_max, length);
            return Ok(call.refuse_with(Problem::BodyTooLarge, sentence));
        }
        Err(MessageFailure::Gone) => return Err(io::ErrorKind::ConnectionReset.into()),
    };
    drop(body);
    if let Some(operation) = method.operation {
        let headers = EffectiveHeaders::of(&parts.headers, matches!(peer, Peer::Proxy(_)), |_| false);
        message = match decompressed(message, &parts.headers, method.message_bytes_max, &mut reservation).await {
            Ok(message) => message,
            Err(failure) => return Ok(call.refuse_compressed(failure)),
        };
        let deciding = call.answer_decided(operation, headers, &message);
        let decided = thread.shutdown.within_grace(pin!(deciding)).await;
        match decided {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(reason)) => call.measurement.reason = reason,
            Err(problem) => return Ok(call.refuse(problem)),
        }
    }
    let mut passed_on = metadata();
    if method.operation.is_some() {
        passed_on.remove(GRPC_ENCODING);
        if call.measurement.reason.is_paid() {
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
    async fn answer_health(
        &mut self,
        path: &str,
        metadata: &HeaderMap,
        body: &mut Incoming,
    ) -> io::Result<Response<ReplyBody>> {
        let context = self.context.clone();
        let mut reservation = context.bodies.reserve_for_call(self.client_key());
        let until = Instant::now() + context.thread.timeouts.receive;
        let message = match read_message(body, HEALTH_BYTES_MAX, until, CALL_BYTES, &mut reservation).await {
            Ok(message) => message,
            Err(MessageFailure::Problem(problem)) => return Ok(self.refuse(problem)),
            Err(MessageFailure::TooLarge(_)) => return Ok(self.refuse(Problem::BodyTooLarge)),
            Err(MessageFailure::Gone) => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        let message = match decompressed(message, metadata, HEALTH_BYTES_MAX, &mut reservation).await {
            Ok(message) => message,
            Err(failure) => return Ok(self.refuse_compressed(failure)),
        };
        let response = if path == health::WATCH {
            let watch = context.health.watch(message.content(), self.deadline);
            watch.map(|watch| new_response(ReplyBody::Health(Box::new(watch))))
        } else {
            context.health.check(message.content()).map(|status| reply::message(status, self.source.ray_id))
        };
        Ok(response.unwrap_or_else(reply::trailers_only))
    }

    fn refuse_compressed(&mut self, failure: compression::Failure) -> Response<ReplyBody> {
        match failure {
            compression::Failure::Full(full) => self.refuse(full.into()),
            compression::Failure::TooLarge(bytes_max) => {
                self.refuse_with(Problem::BodyTooLarge, format!("Send at most {bytes_max} bytes, before compression."))
            }
            compression::Failure::Status(status, message) => {
                self.measurement.end_here(code_number::of(Problem::Internal.code()));
                reply::trailers_only(error_response::status_trailers((status, message)))
            }
        }
    }

    /// Answers a call that the rules decide at once. Otherwise returns why it is passed on.
    async fn answer_decided(
        &mut self,
        operation: Operation,
        headers: EffectiveHeaders<'_>,
        message: &Message,
    ) -> Result<Response<ReplyBody>, PassReason> {
        let context = self.context.clone();
        let thread = &*context.thread;
        if operation.has_content()
            && let Err(full) = thread.options.answers.check_room(self.client_key())
        {
            return Ok(self.refuse(Problem::unread(full)));
        }
        let content = message.framed.slice(PREFIX_BYTES..);
        let deciding = context.decider.decide_any(headers, operation, self.source.client, Content::Proto(&content));
        let mut decided = deciding.await?;
        let decided_at = Instant::now().into_std();
        decided.complete(&thread.matchmaker.shard, &thread.pages).await;
        let durable = thread.waiters.wait(decided.wait);
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
        self.measurement.end_decided(&decided, decided_at);
        Ok(self.reply(&decided))
    }

    fn reply(&self, decided: &Decided) -> Response<ReplyBody> {
        match &decided.result {
            Ok(Reply::Empty) => reply::message(Bytes::from_static(&message::EMPTY), self.source.ray_id),
            Ok(reply) => {
                let write = |bytes: &mut Vec<u8>| reply.write_proto(bytes);
                let reservation = self.context.thread.options.answers.reserve(self.client_key());
                reply::message(reservation.hold(message::framed(write)), self.source.ray_id)
            }
            Err(error) => reply::trailers_only(error_response::trailers(error, self.source.ray_id)),
        }
    }
}
