//! What events change of the records beside lobbies: what channels were sent, standings, used mock players.

use super::Engine;
use super::apply::NO_LOBBY;
use crate::channel::Sent;
use crate::command::Lsn;
use crate::event::{ApplyError, Event};

impl Engine {
    /// The number of the lobby that the event is about too, if there is one.
    pub(super) fn apply_record(&mut self, lsn: Lsn, event: &Event<'_>) -> Result<Option<u32>, ApplyError> {
        match *event {
            Event::TokensSent { lobby, ts_ms, at, deadline, key_id, deliveries } => {
                self.lobbies.live(lobby).ok_or(NO_LOBBY)?;
                self.channels.forget(at);
                let sent = deliveries.iter().map(|(channel, slot, generation)| {
                    (channel, Sent { lobby, slot, generation, key_id, ts_ms, deadline })
                });
                self.channels.add(lsn, sent);
                return Ok(Some(lobby));
            }
            Event::HumanPassed { source, at } => self.standings.pass(source, at),
            Event::HumanAsked { source } => self.standings.ask(source),
            Event::MockConsumed { hour, at, mac } => self.mocks.consume(hour, at, mac),
            _ => return Err(ApplyError::Malformed("no event of a record")),
        }
        Ok(None)
    }
}
