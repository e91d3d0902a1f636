//! Captcha passes: for each client address, the time of its last pass and the number of requests since then.

use std::collections::{BTreeMap, BTreeSet};

use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{Ms, Source};
use crate::service_time::EXPIRED_DROPPED_PER_ADDED;

/// Upper bound of the setting `verification_ttl`.
const MAX_PASS_AGE_MS: Ms = 43_200_000;
/// Maximum number of stored passes. A further pass replaces the oldest.
const MAX_ENTRIES: usize = 1_000_000;

#[derive(Clone, Copy)]
struct CaptchaPass {
    passed_at: Ms,
    requests_since: u32,
}

#[derive(Default)]
pub(crate) struct SourceCaptchaPasses {
    by_source: BTreeMap<Source, CaptchaPass>,
    by_time: BTreeSet<(Ms, Source)>,
}

impl SourceCaptchaPasses {
    /// Returns `(time of the last pass, requests since)`, or None without a pass in the last 12 h.
    pub(crate) fn last_pass(&self, source: Source, now: Ms) -> Option<(Ms, u32)> {
        let pass = self.by_source.get(&source)?;
        let is_within_lifetime = now.saturating_sub(pass.passed_at) < MAX_PASS_AGE_MS;
        is_within_lifetime.then_some((pass.passed_at, pass.requests_since))
    }

    /// Records a pass and drops some expired passes.
    pub(crate) fn record_pass(&mut self, source: Source, at: Ms) {
        for _ in 0..EXPIRED_DROPPED_PER_ADDED {
            let Some((passed_at, old)) = self.by_time.first().copied() else { break };
            let is_over = at.saturating_sub(passed_at) >= MAX_PASS_AGE_MS || self.by_time.len() >= MAX_ENTRIES;
            if !is_over {
                break;
            }
            self.by_time.pop_first();
            self.by_source.remove(&old);
        }
        self.insert(source, CaptchaPass { passed_at: at, requests_since: 0 });
    }

    fn insert(&mut self, source: Source, pass: CaptchaPass) {
        self.by_time.insert((pass.passed_at, source));
        if let Some(before) = self.by_source.insert(source, pass)
            && before.passed_at != pass.passed_at
        {
            self.by_time.remove(&(before.passed_at, source));
        }
    }

    pub(crate) fn count_request(&mut self, source: Source) {
        if let Some(pass) = self.by_source.get_mut(&source) {
            pass.requests_since = pass.requests_since.saturating_add(1);
        }
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>, flush: &mut dyn FnMut(&mut Vec<u8>)) {
        Writer { bytes }.u32(self.by_source.len() as u32);
        for (source, pass) in &self.by_source {
            let mut w = Writer { bytes };
            w.u64(*source);
            w.u64(pass.passed_at);
            w.u32(pass.requests_since);
            flush(bytes);
        }
    }

    pub(crate) fn load(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        for _ in 0..r.u32()? {
            let source = r.u64()?;
            self.insert(source, CaptchaPass { passed_at: r.u64()?, requests_since: r.u32()? });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_pass_is_dropped_at_the_limit() {
        let mut passes = SourceCaptchaPasses::default();
        for source in 0..MAX_ENTRIES as u64 + 5 {
            passes.record_pass(source + 1, source);
        }
        assert_eq!((passes.by_source.len(), passes.by_time.len()), (MAX_ENTRIES, MAX_ENTRIES));
        assert_eq!(passes.last_pass(5, 1_000_000), None);
        assert_eq!(passes.last_pass(6, 1_000_000), Some((5, 0)));
    }

    #[test]
    fn new_pass_resets_the_request_count() {
        let mut passes = SourceCaptchaPasses::default();
        passes.record_pass(7, 100);
        passes.count_request(7);
        passes.count_request(8);
        assert_eq!(passes.last_pass(7, 100), Some((100, 1)));
        passes.record_pass(7, 100);
        passes.record_pass(7, 200);
        assert_eq!(passes.last_pass(7, 200), Some((200, 0)));
        assert_eq!((passes.by_source.len(), passes.by_time.len()), (1, 1));
        assert_eq!(passes.last_pass(8, 200), None);
    }
}
