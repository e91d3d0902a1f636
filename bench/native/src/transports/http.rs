//! HTTP/1.1 load: one request at a time on each keep-alive connection.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::pace::Pace;
use super::plan::{Ask, Plan};
use super::{Reply, Seen};
use crate::{Failure, wrong};

pub async fn start(
    address: &str,
    connections: usize,
    plan: &Arc<Plan>,
    pace: &Arc<Pace>,
) -> Result<Vec<JoinHandle<Result<Seen, Failure>>>, Failure> {
    let mut workers = Vec::with_capacity(connections);
    for number in 0..connections {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (plan, pace, host) = (Arc::clone(plan), Arc::clone(pace), address.to_owned());
        workers.push(tokio::spawn(async move { work(stream, plan.of(number), &pace, &host).await }));
    }
    Ok(workers)
}

async fn work(mut stream: TcpStream, asks: &[Ask], pace: &Pace, host: &str) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    seen.samples.reserve_exact(asks.len());
    let (mut request, mut answer) = (Vec::with_capacity(512), Vec::with_capacity(2_048));
    pace.started().await;
    for ask in asks {
        write_request(&mut request, ask, host);
        let asked = pace.turn().await;
        stream.write_all(&request).await?;
        answer.clear();
        let reply = loop {
            if stream.read_buf(&mut answer).await? == 0 {
                return Err(wrong("the connection was closed"));
            }
            if let Some(reply) = parse(&answer)? {
                break reply;
            }
        };
        seen.note(pace, asked, reply);
    }
    Ok(seen)
}

fn write_request(into: &mut Vec<u8>, ask: &Ask, host: &str) {
    let body_bytes = r#"{"player_token":""}"#.len() + ask.player_token.len();
    into.clear();
    for part in [
        "POST /matchmaker/players/connected HTTP/1.1\r\nhost: ",
        host,
        "\r\nuser-agent: bench\r\nauthorization: Bearer ",
        &ask.lobby_token,
        "\r\ncontent-type: application/json\r\ncontent-length: ",
        &body_bytes.to_string(),
        "\r\n\r\n{\"player_token\":\"",
        &ask.player_token,
        "\"}",
    ] {
        into.extend_from_slice(part.as_bytes());
    }
}

fn parse(bytes: &[u8]) -> Result<Option<Reply>, Failure> {
    let Some(head_end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..head_end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or_else(|| wrong("no status"))?;
    let (mut length, mut has_ray) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>()?);
        } else if name.eq_ignore_ascii_case("x-ray-id") {
            has_ray = value.trim().len() == 32;
        }
    }
    let length = length.ok_or_else(|| wrong("an answer without a length"))?;
    let body = &bytes[head_end + 4..];
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some(if status == "200" && body == b"{}" {
        Reply::Done { has_ray }
    } else {
        Reply::Refused(code_of(status, body))
    }))
}

fn code_of(status: &str, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("\"code\":\"").and_then(|(_, rest)| rest.split('"').next());
    code.map_or_else(|| format!("status {status}"), str::to_owned)
}
