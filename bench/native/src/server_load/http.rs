//! HTTP/1.1 load: one request at a time on each keep-alive connection.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::request_plan::{Operation, PlannedRequest, RequestPlan};
use super::send_schedule::SendSchedule;
use super::{ClientHeaders, RequestResult, WorkerResult};
use crate::{Failure, failure};

/// Headers of a lobby server that uses the library httpx, beside those of each request.
const OF_LOBBY_SERVER: &str = "\r\naccept: */*\r\naccept-encoding: gzip, deflate, br, zstd\r\nconnection: keep-alive\
    \r\nuser-agent: python-httpx/0.28.1";
/// Headers of a page that uses fetch in Chromium, beside those of each request.
const OF_BROWSER: &str = "\r\nConnection: keep-alive\r\nsec-ch-ua-platform: \"Linux\"\
    \r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36\
    \r\nsec-ch-ua: \"Chromium\";v=\"156\", \"Not?A_Brand\";v=\"24\"\r\nsec-ch-ua-mobile: ?0\r\nAccept: */*\
    \r\nOrigin: https://game.example\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\
    \r\nReferer: https://game.example/\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9";
const OF_NOBODY: &str = "\r\nuser-agent: bench";

pub async fn start(
    address: &str,
    connections: usize,
    plan: &Arc<RequestPlan>,
    schedule: &Arc<SendSchedule>,
    headers: ClientHeaders,
) -> Result<Vec<JoinHandle<Result<WorkerResult, Failure>>>, Failure> {
    let mut workers = Vec::with_capacity(connections);
    for number in 0..connections {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (plan, schedule, host) = (Arc::clone(plan), Arc::clone(schedule), address.to_owned());
        workers.push(tokio::spawn(async move {
            run_worker(stream, plan.for_worker(number), &schedule, &host, headers).await
        }));
    }
    Ok(workers)
}

async fn run_worker(
    mut stream: TcpStream,
    planned_requests: &[PlannedRequest],
    schedule: &SendSchedule,
    host: &str,
    headers: ClientHeaders,
) -> Result<WorkerResult, Failure> {
    let mut result = WorkerResult::default();
    result.samples.reserve_exact(planned_requests.len());
    let (mut request, mut response_bytes) = (Vec::with_capacity(2_048), Vec::with_capacity(2_048));
    schedule.wait_for_start().await;
    for planned in planned_requests {
        write_request(&mut request, planned, host, headers);
        let started = schedule.wait_for_next_start().await?;
        stream.write_all(&request).await?;
        response_bytes.clear();
        let reply = loop {
            if stream.read_buf(&mut response_bytes).await? == 0 {
                return Err(failure("the connection was closed"));
            }
            if let Some(reply) = parse(&response_bytes)? {
                break reply;
            }
        };
        result.record(schedule, started, reply, planned.expected.as_deref());
    }
    Ok(result)
}

fn write_request(into: &mut Vec<u8>, planned: &PlannedRequest, host: &str, headers: ClientHeaders) {
    let value = &planned.value;
    let (line, body) = match planned.operation {
        Operation::Connected => ("POST /matchmaker/players/connected", format!(r#"{{"player_token":"{value}"}}"#)),
        Operation::Join => ("POST /matchmaker/lobbies/join", format!(r#"{{"lobby_id":"{value}"}}"#)),
        Operation::Find => ("POST /matchmaker/lobbies/find", format!(r#"{{"game_modes":["{value}"]}}"#)),
        Operation::FindWithTags => {
            let mut words = value.split(',');
            let [mode, map, rank] = std::array::from_fn(|_| words.next().unwrap_or_default());
            let body = format!(r#"{{"game_modes":["{mode}"],"tags":{{"map":"{map}","rank":"{rank}"}}}}"#);
            ("POST /matchmaker/lobbies/find", body)
        }
        Operation::List => ("GET /matchmaker/lobbies/list?limit=", String::new()),
    };
    let is_list = planned.operation == Operation::List;
    let of_client = match (headers, planned.operation) {
        (ClientHeaders::Bare, _) => OF_NOBODY,
        (ClientHeaders::Usual, Operation::Connected) => OF_LOBBY_SERVER,
        (ClientHeaders::Usual, _) => OF_BROWSER,
    };
    let key = match headers {
        ClientHeaders::Usual if !is_list => format!("\r\nidempotency-key: {}", planned.key),
        _ => String::new(),
    };
    let of_body = match is_list {
        true => String::new(),
        false => format!("\r\ncontent-type: application/json\r\ncontent-length: {}", body.len()),
    };
    into.clear();
    for part in [
        line,
        if is_list { value } else { "" },
        " HTTP/1.1\r\nhost: ",
        host,
        of_client,
        &key,
        "\r\nauthorization: Bearer ",
        &planned.token,
        &of_body,
        "\r\n\r\n",
        &body,
    ] {
        into.extend_from_slice(part.as_bytes());
    }
}

fn parse(bytes: &[u8]) -> Result<Option<RequestResult>, Failure> {
    let Some(head_end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..head_end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or_else(|| failure("no status"))?;
    let (mut length, mut has_ray) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>()?);
        } else if name.eq_ignore_ascii_case("x-ray-id") {
            has_ray = value.trim().len() == 32;
        }
    }
    let length = length.ok_or_else(|| failure("an answer without a length"))?;
    let body = &bytes[head_end + 4..];
    if body.len() < length {
        return Ok(None);
    }
    let starts = [&b"{\"lobby\":"[..], b"{\"game_modes\":"];
    let is_complete = body == b"{}" || starts.iter().any(|start| body.starts_with(start)) && body.ends_with(b"}");
    Ok(Some(if status == "200" && is_complete {
        RequestResult::Done { has_ray }
    } else {
        RequestResult::Refused { code: code_of(status, body), has_ray }
    }))
}

fn code_of(status: &str, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("\"code\":\"").and_then(|(_, rest)| rest.split('"').next());
    code.map_or_else(|| format!("status {status}"), str::to_owned)
}
