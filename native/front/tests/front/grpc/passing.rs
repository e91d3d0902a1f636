//! Calls that a Python process answers.

use bytes::Bytes;
use hosting_front::{Changes, Plane};
use http_body::Frame;

use crate::grpc::client::{Answer, Client, OpenCall, framed, texts, trailers};
use crate::grpc::world::{CONTROL_METHOD, DATA_METHOD, MESSAGE, STREAM_METHOD, World};
use crate::world::{Setup, wait_until};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TOKEN: (&str, &str) = ("authorization", "Bearer cloud_x");
const OK: &[(&str, &str)] = &[("grpc-status", "0"), ("x-hosting-secret", "x"), ("x-ray-id", "r"), ("data-bin", "AQ")];
const ERROR: &[(&str, &str)] = &[
    ("grpc-status", "5"),
    ("grpc-message", "none"),
    ("grpc-status-details-bin", "AQ"),
    ("x-hosting-code", "NOT_FOUND"),
];

fn changes(sequence: u64, topics: &[(&str, u64)]) -> Changes {
    let topics = topics.iter().map(|(topic, number)| ((*topic).to_owned(), *number)).collect();
    Changes { run: "run".into(), sequence, topics, is_complete: true }
}

#[test]
fn call_and_response_keep_their_parts() {
    let (world, mut client) = World::connected();
    let metadata = [
        TOKEN,
        ("idempotency-key", "key"),
        ("request-bin", "AAE"),
        ("x-hosting-client", "192.0.2.1"),
        ("x-hosting-repeat", "expired"),
        ("x-forwarded-for", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("x-coords", "1,2"),
    ];
    for (path, python) in [(CONTROL_METHOD, world.control()), (DATA_METHOD, &world.data)] {
        let call = client.start(path, &metadata, MESSAGE);
        let received = python.next_call();
        assert_eq!(received.path, format!("http://localhost{path}"));
        assert_eq!(received.data(), MESSAGE);
        let mut entries = texts(&received.metadata);
        let ray_id = entries.remove("x-hosting-ray").unwrap();
        assert!(ray_id.len() == 32 && ray_id.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let expected = [
            TOKEN,
            ("idempotency-key", "key"),
            ("request-bin", "AAE"),
            ("x-hosting-client", "127.0.0.1"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        assert_eq!(entries, texts(&trailers(&expected)));
        received.answer(MESSAGE, OK);
        let Answer { headers, data, last, .. } = client.finish(call);
        assert_eq!(data, MESSAGE);
        assert_eq!(
            texts(&headers),
            texts(&trailers(&[("content-type", "application/grpc"), ("x-from-python", "yes")]))
        );
        assert_eq!(texts(&last), texts(&trailers(&[("grpc-status", "0"), ("x-ray-id", "r"), ("data-bin", "AQ")])));
    }
    let counts = [("live", "OK", 1), ("get_game", "OK", 1)];
    assert_eq!(world.counts(), counts.map(|(slug, code, count)| (slug.into(), code.into(), count)));
}

#[test]
fn errors_of_handlers_are_passed_and_counted() {
    let (world, mut client) = World::connected();
    for is_trailers_only in [true, false] {
        let call = client.start(CONTROL_METHOD, &[TOKEN], MESSAGE);
        let mut received = world.control().next_call();
        if is_trailers_only {
            received.answer_trailers_only(ERROR);
        } else {
            received.begin().send(Frame::trailers(trailers(ERROR))).unwrap();
        }
        let answer = client.finish(call);
        assert_eq!((answer.status(), answer.code(), answer.text("grpc-status-details-bin")), ("5", "none", "AQ"));
        assert!(!answer.last.contains_key("x-hosting-code"));
        assert_eq!(world.counts(), [("get_game".into(), "NOT_FOUND".into(), 1)]);
    }
}

#[test]
fn errors_of_the_control_plane_without_details_mean_that_it_is_unavailable() {
    let (world, mut client) = World::connected();
    for (status, code) in
        [("14", "CONTROL_PLANE_UNAVAILABLE"), ("13", "CONTROL_PLANE_UNAVAILABLE"), ("4", "DEADLINE_EXCEEDED")]
    {
        let call = client.start(CONTROL_METHOD, &[TOKEN], MESSAGE);
        world.control().next_call().answer_trailers_only(&[("grpc-status", status)]);
        assert_eq!(client.finish(call).code(), code);
        assert_eq!(world.counts(), [("get_game".into(), code.into(), 1)]);
    }
}

#[test]
fn missing_control_plane_is_unavailable_and_the_data_plane_goes_on() {
    let (world, mut client) = World::connected_with(Setup { has_grpc_control: false, ..Setup::default() });
    assert_eq!(client.call(CONTROL_METHOD, &[TOKEN], MESSAGE).code(), "CONTROL_PLANE_UNAVAILABLE");
    world.serve(&mut client, DATA_METHOD, &[]);
}

#[test]
fn control_plane_that_ends_before_its_response_is_unavailable() {
    let mut world = World::new();
    let mut client = Client::connect(world.address);
    let waiting = client.start(CONTROL_METHOD, &[TOKEN], MESSAGE);
    let begun = client.start(CONTROL_METHOD, &[TOKEN], MESSAGE);
    let first = world.control().next_call();
    let mut second = world.control().next_call();
    second.begin().send(Frame::data(Bytes::from_static(MESSAGE))).unwrap();
    world.control.as_mut().unwrap().stop();
    drop(first);
    for call in [waiting, begun] {
        assert_eq!(client.finish(call).code(), "CONTROL_PLANE_UNAVAILABLE");
    }
}

#[test]
fn trace_of_the_client_goes_on() {
    let (world, mut client) = World::connected();
    let (call, received) = world.start(&mut client, &[("traceparent", TRACEPARENT)]);
    assert_eq!((received.text("traceparent"), received.text("x-hosting-ray")), (Some(TRACEPARENT), None));
    drop(received);
    assert_eq!(client.finish(call).text("x-ray-id"), &TRACEPARENT[3..35], "the front answers with the trace id");
    let (call, received) = world.start(&mut client, &[("traceparent", "x")]);
    assert_eq!(received.text("traceparent"), None);
    assert_eq!(received.text("x-hosting-ray").unwrap().len(), 32);
    drop(received);
    client.finish(call);
}

#[test]
fn reset_of_a_call_resets_the_passed_one() {
    let (world, mut client) = World::connected();
    let (call, received) = world.start(&mut client, &[]);
    client.cancel(call);
    received.wait_cancelled();
    assert_eq!(world.counts(), [("live".into(), "CANCELLED".into(), 1)]);
}

#[test]
fn deadline_is_passed_and_kept() {
    let (world, mut client) = World::connected();
    let (call, received) = world.start(&mut client, &[("grpc-timeout", "400m")]);
    let left = received.text("grpc-timeout").unwrap();
    let (digits, unit) = left.split_at(left.len() - 1);
    assert!(unit == "u" && digits.parse::<u64>().unwrap() <= 400_000, "{left}");
    assert_eq!(client.finish(call).code(), "DEADLINE_EXCEEDED");
    received.wait_cancelled();
}

#[test]
fn messages_of_unknown_methods_flow_in_both_directions() {
    let (world, mut client) = World::connected();
    let mut call = client.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", &[]);
    call.send(MESSAGE);
    let mut received = world.data.next_call();
    assert_eq!(received.next_data(), MESSAGE);
    let frames = received.begin();
    frames.send(Frame::data(Bytes::from_static(MESSAGE))).unwrap();
    client.begin(&mut call);
    assert_eq!(client.next_data(&mut call), MESSAGE);
    call.send(&framed(b"second"));
    assert_eq!(received.next_data(), framed(b"second"));
    call.messages = None;
    assert_eq!(received.data(), b"");
    frames.send(Frame::trailers(trailers(OK))).unwrap();
    assert_eq!(client.finish(call).status(), "0");
    assert_eq!(world.counts(), [], "only operations are counted");
}

#[test]
fn trailers_of_a_client_are_not_passed() {
    let (world, mut client) = World::connected();
    let mut call = client.open("/unknown/Method", &[]);
    call.send(MESSAGE);
    call.end_with(&[("x-hosting-client", "192.0.2.1"), ("x-forwarded-for", "192.0.2.1"), ("key", "value")]);
    let received = world.data.next_call();
    assert_eq!((received.data(), received.trailers()), (MESSAGE.to_vec(), None));
    received.answer(MESSAGE, OK);
    assert_eq!(client.finish(call).status(), "0");
}

#[test]
fn stream_sends_each_response_at_once() {
    let (world, mut client) = World::connected();
    let mut call = client.start(STREAM_METHOD, &[], MESSAGE);
    let mut received = world.data.next_call();
    assert_eq!(received.data(), MESSAGE);
    let frames = received.begin();
    for message in [&[0, 0, 0, 0, 0][..], MESSAGE] {
        frames.send(Frame::data(Bytes::from_static(message))).unwrap();
        if message.len() == 5 {
            client.begin(&mut call);
        }
        assert_eq!(client.next_data(&mut call), message);
    }
    frames.send(Frame::trailers(trailers(OK))).unwrap();
    assert_eq!(client.finish(call).status(), "0");
}

#[test]
fn parked_call_is_repeated_after_a_change() {
    let world = World::new();
    world.front.take_changes(Plane::Control, Changes { is_complete: false, ..changes(3, &[]) });
    let mut client = Client::connect(world.address);
    let call = client.start(CONTROL_METHOD, &[TOKEN], MESSAGE);
    let received = world.control().next_call();
    assert_eq!(received.text("x-hosting-repeat"), None);
    received.answer(&[0; 5], &[("grpc-status", "0"), ("x-hosting-park", "run.3 one,two")]);
    // A call that is answered later shows that the first one waits.
    world.serve(&mut client, CONTROL_METHOD, &[TOKEN]);
    assert!(!world.control().has_call());
    world.front.take_changes(Plane::Control, changes(4, &[("two", 4)]));
    let repeated = world.control().next_call();
    assert_eq!(repeated.text("x-hosting-repeat"), Some("changed"));
    assert_eq!(repeated.data(), MESSAGE);
    repeated.answer(MESSAGE, OK);
    assert_eq!(client.finish(call).data, MESSAGE);
}

#[test]
fn empty_response_is_no_parked_call() {
    let (world, mut client) = World::connected();
    let call = client.start(DATA_METHOD, &[], MESSAGE);
    world.data.next_call().answer(&[0; 5], OK);
    let answer = client.finish(call);
    assert_eq!((answer.status(), &answer.data[..]), ("0", &[0; 5][..]));
}

/// Starts a call of an address, which Python parks.
fn start_parked(world: &World, client: &mut Client, address: &str, message: &[u8]) -> OpenCall {
    let call = client.start(DATA_METHOD, &[("x-forwarded-for", address)], message);
    world.data.next_call().answer(&[0; 5], &[("grpc-status", "0"), ("x-hosting-park", "run.3 one")]);
    call
}

#[test]
fn parked_calls_of_one_address_are_limited_in_bytes() {
    let proxies = vec!["127.0.0.0/8".parse().unwrap()];
    let world = World::with(Setup { proxies, parked_bytes_max: 64 << 10, ..Setup::default() });
    world.front.take_changes(Plane::Data, Changes { is_complete: false, ..changes(3, &[]) });
    let mut client = Client::connect(world.address);
    for (bytes, count) in [(1, 7), (12 << 10, 1)] {
        let message = framed(&vec![7; bytes]);
        let mut park = |address, message: &[u8]| {
            let before = world.parked_bytes.held_bytes();
            let call = start_parked(&world, &mut client, address, message);
            wait_until(|| world.parked_bytes.held_bytes() > before);
            call
        };
        let mut parked: Vec<_> = (0..count).map(|_| park("192.0.2.1", &message)).collect();
        parked.push(park("192.0.2.2", MESSAGE));
        let refused = start_parked(&world, &mut client, "192.0.2.1", &message);
        assert_eq!(client.finish(refused).code(), "OVERLOADED_BODIES");
        parked.into_iter().for_each(|call| client.cancel(call));
        wait_until(|| world.parked_bytes.held_bytes() == 0);
    }
}

#[test]
fn open_calls_and_their_messages_are_counted_apart_from_http() {
    let (world, mut client) = World::connected();
    let call = client.open(DATA_METHOD, &[]);
    // A message in two frames counts with its bytes until its call is passed on.
    call.send(&MESSAGE[..6]);
    wait_until(|| world.bodies.held_bytes_of_calls() > 0);
    let in_flight = || {
        let over_http = world.front.take_measurements().1.in_flight;
        (over_http, world.front.take_grpc_measurements().in_flight)
    };
    assert_eq!(in_flight(), (0, 1));
    call.send(&MESSAGE[6..]);
    world.data.next_call().answer(MESSAGE, &[("grpc-status", "0")]);
    client.finish(call);
    wait_until(|| in_flight() == (0, 0) && world.bodies.held_bytes_of_calls() == 0);
}
