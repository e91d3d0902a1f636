//! Mock players of development tokens: player tokens without a lobby, each accepted once.

use super::{CreditClass, Engine, accept, has_credit, refuse};
use crate::command::{CommandOutcome, Context, Id};
use crate::journal_event::Event;
use crate::mock_tokens::{hour_of, is_within_lifetime, time_to_next_hour};
use crate::refusal::Refusal;

impl Engine {
    /// Signs a mock player token. The same nonce in the same hour gives the same token.
    pub fn mock_player_token(&mut self, cx: &mut Context<'_>, namespace: Id, token: Id, nonce: &[u8; 16]) -> String {
        let hour = hour_of(self.begin_command(cx));
        self.config.keys.sign_mock(namespace, token, hour, nonce)
    }

    /// Accepts a mock player token once, for its development token. `group` is the developer group of the namespace.
    ///
    /// Refusals: `PlayerTokenInvalid`, `PlayerTokenConsumed`, `PlayerTokenExpired` (after one to two hours),
    /// `TooManyMockPlayers`, `StorageFull`.
    pub fn consume_mock_token(
        &mut self,
        cx: &mut Context<'_>,
        group: Id,
        namespace: Id,
        token: Id,
        player_token: &str,
    ) -> CommandOutcome<()> {
        let now = self.begin_command(cx);
        let Some((hour, mac)) = self.config.keys.verify_mock(namespace, token, player_token) else {
            return refuse(Refusal::PlayerTokenInvalid, 0);
        };
        if !is_within_lifetime(hour, now) {
            return refuse(Refusal::PlayerTokenExpired, 0);
        }
        if self.mock_tokens.is_used(hour, &mac) {
            return refuse(Refusal::PlayerTokenConsumed, self.last_lsn);
        }
        if !self.mock_tokens.has_room(group, now) {
            return refuse(Refusal::TooManyMockPlayers { retry_after_ms: time_to_next_hour(now) }, 0);
        }
        if !has_credit(cx, CreditClass::NewSlot, Event::MOCK_TOKEN_CONSUMED_LEN) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &Event::MockTokenConsumed { hour, at: now, mac });
        self.mock_tokens.count_use(group, hour, now);
        accept((), self.last_lsn)
    }
}
