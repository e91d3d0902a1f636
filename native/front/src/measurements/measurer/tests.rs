//! Counts, durations and records of answered requests.

use hosting_core::Id;
use hosting_matchmaker::{Need, Operation};

use super::*;

const MS: Duration = Duration::from_millis(1);
/// Random bytes that are not recorded without a reason, and those that are.
const UNRECORDED: u16 = u16::MAX;
const RECORDED: u16 = 0;
const LOBBY: Subject = Subject::Lobby(Id([1; 16]));

fn measurer() -> Measurer {
    measurer_with(Arc::new(RecordAllowance::new(100, |_| None)))
}

fn measurer_with(allowance: Arc<RecordAllowance>) -> Measurer {
    Measurer::new(Operation::ALL.len() + 1, vec![MS, 10 * MS], allowance)
}

const TRACEPARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn request(code: usize, started: Instant, random: u16) -> RequestRecord {
    let mut id = [7; 16];
    id[..2].copy_from_slice(&random.to_be_bytes());
    RequestRecord {
        ray_id: RayId::from_bytes(id),
        trace: None,
        operation: Operation::Connected as usize,
        caller: Some(LOBBY),
        code,
        exceeded: None,
        started,
        executed: started,
        ended: started,
    }
}

/// Measures one request of each duration, and returns what happened.
fn measure(code: usize, durations: &[Duration], random: u16) -> Measurements {
    let (measurer, started) = (measurer(), Instant::now());
    for duration in durations {
        measurer.count(&[request(code, started, random)], started + *duration);
    }
    measurer.take()
}

fn of_connected(measured: &Measurements) -> OperationCounts {
    measured.operations[Operation::Connected as usize].clone()
}

#[test]
fn requests_are_counted_by_operation() {
    let (measurer, now) = (measurer(), Instant::now());
    for (count, operation) in (1..).zip(Operation::ALL) {
        let request = RequestRecord { operation: operation as usize, ..request(2, now, UNRECORDED) };
        measurer.count(&vec![request; count], now + MS);
    }
    let measured = measurer.take().operations;
    let expected: Vec<_> = (1..=Operation::ALL.len() as u64).chain([0]).collect();
    assert_eq!(measured.iter().map(|counts| counts.codes[2]).collect::<Vec<_>>(), expected);
    assert_eq!(measured.iter().map(|counts| counts.durations[0]).collect::<Vec<_>>(), expected);
    assert_eq!(measured[4].duration_sum, 5 * MS);
}

#[test]
fn number_in_flight_stays_until_it_changes() {
    let measurer = Arc::new(measurer());
    assert_eq!(measurer.take().in_flight, 0);
    let three = measurer.begin(3);
    let one = measurer.begin(1);
    assert_eq!((measurer.take().in_flight, measurer.take().in_flight), (4, 4));
    drop(one);
    assert_eq!(measurer.take().in_flight, 3);
    drop(three);
    assert_eq!(measurer.take().in_flight, 0);
}

#[test]
fn bound_is_the_longest_duration_of_its_count() {
    let longer = |duration: Duration| duration + Duration::from_nanos(1);
    let durations = [Duration::ZERO, MS, longer(MS), 10 * MS, longer(10 * MS), 50 * MS];
    let measured = measure(0, &durations, UNRECORDED);
    assert_eq!(of_connected(&measured).durations, [2, 2, 2]);
    assert_eq!(of_connected(&measured).duration_sum, durations.iter().sum::<Duration>());
}

#[test]
fn each_request_of_a_turn_has_its_own_start() {
    let (measurer, started) = (measurer(), Instant::now());
    let requests = [request(0, started, UNRECORDED), request(0, started + 5 * MS, UNRECORDED)];
    measurer.count(&requests, started + 6 * MS);
    let measured = of_connected(&measurer.take());
    assert_eq!((measured.durations, measured.duration_sum), (vec![1, 1, 0], 7 * MS));
}

#[test]
fn usual_request_is_recorded_by_chance() {
    let bound = u16::MAX / ONE_IN;
    for (random, is_recorded) in [(RECORDED, true), (bound - 1, true), (bound, false), (UNRECORDED, false)] {
        assert_eq!(measure(0, &[MS], random).records.len(), usize::from(is_recorded), "{random}");
    }
}

#[test]
fn failed_slow_and_traced_requests_are_recorded() {
    assert_eq!(measure(1, &[MS], UNRECORDED).records.len(), 1);
    assert_eq!(measure(0, &[SLOW], UNRECORDED).records.len(), 0);
    assert_eq!(measure(0, &[SLOW + MS], UNRECORDED).records.len(), 1);

    let (measurer, trace) = (measurer(), crate::requests::trace_context::trace(TRACEPARENT));
    assert!(trace.is_some());
    measurer.count(&[RequestRecord { trace, ..request(0, Instant::now(), UNRECORDED) }], Instant::now());
    assert_eq!(measurer.take().records[0].trace, trace);
}

#[test]
fn record_ends_when_its_answer_is_durable() {
    let (measurer, started) = (measurer(), Instant::now());
    measurer.count(&[request(1, started, UNRECORDED)], started + MS);
    let records = measurer.take().records;
    assert_eq!((records[0].started, records[0].executed, records[0].ended), (started, started, started + MS));
    assert_eq!((records[0].code, records[0].caller), (1, Some(LOBBY)));
}

