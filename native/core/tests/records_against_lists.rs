//! Channels, captcha passes and mock tokens against plain lists, in random sequences with restarts.

#![allow(clippy::unwrap_used)]

mod test_engine;
use std::collections::BTreeMap;

use test_engine::*;

use hosting_core::*;

const SEQUENCES: u64 = 60;
const STEPS: usize = 160;
const DAY_MS: u64 = 86_400_000;

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 20) % end
    }
}

struct Told {
    channel: ChannelId,
    lobby: Id,
    token: String,
    until: Ms,
}

#[derive(Default)]
struct Naive {
    told: Vec<Told>,
    lobbies: Vec<(Id, u64)>,
    holds: BTreeMap<HoldId, (Id, Vec<ChannelId>)>,
    standings: BTreeMap<Source, (Ms, u32)>,
    mocks: Vec<(String, Ms, bool)>,
}

impl Naive {
    fn tell(&mut self, now: Ms, channels: &[ChannelId], placed: &Reservation) {
        let ttl_ms = self.lobbies.iter().find(|(id, _)| *id == placed.lobby).unwrap().1;
        for (channel, token) in channels.iter().zip(&placed.tokens[1..]) {
            let (lobby, token, until) = (placed.lobby, token.clone(), now + ttl_ms);
            self.told.push(Told { channel: *channel, lobby, token, until });
        }
    }

    fn of(&self, now: Ms, channel: ChannelId) -> Vec<(Id, String)> {
        let is_live = |told: &&Told| self.lobbies.iter().any(|(id, _)| *id == told.lobby);
        let known = self.told.iter().filter(|told| told.channel == channel && told.until > now).filter(is_live);
        known.map(|told| (told.lobby, told.token.clone())).collect()
    }
}

fn some_channels(dice: &mut Dice, most: u64) -> Vec<ChannelId> {
    (0..dice.below(most + 1)).map(|_| [dice.below(5) as u8; 16]).collect()
}

fn place(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice) {
    let party_size = 1 + dice.below(4) as u32;
    let channels = some_channels(dice, u64::from(party_size) - 1);
    let at = dice.below(naive.lobbies.len().max(1) as u64) as usize;
    let Some((lobby, _)) = naive.lobbies.get(at).copied() else { return };
    let answer = if dice.below(2) == 0 {
        w.join_with(lobby, |c| (c.party_size, c.channels) = (party_size, &channels))
    } else {
        w.find_with(|c| (c.party_size, c.channels) = (party_size, &channels))
    };
    match answer.result {
        Ok(Admission::Reserved(placed)) => naive.tell(w.now, &channels, &placed),
        Ok(Admission::Held(hold)) => {
            let lobby = w.engine.lobby_of_hold(hold).unwrap();
            naive.holds.insert(hold, (lobby, channels));
        }
        Err(_) => {}
    }
}

fn settle(w: &mut TestEngine, naive: &mut Naive) {
    for resolved in w.resolved() {
        let Some((_, channels)) = naive.holds.remove(&resolved.hold) else { continue };
        if let Ok(placed) = resolved.answer.result {
            naive.tell(w.now, &channels, &placed);
        }
    }
}

