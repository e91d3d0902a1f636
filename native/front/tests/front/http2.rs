//! Requests over HTTP/2. The clients know without a negotiation that the front takes it.

use std::io::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Client;
use crate::problem_names::name_of;
use crate::raw_http2::{self, CANCEL, END_HEADERS, END_STREAM, RESET};
use crate::socket_process::SocketProcess;
use crate::world::{FILE_BYTES_MAX, LIMIT, NEVER, SHORT, Setup, TIMEOUTS, URL_BYTES_MAX, World, wait_until};
use hosting_front::{ByPlane, Timeouts};

pub type Sender = SendRequest<Full<Bytes>>;

pub fn run<T>(test: impl Future<Output = T>) -> T {
    runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// Returns a connection, and the task that ends with it.
async fn connect(world: &World) -> (Sender, JoinHandle<()>) {
    connect_over(TcpStream::connect(world.address).await.unwrap()).await
}

pub async fn connect_over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> (Sender, JoinHandle<()>) {
    let (sender, connection) = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.unwrap();
    let task = tokio::spawn(async {
        let _ = connection.await;
    });
    (sender, task)
}

pub fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let uri = format!("http://host.example{path}");
    Request::builder().method(method).uri(uri).body(Full::new(body.into())).unwrap()
}

fn get(path: &str) -> Request<Full<Bytes>> {
    request(Method::GET, path, "")
}

/// Returns the status, and the body or the name of the error.
async fn read(response: Response<hyper::body::Incoming>) -> (u16, String) {
    let ray_id = response.headers()["x-ray-id"].to_str().unwrap().to_owned();
    assert!(!response.headers().contains_key("connection"));
    let status = response.status().as_u16();
    let body = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let Ok(problem) = serde_json::from_str::<Value>(&body) else { return (status, body) };
    let (Some(code), Some(detail)) = (problem["code"].as_str(), problem["detail"].as_str()) else {
        return (status, body);
    };
    assert_eq!(problem["ray_id"], ray_id);
    (status, name_of(code, detail).unwrap_or(code).to_owned())
}

/// Waits for a request of this thread's clients.
async fn passed(world: &World) -> crate::python::Request {
    loop {
        match world.python.received() {
            Some(request) => return request,
            None => tokio::task::yield_now().await,
        }
    }
}

pub async fn ask(sender: &mut Sender, request: Request<Full<Bytes>>) -> (u16, String) {
    read(sender.send_request(request).await.unwrap()).await
}

#[test]
fn headers_of_usual_clients_are_answered_by_the_front() {
    let world = World::new();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let mut find = request(Method::POST, "/matchmaker/lobbies/find", r#"{"game_modes":["duel"]}"#);
        for (name, value) in [
            ("content-type", "application/json"),
            ("origin", "https://game.example"),
            ("idempotency-key", "a"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("sec-fetch-mode", "cors"),
            ("te", "trailers"),
        ] {
            find.headers_mut().insert(name, value.parse().unwrap());
        }
        let (status, first) = ask(&mut sender, find.clone()).await;
        assert_eq!(status, 200, "{first}");
        assert_eq!(ask(&mut sender, find.clone()).await, (200, first), "the same key");
        find.headers_mut().insert("content-type", "text/plain".parse().unwrap());
        assert_eq!(ask(&mut sender, find).await, (415, "MEDIA_TYPE_UNSUPPORTED".to_owned()));
    });
    assert_eq!(world.players(), [1, 0]);
    world.python.check_no_request();
}

#[test]
fn body_with_an_encoding_is_refused() {
    let world = World::new();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let mut find = request(Method::POST, "/matchmaker/lobbies/find", r#"{"game_modes":["duel"]}"#);
        find.headers_mut().insert("origin", "https://game.example".parse().unwrap());
        find.headers_mut().insert("content-encoding", "identity".parse().unwrap());
        assert_eq!(ask(&mut sender, find.clone()).await.0, 200);
        find.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        assert_eq!(ask(&mut sender, find).await, (415, "MEDIA_TYPE_UNSUPPORTED".to_owned()));
    });
    world.python.check_no_request();
}

