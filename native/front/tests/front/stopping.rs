//! Start and end of the front.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use hosting_core::{Engine, EngineConfig};
use hosting_front::{ClientAddresses, ConnectionBudget, Front, FrontOptions, Timeouts};
use hosting_shard::Shard;

use crate::shard;
use crate::usual_clients::with_lines;
use crate::world::{GET, Limits, NEVER, SHORT, Setup, TIMEOUTS, World, matchmaker, passing, wait_until};

/// Waits until the front accepts no more connections, because it stops.
fn wait_until_stopping(world: &World) {
    wait_until(|| TcpStream::connect(world.address).is_err());
}

/// Runs a part of a test after the front has begun to stop, and waits for the end of the stop.
fn during_stop(world: &World, test: impl FnOnce(&ScopedJoinHandle<'_, ()>)) {
    thread::scope(|scope| {
        let stopping = scope.spawn(|| world.front.stop(NEVER));
        wait_until_stopping(world);
        test(&stopping);
        stopping.join().unwrap();
    });
}

#[test]
fn front_without_a_journal_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let shard = Shard::new(Engine::new(EngineConfig::new(1, shard::keys(7))), None);
    let options = FrontOptions {
        threads: NonZero::<usize>::MIN,
        listener: TcpListener::bind("127.0.0.1:0").unwrap(),
        edge_listener: None,
        budget: Arc::new(ConnectionBudget::new(10)),
        matchmaker: Arc::new(matchmaker(shard, Limits::default(), "Local")),
        duration_bounds: Vec::new(),
        records_per_second: 100,
        addresses: ClientAddresses::default(),
        timeouts: TIMEOUTS,
        passing: passing(folder.path(), &Setup::default()),
        grpc: None,
        certificate: None,
    };
    let error = Front::start(options).err().expect("it needs a journal");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn stop_without_connections_waits_for_nothing() {
    let timeouts = Timeouts { idle_grace: NEVER, ..TIMEOUTS };
    let world = World::with(Setup { timeouts, ..Setup::default() });
    let mut gone = world.connect();
    assert_eq!(gone.ask(world.request_of_new_player()).code, "OK");
    drop(gone);
    wait_until(|| world.budget.count() == 0);
    world.front.stop(NEVER);
    assert!(TcpStream::connect(world.address).is_err());
}

#[test]
fn stop_closes_idle_connections_after_their_grace() {
    let world = World::new();
    let (mut idle, mut passed, fresh) = (world.connect(), world.connect(), world.connect());
    assert_eq!(idle.ask(world.request_of_new_player()).code, "OK");
    assert_eq!(passed.ask(GET).body, "/a");
    wait_until(|| world.budget.count() == 3);
    let began = Instant::now();
    world.front.stop(NEVER);
    assert!(began.elapsed() >= SHORT);
    for client in [idle, passed, fresh] {
        assert_eq!(client.rest(), b"");
    }
    assert_eq!(world.budget.count(), 0);
}

#[test]
fn idle_connection_gets_one_more_answer_during_the_stop() {
    let timeouts = Timeouts { idle_grace: NEVER, ..TIMEOUTS };
    let world = World::with(Setup { timeouts, ..Setup::default() });
    let mut clients = [world.connect(), world.connect()];
    for client in &mut clients {
        client.send(&world.request_of_new_player());
        assert!(!client.read_answer().is_last());
    }
    during_stop(&world, |_| {
        for mut client in clients {
            client.send(&world.request_of_new_player());
            let answer = client.read_answer();
            assert_eq!((&answer.code[..], answer.is_last()), ("OK", true));
            assert_eq!(client.rest(), b"");
        }
    });
}

#[test]
fn last_pipelined_answer_closes_the_connection() {
    let (world, _) = World::stepped();
    let (mut waiting, mut client) = (world.connect(), world.connect());
    waiting.send(&world.request_of_new_player());
    assert_eq!(client.ask(world.refused_request()).code, "PLAYER_TOKEN_INVALID");
    wait_until(|| world.players() == [0, 1]);
    let request = world.refused_request();
    during_stop(&world, |stopping| {
        client.send(&[&request[..], &request, &request[..20]].concat());
        let begun = [client.read_answer(), client.read_answer()];
        assert!(begun.iter().all(|answer| !answer.is_last()), "the front has read a part of another request");
        client.send(&request[20..]);
        assert!(client.read_answer().is_last());
        client.send(&request);
        assert_eq!(client.rest(), b"");
        assert!(!stopping.is_finished(), "another answer is not durable");
        world.commit();
    });
    assert_eq!(waiting.answer(), "OK");
}

#[test]
fn partial_request_is_waited_for_beyond_the_idle_grace() {
    let world = World::new();
    let mut partial = world.connect();
    let request = world.refused_request();
    partial.send(&request[..20]);
    wait_until(|| world.budget.count() == 1);
    world.settle(&mut world.connect());
    let began = Instant::now();
    thread::scope(|scope| {
        let stopping = scope.spawn(|| world.front.stop(NEVER));
        wait_until(|| began.elapsed() > 4 * SHORT);
        assert!(!stopping.is_finished());
        partial.send(&request[20..]);
        assert!(partial.read_answer().is_last());
        stopping.join().unwrap();
    });
}

#[test]
fn connections_after_the_stop_wait_for_the_next_process() {
    let world = World::with(Setup { is_listener_shared: true, ..Setup::default() });
    let mut earlier = world.connect();
    assert_eq!(earlier.ask(world.request_of_new_player()).code, "OK");
    drop(earlier);
    world.front.stop(NEVER);
    let mut client = world.connect();
    client.send(b"waits");
    let (mut accepted, _) = world.shared_listener.as_ref().unwrap().accept().unwrap();
    let mut received = [0; 5];
    accepted.set_nonblocking(false).unwrap();
    accepted.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"waits");
}