fn step(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice) {
    match dice.below(20) {
        0 | 1 => {
            let ttl_ms = [5_000, 120_000, 3_600_000][dice.below(3) as usize];
            let lobby = w.starting(|c| c.player_token_ttl_ms = ttl_ms);
            naive.lobbies.push((lobby, ttl_ms));
        }
        2 | 3 if !naive.lobbies.is_empty() => {
            let (lobby, _) = naive.lobbies[dice.below(naive.lobbies.len() as u64) as usize];
            w.ready(lobby).unwrap();
            settle(w, naive);
        }
        4 if dice.below(3) == 0 && !naive.lobbies.is_empty() => {
            let (lobby, _) = naive.lobbies.remove(dice.below(naive.lobbies.len() as u64) as usize);
            assert_eq!(w.detach(lobby), Ok(true));
            settle(w, naive);
        }
        5 if !naive.holds.is_empty() => {
            let hold = *naive.holds.keys().next().unwrap();
            naive.holds.remove(&hold);
            w.run(|e, cx| e.release_hold(cx, hold));
        }
        6..=10 => place(w, naive, dice),
        11 => {
            let source = 1 + dice.below(3);
            w.run(|e, cx| e.record_captcha_pass(cx, source)).result.unwrap();
            naive.standings.insert(source, (w.now, 0));
        }
        12 | 13 => {
            let source = 1 + dice.below(3);
            w.run(|e, cx| e.count_captcha_request(cx, source));
            naive.standings.entry(source).and_modify(|known| known.1 += 1);
        }
        14 => {
            let nonce = [dice.below(256) as u8; 16];
            let token = w.run(|e, cx| e.mock_player_token(cx, NAMESPACE, VERSION, &nonce));
            if naive.mocks.iter().all(|(known, ..)| *known != token) {
                naive.mocks.push((token, w.now, false));
            }
        }
        15 if !naive.mocks.is_empty() => consume(w, naive, dice),
        16 => restart(w, naive),
        _ => pass(w, naive, dice),
    }
}

fn consume(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice) {
    let at = dice.below(naive.mocks.len() as u64) as usize;
    let (token, made_at, is_used) = &mut naive.mocks[at];
    let answer = w.run(|e, cx| e.consume_mock_token(cx, NAMESPACE, VERSION, token)).result;
    let hours = w.now / 3_600_000 - *made_at / 3_600_000;
    let expected = match (hours, *is_used) {
        (2.., _) => Err(Refusal::PlayerTokenExpired),
        (_, true) => Err(Refusal::PlayerTokenConsumed),
        (_, false) => Ok(()),
    };
    assert_eq!(answer, expected);
    *is_used |= answer.is_ok();
}

fn restart(w: &mut TestEngine, naive: &mut Naive) {
    let mut image = Vec::new();
    w.replica.write_image(&mut |bytes| image.extend_from_slice(bytes));
    let hash = w.engine.durable_hash();
    let mut engine = fresh_engine();
    engine.load_image(&image).unwrap();
    assert_eq!(engine.durable_hash(), hash);
    engine.finish_recovery(w.now);
    assert_eq!(engine.durable_hash(), hash);
    w.engine = engine;
    naive.holds.clear();
}

fn pass(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice) {
    let ms = [1, 700, 5_000, 60_000, 300_000, 2_000_000, DAY_MS / 2][dice.below(7) as usize];
    if dice.below(2) == 0 {
        w.pass(ms)
    } else {
        w.pass_unnoticed(ms)
    };
    w.run(|e, cx| while e.expire_due(cx) > 0 {});
    settle(w, naive);
    naive.lobbies.retain(|(lobby, _)| w.engine.lobby(*lobby).is_some());
}

fn compare(w: &mut TestEngine, naive: &Naive) {
    for number in 0..5u8 {
        let read = w.run(|e, cx| e.channel_events(cx, &[number; 16])).result.unwrap();
        let read: Vec<(Id, String)> = read.into_iter().map(|event| (event.lobby, event.token)).collect();
        assert_eq!(read, naive.of(w.now, [number; 16]));
    }
    for source in 1..4 {
        let known = w.run(|e, cx| e.captcha_status(cx, source));
        let expected = naive.standings.get(&source).filter(|(at, _)| w.now - at < DAY_MS / 2);
        let expected = expected.map_or((None, 0), |(at, requests)| (Some(w.now - at), *requests));
        assert_eq!((known.passed_ago_ms, known.requests_since), expected);
    }
}

#[test]
fn channels_captcha_and_mock_tokens_match_plain_lists() {
    let (mut told, mut passed, mut used) = (0, 0, 0);
    for seed in 1..=SEQUENCES {
        let (mut w, mut naive, mut dice) =
            (TestEngine::new(), Naive::default(), Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for _ in 0..STEPS {
            step(&mut w, &mut naive, &mut dice);
            compare(&mut w, &naive);
        }
        told += naive.told.len();
        passed += naive.standings.len();
        used += naive.mocks.iter().filter(|(.., is_used)| *is_used).count();
    }
    assert!(told > 500 && passed > 100 && used > 50, "exposure too little: {told}, {passed}, {used}");
}
