//! One gRPC call: its checks, and its answer by the front or by a Python process.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::Bytes;
use http::header::HeaderMap;
use http::uri::PathAndQuery;
use http::{Method as HttpMethod, Request, Response, header};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::bearer_token::{bearer_token, plain_token};
use crate::client_address::Peer;
use crate::connection_budget::ClientKey;
use crate::front::ThreadContext;
use crate::grpc::GrpcServer;
use crate::grpc::call_head::{self, CallHead};
use crate::grpc::message::{self, Message, MessageFailure, read_message};
use crate::grpc::passing::PassedCall;
use crate::grpc::reply::{self, ReplyBody};
use crate::grpc::upstream::{CallBody, ClientMessages};
use crate::hot_request::HotRequest;
use crate::measuring::Measuring;
use crate::operations::{Executed, Operation, Reply};
use crate::plain_request::REQUEST_BYTES_MAX;
use crate::problems::Problem;
use crate::ray_id::RayId;
use crate::trace_context::trace_id_of;

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

/// Answers a call. Fails without random bytes for its ray id, or for a client that has gone.
pub async fn answer(server: Rc<GrpcServer>, peer: Peer, request: Request<Incoming>) -> io::Result<Response<ReplyBody>> {
    let (parts, mut body) = request.into_parts();
    if parts.method != HttpMethod::POST || !call_head::is_grpc(&parts.headers) {
        return Ok(reply::not_grpc());
    }
    let started = Instant::now();
    let head = CallHead::read(&parts.headers, &server.context.addresses, peer);
    let trace = trace_id_of(&parts.headers);
    let ray_id = trace.map_or_else(|| server.context.ray_ids.next(), Ok)?;
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let method = server.methods.get(path.as_str());
    let measuring =
        Measuring::new(&server.context, ThreadContext::grpc_measurer, ray_id, method.map(|method| method.number));
    let deadline = head.timeout.and_then(|timeout| started.checked_add(timeout));
    let mut call = Call { server: server.clone(), client: head.client, ray_id, deadline, measuring };
    if head.metadata_bytes > server.limits.metadata_bytes {
        return Ok(call.refuse(Problem::HeadersTooLarge));
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
    if let Some(operation) = method.operation
        && head.is_plain
        && let Some(response) = call.answer_plain(operation, &parts.headers, &message).await
    {
        return Ok(response);
    }
    let passed = PassedCall::new(call, path, metadata(), token, Some(method));
    drop(parts);
    // Boxed, because the future of each call is moved several times.
    if method.is_stream {
        return Ok(Box::pin(passed.pass_stream(CallBody::One(Some(message.framed)))).await);
    }
    Ok(Box::pin(passed.pass_unary(message.framed)).await)
}

impl Call {
    /// Returns None before the engine has changed if the call is not plain.
    async fn answer_plain(
        &mut self,
        operation: Operation,
        headers: &HeaderMap,
        message: &Message,
    ) -> Option<Response<ReplyBody>> {
        if message.is_compressed || message.framed.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let token = plain_token(headers.get(header::AUTHORIZATION)?.as_bytes())?;
        let context = self.server.context.clone();
        let answers = &context.passing.options.answers;
        if operation.has_content()
            && let Err(full) = answers.check_room(ClientKey::of(self.client))
        {
            return Some(self.refuse(Problem::unread(full)));
        }
        let request = HotRequest::from_proto(operation, message.content())?;
        let executed = context.operations().execute(&request, token, self.client)?;
        let executed_at = Instant::now().into_std();
        let durable = context.waiters.wait(executed.wait);
        let in_time = match self.deadline {
            Some(deadline) => timeout_at(deadline, durable).await.is_ok(),
            None => {
                durable.await;
                true
            }
        };
        if !in_time {
            return Some(self.refuse(Problem::DeadlineExceeded));
        }
        self.measuring.end_executed(&executed, executed_at);
        Some(self.reply(&executed))
    }

    fn reply(&self, executed: &Executed) -> Response<ReplyBody> {
        match &executed.reply {
            Reply::Empty => reply::message(Bytes::from_static(&message::EMPTY), self.ray_id),
            Reply::Placed(placement) => {
                let write = |bytes: &mut Vec<u8>| placement.lobby.write_proto(&placement.tokens, bytes);
                let reservation = self.server.context.passing.options.answers.reserve(ClientKey::of(self.client));
                reply::message(reservation.hold(message::framed(write)), self.ray_id)
            }
            Reply::Refused => reply::trailers_only(self.refusal(executed.code)),
        }
    }

    fn refusal(&self, code: usize) -> HeaderMap {
        self.server.context.operations().answers.refusal(code).over_grpc.trailers(self.ray_id)
    }

    pub fn refuse(&mut self, problem: Problem) -> Response<ReplyBody> {
        let problems = self.server.problems();
        self.measuring.end_here(problems.code(problem));
        reply::trailers_only(problems.over_grpc(problem).trailers(self.ray_id))
    }

    pub fn refuse_with(&mut self, problem: Problem, sentence: String) -> Response<ReplyBody> {
        let problems = self.server.problems();
        self.measuring.end_here(problems.code(problem));
        reply::trailers_only(problems.over_grpc(problem).trailers_with_message(sentence, self.ray_id))
    }
}
