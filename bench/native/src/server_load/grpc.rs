//! gRPC load: one unary call at a time on each stream of each HTTP/2 connection.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::request_plan::{PlannedRequest, RequestPlan};
use super::send_schedule::SendSchedule;
use super::{ClientHeaders, RequestResult, WorkerResult};
use crate::{Failure, failure};

const METHOD: &str = "/hosting.v1.Matchmaker/PlayerConnected";
const WINDOW_BYTES: u32 = 1 << 24;
const PLAYER_TOKEN_TAG: u8 = 0x0a;

pub async fn start(
    address: &str,
    connections: usize,
    streams: usize,
    plan: &Arc<RequestPlan>,
    schedule: &Arc<SendSchedule>,
    headers: ClientHeaders,
) -> Result<Vec<JoinHandle<Result<WorkerResult, Failure>>>, Failure> {
    let mut workers = Vec::with_capacity(connections * streams);
    for connection in 0..connections {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let (sender, driver) = builder.handshake::<_, Bytes>(stream).await?;
        tokio::spawn(driver);
        for number in connection * streams..(connection + 1) * streams {
            let (plan, schedule, sender) = (Arc::clone(plan), Arc::clone(schedule), sender.clone());
            let target = format!("http://{address}{METHOD}");
            workers.push(tokio::spawn(async move {
                run_worker(sender, plan.for_worker(number), &schedule, &target, headers).await
            }));
        }
    }
    Ok(workers)
}

async fn run_worker(
    sender: SendRequest<Bytes>,
    planned_requests: &[PlannedRequest],
    schedule: &SendSchedule,
    target: &str,
    headers: ClientHeaders,
) -> Result<WorkerResult, Failure> {
    let mut result = WorkerResult::default();
    result.samples.reserve_exact(planned_requests.len());
    let mut sender = sender.ready().await?;
    schedule.wait_for_start().await;
    for planned in planned_requests {
        let request = Request::post(target)
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .header("authorization", format!("Bearer {}", planned.token));
        let request = match headers {
            ClientHeaders::Bare => request.header("user-agent", "bench"),
            ClientHeaders::Usual => request
                .header("user-agent", "grpc-python/1.76.0 grpc-c/51.0.0 (linux; chttp2)")
                .header("grpc-accept-encoding", "identity, deflate, gzip")
                .header("idempotency-key", &planned.key),
        };
        let request = request.body(())?;
        let message = frame(&planned.value)?;
        let started = schedule.wait_for_next_start().await?;
        let (response, mut body) = sender.send_request(request, false)?;
        body.send_data(message, true)?;
        let reply = read(response.await?).await?;
        result.record(schedule, started, reply, planned.expected.as_deref());
        sender = sender.ready().await?;
    }
    Ok(result)
}

fn frame(player_token: &str) -> Result<Bytes, Failure> {
    let length = u8::try_from(player_token.len()).ok().filter(|length| *length < 0x80);
    let length = length.ok_or_else(|| failure("a player token of 128 characters or more"))?;
    let mut frame = BytesMut::with_capacity(7 + player_token.len());
    frame.put_u8(0);
    frame.put_u32(2 + u32::from(length));
    frame.put_u8(PLAYER_TOKEN_TAG);
    frame.put_u8(length);
    frame.put_slice(player_token.as_bytes());
    Ok(frame.freeze())
}

async fn read(response: http::Response<RecvStream>) -> Result<RequestResult, Failure> {
    let (head, mut body) = response.into_parts();
    let mut message = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        message.extend_from_slice(&data);
    }
    let trailers = body.trailers().await?.unwrap_or(head.headers);
    let status = text(&trailers, "grpc-status");
    let has_ray = text(&trailers, "x-ray-id").len() == 32;
    Ok(if status == "0" && message == [0; 5] {
        RequestResult::Done { has_ray }
    } else {
        RequestResult::Refused { code: format!("grpc {status} {}", text(&trailers, "grpc-message")), has_ray }
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}
