//! Channels, captcha passes and mock tokens against plain lists, in random sequences with restarts.

use std::collections::BTreeMap;

use hosting_core::*;

use crate::random::Random;
use crate::test_engine::*;

const SEQUENCES: u64 = 60;
const STEPS: usize = 160;
const DAY_MS: u64 = 86_400_000;

struct Delivery {
    channel: ChannelId,
    lobby: Id,
    token: String,
    until: Ms,
}

#[derive(Default)]
struct ListModel {
    deliveries: Vec<Delivery>,
    lobbies: Vec<(Id, u64)>,
    holds: BTreeMap<HoldId, (Id, Vec<ChannelId>)>,
    captcha_passes: BTreeMap<Source, (Ms, u32)>,
    mocks: Vec<(String, Ms, bool)>,
}

impl ListModel {
    fn deliver(&mut self, now: Ms, channels: &[ChannelId], placed: &Reservation) {
        let ttl_ms = self.lobbies.iter().find(|(id, _)| *id == placed.lobby).unwrap().1;
        for (channel, token) in channels.iter().zip(&placed.tokens[1..]) {
            let (lobby, token, until) = (placed.lobby, token.clone(), now + ttl_ms);
            self.deliveries.push(Delivery { channel: *channel, lobby, token, until });
        }
    }

    fn of(&self, now: Ms, channel: ChannelId) -> Vec<(Id, String)> {
        let is_live = |deliveries: &&Delivery| self.lobbies.iter().any(|(id, _)| *id == deliveries.lobby);
        let known = self
            .deliveries
            .iter()
            .filter(|deliveries| deliveries.channel == channel && deliveries.until > now)
            .filter(is_live);
        known.map(|deliveries| (deliveries.lobby, deliveries.token.clone())).collect()
    }
}

fn some_channels(rng: &mut Random, most: u64) -> Vec<ChannelId> {
    (0..rng.below(most + 1)).map(|_| [rng.below(5) as u8; 16]).collect()
}

fn place(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random) {
    let party_size = 1 + rng.below(4) as u32;
    let channels = some_channels(rng, u64::from(party_size) - 1);
    let at = rng.below(model.lobbies.len().max(1) as u64) as usize;
    let Some((lobby, _)) = model.lobbies.get(at).copied() else { return };
    let answer = if rng.below(2) == 0 {
        w.join_with(lobby, |c| (c.party_size, c.channels) = (party_size, &channels))
    } else {
        w.find_with(|c| (c.party_size, c.channels) = (party_size, &channels))
    };
    match answer.result {
        Ok(Admission::Reserved(placed)) => model.deliver(w.now, &channels, &placed),
        Ok(Admission::Hold(hold)) => {
            let lobby = w.engine.lobby_of_hold(hold).unwrap();
            model.holds.insert(hold, (lobby, channels));
        }
        Err(_) => {}
    }
}

fn settle(w: &mut TestEngine, model: &mut ListModel) {
    for resolved in w.resolved() {
        let Some((_, channels)) = model.holds.remove(&resolved.hold) else { continue };
        if let Ok(placed) = resolved.outcome.result {
            model.deliver(w.now, &channels, &placed);
        }
    }
}

