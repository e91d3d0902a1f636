//! What time does by itself: places expire, lobbies fall silent and end, old entries and tombstones are forgotten.
//! Without credit it is put off: nobody gets the place, and nothing is told that is not so.

use super::{Class, Engine, credit_of, has_credit};
use crate::command::{Context, EndReason, Ms};
use crate::deadline::Step;
use crate::event::{Event, Place, cost};
use crate::slot::{End, SlotState};
use crate::time::FORGET_DELAY_MS;

/// How many entries, and tombstones, one event drops.
const FORGOTTEN_AT_ONCE: usize = 4_096;

/// How many steps of the wheels a command takes before it gives a new place.
const DRAINED_AT_ONCE: u64 = 1_024;

impl Engine {
    /// Expires what is due, a bounded number of steps per call; returns how many places, lobbies and batches of old
    /// entries ended, and at least 1 when it stopped for the bound. 0: nothing is due, or there is no credit for it.
    pub fn advance(&mut self, cx: &mut Context<'_>) -> u32 {
        self.begin(cx);
        let steps = self.config.advance_steps.max(1);
        let ended = self.drain(cx, steps);
        self.order_dirty();
        ended + self.forget(cx)
    }

    /// When [`Engine::advance`] has something to do: never later than the first deadline, possibly earlier.
    pub fn next_deadline(&self) -> Option<Ms> {
        let times = [self.place_wheel.next_work(), self.lobby_wheel.next_work(), self.next_forgotten()];
        times.into_iter().flatten().min()
    }

    /// Expires a part of what is due before a new place is given, and leaves room for the place's own event of `cost`.
    /// True when something ended: then more may be due. After a long outage a million places may be; no command waits
    /// for all of them, only for as many as can change its answer.
    pub(super) fn drain_part(&mut self, cx: &mut Context<'_>, cost: u64) -> bool {
        let room = credit_of(cx, Class::NewPlace).saturating_sub(cost) / cost::PLACE_ENDED;
        self.drain(cx, room.min(DRAINED_AT_ONCE) as u32) > 0
    }

    /// Takes at most so many steps of the two wheels; returns how many places and lobbies ended, at least 1 when the
    /// steps ran out.
    pub(super) fn drain(&mut self, cx: &mut Context<'_>, steps: u32) -> u32 {
        let now = self.time.now();
        let mut ended = 0;
        let mut left = steps;
        while left > 0 {
            match self.lobby_wheel.step(&mut self.lobbies, now) {
                Step::Idle => break,
                Step::Moved => {}
                Step::Due(number) => match self.fire_lobby(cx, number) {
                    Some(has_ended) => ended += u32::from(has_ended),
                    None => break,
                },
            }
            left -= 1;
        }
        while left > 0 {
            match self.place_wheel.step(&mut self.slots, now) {
                Step::Idle => break,
                Step::Moved => {}
                Step::Due(at) => {
                    if !self.expire_place(cx, at) {
                        break;
                    }
                    ended += 1;
                }
            }
            left -= 1;
        }
        if left == 0 && steps > 0 { ended.max(1) } else { ended }
    }

    /// Ends a reserved or kept use whose deadline has passed; false without credit.
    pub(super) fn expire_place(&mut self, cx: &mut Context<'_>, at: u32) -> bool {
        if !has_credit(cx, Class::ExistingPlace, cost::PLACE_ENDED) {
            return false;
        }
        let slot = self.slots.get(at);
        debug_assert!(slot.time <= self.time.now(), "nothing expires early");
        let end = if slot.state == SlotState::Reserved { End::Expired } else { End::Consumed };
        let place = Place { lobby: slot.lobby, slot: slot.number, generation: slot.generation };
        self.emit(cx, &Event::PlaceEnded { place, at: 0, end, stamp: None });
        self.audit(place.lobby);
        true
    }

    /// Does what is due of a lobby itself; true when it ended, None when its end is put off for want of credit.
    pub(super) fn fire_lobby(&mut self, cx: &mut Context<'_>, number: u32) -> Option<bool> {
        let now = self.time.now();
        let lobby = self.lobbies.live_mut(number)?;
        let start_by = lobby.start_end().unwrap_or(Ms::MAX);
        let silent_by = lobby.silent_end().unwrap_or(Ms::MAX);
        if start_by.min(silent_by) <= now {
            let reason = if start_by <= silent_by { EndReason::StartTimeout } else { EndReason::Silent };
            return self.end_lobby(cx, number, reason, None).then_some(true);
        }
        self.hide_silent(number);
        self.arm_lobby(number);
        Some(false)
    }

    /// From now on nobody finds it, if it is silent for longer than its timeout; true when that is new. Takes no
    /// credit, so it is not put off with what is due besides.
    pub(super) fn hide_silent(&mut self, number: u32) -> bool {
        let now = self.time.now();
        let Some(lobby) = self.lobbies.live_mut(number) else { return false };
        if lobby.is_silent || lobby.silent_from().is_none_or(|from| from > now) {
            return false;
        }
        lobby.is_silent = true;
        self.follow_lobby(number);
        true
    }

    /// Drops entries and tombstones whose time has passed, some at a time.
    fn forget(&mut self, cx: &mut Context<'_>) -> u32 {
        let now = self.time.now();
        let is_due = self.next_forgotten().is_some_and(|time| time <= now);
        if !is_due || !has_credit(cx, Class::ExistingPlace, cost::FORGOTTEN) {
            return 0;
        }
        let oldest_kept = |age_ms: u64, ahead: Option<Ms>, before: Ms| {
            now.checked_sub(age_ms).map_or(before, |until| ahead.map_or(before, |ahead| ahead.min(until)).max(before))
        };
        let entries = self.entries.queued_at(FORGOTTEN_AT_ONCE);
        let lobbies = self.lobbies.ended_at(self.lobbies_up_to, FORGOTTEN_AT_ONCE);
        let event = Event::Forgotten {
            entries_up_to: oldest_kept(self.config.idempotency_ms, entries, self.entries_up_to),
            lobbies_up_to: oldest_kept(self.config.tombstone_ms, lobbies, self.lobbies_up_to),
        };
        self.emit(cx, &event);
        1
    }

    fn next_forgotten(&self) -> Option<Ms> {
        let entry = self.entries.queued_at(0).map(|at| at + self.config.idempotency_ms + FORGET_DELAY_MS);
        let lobby =
            self.lobbies.ended_at(self.lobbies_up_to, 0).map(|at| at + self.config.tombstone_ms + FORGET_DELAY_MS);
        entry.into_iter().chain(lobby).min()
    }
}