#[test]
fn records_beyond_the_bound_are_dropped_and_counted() {
    let (measurer, now) = (measurer(), Instant::now());
    let of_namespace = |number: usize| RequestRecord {
        caller: Some(Subject::Namespace(Id((number as u128).to_be_bytes()))),
        ..request(1, now, UNRECORDED)
    };
    measurer.count(&Vec::from_iter((0..RECORDS_MAX + 3).map(of_namespace)), now);
    let measured = measurer.take();
    assert_eq!((measured.records.len(), measured.dropped_records), (RECORDS_MAX, 3));
    assert_eq!(of_connected(&measured).codes[1], RECORDS_MAX as u64 + 3, "a dropped record still counts");
}

/// The lobbies 1 and 2 are of one namespace, and 3 is of another.
#[test]
fn first_refusals_of_each_namespace_in_a_second_are_recorded() {
    let lobby = |number: u8| Some(Subject::Lobby(Id([number; 16])));
    let allowance = Arc::new(RecordAllowance::new(100, |lobby| Some(Id([lobby.0[0] / 3; 16]))));
    let threads = [measurer_with(allowance.clone()), measurer_with(allowance)];
    let recorded = |caller, trace, code, now| {
        let requests = vec![RequestRecord { caller, trace, ..request(code, now, UNRECORDED) }; 60];
        threads.each_ref().map(|measurer| {
            measurer.count(&requests, now);
            let Measurements { records, dropped_records, .. } = measurer.take();
            assert_eq!(records.len() as u64 + dropped_records, 60);
            records.len()
        })
    };
    let (now, trace) = (Instant::now(), crate::requests::trace_context::trace(TRACEPARENT));
    assert_eq!(recorded(lobby(1), None, 1, now), [60, 40]);
    assert_eq!(recorded(lobby(2), None, 1, now), [0, 0], "another lobby of the same namespace");
    assert_eq!(recorded(lobby(3), None, 1, now), [60, 40], "another namespace");
    assert_eq!(recorded(None, None, 1, now), [60, 40], "without a caller");
    assert_eq!(recorded(lobby(1), trace, 0, now), [60, 40], "traces have a limit of their own");
    assert_eq!(recorded(lobby(2), trace, 0, now), [0, 0]);
    assert_eq!(recorded(lobby(2), None, 1, now + 1_000 * MS), [60, 40], "the next second");
}

#[test]
fn taking_starts_anew() {
    let (measurer, now) = (measurer(), Instant::now());
    measurer.count(&vec![request(1, now, UNRECORDED); 101], now);
    assert_eq!(measurer.take().dropped_records, 1);
    let empty = measurer.take();
    let counts = of_connected(&empty);
    assert_eq!(
        (counts.codes, counts.durations, counts.duration_sum),
        (vec![0; code_number::COUNT], vec![0; 3], Duration::ZERO)
    );
    assert_eq!((empty.records.len(), empty.dropped_records), (0, 0));
}

#[test]
fn passed_request_is_counted_by_its_reason_without_a_record() {
    let measurer = measurer();
    measurer.count_passed(5, 1, PassReason::Needs(Need::NewLobby), SLOW + MS);
    let measured = measurer.take();
    let counts = &measured.operations[5];
    assert_eq!((&counts.codes[..3], counts.duration_sum), (&[0, 1, 0][..], SLOW + MS));
    let reasons: Vec<_> = PassReason::all().zip(counts.passed).filter(|(_, count)| *count > 0).collect();
    assert_eq!(reasons, [(PassReason::Needs(Need::NewLobby), 1)]);
    assert!(measured.records.is_empty());
}

#[test]
fn reasons_are_listed_in_the_order_of_their_numbers() {
    let numbers: Vec<_> = PassReason::all().map(PassReason::number).collect();
    assert_eq!(numbers, Vec::from_iter(0..PassReason::COUNT));
    let mut slugs: Vec<_> = PassReason::all().map(PassReason::slug).collect();
    slugs.sort_unstable();
    slugs.dedup();
    assert_eq!(slugs.len(), PassReason::COUNT);
}

#[test]
fn request_over_a_rate_limit_counts_for_the_limit() {
    let (measurer, now) = (measurer(), Instant::now());
    let of = |exceeded| RequestRecord { exceeded, ..request(1, now, UNRECORDED) };
    measurer.count(&[of(None), of(Some(Limit::ClientGroup)), of(Some(Limit::Client)), of(Some(Limit::Client))], now);
    let counts = of_connected(&measurer.take());
    assert_eq!(Limit::ALL.map(|limit| counts.rate_limited[limit as usize]), [2, 0, 1, 0]);
    assert_eq!(Limit::ALL.map(|limit| limit as usize), [0, 1, 2, 3]);
}

#[test]
fn request_that_the_front_refuses_has_a_record_without_a_caller() {
    let measurer = measurer();
    measurer.count_own(RayId::from_bytes([7; 16]), None, 5, 2, Instant::now());
    let measured = measurer.take();
    assert_eq!(measured.operations[5].codes[..3], [0, 0, 1]);
    assert_eq!(measured.operations[5].passed, [0; PassReason::COUNT]);
    assert_eq!((measured.records[0].code, measured.records[0].caller), (2, None));
}