#[test]
fn response_to_head_is_that_to_get_without_content() {
    let world = World::new();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let long = format!("/{}", "a".repeat(9_000));
        for (path, status) in [("/matchmaker/regions", 200), (&*long, 414), ("/cloud/games/1", 200)] {
            let of = |method| {
                let mut request = request(method, path, "");
                request.headers_mut().insert("origin", "https://game.example".parse().unwrap());
                request
            };
            let (same, content) = ask(&mut sender, of(Method::GET)).await;
            assert_eq!(same, status, "{path}: {content}");
            let response = sender.send_request(of(Method::HEAD)).await.unwrap();
            assert_eq!(response.status().as_u16(), status, "{path}");
            let length = response.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
            assert!(length == content.len() || status != 200, "{path}: {length}");
            assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty(), "{path}");
        }
    });
    let methods = [world.control.request().method, world.control.request().method];
    assert_eq!(methods, ["GET", "HEAD"]);
    world.python.check_no_request();
}

#[test]
fn other_requests_are_passed_on() {
    let world = World::new();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let mut post = request(Method::POST, "/cloud/games/1?a=b", "body");
        post.headers_mut().insert("x-hosting-repeat", "expired".parse().unwrap());
        post.headers_mut().insert("te", "trailers".parse().unwrap());
        assert_eq!(ask(&mut sender, post).await, (200, "/cloud/games/1?a=b".to_owned()));
    });
    let passed = world.control.request();
    assert_eq!((&*passed.method, &*passed.body), ("POST", &b"body"[..]));
    assert_eq!((passed.header("host"), passed.header("content-length")), (Some("host.example"), Some("4")));
    let mut names: Vec<_> = passed.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "host", "x-hosting-client", "x-hosting-ray"]);
}

#[test]
fn waiting_request_delays_no_other_of_its_connection() {
    let world = World::new();
    world.control.reply_by_test();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let waiting = sender.send_request(get("/cloud/games/1"));
        assert_eq!(ask(&mut sender, get("/a")).await.1, "/a");
        world.control.request().answer_ok("late");
        assert_eq!(read(waiting.await.unwrap()).await.1, "late");
        assert_eq!(world.budget.count(), 1);
    });
}

#[test]
fn stopped_process_resets_the_streams_of_its_responses() {
    let world = World::new();
    let process = SocketProcess::start(&world.python.listener());
    world.python.reply_by_test();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let waiting = sender.send_request(get("/a"));
        let begin = async {
            let mut request = passed(&world).await;
            let head =
                format!("HTTP/1.1 200 OK\r\nx-ray-id: {}\r\ncontent-length: 100000\r\n\r\nabc", request.ray_id());
            request.answer(head.as_bytes());
            request
        };
        let (response, _request) = tokio::join!(waiting, begin);
        process.stop();
        let mut body = response.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        assert!(timeout(LIMIT, body.frame()).await.unwrap().unwrap().is_err());
        assert_eq!(ask(&mut sender, get("/cloud/games/1")).await.1, "/cloud/games/1", "other streams go on");
    });
}

#[test]
fn cancelled_stream_cancels_its_request() {
    let world = World::new();
    world.control.reply_by_test();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        {
            let waiting = tokio::spawn(sender.send_request(get("/cloud/games/1")));
            assert_eq!(ask(&mut sender, get("/a")).await.1, "/a");
            world.control.request();
            waiting.abort();
        }
        assert_eq!(ask(&mut sender, get("/a")).await.1, "/a");
        world.control.wait_for_close();
    });
}

/// Python may have a cancelled request in a queue. So a client does not send the next one at once.
#[test]
fn cancelled_request_keeps_its_permit_for_a_second() {
    // One request of a token runs at a time.
    let world = World::with(Setup { requests_max: ByPlane { data: 4, control: 4 }, ..Setup::default() });
    world.control.reply_by_test();
    let get = |stream, path, token| {
        raw_http2::headers(END_HEADERS | END_STREAM, stream, "GET", path, &[("authorization", token)])
    };
    let begin = [raw_http2::preface(0xffff), get(1, "/cloud/games/cancelled", "Bearer cloud_a")].concat();
    let mut client = raw_http2::connect(world.address, &begin);
    assert_eq!(world.control.request().target, "/cloud/games/cancelled");
    let cancelled_at = Instant::now();
    let cancel = raw_http2::frame(RESET, 0, 1, &CANCEL);
    let more = [get(3, "/cloud/games/next", "Bearer cloud_a"), get(5, "/cloud/games/other", "Bearer cloud_b")];
    client.write_all(&[cancel, more.concat()].concat()).unwrap();
    assert_eq!(world.control.targets(2), ["/cloud/games/other", "/cloud/games/next"]);
    assert!(cancelled_at.elapsed() >= Duration::from_secs(1));
}

