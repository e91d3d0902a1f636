//! Captcha status of client addresses.

use super::{CreditClass, Engine, accept, has_credit, refuse};
use crate::command::{CaptchaStatus, CommandOutcome, Context, Source};
use crate::journal_event::Event;
use crate::refusal::Refusal;

impl Engine {
    /// Returns the captcha status of a client address.
    pub fn captcha_status(&mut self, cx: &mut Context<'_>, source: Source) -> CaptchaStatus {
        let now = self.begin_command(cx);
        self.captcha_passes.last_pass(source, now).map_or_else(CaptchaStatus::default, |(passed_at, requests_since)| {
            CaptchaStatus { passed_ago_ms: Some(now.saturating_sub(passed_at)), requests_since }
        })
    }

    /// Records a passed captcha and resets the request count.
    ///
    /// Refusals: `StorageFull`.
    pub fn record_captcha_pass(&mut self, cx: &mut Context<'_>, source: Source) -> CommandOutcome<()> {
        let at = self.begin_command(cx);
        if !has_credit(cx, CreditClass::NewSlot, Event::CAPTCHA_PASSED_LEN) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &Event::CaptchaPassed { source, at });
        accept((), self.last_lsn)
    }

    /// Counts one request of a client address with a captcha pass, if the journal can accept the event.
    pub fn count_captcha_request(&mut self, cx: &mut Context<'_>, source: Source) {
        let now = self.begin_command(cx);
        let has_pass = self.captcha_passes.last_pass(source, now).is_some();
        if has_pass && has_credit(cx, CreditClass::NewSlot, Event::CAPTCHA_REQUEST_COUNTED_LEN) {
            self.emit(cx, &Event::CaptchaRequestCounted { source });
        }
    }
}
