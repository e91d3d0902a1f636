//! HTTP/2: concurrent requests to backends with HTTP/1.1.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;

use crate::backends::connect;
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{ask, mirror, server};
use crate::wait::{LONG, wait_for};

fn mirrored(settings: serde_json::Value) -> (EdgeProcess, u16) {
    let guard = EdgeProcess::start_with(settings);
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    (guard, port)
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn http2_works_without_tls() {
    let (_guard, port) = mirrored(json!({}));
    runtime().block_on(async {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        ask_by_http2(TokioIo::new(stream), "http").await;
    });
}

#[test]
fn http2_preface_may_arrive_in_parts() {
    let (_guard, port) = mirrored(json!({}));
    let mut client = connect(port);
    client.write_all(b"PRI * H").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    client.write_all(b"TTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut head = [0; 9];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "no settings frame: {head:?}");
}

#[test]
fn http2_windows_have_a_budget() {
    let (_guard, port) = mirrored(json!({}));
    let mut client = connect(port);
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let (mut of_connection, mut of_stream) = (65_535, 65_535);
    while of_stream == 65_535 || of_connection == 65_535 {
        let mut head = [0; 9];
        client.read_exact(&mut head).unwrap();
        let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        client.read_exact(&mut body).unwrap();
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        match (head[3], head[4]) {
            (4, 0) => {
                let mut all = body.chunks(6).filter(|setting| setting[..2] == [0, 4]);
                of_stream = all.next().map_or(of_stream, |setting| number(&setting[2..]));
            }
            (8, _) => of_connection += number(&body),
            _ => {}
        }
    }
    assert_eq!((of_stream, of_connection), (128 * 1024, 256 * 1024));
}

#[test]
fn too_large_http2_head_is_refused_alone() {
    let (_guard, port) = mirrored(json!({}));
    runtime().block_on(async {
        let mut sender = begin::<String>(port).await;
        for (length, expected) in [(20_000, Some(200)), (40_000, Some(431)), (20_000, Some(200))] {
            let request = Request::get(format!("http://localhost:{port}/"))
                .header("x-large", "x".repeat(length))
                .body(String::new())
                .unwrap();
            let status = sender.send_request(request).await.ok().map(|answer| answer.status().as_u16());
            assert_eq!(status, expected, "for {length} bytes");
        }
    });
}

#[test]
fn silent_http2_connection_is_cut_off() {
    let (guard, port) = mirrored(json!({"timeouts": {"head_ms": 200, "keep_alive_ms": 400}}));
    let mut silent = connect(port);
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    // Only settings arrive before the end.
    silent.read_to_end(&mut Vec::new()).unwrap();
    guard.wait_for_figure("connections{kind=\"http\"}", |open| open == 0);
}

pub async fn ask_by_http2(io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static, scheme: &str) {
    let sender = agree::<String>(io).await;
    let mut responses = Vec::new();
    for n in 0..40 {
        let mut sender = sender.clone();
        let request = Request::post(format!("{scheme}://localhost/{n}"))
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(format!("body {n}"))
            .unwrap();
        responses.push(tokio::spawn(async move { sender.send_request(request).await.unwrap() }));
    }
    for (n, answer) in responses.into_iter().enumerate() {
        let text = text_of(answer.await.unwrap().into_body()).await;
        for expected in [
            format!("POST /{n} HTTP/1.1\n"),
            format!("x-forwarded-proto={scheme}\n"),
            "host=localhost\n".to_owned(),
            "cookie=a=1; b=2\n".to_owned(),
            format!("body {n}"),
        ] {
            assert!(text.contains(&expected), "no {expected} in\n{text}");
        }
    }
}

pub async fn text_of(mut body: hyper::body::Incoming) -> String {
    let mut all = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        all.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
    }
    String::from_utf8(all).unwrap()
}

pub async fn begin<B>(port: u16) -> http2::SendRequest<B>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + Unpin + 'static,
{
    agree(TokioIo::new(TcpStream::connect(("127.0.0.1", port)).await.unwrap())).await
}

async fn agree<B>(io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static) -> http2::SendRequest<B>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + Unpin + 'static,
{
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Request body without a known length.
struct Pieces(Vec<&'static [u8]>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<std::io::Result<Frame<Bytes>>>> {
        std::task::Poll::Ready(self.0.pop().map(|piece| Ok(Frame::data(Bytes::from_static(piece)))))
    }
}

#[test]
fn concurrent_http2_requests_count_as_connections() {
    let guard = EdgeProcess::start_with(json!({"limits": {"connections_per_address": 3}}));
    let port = free_port();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = Arc::new(Mutex::new(may_go_on));
    let late = server(move |_, _| {
        may_go_on.lock().unwrap().recv_timeout(LONG).unwrap();
        "at last".to_owned()
    });
    guard.source.serve_route(&route("a", "http", port, Some(late)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let sender = runtime.block_on(begin::<Pieces>(port));
    let ask = || {
        let mut sender = sender.clone();
        let request = Request::get("http://localhost/").body(Pieces(Vec::new())).unwrap();
        runtime.spawn(async move {
            let answer = sender.send_request(request).await.unwrap();
            (answer.status().as_u16(), text_of(answer.into_body()).await)
        })
    };
    let mut responses: Vec<_> = (0..10).map(|_| ask()).collect();
    wait_for("those that are too many are answered", || {
        (responses.iter().filter(|answer| answer.is_finished()).count() == 7).then_some(())
    });
    let (refused, waiting): (Vec<_>, Vec<_>) = responses.drain(..).partition(|answer| answer.is_finished());
    for answer in refused {
        let (status, text) = runtime.block_on(answer).unwrap();
        assert_eq!(status, 503);
        assert!(text.contains("OVERLOADED"), "{text}");
    }
    assert_eq!(guard.figure("http_problems_total{reason=\"too_many_at_once\"}"), 7);
    (0..4).for_each(|_| go_on.send(()).unwrap());
    for answer in waiting {
        assert_eq!(runtime.block_on(answer).unwrap(), (200, "at last".to_owned()));
    }
    assert_eq!(runtime.block_on(ask()).unwrap().0, 200, "there is room again");
}

#[test]
fn body_of_unknown_length_is_forwarded_with_every_method() {
    let (_guard, port) = mirrored(json!({}));
    let runtime = runtime();
    for method in ["GET", "DELETE", "POST"] {
        let mut player = connect(port);
        let request = format!("{method} / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        assert!(ask(&mut player, &(request + "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")).text().ends_with("\nonetwo"));
        runtime.block_on(async {
            let request = Request::builder().method(method).uri("http://localhost/");
            let request = request.body(Pieces(vec![b"two", b"one"])).unwrap();
            let answer = begin(port).await.send_request(request).await.unwrap();
            assert!(text_of(answer.into_body()).await.ends_with("\nonetwo"), "{method}");
        });
    }
}
