//! Expiry of slot uses, lobbies, old idempotency entries and tombstones.
//!
//! Expiry waits for journal credit (bytes that the journal can still accept). An overdue slot stays taken until then, but
//! every answer treats its use as ended.

use super::{CreditClass, Engine, LobbyRef, credit_of, has_credit};
use crate::command::{Context, Id, Ms};
use crate::journal_event::Event;
use crate::lobby_table::LobbyRecord;
use crate::slot::{SlotState, SlotUseEnd};
use crate::slot_use::SlotUse;
use crate::timer_wheel::WheelStep;

const MAX_DROPPED_PER_EVENT: usize = 1_024;

/// Delay before expired records are dropped, so that one event drops many of them.
const FORGET_DELAY_MS: Ms = 1_000;

/// Maximum timer steps that one command spends on expiry. The end of a lobby counts one step for each of its used slots,
/// too. A lobby ends as a whole, so a lobby with more used slots ends in a command that ends nothing else.
///
/// After a long outage a million slots may be due. Without the limit the first command would end them all, and hold the
/// engine for half a second.
pub(super) const MAX_STEPS_PER_COMMAND: u32 = 1_024;

/// Result of the handling of a lobby deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LobbyDeadline {
    Ended,
    /// The lobby stays, and its timer has the next deadline.
    Moved,
    /// The end is due, but the journal has no space for it.
    JournalFull,
    /// The end is due, but the command has not enough steps left. Answers treat the lobby as ended.
    OutOfSteps,
}

impl Engine {
    pub(super) fn begin_command(&mut self, cx: &Context<'_>) -> Ms {
        debug_assert!(self.is_live, "recovered() comes before the first command");
        self.time.observe(cx.now);
        self.expiry_steps_left = MAX_STEPS_PER_COMMAND;
        self.time.now()
    }

    /// Returns the state of a lobby, after handling its due deadlines.
    ///
    /// A lobby with a due end for which the command has no steps left is `Ended`, but its record is still live.
    pub(super) fn resolve_lobby(&mut self, cx: &mut Context<'_>, id: Id) -> LobbyRef {
        let Some(number) = self.lobbies.number_of(&self.seed, id) else { return LobbyRef::Unknown };
        let now = self.time.now();
        if self.lobbies.live(number).is_some_and(|lobby| lobby.timer_at <= now)
            && self.handle_lobby_deadline(cx, number) == LobbyDeadline::OutOfSteps
        {
            return LobbyRef::Ended(number);
        }
        match self.lobbies.get(number) {
            Some(LobbyRecord::Live(_)) => LobbyRef::Live(number),
            Some(LobbyRecord::Ended(tombstone)) if now < tombstone.ended_at + self.config.tombstone_ms => {
                LobbyRef::Ended(number)
            }
            _ => LobbyRef::Unknown,
        }
    }

    /// Expires due records, and returns the ports of gone nodes, in a bounded number of steps.
    ///
    /// Returns the number of these records and leases, but at least 1 if the steps ran out. 0 means that no record was due or
    /// that the journal is full.
    pub fn expire_due(&mut self, cx: &mut Context<'_>) -> u32 {
        self.begin_command(cx);
        let ended = self.expire_steps(cx, MAX_STEPS_PER_COMMAND);
        self.refresh_find_index();
        ended + self.drop_old_records(cx) + self.return_ports_of_gone_nodes(cx)
    }

    /// Returns the time for the next [`Engine::expire_due`]: the first deadline, or earlier for timer upkeep.
    pub fn next_deadline(&self) -> Option<Ms> {
        let timers = [self.slot_timers.next_work(), self.lobby_timers.next_work()];
        let times = timers.into_iter().chain([self.next_forgotten(), self.next_return()]);
        times.flatten().min()
    }

    /// Expires some due records, but leaves space for `cost` bytes in the journal. Returns true if any record expired.
    ///
    /// Returns false once the command has spent its steps. The rest expires in the following commands and in
    /// [`Engine::expire_due`].
    pub(super) fn expire_part(&mut self, cx: &mut Context<'_>, cost: u64) -> bool {
        let room = credit_of(cx, CreditClass::NewSlot).saturating_sub(cost) / Event::SLOT_USE_ENDED_LEN;
        self.expire_steps(cx, u32::try_from(room).unwrap_or(u32::MAX)) > 0
    }

    fn expire_steps(&mut self, cx: &mut Context<'_>, steps: u32) -> u32 {
        let now = self.time.now();
        let mut ended = 0;
        let steps_before = self.expiry_steps_left;
        let steps_kept = steps_before.saturating_sub(steps);
        while self.expiry_steps_left > steps_kept {
            match self.lobby_timers.step(&mut self.lobbies, now) {
                WheelStep::Idle => break,
                WheelStep::Advanced => self.expiry_steps_left -= 1,
                WheelStep::Due(number) => match self.handle_lobby_deadline(cx, number) {
                    LobbyDeadline::Ended => ended += 1,
                    LobbyDeadline::Moved => {}
                    LobbyDeadline::JournalFull => break,
                    LobbyDeadline::OutOfSteps => self.expiry_steps_left = 0,
                },
            }
        }
        while self.expiry_steps_left > steps_kept {
            match self.slot_timers.step(&mut self.slots, now) {
                WheelStep::Idle => break,
                WheelStep::Advanced => {}
                WheelStep::Due(at) => {
                    if !self.expire_slot_use(cx, at) {
                        break;
                    }
                    ended += 1;
                }
            }
            self.expiry_steps_left -= 1;
        }
        let have_run_out = steps_before > steps_kept && self.expiry_steps_left <= steps_kept;
        if have_run_out { ended.max(1) } else { ended }
    }

