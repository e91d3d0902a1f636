//! Mock players of a development token (decisions 3, "Mock answers"): a player token that names no lobby, good once,
//! for that `dev_` token alone. Class: new place.

use super::{Class, Engine, accept, has_credit, refuse};
use crate::command::{Answer, Context, Id};
use crate::error::Refusal;
use crate::event::{Event, cost};
use crate::mock::{hour_of, is_good};

impl Engine {
    /// A player token for a development token. The same nonce in the same hour gives the same token.
    pub fn mock_player_token(&mut self, cx: &mut Context<'_>, namespace: Id, token: Id, nonce: &[u8; 16]) -> String {
        let hour = hour_of(self.begin(cx));
        self.config.keys.sign_mock(namespace, token, hour, nonce)
    }

    /// Uses a mock player token up, once, for the development token that it was made for.
    ///
    /// Refusals: `PlayerTokenInvalid`, `PlayerTokenConsumed`, `PlayerTokenExpired` (after one to two hours),
    /// `StorageFull`.
    pub fn consume_mock(&mut self, cx: &mut Context<'_>, namespace: Id, token: Id, player_token: &str) -> Answer<()> {
        let now = self.begin(cx);
        let Some((hour, mac)) = self.config.keys.verify_mock(namespace, token, player_token) else {
            return refuse(Refusal::PlayerTokenInvalid, 0);
        };
        if !is_good(hour, now) {
            return refuse(Refusal::PlayerTokenExpired, 0);
        }
        if self.mocks.is_used(hour, &mac) {
            return refuse(Refusal::PlayerTokenConsumed, self.last_lsn);
        }
        if !has_credit(cx, Class::NewPlace, cost::MOCK_CONSUMED) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &Event::MockConsumed { hour, at: now, mac });
        accept((), self.last_lsn)
    }
}
