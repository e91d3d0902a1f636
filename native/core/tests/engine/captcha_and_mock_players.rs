//! Captcha status, mock players, signing keys, recall of stored responses, and damaged images.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

const HOUR_MS: u64 = 3_600_000;
const TOKEN: Id = Id([0x31; 16]);
const GROUP: Id = Id([0x41; 16]);
const OTHER_GROUP: Id = Id([0x42; 16]);

fn captcha_status(w: &mut TestEngine, source: Source) -> (Option<u64>, u32) {
    let captcha_status = w.run(|e, cx| e.captcha_status(cx, source));
    (captcha_status.passed_ago_ms, captcha_status.requests_since)
}

#[test]
fn captcha_pass_starts_the_request_count() {
    let mut w = TestEngine::new();
    w.run(|e, cx| e.count_captcha_request(cx, 7));
    assert_eq!(
        (captcha_status(&mut w, 7), w.written),
        ((None, 0), 0),
        "requests before the first pass are not counted"
    );
    let passed = w.run(|e, cx| e.record_captcha_pass(cx, 7));
    assert_eq!((passed.result, passed.wait), (Ok(()), w.engine.last_lsn()));
    w.run(|e, cx| e.count_captcha_request(cx, 7));
    w.run(|e, cx| e.count_captcha_request(cx, 8));
    w.pass(1_500);
    assert_eq!(captcha_status(&mut w, 7), (Some(1_500), 1));
    w.restart();
    assert_eq!(captcha_status(&mut w, 7), (Some(1_500), 1));
    w.run(|e, cx| e.record_captcha_pass(cx, 7)).result.unwrap();
    assert_eq!(captcha_status(&mut w, 7), (Some(0), 0));
    w.pass(12 * HOUR_MS - 1);
    assert_eq!(captcha_status(&mut w, 7), (Some(12 * HOUR_MS - 1), 0));
    w.pass(1);
    assert_eq!(captcha_status(&mut w, 7), (None, 0), "no setting lets it last longer");
}

#[test]
fn captcha_pass_needs_credit() {
    let mut w = TestEngine::new();
    w.run(|e, cx| e.record_captcha_pass(cx, 7)).result.unwrap();
    for credit in [NO_CREDIT, Credit { total: 1 << 20, reserve: 1 << 20, largest: u64::MAX }] {
        w.credit = credit;
        assert_eq!(w.run(|e, cx| e.record_captcha_pass(cx, 8)).result, Err(StorageFull));
        w.run(|e, cx| e.count_captcha_request(cx, 7));
        assert_eq!((captcha_status(&mut w, 7), captcha_status(&mut w, 8)), ((Some(0), 0), (None, 0)));
        assert_eq!(
            w.run(|e, cx| e.consume_mock_token(cx, GROUP, NAMESPACE, TOKEN, "player_x")).result,
            Err(PlayerTokenInvalid)
        );
    }
}

fn mock(w: &mut TestEngine, nonce: u8) -> String {
    w.run(|e, cx| e.mock_player_token(cx, NAMESPACE, TOKEN, &[nonce; 16]))
}

fn consume(w: &mut TestEngine, token: &str) -> Result<(), Refusal> {
    w.run(|e, cx| e.consume_mock_token(cx, GROUP, NAMESPACE, TOKEN, token)).result
}

#[test]
fn mock_token_is_accepted_once_across_restart() {
    let mut w = TestEngine::new();
    let (first, second) = (mock(&mut w, 1), mock(&mut w, 2));
    assert_eq!(mock(&mut w, 1), first, "the same nonce gives the same token");
    assert_eq!(consume(&mut w, &first), Ok(()));
    let again = w.run(|e, cx| e.consume_mock_token(cx, GROUP, NAMESPACE, TOKEN, &first));
    assert_eq!((again.result, again.wait), (Err(PlayerTokenConsumed), w.engine.last_lsn()));
    w.restart();
    assert_eq!(consume(&mut w, &first), Err(PlayerTokenConsumed));
    assert_eq!(consume(&mut w, &second), Ok(()));
}