#[test]
fn sizes_have_limits() {
    let world = World::new();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let problem = |status, name: &str| (status, name.to_owned());
        let long = format!("/{}", "a".repeat(URL_BYTES_MAX));
        assert_eq!(ask(&mut sender, get(&long)).await, problem(414, "uri_too_long"));
        let large = request(Method::POST, "/cloud/games/1", vec![b'a'; 64 * 1024 + 1]);
        assert_eq!(ask(&mut sender, large).await, problem(413, "body_too_large"));
        let mut file = request(Method::POST, "/cloud/files", vec![b'a'; FILE_BYTES_MAX]);
        assert_eq!(ask(&mut sender, file.clone()).await, problem(401, "token_missing"));
        file.headers_mut().insert("authorization", "Bearer env_a".parse().unwrap());
        assert_eq!(ask(&mut sender, file).await.0, 200);
        let mut many = get("/a");
        for _ in 0..200 {
            many.headers_mut().append("x", "a".parse().unwrap());
        }
        assert_eq!(ask(&mut sender, many).await, problem(431, "headers_too_large"));
        assert_eq!(ask(&mut sender, get("/a")).await.1, "/a");
    });
    wait_until(|| world.bodies.held_bytes() == 0);
}

#[test]
fn headers_above_the_limit_of_hyper_are_refused() {
    let world = World::new();
    run(async {
        let (mut sender, _task) = connect(&world).await;
        let mut large = get("/a");
        large.headers_mut().insert("x", "a".repeat(20_000).parse().unwrap());
        let response = sender.send_request(large).await.map(|response| response.status());
        assert!(
            response.is_err() || response.is_ok_and(|status| status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
        );
    });
    world.python.check_no_request();
}

#[test]
fn stop_answers_running_requests_and_closes_idle_connections() {
    let world = World::new();
    world.python.reply_by_test();
    run(async {
        let (mut sender, task) = connect(&world).await;
        let (_idle, idle_task) = connect(&world).await;
        let waiting = tokio::spawn(sender.send_request(get("/a")));
        let mut request = passed(&world).await;
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| world.front.stop(NEVER));
            wait_until(|| std::net::TcpStream::connect(world.address).is_err());
            assert!(!stopping.is_finished());
            request.answer_ok("late");
            stopping.join().unwrap();
        });
        assert_eq!(read(waiting.await.unwrap().unwrap()).await, (200, "late".to_owned()));
        task.await.unwrap();
        idle_task.await.unwrap();
    });
}

#[test]
fn idle_connection_is_closed() {
    let world =
        World::with(Setup { timeouts: Timeouts { keep_alive: SHORT, receive: SHORT, ..TIMEOUTS }, ..Setup::default() });
    run(async {
        let (mut sender, task) = connect(&world).await;
        assert_eq!(ask(&mut sender, get("/a")).await.0, 200);
        tokio::time::timeout(Duration::from_secs(30), task).await.unwrap().unwrap();
    });
    wait_until(|| world.budget.count() == 0);
}

#[test]
fn preface_times_out_and_a_later_pause_does_not() {
    let world = World::with(Setup { timeouts: Timeouts { receive: SHORT, ..TIMEOUTS }, ..Setup::default() });
    run(async {
        let (mut sender, _task) = connect(&world).await;
        assert_eq!(ask(&mut sender, get("/a")).await.0, 200);
        let mut silent = world.connect();
        silent.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        silent.rest();
        assert_eq!(ask(&mut sender, get("/a")).await.0, 200);
    });
}

#[test]
fn protocol_is_known_after_the_whole_preface() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let mut send_in_parts = |client: &mut Client, first: &[u8], second: &[u8]| {
        client.send(first);
        world.settle(&mut prober);
        client.send(second);
    };
    send_in_parts(&mut client, b"PR", b"OPFIND /a HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.read_answer().body, "/a");
    let mut client = world.connect();
    send_in_parts(&mut client, b"PRI * HTT", b"P/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let settings = client.bytes(9);
    assert_eq!((settings[3], &settings[4..]), (4, &[0; 5][..]));
}

#[test]
fn many_streams_of_one_connection_are_answered() {
    let world = World::new();
    run(async {
        let (sender, _task) = connect(&world).await;
        let tasks: Vec<_> = (0..300)
            .map(|number| {
                let mut sender = sender.clone();
                tokio::spawn(async move { ask(&mut sender, get(&format!("/{number}"))).await.1 })
            })
            .collect();
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), format!("/{number}"));
        }
    });
}
