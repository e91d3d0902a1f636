//! Metrics: counters of each thread, and the Prometheus text with their sums. All label values are known in advance.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Enum of all values that one Prometheus label can have.
pub trait LabelSet: Copy + 'static {
    const TEXTS: &'static [&'static str];

    fn number(self) -> usize;
}

macro_rules! labels {
    ($(#[$help:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$help])*
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
    ConnectionKind {
        Tcp = "tcp",
        TcpTls = "tcp_tls",
        Http = "http",
        Https = "https",
        WebSocket = "websocket",
    }
}
labels! {
    Direction {
        In = "in",
        Out = "out",
    }
}
labels! {
    ConnectionRefusal {
        All = "connections",
        Route = "connections_per_route",
        Address = "connections_per_address",
        NoBackend = "no_backend",
        Unreachable = "backend_unreachable",
        Handshake = "handshake",
        Proxy = "proxy_header",
        /// The connection stayed silent for too long.
        FirstByte = "first_byte",
    }
}
labels! {
    StatusClass {
        Upgraded = "1xx",
        Success = "2xx",
        Redirect = "3xx",
        Client = "4xx",
        Server = "5xx",
    }
}
labels! {
    /// Reason why edge-guard answered an HTTP request itself.
    RequestProblem {
        Host = "host_unknown",
        NoBackend = "no_backend",
        Unreachable = "backend_unreachable",
        Late = "backend_late",
        Slow = "client_late",
        /// The client sent more concurrent HTTP/2 requests than the connection limits allow.
        TooManyRequests = "too_many_at_once",
        Request = "request_invalid",
    }
}
labels! {
    DatagramDrop {
        NoBackend = "no_backend",
        Full = "sessions_full",
        Route = "sessions_per_route",
        Address = "sessions_per_address",
        Rate = "sessions_rate",
        SessionRate = "session_rate",
        PortRate = "port_rate",
        /// A datagram of a trusted proxy had no valid PROXY header, or one that names another client.
        ProxyHeader = "proxy_header",
        Descriptors = "descriptors",
        /// No local port was free for the socket to the backend.
        Ports = "ports",
        Backend = "backend_full",
        Client = "client_full",
    }
}
labels! {
    SessionEnd {
        Idle = "idle",
        Evicted = "displaced",
        Route = "route",
        HandedOver = "handed_over",
    }
}
labels! {
    ControlFailure {
        Follow = "follow",
        Disk = "disk",
        Route = "route",
        Certificates = "certificates",
        Handover = "handover",
    }
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn increment(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn decrement(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of one metric, one for each value of its label. The array fits the largest label set.
#[derive(Debug, Default)]
pub struct LabelledCounters([Counter; 12]);

impl LabelledCounters {
    pub fn with_label(&self, label: impl LabelSet) -> &Counter {
        &self.0[label.number()]
    }
}

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

#[derive(Debug, Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    pub fn write_value(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.write_header(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    pub fn write_values<'a, V: std::fmt::Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) {
        self.write_header(name, kind, help);
        for (text, value) in values {
            let _ = writeln!(self.0, "{name}{{{label}=\"{text}\"}} {value}");
        }
    }

    pub fn write_counters(&mut self, all: &[&ThreadCounters]) {
        self.streams(all);
        self.datagrams(all);
        self.labelled_sums::<ControlFailure>("failures_total", "Failures that are retried", "of", all, |c| &c.failures);
    }

    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }

    fn streams(&mut self, all: &[&ThreadCounters]) {
        self.labelled_sums::<ConnectionKind>("connections", "Open client connections", "kind", all, |c| &c.open);
        self.labelled_sums::<ConnectionKind>("connections_total", "Accepted client connections", "kind", all, |c| {
            &c.opened
        });
        self.labelled_sums::<ConnectionRefusal>(
            "connections_refused_total",
            "Connections closed at once",
            "reason",
            all,
            |c| &c.refused,
        );
        self.labelled_sums::<Direction>("stream_bytes_total", "Bytes of TCP and WebSocket", "way", all, |c| {
            &c.stream_bytes
        });
        self.labelled_sums::<StatusClass>("http_requests_total", "HTTP requests by status", "status", all, |c| {
            &c.requests
        });
        self.labelled_sums::<RequestProblem>(
            "http_problems_total",
            "Requests answered by edge-guard",
            "reason",
            all,
            |c| &c.problems,
        );
        self.total("accept_pauses_total", "counter", "Pauses in accepting, because no descriptor was free", all, |c| {
            &c.accept_pauses
        });
    }

    fn datagrams(&mut self, all: &[&ThreadCounters]) {
        self.labelled_sums::<Direction>("datagrams_total", "Datagrams forwarded", "way", all, |c| &c.datagrams);
        self.labelled_sums::<Direction>("datagram_bytes_total", "Bytes of forwarded datagrams", "way", all, |c| {
            &c.datagram_bytes
        });
        self.labelled_sums::<DatagramDrop>("datagrams_dropped_total", "Datagrams dropped", "reason", all, |c| {
            &c.dropped
        });
        self.total("datagram_sessions", "gauge", "UDP sessions", all, |c| &c.sessions);
        self.total("datagram_sessions_total", "counter", "Created UDP sessions", all, |c| &c.sessions_begun);
        self.labelled_sums::<SessionEnd>("datagram_sessions_ended_total", "UDP sessions ended", "reason", all, |c| {
            &c.sessions_ended
        });
    }

    fn labelled_sums<L: LabelSet>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        all: &[&ThreadCounters],
        pick: fn(&ThreadCounters) -> &LabelledCounters,
    ) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let values = (L::TEXTS.iter().enumerate()).map(|(number, text)| {
            (*text, all.iter().map(|each| pick(each).0[number].value()).fold(0, u64::wrapping_add))
        });
        self.write_values(&format!("hosting_edge_{name}"), kind, help, label, values);
    }

    fn total(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        all: &[&ThreadCounters],
        pick: fn(&ThreadCounters) -> &Counter,
    ) {
        let sum = all.iter().map(|each| pick(each).value()).fold(0, u64::wrapping_add);
        self.write_value(&format!("hosting_edge_{name}"), kind, help, sum);
    }

    fn write_header(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrape_sums_the_counters_of_all_threads() {
        let (first_thread, second_thread) = (ThreadCounters::default(), ThreadCounters::default());
        first_thread.open.with_label(ConnectionKind::Http).add(3);
        // Opened in one thread and closed in another: only the sum is meaningful.
        second_thread.open.with_label(ConnectionKind::Http).decrement();
        let mut page = MetricsPage::default();
        page.write_counters(&[&first_thread, &second_thread]);
        let text = page.into_text();
        assert!(text.contains("hosting_edge_connections{kind=\"http\"} 2\n"), "{text}");
        assert!(text.contains("# TYPE hosting_edge_connections_total counter\n"), "{text}");
    }

    #[test]
    fn metric_names_and_labels_are_stable() {
        let mut page = MetricsPage::default();
        page.write_counters(&[&ThreadCounters::default()]);
        let text = page.into_text();
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE hosting_edge_"));
        let label_of = |name: &str| {
            let start = format!("hosting_edge_{name}{{");
            let rest = text.lines().find_map(|line| line.strip_prefix(&start));
            rest.and_then(|rest| rest.split_once('=')).map_or("", |(label, _)| label)
        };
        let found: Vec<(&str, &str)> =
            names.filter_map(|name| name.split_once(' ')).map(|(name, _)| (name, label_of(name))).collect();
        let expected = [
            ("connections", "kind"),
            ("connections_total", "kind"),
            ("connections_refused_total", "reason"),
            ("stream_bytes_total", "way"),
            ("http_requests_total", "status"),
            ("http_problems_total", "reason"),
            ("accept_pauses_total", ""),
            ("datagrams_total", "way"),
            ("datagram_bytes_total", "way"),
            ("datagrams_dropped_total", "reason"),
            ("datagram_sessions", ""),
            ("datagram_sessions_total", ""),
            ("datagram_sessions_ended_total", "reason"),
            ("failures_total", "of"),
        ];
        assert_eq!(found, expected);
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
