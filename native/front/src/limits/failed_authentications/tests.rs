//! Which requests are admitted after failures, and what is remembered.

use http::header::HeaderValue;

use super::*;

const CLIENT: ClientKey = ClientKey::V4([192, 0, 2, 1]);
const OTHER: ClientKey = ClientKey::V4([192, 0, 2, 2]);
const BURST: u32 = 3;

/// Returns a limit that does not refill during a test.
fn limit() -> FailedAuthentications {
    FailedAuthentications::new(Arc::new(Buckets::new(1e-3, BURST, 1_000)))
}

fn bearing(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).expect("a token"))])
}

/// Returns whether the request is admitted.
fn attempt(limit: &FailedAuthentications, client: ClientKey, token: &str, outcome: AttemptOutcome) -> bool {
    let attempt = limit.admit(client, &bearing(token), || false);
    attempt.map(|attempt| attempt.expect("has credentials").end(outcome)).is_ok()
}

fn fail_often(limit: &FailedAuthentications) {
    for number in 0..BURST {
        assert!(attempt(limit, CLIENT, &format!("wrong_{number}"), AttemptOutcome::Failed));
    }
}

#[test]
fn failures_of_an_address_are_limited() {
    let limit = limit();
    fail_often(&limit);
    assert!(!attempt(&limit, CLIENT, "wrong_9", AttemptOutcome::Failed));
    assert!(attempt(&limit, OTHER, "wrong_9", AttemptOutcome::Failed));
}

#[test]
fn check_refuses_like_an_attempt_and_costs_nothing() {
    let limit = limit();
    assert!(attempt(&limit, CLIENT, "good", AttemptOutcome::Succeeded));
    let refused = |token| limit.check(CLIENT, &bearing(token), || false).is_err();
    for number in 0..BURST {
        assert!(!refused("wrong_9") && !refused("wrong_9"));
        assert!(attempt(&limit, CLIENT, &format!("wrong_{number}"), AttemptOutcome::Failed));
    }
    assert!(refused("wrong_9") && !refused("good"));
    // A request without credentials.
    assert_eq!(limit.check(CLIENT, &HeaderMap::new(), || false), Ok(()));
    assert!(matches!(limit.admit(CLIENT, &HeaderMap::new(), || false), Ok(None)));
}

#[test]
fn credentials_that_succeeded_are_admitted_until_they_fail() {
    let limit = limit();
    assert!(attempt(&limit, CLIENT, "good", AttemptOutcome::Succeeded));
    assert!(attempt(&limit, CLIENT, "undecided", AttemptOutcome::Unknown));
    fail_often(&limit);
    assert!(attempt(&limit, CLIENT, "good", AttemptOutcome::Unknown));
    assert!(!attempt(&limit, CLIENT, "undecided", AttemptOutcome::Unknown));
    assert!(attempt(&limit, CLIENT, "good", AttemptOutcome::Failed));
    assert!(!attempt(&limit, CLIENT, "good", AttemptOutcome::Failed));
}

#[test]
fn success_costs_nothing() {
    let limit = limit();
    assert!(attempt(&limit, CLIENT, "wrong", AttemptOutcome::Failed));
    for number in 0..100 {
        assert!(attempt(&limit, CLIENT, &format!("good_{number}"), AttemptOutcome::Succeeded));
        assert!(attempt(&limit, CLIENT, &format!("undecided_{number}"), AttemptOutcome::Unknown));
    }
}

#[test]
fn failures_at_once_delay_all_later_ones() {
    let buckets = Arc::new(Buckets::new(1.0, BURST, 1_000));
    let limit = FailedAuthentications::new(buckets.clone());
    let at_once: Vec<_> =
        (0..100).map(|number| limit.admit(CLIENT, &bearing(&format!("wrong_{number}")), || false)).collect();
    at_once.into_iter().for_each(|attempt| attempt.ok().flatten().expect("is admitted").end(AttemptOutcome::Failed));
    let wait = buckets.take(CLIENT.as_bytes(), monotonic_s());
    assert!((90.0..100.0).contains(&wait), "{wait} s");
}