#[test]
fn stop_waits_for_answers() {
    let (world, _) = World::stepped();
    let mut clients = [world.connect(), world.connect()];
    for client in &mut clients {
        client.send(&world.request_of_new_player());
    }
    wait_until(|| world.players() == [0, 2]);
    during_stop(&world, |stopping| {
        assert!(!stopping.is_finished());
        assert!(clients.iter().all(|client| !client.has_answer()));
        world.commit();
    });
    for mut client in clients {
        assert_eq!(client.answer(), "OK");
        assert_eq!(client.rest(), b"");
    }
}

#[test]
fn answers_that_are_not_durable_are_refused_after_the_grace() {
    let (world, _) = World::stepped();
    let pipelined = [world.request_of_new_player(), world.request_of_new_player()].concat();
    let of_page =
        |lines: &str| with_lines(&world.request_of_new_player(), &format!("Origin: https://a.example\r\n{lines}"));
    let by_hyper = "Accept:\ta\r\n";
    let requests = [(pipelined, None), (of_page(""), Some("*")), (of_page(by_hyper), Some("*"))];
    let clients = requests.map(|(request, origin)| {
        let mut client = world.connect();
        client.send(&request);
        (client, origin)
    });
    wait_until(|| world.players() == [0, 4]);
    let started = Instant::now();
    world.front.stop(Duration::from_millis(100));
    assert!(started.elapsed() >= Duration::from_millis(100));
    for (mut client, origin) in clients {
        let answer = client.read_answer();
        assert_eq!(answer.problem(), (503, "shutting_down", true));
        assert_eq!(answer.header("access-control-allow-origin"), origin);
        assert_eq!(client.rest(), b"");
    }
    assert_eq!(world.budget.count(), 0);
    assert_eq!(world.counts(), [("connected".into(), "SHUTTING_DOWN".into(), 3)]);
}

#[test]
fn second_stop_shortens_the_grace_of_the_first() {
    let (world, _) = World::stepped();
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    wait_until(|| world.players() == [0, 1]);
    during_stop(&world, |_| {
        world.front.stop(Duration::ZERO);
    });
    assert_eq!(client.answer(), "SHUTTING_DOWN");
}

#[test]
fn passed_request_is_answered_during_the_stop() {
    let world = World::new();
    world.python.reply_by_test();
    let (mut client, mut idle) = (world.connect(), world.connect());
    client.send(GET);
    idle.send(GET);
    let [mut first, mut second] = [world.python.request(), world.python.request()];
    first.answer_ok("one");
    second.answer_ok("one");
    assert_eq!([client.read_answer().body, idle.read_answer().body], ["one"; 2]);
    client.send(GET);
    let mut request = world.python.request();
    during_stop(&world, |stopping| {
        assert!(!stopping.is_finished());
        request.answer_ok("late");
    });
    let answer = client.read_answer();
    assert_eq!((answer.header("connection"), &*answer.body), (Some("close"), "late"));
    assert_eq!((client.rest(), idle.rest()), (Vec::new(), Vec::new()));
}

#[test]
fn request_behind_an_answer_reaches_python_during_the_stop() {
    let (world, _) = World::stepped();
    let mut client = world.connect();
    client.send(&[&world.request_of_new_player(), GET].concat());
    wait_until(|| world.players() == [0, 1]);
    during_stop(&world, |_| {
        world.commit();
    });
    assert_eq!(client.answer(), "OK");
    let answer = client.read_answer();
    assert_eq!((answer.header("connection"), &*answer.body), (Some("close"), "/a"));
    assert_eq!(client.rest(), b"");
}

#[test]
fn request_that_python_does_not_answer_is_refused_after_the_grace() {
    let world = World::new();
    let (mut client, _request) = world.ask_python(&world.python, GET);
    world.front.stop(Duration::from_millis(50));
    assert_eq!(client.read_answer().problem(), (503, "shutting_down", true));
    assert_eq!(client.rest(), b"");
    world.python.wait_for_close();
}

#[test]
fn dropped_front_ends() {
    let World { front, shard, .. } = World::new();
    drop(front);
    assert_eq!(Arc::strong_count(&shard), 1, "no thread keeps the shard");
}
