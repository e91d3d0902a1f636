//! Rates, bursts and bounds of the token buckets, and the limits of client operations.

use proptest::prelude::*;

use super::*;

const KEY: &[u8] = b"key";
const OTHER: &[u8] = b"other";

/// Returns how many tokens a bucket has.
fn count_tokens(buckets: &Buckets, key: &[u8], now: f64) -> usize {
    (0..1_000).take_while(|_| buckets.take(key, now) == 0.0).count()
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
}

#[test]
fn token_after_the_returned_wait_is_granted() {
    let buckets = Buckets::new(3.0, 4, 100);
    let mut now = 123_456.789;
    assert_eq!(count_tokens(&buckets, KEY, now), 4);
    for _ in 0..1_000 {
        now += buckets.take(KEY, now);
        assert_eq!(buckets.take(KEY, now), 0.0, "rounding errors are tolerated");
    }
}

#[test]
fn keys_have_their_own_buckets() {
    let buckets = Buckets::new(1.0, 3, 100);
    assert_eq!(count_tokens(&buckets, KEY, 0.0), 3);
    assert_eq!(count_tokens(&buckets, OTHER, 0.0), 3);
    assert_eq!(count_tokens(&buckets, b"", 0.0), 3);
    assert_eq!(buckets.count(), 3);
}

/// The other key drops the older half of the keys several times.
#[test]
fn bucket_keeps_its_level_until_it_is_full_again() {
    let buckets = Buckets::new(1.0, 10, 1_000);
    for (second, tokens) in [(0, 10), (4, 4), (9, 5), (10, 1), (15, 5), (19, 4), (29, 10), (30, 1), (48, 10)] {
        let now = f64::from(second);
        buckets.take(OTHER, now);
        assert_eq!(count_tokens(&buckets, KEY, now), tokens, "after {second} s");
    }
}

#[test]
fn rate_of_0_means_no_limit() {
    let buckets = Buckets::new(0.0, 1, 100);
    assert_eq!(count_tokens(&buckets, KEY, 0.0), 1_000);
    buckets.put_back(KEY);
    assert_eq!(buckets.count(), 0, "no limit needs no memory");
}

#[test]
fn change_of_the_burst_holds_at_once_and_refills_nothing() {
    for (burst, taken, changed, left) in [(2, 2, 5, 3), (5, 1, 2, 1)] {
        let buckets = Buckets::new(1.0, burst, 100);
        (0..taken).for_each(|_| assert_eq!(buckets.take(KEY, 0.0), 0.0));
        buckets.change(1.0, changed);
        assert_eq!(count_tokens(&buckets, KEY, 0.0), left);
        assert_eq!(count_tokens(&buckets, OTHER, 0.0), changed as usize);
    }
}

#[test]
fn change_of_the_rate_keeps_the_wait_of_an_empty_bucket() {
    let buckets = Buckets::new(1.0, 1, 100);
    assert_eq!(buckets.take(KEY, 0.0), 0.0);
    buckets.change(10.0, 1);
    assert_near(buckets.take(KEY, 0.0), 1.0);
    assert_eq!(buckets.take(KEY, 1.0), 0.0);
    assert_near(buckets.take(KEY, 1.0), 0.1);
}

#[test]
fn limit_can_be_removed_and_set_again() {
    let buckets = Buckets::new(1.0, 1, 100);
    assert_eq!(buckets.take(KEY, 0.0), 0.0);
    buckets.change(0.0, 1);
    assert_eq!(count_tokens(&buckets, KEY, 0.0), 1_000);
    buckets.change(1.0, 1);
    assert_near(buckets.take(KEY, 0.0), 1.0);
}

#[test]
fn returned_token_of_an_unknown_key_changes_nothing() {
    let buckets = Buckets::new(1.0, 3, 100);
    buckets.put_back(KEY);
    assert_eq!((buckets.count(), count_tokens(&buckets, KEY, 0.0)), (0, 3));
}

#[test]
fn returned_token_of_the_older_half_can_be_taken_again() {
    let buckets = Buckets::new(1.0, 2, 4);
    assert_eq!(count_tokens(&buckets, KEY, 0.0), 2);
    buckets.take(b"1", 0.0);
    buckets.take(b"2", 0.0);
    buckets.put_back(KEY);
    assert_eq!(count_tokens(&buckets, KEY, 0.0), 1);
}

