//! Event channels: delivery of party tokens to the other members.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

const MINA: ChannelId = [0xa1; 16];
const OLE: ChannelId = [0xa2; 16];

fn read(w: &mut TestEngine, channel: ChannelId) -> CommandOutcome<Vec<ChannelEvent>> {
    w.run(|e, cx| e.channel_events(cx, &channel))
}

fn tokens(w: &mut TestEngine, channel: ChannelId) -> Vec<(Id, String)> {
    read(w, channel).result.unwrap().into_iter().map(|event| (event.lobby, event.token)).collect()
}

#[test]
fn each_channel_gets_its_own_party_token() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.engine.set_wall_clock(1_700_000_000_123);
    let found = w.find_with(|c| (c.party_size, c.channels) = (3, &[MINA, OLE]));
    let party = reservation(found.result.unwrap()).tokens;
    assert_eq!(tokens(&mut w, MINA), [(lobby, party[1].clone())]);
    assert_eq!(tokens(&mut w, OLE), [(lobby, party[2].clone())]);
    let event = read(&mut w, OLE).result.unwrap().remove(0);
    assert_eq!((event.ts_ms, event.lsn), (1_700_000_000_123, w.engine.last_lsn()));
    assert_eq!(tokens(&mut w, [9; 16]), []);
    assert_eq!(w.connect(lobby, &party[2]), Ok(()));
}

#[test]
fn surplus_channel_gets_no_token() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.join_with(lobby, |c| c.channels = &[MINA]).result.unwrap();
    assert_eq!(w.written, 1);
    assert_eq!(tokens(&mut w, MINA), []);
    w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[MINA, OLE])).result.unwrap();
    assert_eq!((tokens(&mut w, MINA).len(), tokens(&mut w, OLE).len()), (1, 0));
}

#[test]
fn hold_delivers_when_its_lobby_is_ready() {
    let mut w = TestEngine::new();
    let starting = w.starting(|_| {});
    let held = hold(w.find_with(|c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap());
    let released_hold = hold(w.find_with(|c| (c.party_size, c.channels) = (2, &[OLE])).result.unwrap());
    w.run(|e, cx| e.release_hold(cx, released_hold));
    assert_eq!(tokens(&mut w, MINA), []);
    assert_eq!(w.engine.take_notified_channels(Lsn::MAX), [] as [ChannelId; 0]);
    w.ready(starting).unwrap();
    let resolved = w.resolved();
    assert_eq!(resolved[0].hold, held);
    let party = resolved[0].outcome.result.clone().unwrap().tokens;
    assert_eq!(tokens(&mut w, MINA), [(starting, party[1].clone())]);
    assert_eq!(tokens(&mut w, OLE), []);
    assert_eq!(w.engine.take_notified_channels(Lsn::MAX), [MINA]);
}

#[test]
fn failed_hold_delivers_nothing() {
    let mut w = TestEngine::new();
    let starting = w.starting(|_| {});
    w.find_with(|c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap();
    w.detach(starting).unwrap();
    assert_eq!(tokens(&mut w, MINA), []);
}

#[test]
fn channel_keeps_a_token_until_it_expires() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let joined = w.join_with(lobby, |c| (c.party_size, c.channels) = (3, &[MINA, OLE]));
    let party = reservation(joined.result.unwrap()).tokens;
    w.connect(lobby, &party[1]).unwrap();
    w.disconnect(lobby, &party[2], None).unwrap();
    w.join_with(lobby, |_| {}).result.unwrap();
    w.pass(TTL_MS - 1);
    assert_eq!(tokens(&mut w, MINA), [(lobby, party[1].clone())]);
    assert_eq!(tokens(&mut w, OLE), [(lobby, party[2].clone())], "byte for byte, also after the slot went on");
    w.pass_unnoticed(1);
    assert_eq!(tokens(&mut w, MINA), []);
    assert_eq!(tokens(&mut w, OLE), []);
}

#[test]
fn ended_lobby_removes_its_tokens_from_channels() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap();
    w.pass_unnoticed(3_000);
    let answer = read(&mut w, MINA);
    assert_eq!((answer.result, answer.wait, w.written), (Ok(vec![]), w.engine.last_lsn(), 1), "it ended by silence");
}

