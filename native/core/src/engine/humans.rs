//! Captcha standings (decisions 7): who passed, and how much was asked since. Class: new place, because on a full disk
//! they end nothing.

use super::{Class, Engine, accept, has_credit, refuse};
use crate::command::{Answer, Context, HumanStanding, Source};
use crate::error::Refusal;
use crate::event::{Event, cost};

impl Engine {
    /// What is known of an address. Waits for nothing: what is decided with it comes later in the journal.
    pub fn standing(&mut self, cx: &mut Context<'_>, source: Source) -> HumanStanding {
        let now = self.begin(cx);
        self.standings.of(source, now).map_or_else(HumanStanding::default, |(passed_at, requests_since)| {
            HumanStanding { passed_ago_ms: Some(now.saturating_sub(passed_at)), requests_since }
        })
    }

    /// The address passed a captcha now: its requests are counted anew.
    ///
    /// Refusals: `StorageFull`.
    pub fn note_human(&mut self, cx: &mut Context<'_>, source: Source) -> Answer<()> {
        let at = self.begin(cx);
        if !has_credit(cx, Class::NewPlace, cost::HUMAN_PASSED) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &Event::HumanPassed { source, at });
        accept((), self.last_lsn)
    }

    /// One request more of the address. Nobody waits for it; of an address that has not passed, and without credit,
    /// nothing is noted.
    pub fn note_request(&mut self, cx: &mut Context<'_>, source: Source) {
        let now = self.begin(cx);
        let is_known = self.standings.of(source, now).is_some();
        if is_known && has_credit(cx, Class::NewPlace, cost::HUMAN_ASKED) {
            self.emit(cx, &Event::HumanAsked { source });
        }
    }
}