#[test]
fn mock_token_belongs_to_one_development_token() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = mock(&mut w, 1);
    let other = w.run(|e, cx| e.consume_mock_token(cx, GROUP, NAMESPACE, Id([0x32; 16]), &token));
    assert_eq!((other.result, other.wait), (Err(PlayerTokenInvalid), 0));
    assert_eq!(
        w.run(|e, cx| e.consume_mock_token(cx, GROUP, OTHER_NAMESPACE, TOKEN, &token)).result,
        Err(PlayerTokenInvalid)
    );
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenInvalid), "no real lobby takes it");
    let real = w.join(lobby).unwrap();
    assert_eq!(consume(&mut w, &real), Err(PlayerTokenInvalid), "a real player is not a mock");
    assert_eq!(consume(&mut w, &token), Ok(()));
}

/// Signs and consumes mock tokens `first..` of a group until `count` are used or the engine refuses one.
///
/// Returns the used tokens, and the refusal.
fn consume_many(
    engine: &mut Engine,
    now: Ms,
    (group, namespace): (Id, Id),
    count: u64,
) -> (Vec<String>, Option<Refusal>) {
    let mut events = EventBuffer::default();
    let mut cx = Context { now, credit: Credit::UNLIMITED, events: &mut events };
    let mut used = Vec::new();
    for number in 0..count {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        let token = engine.mock_player_token(&mut cx, namespace, TOKEN, &nonce);
        match engine.consume_mock_token(&mut cx, group, namespace, TOKEN, &token).result {
            Ok(()) => used.push(token),
            Err(refusal) => return (used, Some(refusal)),
        }
    }
    (used, None)
}

#[test]
fn mock_tokens_of_one_group_never_make_those_of_another_usable_again() {
    let mut engine = fresh_engine();
    let now = 10 * HOUR_MS;
    let (used, refusal) = consume_many(&mut engine, now, (OTHER_GROUP, OTHER_NAMESPACE), 200);
    assert_eq!((used.len(), refusal), (200, None));
    let (mine, refusal) = consume_many(&mut engine, now, (GROUP, NAMESPACE), 100_001);
    assert_eq!((mine.len(), refusal), (10_000, Some(TooManyMockPlayers { retry_after_ms: HOUR_MS })));
    let mut events = EventBuffer::default();
    let mut cx = Context { now, credit: Credit::UNLIMITED, events: &mut events };
    for (group, namespace, tokens) in [(OTHER_GROUP, OTHER_NAMESPACE, &used), (GROUP, NAMESPACE, &mine)] {
        for token in tokens {
            let repeated = engine.consume_mock_token(&mut cx, group, namespace, TOKEN, token).result;
            assert_eq!(repeated, Err(PlayerTokenConsumed));
        }
    }
    let other = engine.mock_player_token(&mut cx, OTHER_NAMESPACE, TOKEN, &[0xff; 16]);
    assert_eq!(engine.consume_mock_token(&mut cx, OTHER_GROUP, OTHER_NAMESPACE, TOKEN, &other).result, Ok(()));
    let refused = engine.mock_player_token(&mut cx, NAMESPACE, TOKEN, &[0xff; 16]);
    cx.now += 2 * HOUR_MS - 1;
    let next = engine.mock_player_token(&mut cx, NAMESPACE, TOKEN, &[0xff; 16]);
    let limited = Err(TooManyMockPlayers { retry_after_ms: 1 });
    assert_eq!(engine.consume_mock_token(&mut cx, GROUP, NAMESPACE, TOKEN, &refused).result, limited);
    cx.now += 1;
    assert_eq!(engine.consume_mock_token(&mut cx, GROUP, NAMESPACE, TOKEN, &next).result, Ok(()));
}

#[test]
fn expired_mock_token_is_never_accepted() {
    let mut w = TestEngine::new();
    w.now = 10 * HOUR_MS;
    let (used, unused) = (mock(&mut w, 1), mock(&mut w, 2));
    consume(&mut w, &used).unwrap();
    w.pass(2 * HOUR_MS - 1);
    assert_eq!(consume(&mut w, &used), Err(PlayerTokenConsumed));
    w.pass(1);
    assert_eq!(consume(&mut w, &unused), Err(PlayerTokenExpired));
    let newer = mock(&mut w, 1);
    assert_eq!(consume(&mut w, &newer), Ok(()), "which forgets the old ones");
    assert_eq!(consume(&mut w, &used), Err(PlayerTokenExpired));
}

