//! What is counted, and how it is told to Prometheus.
//!
//! Each thread counts for itself ([`Counters`]); a scrape adds them up. Labels are closed sets: the enums below.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A closed set of label values.
pub trait LabelSet: Copy + 'static {
    /// Their texts, in the order of their numbers.
    const TEXTS: &'static [&'static str];

    /// The place of this one in [`Labels::TEXTS`].
    fn number(self) -> usize;
}

macro_rules! labels {
    ($(#[$about:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$each])* $variant,)* }

        impl LabelSet for $name {
            const TEXTS: &'static [&'static str] = &[$($text,)*];

            fn number(self) -> usize {
                self as usize
            }
        }
    };
}

labels! {
    /// What a connection speaks.
    ConnectionKind {
        /// Bytes.
        Tcp = "tcp",
        /// Bytes over TLS.
        TcpTls = "tcp_tls",
        /// HTTP.
        Http = "http",
        /// HTTP over TLS.
        Https = "https",
        /// An upgraded HTTP connection.
        WebSocket = "websocket",
    }
}
labels! {
    /// Which way bytes go.
    Direction {
        /// From players.
        In = "in",
        /// To players.
        Out = "out",
    }
}
labels! {
    /// Why a connection was closed before anything was done for it.
    ConnectionRefusal {
        /// `limits.connections`.
        All = "connections",
        /// `limits.connections_per_route`.
        Route = "connections_per_route",
        /// `limits.connections_per_address`.
        Address = "connections_per_address",
        /// The process is not there yet.
        NoBackend = "no_backend",
        /// The back end did not take it.
        Unreachable = "backend_unreachable",
        /// TLS was not agreed on.
        Handshake = "handshake",
        /// A proxy in front of us said nothing that can be read.
        Proxy = "proxy_header",
    }
}
labels! {
    /// How an HTTP request ended.
    StatusClass {
        /// Below 200: upgraded.
        Upgraded = "1xx",
        /// It went well.
        Success = "2xx",
        /// Elsewhere.
        Redirect = "3xx",
        /// The client's fault.
        Client = "4xx",
        /// The back end's fault, or ours.
        Server = "5xx",
    }
}
labels! {
    /// Why we answered an HTTP request ourselves.
    RequestProblem {
        /// Nobody has this host.
        Host = "host_unknown",
        /// The process is not there yet.
        NoBackend = "no_backend",
        /// It did not take the connection, or broke it.
        Unreachable = "backend_unreachable",
        /// It did not answer in time.
        Late = "backend_late",
        /// The player sends the body of a request too slowly.
        Slow = "client_late",
        /// One more at once of an HTTP/2 connection than the limits of connections let.
        Crowded = "too_many_at_once",
        /// Something that a request must not have.
        Request = "request_invalid",
    }
}
labels! {
    /// Why a datagram was thrown away.
    DatagramDrop {
        /// The process is not there yet.
        NoBackend = "no_backend",
        /// No place for a session.
        Full = "sessions_full",
        /// `limits.datagram_sessions_per_route`.
        Route = "sessions_per_route",
        /// `limits.datagram_sessions_per_address`.
        Address = "sessions_per_address",
        /// Too many new sessions in this second.
        Rate = "sessions_rate",
        /// No descriptor for a session.
        Descriptors = "descriptors",
        /// The back end's socket did not take it.
        Backend = "backend_full",
        /// Our way to the player did not take it.
        Client = "client_full",
    }
}
labels! {
    /// Why a UDP session ended.
    SessionEnd {
        /// It carried nothing for its time.
        Idle = "idle",
        /// Its place was needed.
        Displaced = "displaced",
        /// Its route went, or leads elsewhere now.
        Route = "route",
        /// Another process has it now.
        HandedOver = "handed_over",
    }
}
labels! {
    /// What the control thread failed at.
    ControlFailure {
        /// Asking the data plane.
        Follow = "follow",
        /// Keeping the set on disk.
        Disk = "disk",
        /// A route that could not be read.
        Route = "route",
        /// Reading certificates, limits and times anew.
        Certificates = "certificates",
        /// Handing over.
        Handover = "handover",
    }
}

