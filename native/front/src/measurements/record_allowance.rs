//! Limit on the records of requests, so that a flood of refused ones costs Python little.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hosting_core::Id;
use hosting_matchmaker::Subject;
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// The request failed or was slow.
    Problem,
    /// The client sent a trace, or the request was chosen by chance.
    Sample,
}

/// Records that are left in the current second, of all threads and both transports.
pub struct RecordAllowance {
    /// Records of each kind that a namespace has in a second. Requests without a caller share one limit.
    per_second: u32,
    namespace_of_lobby: Box<dyn Fn(Id) -> Option<Id> + Send + Sync>,
    taken: Mutex<Taken>,
}

struct Taken {
    until: Instant,
    counts: HashMap<(Option<Subject>, RecordKind), u32>,
}

impl RecordAllowance {
    pub fn new(
        per_second: u32,
        namespace_of_lobby: impl Fn(Id) -> Option<Id> + Send + Sync + 'static,
    ) -> RecordAllowance {
        let taken = Mutex::new(Taken { until: Instant::now(), counts: HashMap::new() });
        RecordAllowance { per_second, namespace_of_lobby: Box::new(namespace_of_lobby), taken }
    }

    /// Counts a record at `now`. Returns false if its namespace has none left.
    pub fn take(&self, caller: Option<Subject>, kind: RecordKind, now: Instant) -> bool {
        let Some(Subject::Lobby(lobby)) = caller else { return self.take_of(caller, kind, now) };
        // The limit of the lobby bounds how often the engine is asked for its namespace.
        self.take_of(caller, kind, now)
            && self.take_of((self.namespace_of_lobby)(lobby).map(Subject::Namespace), kind, now)
    }

    fn take_of(&self, subject: Option<Subject>, kind: RecordKind, now: Instant) -> bool {
        let mut taken = self.taken.lock();
        if now >= taken.until {
            taken.until = now + SECOND;
            taken.counts.clear();
        }
        let count = taken.counts.entry((subject, kind)).or_default();
        *count += 1;
        *count <= self.per_second
    }
}