#[test]
fn rotated_key_signs_and_old_key_stays_while_in_use() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let before = w.join(lobby).unwrap();
    w.engine.add_key(2, &[7; 32]).unwrap();
    assert_eq!(w.engine.add_key(2, &[8; 32]), Err(KeyRingError::DuplicateId(2)));
    let after = w.join(lobby).unwrap();
    assert_eq!((w.connect(lobby, &before), w.connect(lobby, &after)), (Ok(()), Ok(())));
    assert_eq!(unused_keys(&mut w.engine), [], "lobby and slot name the old key");
    assert!(!w.engine.drop_key(1));
    assert!(!w.engine.drop_key(2), "it signs");
    w.detach(lobby).unwrap();
    w.pass(86_400_000 - 1);
    assert_eq!(unused_keys(&mut w.engine), [], "so does the tombstone");
    w.pass(2_000);
    assert!(!w.engine.drop_key(1), "the last search found it needed");
    assert_eq!(unused_keys(&mut w.engine), [1]);
    assert!(w.engine.drop_key(1));
    assert_eq!(w.engine.keys().ids(), [2]);
    assert!(w.join(lobby).is_err());
    let lobby = w.lobby(|_| {});
    assert!(w.join(lobby).is_ok());
}

#[test]
fn recall_returns_the_stored_response_only() {
    let mut w = TestEngine::new();
    let recall = |w: &mut TestEngine, number| w.run(|e, cx| e.recall_admission(cx, &key(number).unwrap()));
    assert_eq!(recall(&mut w, 1), CommandOutcome { result: Ok(None), wait: 0 });
    let lobby = w.lobby(|c| c.idempotency = key(3));
    let found = w.find_with(|c| (c.party_size, c.idempotency) = (2, key(1)));
    let recalled = recall(&mut w, 1);
    assert_eq!((recalled.result, recalled.wait), (found.result.map(Some), w.engine.lobby_lsn(lobby)));
    let reused = same_key_other_message(1).unwrap();
    let reused = w.run(|e, cx| e.recall_admission(cx, &reused));
    assert_eq!((reused.result, reused.wait), (Err(IdempotencyKeyReused), w.engine.lobby_lsn(lobby)));
    let attached = w.run(|e, cx| e.recall_attach(cx, &key(3).unwrap()));
    assert_eq!(attached.result.unwrap().unwrap().lobby, lobby);
    assert_eq!(w.run(|e, cx| e.recall_attach(cx, &key(4).unwrap())).result, Ok(None));
    w.detach(lobby).unwrap();
    assert_eq!(recall(&mut w, 1).result, Err(LobbyStopped));
    assert_eq!(w.run(|e, cx| e.recall_attach(cx, &key(3).unwrap())).result, Err(LobbyStopped));
}

#[test]
fn recalled_hold_is_shared() {
    let mut w = TestEngine::new();
    let starting = w.starting(|_| {});
    let held = hold(w.find_with(|c| c.idempotency = key(1)).result.unwrap());
    let recalled = w.run(|e, cx| e.recall_admission(cx, &key(1).unwrap()));
    assert_eq!(recalled.result, Ok(Some(Admission::Hold(held))));
    w.run(|e, cx| e.release_hold(cx, held));
    assert_eq!(w.players(starting), [1, 0, 0, 0]);
    w.run(|e, cx| e.release_hold(cx, held));
    assert_eq!(w.players(starting), [0; 4]);
}

#[test]
fn damaged_image_never_panics() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.join_with(lobby, |c| (c.party_size, c.channels) = (3, &[[1; 16], [2; 16]])).result.unwrap();
    for source in 1..4 {
        w.run(|e, cx| e.record_captcha_pass(cx, source)).result.unwrap();
        w.run(|e, cx| e.count_captcha_request(cx, source));
    }
    let token = mock(&mut w, 1);
    consume(&mut w, &token).unwrap();
    let image = image_of(&w.engine);
    for len in 0..image.len() {
        assert!(fresh_engine().load_image(&image[..len]).is_err(), "{len}");
    }
    for at in 0..image.len() {
        for change in [0x01, 0x81, 0xff] {
            let mut damaged = image.clone();
            damaged[at] ^= change;
            let mut engine = fresh_engine();
            if engine.load_image(&damaged).is_err() {
                continue;
            }
            engine.finish_recovery(w.now);
            let mut events = EventBuffer::default();
            let mut cx = Context { now: w.now, credit: Credit::UNLIMITED, events: &mut events };
            for channel in [[1; 16], [2; 16]] {
                let _ = engine.channel_events(&mut cx, &channel);
            }
            let _ = engine.record_captcha_pass(&mut cx, 1);
            let _ = unused_keys(&mut engine);
        }
    }
}