/// A number that one thread changes and any may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn one(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// One less, where it counts what is.
    pub fn less(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// What it is.
    pub fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counts by one label; as many as the largest set has.
#[derive(Debug, Default)]
pub struct LabelledCounters([Counter; 8]);

impl LabelledCounters {
    /// The count of one label.
    pub fn of(&self, label: impl LabelSet) -> &Counter {
        &self.0[label.number()]
    }
}

/// What one thread counts.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "each is described where it is written out")]
pub struct ThreadCounters {
    pub open: LabelledCounters,
    pub opened: LabelledCounters,
    pub refused: LabelledCounters,
    pub stream_bytes: LabelledCounters,
    pub requests: LabelledCounters,
    pub problems: LabelledCounters,
    pub accept_pauses: Counter,
    pub datagrams: LabelledCounters,
    pub datagram_bytes: LabelledCounters,
    pub dropped: LabelledCounters,
    pub sessions: Counter,
    pub sessions_begun: Counter,
    pub sessions_ended: LabelledCounters,
    pub failures: LabelledCounters,
}

/// The text of a scrape.
#[derive(Debug, Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    /// One number.
    pub fn value(&mut self, name: &str, kind: &str, about: &str, value: impl std::fmt::Display) {
        self.head(name, kind, about);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// Numbers by one label.
    pub fn values(&mut self, name: &str, kind: &str, about: &str, label: &str, values: &[(&str, u64)]) {
        self.head(name, kind, about);
        for (text, value) in values {
            let _ = writeln!(self.0, "{name}{{{label}=\"{text}\"}} {value}");
        }
    }

    /// What all threads have counted.
    pub fn counters(&mut self, all: &[&ThreadCounters]) {
        self.streams(all);
        self.datagrams(all);
        self.by::<ControlFailure>("failures_total", "What failed and is tried again", "of", all, |c| &c.failures);
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }

    fn streams(&mut self, all: &[&ThreadCounters]) {
        self.by::<ConnectionKind>("connections", "Connections of clients that are open", "kind", all, |c| &c.open);
        self.by::<ConnectionKind>("connections_total", "Connections of clients", "kind", all, |c| &c.opened);
        self.by::<ConnectionRefusal>("connections_refused_total", "Connections closed at once", "reason", all, |c| {
            &c.refused
        });
        self.by::<Direction>("stream_bytes_total", "Bytes of TCP and WebSocket", "way", all, |c| &c.stream_bytes);
        self.by::<StatusClass>("http_requests_total", "HTTP requests by status", "status", all, |c| &c.requests);
        self.by::<RequestProblem>("http_problems_total", "Requests we answered ourselves", "reason", all, |c| {
            &c.problems
        });
        self.sum("accept_pauses_total", "counter", "Times that descriptors ran out", all, |c| &c.accept_pauses);
    }

    fn datagrams(&mut self, all: &[&ThreadCounters]) {
        self.by::<Direction>("datagrams_total", "Datagrams passed on", "way", all, |c| &c.datagrams);
        self.by::<Direction>("datagram_bytes_total", "Their bytes", "way", all, |c| &c.datagram_bytes);
        self.by::<DatagramDrop>("datagrams_dropped_total", "Datagrams thrown away", "reason", all, |c| &c.dropped);
        self.sum("datagram_sessions", "gauge", "UDP sessions", all, |c| &c.sessions);
        self.sum("datagram_sessions_total", "counter", "UDP sessions begun", all, |c| &c.sessions_begun);
        self.by::<SessionEnd>("datagram_sessions_ended_total", "UDP sessions ended", "reason", all, |c| {
            &c.sessions_ended
        });
    }

    fn by<L: LabelSet>(
        &mut self,
        name: &str,
        about: &str,
        label: &str,
        all: &[&ThreadCounters],
        pick: fn(&ThreadCounters) -> &LabelledCounters,
    ) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let values: Vec<(&str, u64)> = (L::TEXTS.iter().enumerate())
            .map(|(number, text)| (*text, all.iter().map(|each| pick(each).0[number].now()).fold(0, u64::wrapping_add)))
            .collect();
        self.values(&format!("hosting_edge_{name}"), kind, about, label, &values);
    }

    fn sum(
        &mut self,
        name: &str,
        kind: &str,
        about: &str,
        all: &[&ThreadCounters],
        pick: fn(&ThreadCounters) -> &Counter,
    ) {
        let sum = all.iter().map(|each| pick(each).now()).fold(0, u64::wrapping_add);
        self.value(&format!("hosting_edge_{name}"), kind, about, sum);
    }

    fn head(&mut self, name: &str, kind: &str, about: &str) {
        let _ = writeln!(self.0, "# HELP {name} {about}.\n# TYPE {name} {kind}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrape_sums_the_counters_of_all_threads() {
        let (here, there) = (ThreadCounters::default(), ThreadCounters::default());
        here.open.of(ConnectionKind::Http).add(3);
        // Opened here and closed there: only the sum means something.
        there.open.of(ConnectionKind::Http).less();
        let mut page = MetricsPage::default();
        page.counters(&[&here, &there]);
        let text = page.into_text();
        assert!(text.contains("hosting_edge_connections{kind=\"http\"} 2\n"), "{text}");
        assert!(text.contains("# TYPE hosting_edge_connections_total counter\n"), "{text}");
    }

    #[test]
    fn label_sets_fit_the_counter_array() {
        for texts in [
            ConnectionKind::TEXTS,
            ConnectionRefusal::TEXTS,
            StatusClass::TEXTS,
            RequestProblem::TEXTS,
            DatagramDrop::TEXTS,
            SessionEnd::TEXTS,
            ControlFailure::TEXTS,
        ] {
            assert!(texts.len() <= LabelledCounters::default().0.len());
        }
    }
}