#[test]
fn channel_read_waits_for_the_last_lobby_event() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|_| {});
    let placed = w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[MINA]));
    assert_eq!(placed.wait, w.engine.last_lsn(), "the caller's answer waits for the delivery too");
    let sent = w.engine.last_lsn();
    w.join(other).unwrap();
    assert_eq!(read(&mut w, MINA).wait, sent);
    w.close(lobby, true).unwrap();
    assert_eq!(read(&mut w, MINA).wait, w.engine.last_lsn());
    assert_eq!(read(&mut w, OLE).wait, 0, "no request named it");
}

#[test]
fn notified_channels_are_durable_and_reported_once() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap();
    let first = w.engine.last_lsn();
    w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[OLE])).result.unwrap();
    assert_eq!(w.engine.take_notified_channels(first - 1), [] as [ChannelId; 0]);
    assert_eq!(w.engine.take_notified_channels(first), [MINA]);
    assert_eq!(w.engine.take_notified_channels(Lsn::MAX), [OLE]);
    assert_eq!(w.engine.take_notified_channels(Lsn::MAX), [] as [ChannelId; 0]);
}

#[test]
fn repeated_find_delivers_once() {
    let mut w = TestEngine::new();
    w.lobby(|_| {});
    for _ in 0..3 {
        w.find_with(|c| (c.party_size, c.channels, c.idempotency) = (2, &[MINA], key(1))).result.unwrap();
        assert_eq!(tokens(&mut w, MINA).len(), 1);
    }
}

#[test]
fn tokens_of_ended_lobbies_keep_their_namespace_across_restart() {
    const IMAGE_VERSION: std::ops::Range<usize> = 8..10;
    let mut w = TestEngine::new();
    let (first, second) = (w.lobby(|_| {}), w.lobby(|c| c.namespace = OTHER_NAMESPACE));
    w.join_with(first, |c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap();
    let join = |c: &mut Join<'_>| (c.namespace, c.party_size, c.channels) = (OTHER_NAMESPACE, 2, &[OLE]);
    w.join_with(second, join).result.unwrap();
    assert_eq!(image_of(&w.engine)[IMAGE_VERSION], [3, 0]);
    w.run(|e, cx| e.end(cx, second, EndReason::Removed)).result.unwrap();
    assert_eq!(image_of(&w.engine)[IMAGE_VERSION], [4, 0], "the namespace is not that of a live lobby");
    w.restart();
    assert_eq!((tokens(&mut w, MINA).len(), tokens(&mut w, OLE).len()), (1, 0));
    w.pass(TTL_MS);
    w.join_with(first, |c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap();
    assert_eq!(image_of(&w.engine)[IMAGE_VERSION], [3, 0]);
}

#[test]
fn deliveries_survive_restart_and_key_rotation() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap();
    let before = tokens(&mut w, MINA);
    w.restart();
    assert_eq!(tokens(&mut w, MINA), before);
    w.engine.add_key(2, &[9; 32]).unwrap();
    w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap();
    let both = tokens(&mut w, MINA);
    assert_eq!(both[0], before[0], "oldest first, under the key that signed it");
    assert_eq!(both.len(), 2);
    assert_eq!(w.connect(lobby, &both[1].1), Ok(()));
}

#[test]
fn key_stays_in_use_while_a_channel_needs_it() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let old = w.engine.keys().current_id();
    let party = reservation(w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[MINA])).result.unwrap()).tokens;
    w.engine.add_key(2, &[9; 32]).unwrap();
    w.detach(listed(&w.engine, NAMESPACE, VERSION)[0].id).unwrap();
    w.pass(86_400_000 + 5_000);
    assert_eq!(unused_keys(&mut w.engine), [old]);
    assert!(w.engine.drop_key(old));
    assert_eq!(w.connect(lobby, &party[1]), Err(LobbyTokenExpired));
}

#[test]
fn party_credit_includes_channel_events() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (64, 64, 64));
    let channels: Vec<ChannelId> = (0..63).map(|number| [number; 16]).collect();
    for total in 0..2_000 {
        w.credit = Credit { total, reserve: 0, largest: u64::MAX };
        // The test engine checks that a command writes no more than its credit.
        let before = w.engine.durable_hash();
        match w.join_with(lobby, |c| (c.party_size, c.channels) = (64, &channels)).result {
            Err(StorageFull) => assert_eq!(w.engine.durable_hash(), before),
            other => {
                assert_eq!(reservation(other.unwrap()).tokens.len(), 64);
                w.credit = Credit::UNLIMITED;
                assert_eq!(tokens(&mut w, channels[62]).len(), 1);
                return;
            }
        }
    }
    panic!("never enough");
}
