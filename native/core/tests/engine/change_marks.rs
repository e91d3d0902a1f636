//! Marks of the changes that readers follow between commands.

use hosting_core::*;

use crate::test_engine::*;

const MINA: ChannelId = [0xa1; 16];
const SERVER: Id = Id([7; 16]);

/// Runs commands, and returns whether a reader has something new to fetch.
fn is_news(w: &mut TestEngine, commands: impl FnOnce(&mut TestEngine)) -> bool {
    let before = w.engine.change_marks();
    commands(w);
    w.engine.change_marks().is_newer(before)
}

fn read_all(w: &mut TestEngine) {
    w.engine.take_resolved_holds();
    w.engine.take_notified_channels(Lsn::MAX);
    w.engine.take_changed_idle_groups();
    w.engine.presence_since(0);
}

#[test]
fn changes_that_readers_follow_are_news() {
    let mut w = TestEngine::new();
    let starting = w.starting(|_| {});
    w.find_with(|c| c.party_size = 2).result.unwrap();
    read_all(&mut w);
    assert!(is_news(&mut w, |w| w.ready(starting).unwrap()), "the hold ended, and the lobby has a fact");
    read_all(&mut w);
    let party = |w: &mut TestEngine| w.join_with(starting, |c| (c.party_size, c.channels) = (2, &[MINA]));
    assert!(is_news(&mut w, |w| drop(party(w).result.unwrap())), "a channel has a token");
    assert!(is_news(&mut w, |w| w.close(starting, true).unwrap()));
    let lease = LeaseRequest { owner: SERVER, namespace: NAMESPACE, region: "local", ports: &ONE_PORT, random: 1 };
    assert!(is_news(&mut w, |w| drop(w.run(|e, cx| e.lease_ports(cx, &lease)).result.unwrap())));
    assert!(is_news(&mut w, |w| assert!(w.run(|e, cx| e.end_lease(cx, SERVER)).result.unwrap())));
    assert!(is_news(&mut w, |w| assert!(w.start_idle(|_| {}).result.is_ok())));
    assert!(is_news(&mut w, |w| assert!(w.detach(starting).unwrap())));
}

#[test]
fn players_are_news_once_until_the_next_read() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct) = (8, 8));
    read_all(&mut w);
    assert!(is_news(&mut w, |w| drop(w.join(lobby).unwrap())), "the lobby is no longer idle");
    let first = w.join(lobby).unwrap();
    assert!(is_news(&mut w, |w| w.connect(lobby, &first).unwrap()), "counts changed");
    for _ in 0..3 {
        let token = w.join(lobby).unwrap();
        assert!(!is_news(&mut w, |w| w.connect(lobby, &token).unwrap()));
        assert!(!is_news(&mut w, |w| w.heartbeat(lobby, None).unwrap()));
    }
    read_all(&mut w);
    assert!(!is_news(&mut w, |w| drop(w.join(lobby).unwrap())), "a lobby with players stays one");
    assert!(is_news(&mut w, |w| w.disconnect(lobby, &first, None).unwrap()));
}

#[test]
fn reads_are_no_news() {
    let mut w = TestEngine::new();
    w.lobby(|_| {});
    assert!(!is_news(&mut w, read_all));
    let last = w.engine.last_lsn();
    assert!(!is_news(&mut w, |w| w.run(|e, cx| e.acknowledge_facts(cx, last))));
}
