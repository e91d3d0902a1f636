//! Timeouts of clients.

use std::time::Duration;

#[derive(Clone, Copy)]
pub struct Timeouts {
    /// For the head of a request, and again for its body.
    pub receive: Duration,
    /// For an idle connection. 0: it closes after each response.
    pub keep_alive: Duration,
    /// Time over which the rate of a reader is measured.
    pub slow_reader: Duration,
    /// Longest wait of a parked request.
    pub parked: Duration,
    /// Longest wait of a stop for a further request on idle connections.
    pub idle_grace: Duration,
    /// Longest duration of a gRPC stream with a token that the front cannot verify. Its client may open another one.
    pub unverified_stream: Duration,
}

impl Timeouts {
    pub fn new(receive: Duration, keep_alive: Duration) -> Timeouts {
        let [idle_grace, slow_reader, parked, unverified_stream] = [1, 10, 40, 600].map(Duration::from_secs);
        Timeouts { receive, keep_alive, slow_reader, parked, idle_grace, unverified_stream }
    }

    /// Returns the timeout of a connection without a request. Without keep-alive, its only request has not begun.
    pub fn idle(&self) -> Duration {
        if self.keep_alive.is_zero() { self.receive } else { self.keep_alive }
    }
}