    /// Ends an overdue reserved or kept slot use. Returns false if the journal is full.
    pub(super) fn expire_slot_use(&mut self, cx: &mut Context<'_>, at: u32) -> bool {
        if !has_credit(cx, CreditClass::ExistingSlot, Event::SLOT_USE_ENDED_LEN) {
            return false;
        }
        let slot = self.slots.get(at);
        debug_assert!(slot.time <= self.time.now(), "nothing expires early");
        let end = if slot.state == SlotState::Reserved { SlotUseEnd::Expired } else { SlotUseEnd::Consumed };
        let slot_use = SlotUse { lobby: slot.lobby, slot: slot.number, generation: slot.generation };
        self.emit(cx, &Event::SlotUseEnded { slot_use, end, stamp: None });
        self.check_ledger(slot_use.lobby);
        true
    }

    /// Handles the due deadlines of a lobby, and spends steps of the command on it.
    pub(super) fn handle_lobby_deadline(&mut self, cx: &mut Context<'_>, number: u32) -> LobbyDeadline {
        let now = self.time.now();
        let Some(lobby) = self.lobbies.live_mut(number) else { return LobbyDeadline::JournalFull };
        let due_end = lobby.end_deadline().filter(|(at, _)| *at <= now);
        let steps = if due_end.is_some() { 1 + lobby.slots.used } else { 1 };
        let is_first = self.expiry_steps_left == MAX_STEPS_PER_COMMAND;
        if due_end.is_some() && steps > self.expiry_steps_left && !is_first {
            return LobbyDeadline::OutOfSteps;
        }
        if let Some((_, reason)) = due_end {
            if !self.end_lobby(cx, number, reason, None) {
                return LobbyDeadline::JournalFull;
            }
            self.expiry_steps_left = self.expiry_steps_left.saturating_sub(steps);
            return LobbyDeadline::Ended;
        }
        self.expiry_steps_left = self.expiry_steps_left.saturating_sub(steps);
        self.hide_if_silent(number);
        self.schedule_lobby_timer(number);
        LobbyDeadline::Moved
    }

    /// Hides a lobby from find if its heartbeat is overdue.
    pub(super) fn hide_if_silent(&mut self, number: u32) -> bool {
        let now = self.time.now();
        let Some(lobby) = self.lobbies.live_mut(number) else { return false };
        if lobby.is_silent || lobby.hidden_at().is_none_or(|from| from > now) {
            return false;
        }
        lobby.is_silent = true;
        self.lobby_changed(number);
        true
    }

    fn drop_old_records(&mut self, cx: &mut Context<'_>) -> u32 {
        let now = self.time.now();
        let is_due = self.next_forgotten().is_some_and(|time| time <= now);
        if !is_due || !has_credit(cx, CreditClass::ExistingSlot, Event::OLD_RECORDS_DROPPED_LEN) {
            return 0;
        }
        let oldest_kept = |age_ms: u64, ahead: Option<Ms>, before: Ms| {
            now.checked_sub(age_ms).map_or(before, |until| ahead.map_or(before, |ahead| ahead.min(until)).max(before))
        };
        let entries = self.entries.queued_at(MAX_DROPPED_PER_EVENT);
        let lobbies = self.lobbies.ended_at(self.lobbies_up_to, MAX_DROPPED_PER_EVENT);
        let expired = oldest_kept(self.config.tombstone_ms, lobbies, self.lobbies_up_to);
        let event = Event::OldRecordsDropped {
            entries_up_to: oldest_kept(self.config.idempotency_ms, entries, self.entries_up_to),
            lobbies_up_to: expired.max(self.surplus_tombstones_up_to().unwrap_or(0)),
        };
        self.emit(cx, &event);
        1
    }

    fn next_forgotten(&self) -> Option<Ms> {
        let entry = self.entries.queued_at(0).map(|at| at + self.config.idempotency_ms + FORGET_DELAY_MS);
        let lobby =
            self.lobbies.ended_at(self.lobbies_up_to, 0).map(|at| at + self.config.tombstone_ms + FORGET_DELAY_MS);
        let surplus = self.surplus_tombstones_up_to().map(|_| self.time.now());
        entry.into_iter().chain(lobby).chain(surplus).min()
    }

    /// Returns the end time up to which tombstones above the maximum number must be dropped, or None if there is no
    /// surplus.
    ///
    /// The tokens of a dropped lobby stay refused, because the engine no longer knows the lobby.
    fn surplus_tombstones_up_to(&self) -> Option<Ms> {
        let surplus = self.lobbies.tombstone_count().checked_sub(self.config.tombstones_max as usize)?;
        self.lobbies.unreferenced_tombstones_up_to(surplus.min(MAX_DROPPED_PER_EVENT))
    }
}