#[test]
fn returned_tokens_can_be_taken_again_up_to_the_burst() {
    for (taken, returned, left) in [(3, 2, 2), (1, 5, 3)] {
        let buckets = Buckets::new(1.0, 3, 100);
        (0..taken).for_each(|_| assert_eq!(buckets.take(KEY, 0.0), 0.0));
        (0..returned).for_each(|_| buckets.put_back(KEY));
        assert_eq!(count_tokens(&buckets, KEY, 0.0), left);
    }
}

#[test]
fn charges_above_the_burst_delay_the_refill() {
    let buckets = Buckets::new(1.0, 3, 100);
    (0..10).for_each(|_| buckets.charge(KEY, 0.0));
    for now in 1..8 {
        assert_near(buckets.take(KEY, f64::from(now)), 8.0 - f64::from(now));
        // Other keys make the older half leave the memory several times.
        buckets.charge(OTHER, f64::from(now));
    }
    assert_eq!(count_tokens(&buckets, KEY, 8.0), 1);
    assert_eq!(count_tokens(&buckets, KEY, 100.0), 3);
}

#[test]
fn charged_keys_are_bounded() {
    let buckets = Buckets::new(1.0, 1, 100);
    for number in 0..1_000_u32 {
        let key = number.to_be_bytes();
        (0..50).for_each(|_| buckets.charge(&key, f64::from(number)));
        assert!(buckets.count() <= 100, "{number}");
    }
}

#[test]
fn number_of_keys_is_bounded() {
    for keys_max in [0, 1, 2, 7, 100] {
        let buckets = Buckets::new(1.0, 10_000, keys_max);
        let most = (0_u32..1_000).map(|number| {
            buckets.take(&number.to_be_bytes(), 0.0);
            buckets.count()
        });
        assert!(most.max() <= Some(keys_max.max(2)), "of {keys_max}");
    }
}

#[test]
fn recent_keys_outlive_the_older_half() {
    let buckets = Buckets::new(1.0, 1, 100);
    for number in 0_u32..1_000 {
        assert_eq!(buckets.take(&number.to_be_bytes(), 0.0), 0.0);
        let recent = number.saturating_sub(49)..=number;
        assert!(recent.into_iter().all(|recent| buckets.take(&recent.to_be_bytes(), 0.0) > 0.0), "{number}");
    }
}

#[test]
fn full_buckets_leave_the_memory() {
    let buckets = Buckets::new(1.0, 10, 1_000);
    for number in 0_u32..100 {
        buckets.take(&number.to_be_bytes(), 0.0);
    }
    assert_eq!(buckets.count(), 100);
    buckets.take(KEY, 10.0);
    buckets.take(KEY, 20.0);
    assert_eq!(buckets.count(), 2, "the key, in both halves");
    buckets.take(KEY, 40.0);
    buckets.take(KEY, 60.0);
    assert_eq!(count_tokens(&buckets, KEY, 60.0), 9);
}

#[test]
fn dropped_keys_are_freed_by_the_caller() {
    let calls: [fn(&mut State, f64) -> Generation; 2] =
        [|state, now| state.take(KEY, now, 100).1, |state, now| state.charge(KEY, now, 100)];
    for call in calls {
        let buckets = Buckets::new(1.0, 10, 100);
        buckets.take(OTHER, 0.0);
        let mut state = buckets.state.lock();
        let dropped = [10.0, 20.0].map(|now| call(&mut state, now));
        assert!(dropped[0].is_empty() && dropped[1].contains_key(OTHER));
    }
}

const TOKEN: Option<&[u8]> = Some(b"token");
const ADDRESS: &[u8] = &[192, 0, 2, 1];
const GROUP: &[u8] = b"group";

fn count_admitted(limits: &ClientLimits, token: Option<&[u8]>) -> usize {
    (0..1_000).take_while(|_| limits.admit(token, ADDRESS, GROUP).is_ok()).count()
}

fn left(limits: &ClientLimits) -> [usize; 4] {
    limits.left(b"token", ADDRESS, GROUP)
}

