//! Metrics: counters of each thread, and the encoding of their sums. All label values are known in advance.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

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
        /// The port requires a reserved slot, and the client address has none.
        NoSlot = "no_slot",
        /// The data plane has been silent for too long.
        NoDataPlane = "no_data_plane",
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
        ResponseHeaders = "response_headers",
        Late = "backend_late",
        Slow = "client_late",
        /// The client sent more concurrent HTTP/2 requests than the connection limits allow.
        TooManyRequests = "too_many_at_once",
        Request = "request_invalid",
        NoSlot = "no_slot",
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
        /// The port requires a reserved slot, and the client address has none or its answer is not there yet.
        NoSlot = "no_slot",
        /// A new session would begin, and the data plane has been silent for too long.
        NoDataPlane = "no_data_plane",
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
pub struct LabelledCounters([Counter; 14]);

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

/// Returns the metrics of a collector in the Prometheus text format.
#[must_use]
pub fn text_of(collector: impl Collector) -> String {
    let mut registry = Registry::with_prefix("hosting_edge");
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

/// Encoder of the metrics of one scrape. A counter is named without its suffix `_total`.
#[derive(Debug)]
pub struct MetricsEncoder<'a>(DescriptorEncoder<'a>);

impl<'a> MetricsEncoder<'a> {
    #[must_use]
    pub fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    pub fn gauges<'v, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'v str, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(text, value)| family.encode_family(&[(label, text)])?.encode_gauge(&value))
    }

    /// Encodes the sums over all threads.
    pub fn thread_counters(&mut self, all: &[&ThreadCounters]) -> fmt::Result {
        let open = sums::<ConnectionKind>(all, |c| &c.open);
        self.gauges("connections", "Open client connections.", "kind", open)?;
        let opened = sums::<ConnectionKind>(all, |c| &c.opened);
        self.counters("connections", "Accepted client connections.", "kind", opened)?;
        let refused = sums::<ConnectionRefusal>(all, |c| &c.refused);
        self.counters("connections_refused", "Connections closed at once.", "reason", refused)?;
        let stream_bytes = sums::<Direction>(all, |c| &c.stream_bytes);
        self.counters("stream_bytes", "Bytes of TCP and WebSocket.", "way", stream_bytes)?;
        let requests = sums::<StatusClass>(all, |c| &c.requests);
        self.counters("http_requests", "HTTP requests by status.", "status", requests)?;
        let problems = sums::<RequestProblem>(all, |c| &c.problems);
        self.counters("http_problems", "Requests answered by edge-guard.", "reason", problems)?;
        let pauses = sum(all, |c| &c.accept_pauses);
        self.counter("accept_pauses", "Pauses in accepting, because no descriptor was free.", pauses)?;
        let datagrams = sums::<Direction>(all, |c| &c.datagrams);
        self.counters("datagrams", "Datagrams forwarded.", "way", datagrams)?;
        let datagram_bytes = sums::<Direction>(all, |c| &c.datagram_bytes);
        self.counters("datagram_bytes", "Bytes of forwarded datagrams.", "way", datagram_bytes)?;
        let dropped = sums::<DatagramDrop>(all, |c| &c.dropped);
        self.counters("datagrams_dropped", "Datagrams dropped.", "reason", dropped)?;
        self.gauge("datagram_sessions", "UDP sessions.", sum(all, |c| &c.sessions))?;
        self.counter("datagram_sessions", "Created UDP sessions.", sum(all, |c| &c.sessions_begun))?;
        let ended = sums::<SessionEnd>(all, |c| &c.sessions_ended);
        self.counters("datagram_sessions_ended", "UDP sessions ended.", "reason", ended)?;
        let failures = sums::<ControlFailure>(all, |c| &c.failures);
        self.counters("failures", "Failures that are retried.", "of", failures)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut counter = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        counter.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (text, value) in values {
            family.encode_family(&[(label, text)])?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }
}

fn sums<L: LabelSet>(
    all: &[&ThreadCounters],
    pick: fn(&ThreadCounters) -> &LabelledCounters,
) -> impl Iterator<Item = (&'static str, u64)> {
    (L::TEXTS.iter().enumerate()).map(move |(number, text)| {
        (*text, all.iter().map(|each| pick(each).0[number].value()).fold(0, u64::wrapping_add))
    })
}

fn sum(all: &[&ThreadCounters], pick: fn(&ThreadCounters) -> &Counter) -> u64 {
    all.iter().map(|each| pick(each).value()).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Threads(Vec<ThreadCounters>);

    impl Collector for Threads {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            MetricsEncoder::new(encoder).thread_counters(&self.0.iter().collect::<Vec<_>>())
        }
    }

    #[test]
    fn scrape_sums_the_counters_of_all_threads() {
        let (first_thread, second_thread) = (ThreadCounters::default(), ThreadCounters::default());
        first_thread.open.with_label(ConnectionKind::Http).add(3);
        // Opened in one thread and closed in another: only the sum is meaningful.
        second_thread.open.with_label(ConnectionKind::Http).decrement();
        let text = text_of(Threads(vec![first_thread, second_thread]));
        assert!(text.contains("hosting_edge_connections{kind=\"http\"} 2\n"), "{text}");
        assert!(text.contains("# TYPE hosting_edge_connections_total counter\n"), "{text}");
    }

    #[test]
    fn metric_names_and_labels_are_stable() {
        let text = text_of(Threads(vec![ThreadCounters::default()]));
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