#[test]
fn requests_at_once_are_limited_after_a_failure() {
    let limit = limit();
    let first: Vec<_> =
        (0..10).map(|number| limit.admit(CLIENT, &bearing(&format!("first_{number}")), || false)).collect();
    assert!(first.iter().all(Result::is_ok));
    first.into_iter().flatten().flatten().for_each(|attempt| attempt.end(AttemptOutcome::Unknown));
    assert!(attempt(&limit, CLIENT, "wrong", AttemptOutcome::Failed));
    let second: Vec<_> =
        (0..10).map(|number| limit.admit(CLIENT, &bearing(&format!("second_{number}")), || false)).collect();
    assert_eq!(second.iter().filter(|attempt| attempt.is_ok()).count(), BURST as usize - 1);
}

#[test]
fn dropped_attempt_counts_as_failed() {
    let limit = limit();
    for number in 0..BURST {
        drop(limit.admit(CLIENT, &bearing(&format!("wrong_{number}")), || false));
    }
    assert!(!attempt(&limit, CLIENT, "wrong_9", AttemptOutcome::Failed));
}

#[test]
fn token_that_the_front_knows_is_not_limited() {
    let limit = limit();
    fail_often(&limit);
    assert_eq!(limit.check(CLIENT, &bearing("known"), || true), Ok(()));
    for outcome in [AttemptOutcome::Unknown, AttemptOutcome::Failed, AttemptOutcome::Unknown] {
        limit.admit(CLIENT, &bearing("known"), || true).ok().flatten().expect("is admitted").end(outcome);
    }
}

#[test]
fn spellings_of_a_header_are_the_same_credentials() {
    let limit = limit();
    assert!(attempt(&limit, CLIENT, "cloud_good", AttemptOutcome::Succeeded));
    fail_often(&limit);
    let spelled = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("bEARER   cloud_good "))]);
    assert!(limit.admit(CLIENT, &spelled, || false).is_ok());
}

#[test]
fn all_authorization_headers_are_the_credentials() {
    let limit = limit();
    assert!(attempt(&limit, CLIENT, "good", AttemptOutcome::Succeeded));
    fail_often(&limit);
    let mut headers = bearing("good");
    headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer wrong"));
    assert_eq!(limit.admit(CLIENT, &headers, || false).err(), Some(TooManyFailures));
}

#[test]
fn limit_of_zero_admits_all() {
    let limit = FailedAuthentications::new(Arc::new(Buckets::new(0.0, 1, 1_000)));
    assert!((0..100).all(|number| attempt(&limit, CLIENT, &format!("wrong_{number}"), AttemptOutcome::Failed)));
}

#[test]
fn remembered_credentials_are_bounded() {
    let mut recent = RecentCredentials::default();
    for credentials in 0..5 * GENERATION_MAX as u64 {
        recent.insert(credentials);
        assert!(recent.contains(credentials));
    }
    assert!(recent.young.len() + recent.old.len() <= 2 * GENERATION_MAX);
    assert!(!recent.contains(0));
}

#[test]
fn outcomes_of_answers() {
    for (is_ok, is_unauthenticated, code, needs_token, expected) in [
        (true, false, None, true, AttemptOutcome::Succeeded),
        (true, false, None, false, AttemptOutcome::Unknown),
        (false, true, Some("TOKEN_INVALID"), true, AttemptOutcome::Failed),
        (false, true, Some("TOKEN_INVALID"), false, AttemptOutcome::Failed),
        (false, true, Some("TOKEN_MISSING"), true, AttemptOutcome::Unknown),
        (false, false, Some("GAME_NOT_FOUND"), true, AttemptOutcome::Unknown),
    ] {
        assert_eq!(AttemptOutcome::of(is_ok, is_unauthenticated, code, needs_token), expected, "{code:?}");
    }
}