#[test]
fn each_limit_refuses_the_clients_that_it_counts() {
    for (number, of_token, of_client) in [(0, 3, 100), (1, 3, 100), (2, 100, 3), (3, 3, 3)] {
        let mut bursts = [100; 4];
        bursts[number] = 3;
        assert_eq!(count_admitted(&ClientLimits::example(bursts), TOKEN), of_token, "token, limit {number}");
        assert_eq!(count_admitted(&ClientLimits::example(bursts), None), of_client, "client, limit {number}");
    }
}

#[test]
fn admission_takes_from_each_bucket() {
    let limits = ClientLimits::example([10; 4]);
    assert_eq!(limits.admit(TOKEN, ADDRESS, GROUP), Ok(()));
    assert_eq!(left(&limits), [9, 9, 10, 9]);
    assert_eq!(limits.admit(None, ADDRESS, GROUP), Ok(()));
    assert_eq!(left(&limits), [9, 9, 9, 8]);
}

#[test]
fn refusal_names_its_limit_and_takes_from_no_bucket() {
    let names = [Limit::Client, Limit::Address, Limit::Client, Limit::ClientGroup];
    for (number, limit) in names.into_iter().enumerate() {
        let mut bursts = [10; 4];
        bursts[number] = 1;
        let limits = ClientLimits::example(bursts);
        let token = if number == 2 { None } else { TOKEN };
        assert_eq!(limits.admit(token, ADDRESS, GROUP), Ok(()));
        let before = left(&limits);
        let exceeded = limits.admit(token, ADDRESS, GROUP).expect_err("one token only");
        assert_eq!(exceeded.limit, limit);
        assert!((999.0..=1_000.0).contains(&exceeded.wait_s), "{exceeded:?}");
        assert_eq!(left(&limits), before, "limit {number}");
    }
}

/// The client's own limit comes first, so that it leaves the group its tokens.
#[test]
fn several_exceeded_limits_name_the_first() {
    let limits = ClientLimits::example([0; 4]);
    for token in [TOKEN, None] {
        assert_eq!(limits.admit(token, ADDRESS, GROUP).expect_err("no token").limit, Limit::Client);
    }
}

#[test]
fn other_keys_are_not_limited() {
    let limits = ClientLimits::example([1; 4]);
    let refused_by = |token: Option<&[u8]>, address: &[u8], group: &[u8]| {
        limits.admit(token, address, group).err().map(|exceeded| exceeded.limit)
    };
    assert_eq!(refused_by(TOKEN, ADDRESS, GROUP), None);
    assert_eq!(refused_by(Some(b"other"), ADDRESS, b"other"), Some(Limit::Address));
    assert_eq!(refused_by(TOKEN, b"other", b"other"), Some(Limit::Client));
    assert_eq!(refused_by(Some(b"other"), b"other", GROUP), Some(Limit::ClientGroup));
    assert_eq!(refused_by(Some(b"other"), b"other", b"other"), None);
}

#[test]
fn clock_does_not_go_back() {
    let times: Vec<_> = (0..1_000).map(|_| monotonic_s()).collect();
    assert!(times[0] > 0.0 && times.is_sorted());
}

proptest! {
    #[test]
    fn bucket_agrees_with_an_exact_simulation(
        rate in 1_u32..=50,
        burst in 1_u32..=50,
        gaps_ms in prop::collection::vec(0_u32..3_000, 1..200),
    ) {
        let buckets = Buckets::new(f64::from(rate), burst, 100);
        let (mut now_ms, mut thousandths) = (0, burst * 1_000);
        for gap_ms in gaps_ms {
            now_ms += gap_ms;
            thousandths = (thousandths + gap_ms * rate).min(burst * 1_000);
            let wait_s = buckets.take(KEY, f64::from(now_ms) / 1_000.0);
            assert_near(wait_s, f64::from(1_000_u32.saturating_sub(thousandths)) / f64::from(1_000 * rate));
            prop_assert_eq!(wait_s == 0.0, thousandths >= 1_000, "after {} ms", now_ms);
            thousandths -= if wait_s == 0.0 { 1_000 } else { 0 };
        }
    }
}
