//! Delivery of party tokens to event channels.

use super::expiry::LobbyDeadline;
use super::{Engine, accept};
use crate::command::{ChannelEvent, ChannelId, CommandOutcome, Context, Lsn, Ms};
use crate::journal_event::Event;
use crate::slot_use::{EncodedDeliveries, EncodedSlotUses, SlotUse};

/// Maximum length of `notified_channels`. Above it, the oldest entries are removed. `channel_events` still returns
/// their tokens.
const MAX_NOTIFIED_CHANNELS: usize = 65_536;

impl Engine {
    /// Sets the wall clock for channel events, in ms since the Unix epoch.
    pub fn set_wall_clock(&mut self, wall_ms: u64) {
        self.wall_ms = wall_ms;
    }

    /// Returns the unexpired tokens of a channel, oldest first. Tokens of ended lobbies are left out.
    pub fn channel_events(&mut self, cx: &mut Context<'_>, channel: &ChannelId) -> CommandOutcome<Vec<ChannelEvent>> {
        self.begin_command(cx);
        let now = self.time.now();
        let sent: Vec<_> = self.event_channels.tokens_of(channel, now).collect();
        let mut events = Vec::with_capacity(sent.len());
        let mut wait = 0;
        for (lsn, one) in sent {
            if let Some(lobby) = self.lobbies.live(one.lobby).filter(|lobby| lobby.timer_at <= now)
                && self.handle_lobby_deadline(cx, lobby.number) == LobbyDeadline::OutOfSteps
            {
                continue;
            }
            wait = wait.max(lsn).max(self.lobbies.lsn(one.lobby));
            // A later lobby may reuse the number of an ended one.
            let Some(lobby) = self.lobbies.live(one.lobby).filter(|lobby| lobby.created_lsn < lsn) else { continue };
            let slot_use = SlotUse { lobby: one.lobby, slot: one.slot, generation: one.generation };
            let Some(token) = self.token(slot_use, one.key_id) else { continue };
            events.push(ChannelEvent { lsn, ts_ms: one.ts_ms, lobby: lobby.id, token });
        }
        accept(events, wait)
    }

    /// Returns the channels with new durable tokens since the last call.
    pub fn take_notified_channels(&mut self, durable: Lsn) -> Vec<ChannelId> {
        let count = self.notified_channels.partition_point(|(lsn, _)| *lsn <= durable);
        self.notified_channels.drain(..count).map(|(_, channel)| channel).collect()
    }

    /// Sends the second and later tokens of a party to event channels. The caller has checked that the journal has space.
    pub(super) fn send_tokens(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        channels: &[ChannelId],
        uses: EncodedSlotUses<'_>,
        deadline: Ms,
    ) {
        if channels.is_empty() {
            return;
        }
        let mut deliveries = Vec::with_capacity(channels.len() * EncodedDeliveries::WIDTH);
        for (channel, use_) in channels.iter().zip(uses.0.chunks_exact(EncodedSlotUses::WIDTH).skip(1)) {
            deliveries.extend_from_slice(channel);
            deliveries.extend_from_slice(use_);
        }
        let event = Event::TokensSent {
            lobby: number,
            ts_ms: self.wall_ms,
            at: self.time.now(),
            deadline,
            key_id: self.config.keys.current_id(),
            deliveries: EncodedDeliveries(&deliveries),
        };
        self.emit(cx, &event);
        self.notified_channels.extend(channels.iter().map(|channel| (self.last_lsn, *channel)));
        let excess = self.notified_channels.len().saturating_sub(MAX_NOTIFIED_CHANNELS);
        self.notified_channels.drain(..excess);
    }
}