fn step(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random) {
    match rng.below(20) {
        0 | 1 => {
            let ttl_ms = [5_000, 120_000, 3_600_000][rng.below(3) as usize];
            let lobby = w.starting(|c| c.player_token_ttl_ms = ttl_ms);
            model.lobbies.push((lobby, ttl_ms));
        }
        2 | 3 if !model.lobbies.is_empty() => {
            let (lobby, _) = model.lobbies[rng.below(model.lobbies.len() as u64) as usize];
            w.ready(lobby).unwrap();
            settle(w, model);
        }
        4 if rng.below(3) == 0 && !model.lobbies.is_empty() => {
            let (lobby, _) = model.lobbies.remove(rng.below(model.lobbies.len() as u64) as usize);
            assert_eq!(w.detach(lobby), Ok(true));
            settle(w, model);
        }
        5 if !model.holds.is_empty() => {
            let hold = *model.holds.keys().next().unwrap();
            model.holds.remove(&hold);
            w.run(|e, cx| e.release_hold(cx, hold));
        }
        6..=10 => place(w, model, rng),
        11 => {
            let source = 1 + rng.below(3);
            w.run(|e, cx| e.record_captcha_pass(cx, source)).result.unwrap();
            model.captcha_passes.insert(source, (w.now, 0));
        }
        12 | 13 => {
            let source = 1 + rng.below(3);
            w.run(|e, cx| e.count_captcha_request(cx, source));
            model.captcha_passes.entry(source).and_modify(|known| known.1 += 1);
        }
        14 => {
            let nonce = [rng.below(256) as u8; 16];
            let token = w.run(|e, cx| e.mock_player_token(cx, NAMESPACE, VERSION, &nonce));
            if model.mocks.iter().all(|(known, ..)| *known != token) {
                model.mocks.push((token, w.now, false));
            }
        }
        15 if !model.mocks.is_empty() => consume(w, model, rng),
        16 => restart(w, model),
        _ => pass(w, model, rng),
    }
}

fn consume(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random) {
    let at = rng.below(model.mocks.len() as u64) as usize;
    let (token, made_at, is_used) = &mut model.mocks[at];
    let answer = w.run(|e, cx| e.consume_mock_token(cx, NAMESPACE, NAMESPACE, VERSION, token)).result;
    let hours = w.now / 3_600_000 - *made_at / 3_600_000;
    let expected = match (hours, *is_used) {
        (2.., _) => Err(Refusal::PlayerTokenExpired),
        (_, true) => Err(Refusal::PlayerTokenConsumed),
        (_, false) => Ok(()),
    };
    assert_eq!(answer, expected);
    *is_used |= answer.is_ok();
}

fn restart(w: &mut TestEngine, model: &mut ListModel) {
    w.restart();
    model.holds.clear();
}

fn pass(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random) {
    let ms = [1, 700, 5_000, 60_000, 300_000, 2_000_000, DAY_MS / 2][rng.below(7) as usize];
    if rng.below(2) == 0 {
        w.pass(ms)
    } else {
        w.pass_unnoticed(ms)
    };
    w.run(|e, cx| while e.expire_due(cx) > 0 {});
    settle(w, model);
    model.lobbies.retain(|(lobby, _)| w.engine.lobby(*lobby).is_some());
}

fn compare(w: &mut TestEngine, model: &ListModel) {
    for number in 0..5u8 {
        let read = w.run(|e, cx| e.channel_events(cx, &[number; 16])).result.unwrap();
        let read: Vec<(Id, String)> = read.into_iter().map(|event| (event.lobby, event.token)).collect();
        assert_eq!(read, model.of(w.now, [number; 16]));
    }
    for source in 1..4 {
        let known = w.run(|e, cx| e.captcha_status(cx, source));
        let expected = model.captcha_passes.get(&source).filter(|(at, _)| w.now - at < DAY_MS / 2);
        let expected = expected.map_or((None, 0), |(at, requests)| (Some(w.now - at), *requests));
        assert_eq!((known.passed_ago_ms, known.requests_since), expected);
    }
}

#[test]
fn channels_captcha_and_mock_tokens_match_plain_lists() {
    let (mut deliveries, mut passed, mut used) = (0, 0, 0);
    for seed in 1..=SEQUENCES {
        let (mut w, mut model, mut rng) = (TestEngine::new(), ListModel::default(), Random::new(seed));
        for _ in 0..STEPS {
            step(&mut w, &mut model, &mut rng);
            compare(&mut w, &model);
        }
        deliveries += model.deliveries.len();
        passed += model.captcha_passes.len();
        used += model.mocks.iter().filter(|(.., is_used)| *is_used).count();
    }
    assert!(deliveries > 500 && passed > 100 && used > 50, "covered too little: {deliveries}, {passed}, {used}");
}
