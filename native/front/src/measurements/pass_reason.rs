//! Why the front passes a request on to Python.

use hosting_matchmaker::Need;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassReason {
    /// Python has the operation.
    Operation,
    /// The answer needs something that has to be waited for.
    Needs(Need),
    /// The query has parameters, which the operation does not have.
    Query,
}

impl PassReason {
    pub const COUNT: usize = 2 + Need::ALL.len();

    pub fn all() -> impl Iterator<Item = PassReason> {
        use PassReason::{Needs, Operation, Query};
        [Operation, Query].into_iter().chain(Need::ALL.into_iter().map(Needs))
    }

    /// Name of the reason in metrics.
    pub fn slug(self) -> &'static str {
        match self {
            PassReason::Operation => "operation",
            PassReason::Needs(need) => need.slug(),
            PassReason::Query => "query",
        }
    }

    /// Position in [`PassReason::all`].
    pub fn number(self) -> usize {
        PassReason::all().position(|reason| reason == self).expect("all reasons are listed")
    }

    /// Returns whether the request has paid its rate limits.
    pub fn is_paid(self) -> bool {
        matches!(self, PassReason::Needs(need) if need.is_paid())
    }
}
