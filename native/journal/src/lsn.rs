//! Numbers of events.

/// Number of an event, counted from 1; 0 means none.
pub type Lsn = u64;
