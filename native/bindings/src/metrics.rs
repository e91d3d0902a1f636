//! Prometheus text of the engine and journal metrics. Namespaces beyond [`NAMESPACES_MAX`] share the label `other`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Write};
use std::time::Duration;

use hosting_core::{EndReason, Engine, Id, LOCAL_NODE, NamespaceCounts};
use hosting_journal::{Histogram, LastCompaction, Stats};
use hosting_shard::Shard;

use crate::convert::reason_word;

/// Maximum number of namespace labels in one metric family. Further namespaces share the label `other`.
const NAMESPACES_MAX: usize = 1_000;
const OTHER: &str = "other";

const LOBBY_STATES: [&str; 4] = ["starting", "ready", "closed", "silent"];
const SLOT_STATES: [&str; 5] = ["free", "held", "reserved", "connected", "kept"];
const PORT_PROTOCOLS: [&str; 2] = ["tcp", "udp"];
const PORT_STATES: [&str; 3] = ["free", "leased", "resting"];
const TOKEN_OUTCOMES: [&str; 8] =
    ["issued", "connected", "invalid", "wrong_lobby", "consumed", "expired", "removed", "disconnected"];
const END_CAUSES: [&str; 4] = ["expired", "consumed", "released", "lobby_gone"];
/// End reasons in the order of `NamespaceCounts::lobby_ends`.
const LOBBY_ENDS: [EndReason; 5] =
    [EndReason::Exited, EndReason::StartTimeout, EndReason::Silent, EndReason::Removed, EndReason::Stopped];

/// Result of the journal recovery.
pub struct RecoveryMetrics {
    pub events: u64,
    pub torn_bytes: u64,
    pub took: Duration,
}

/// Returns the metrics text. `labels` has the label of each namespace. `recovered` is `None` without a journal.
pub fn render(shard: &Shard, recovered: Option<&RecoveryMetrics>, labels: &HashMap<Id, String>) -> String {
    let engine = shard.engine();
    let (counts, forgotten) = (engine.namespace_counts(), engine.forgotten_namespace_counts());
    let (violations, find_work) = (engine.ledger_violations(), engine.find_candidates_visited());
    let (facts_waiting, facts_lost) = engine.stored_fact_counts();
    let ports = ports_by_node(&engine);
    drop(engine);
    let mut page = Page(String::with_capacity(64 * 1024));
    page.namespaces(&by_label(counts, forgotten, labels));
    page.single(
        "hosting_ledger_violations_total",
        "Commands after which free + held + reserved + connected + kept was not the capacity.",
        violations,
    );
    page.single("hosting_find_candidates_total", "Lobbies that find examined.", find_work);
    page.single(
        "hosting_facts_waiting",
        "Facts about lobbies that the control plane has not acknowledged.",
        facts_waiting,
    );
    page.single("hosting_facts_lost", "Facts dropped since the last read of the control plane.", facts_lost);
    page.ports(&ports);
    if let Some(journal) = shard.journal() {
        page.journal(&journal.stats());
    }
    if let Some(recovered) = recovered {
        page.recovered(recovered);
    }
    page.0
}

/// Numbers by state.
pub type StateCounts = BTreeMap<&'static str, u64>;

/// Returns the sums over all namespaces: lobbies and slots by state, and ports by protocol and state.
pub fn state_counts(shard: &Shard) -> (StateCounts, StateCounts, BTreeMap<&'static str, StateCounts>) {
    let engine = shard.engine();
    let (namespaces, nodes) = (engine.namespace_counts(), ports_by_node(&engine));
    drop(engine);
    let mut sum = NamespaceCounts::default();
    for (_, counts) in &namespaces {
        sum += counts;
    }
    let ports = PORT_PROTOCOLS.iter().enumerate().map(|(family, protocol)| {
        let of_state = |state: usize| nodes.values().map(|counts| counts[family][state] as u64).sum();
        (*protocol, by_state(&PORT_STATES, [0, 1, 2].map(of_state)))
    });
    (by_state(&LOBBY_STATES, sum.lobbies), by_state(&SLOT_STATES, sum.slots), ports.collect())
}

/// Numbers of ports by protocol and state.
type PortCounts = [[usize; 3]; 2];

/// Returns the ports by node. The node without a name is that of a single machine. In a cluster it is there only while it
/// has leases or quarantined ports of an earlier time.
fn ports_by_node(engine: &Engine) -> BTreeMap<String, PortCounts> {
    let local = (!engine.binds_ports_later()).then_some(LOCAL_NODE);
    let nodes = engine.port_nodes().into_iter().chain(local);
    nodes.map(|node| (node.to_owned(), engine.port_counts(node))).collect()
}

fn by_state<const N: usize>(states: &[&'static str; N], counts: [u64; N]) -> StateCounts {
    states.iter().copied().zip(counts).collect()
}

/// Adds up counts by label. `other` includes forgotten namespaces, so that the sum over all labels never decreases.
fn by_label(
    counts: Vec<(Id, NamespaceCounts)>,
    forgotten: NamespaceCounts,
    labels: &HashMap<Id, String>,
) -> BTreeMap<String, NamespaceCounts> {
    let mut named: BTreeMap<String, NamespaceCounts> = BTreeMap::new();
    let mut unnamed = (forgotten != NamespaceCounts::default()).then_some(forgotten);
    for (namespace, count) in counts {
        match labels.get(&namespace) {
            Some(label) if named.len() < NAMESPACES_MAX || named.contains_key(label) => {
                *named.entry(label.clone()).or_default() += &count;
            }
            _ => *unnamed.get_or_insert_default() += &count,
        }
    }
    if let Some(rest) = unnamed {
        *named.entry(OTHER.to_owned()).or_default() += &rest;
    }
    named
}

/// Metrics text during its construction. Results of `write!` are ignored, because writes to a string cannot fail.
struct Page(String);

impl Page {
    /// Names of counters end with `_total`, as Prometheus recommends.
    fn family(&mut self, name: &str, help: &str) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        self.family_of(name, kind, help);
    }

    fn family_of(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn single(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn namespaces(&mut self, counts: &BTreeMap<String, NamespaceCounts>) {
        self.states(
            "hosting_lobbies",
            "Live lobbies.",
            "state",
            &LOBBY_STATES,
            counts.iter().map(|(label, count)| (label, &count.lobbies)),
        );
        self.states(
            "hosting_slots",
            "Slots of live lobbies; free + held + reserved + connected + kept is their capacity.",
            "state",
            &SLOT_STATES,
            counts.iter().map(|(label, count)| (label, &count.slots)),
        );
        self.states(
            "hosting_player_tokens_total",
            "Player tokens issued, and outcomes of calls with one.",
            "outcome",
            &TOKEN_OUTCOMES,
            counts.iter().map(|(label, count)| (label, &count.tokens)),
        );
        self.states(
            "hosting_slot_ends_total",
            "Ended slot uses.",
            "cause",
            &END_CAUSES,
            counts.iter().map(|(label, count)| (label, &count.ends)),
        );
        self.states(
            "hosting_lobby_ends_total",
            "Ended lobbies.",
            "cause",
            &LOBBY_ENDS.map(reason_word),
            counts.iter().map(|(label, count)| (label, &count.lobby_ends)),
        );
    }

    fn states<'a, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        words: &[&str; N],
        rows: impl Iterator<Item = (&'a String, &'a [u64; N])>,
    ) {
        self.family(name, help);
        for (namespace, values) in rows {
            for (word, value) in words.iter().zip(values) {
                let _ = writeln!(self.0, "{name}{{namespace=\"{namespace}\",{label}=\"{word}\"}} {value}");
            }
        }
    }

    fn ports(&mut self, nodes: &BTreeMap<String, PortCounts>) {
        let name = "hosting_ports";
        self.family(name, "Public ports of lobbies and servers.");
        for (node, counts) in nodes {
            let of_node = if node == LOCAL_NODE { String::new() } else { format!("node=\"{node}\",") };
            for (protocol, values) in PORT_PROTOCOLS.iter().zip(counts) {
                for (state, value) in PORT_STATES.iter().zip(values) {
                    let _ = writeln!(self.0, "{name}{{{of_node}protocol=\"{protocol}\",state=\"{state}\"}} {value}");
                }
            }
        }
    }

    fn journal(&mut self, stats: &Stats) {
        self.single("hosting_journal_batches_total", "Durable batches.", stats.batches);
        self.single("hosting_journal_events_total", "Durable events.", stats.events);
        self.single("hosting_journal_written_bytes_total", "Bytes of batches.", stats.bytes);
        self.single("hosting_journal_syncs_total", "Syncs of batches.", stats.syncs);
        self.histogram("hosting_journal_batch_events", "Events per batch.", &stats.batch_events, 1.0);
        self.histogram("hosting_journal_sync_seconds", "Time to write and sync a batch.", &stats.sync_ns, 1e-9);
        self.single(
            "hosting_journal_queue_age_seconds",
            "Age of the oldest event that is not durable.",
            stats.oldest_pending_ns as f64 * 1e-9,
        );
        self.single(
            "hosting_journal_pending_events",
            "Events that are not durable.",
            stats.last_lsn.saturating_sub(stats.durable_lsn),
        );
        self.single(
            "hosting_journal_credit_bytes",
            "Bytes of the journal that can still be written.",
            stats.credit.total,
        );
        self.single("hosting_journal_reserve_bytes", "Credit reserved for existing slots.", stats.credit.reserve);
        self.family("hosting_journal_segments", "Journal files by state.");
        for (state, count) in
            [("ready", stats.segments_ready), ("free", stats.segments_free), ("closed", stats.segments_closed)]
        {
            let _ = writeln!(self.0, "hosting_journal_segments{{state=\"{state}\"}} {count}");
        }
        let stalled = u8::from(stats.is_stalled);
        self.single("hosting_journal_stalled", "1 while the disk has no space for a segment or image.", stalled);
        self.single("hosting_journal_epoch", "Number of this opening of the journal.", stats.epoch);
        let failed = u8::from(stats.last_compaction == Some(LastCompaction::Failed));
        self.single("hosting_journal_compaction_failed", "1 when the last compaction failed.", failed);
        self.single("hosting_compactions_total", "Journal images written since the start.", stats.compactions);
        self.single(
            "hosting_compaction_failures_total",
            "Failed compactions since the start. Each is retried.",
            stats.failed_compactions,
        );
    }

    fn recovered(&mut self, recovered: &RecoveryMetrics) {
        self.single(
            "hosting_journal_recovered_events",
            "Events that this start replayed after its image.",
            recovered.events,
        );
        self.single(
            "hosting_journal_recovery_torn_bytes",
            "Bytes of an incomplete batch that this start cut off.",
            recovered.torn_bytes,
        );
        self.single(
            "hosting_journal_recovery_seconds",
            "Time that this start took to open the journal and replay it.",
            rounded(recovered.took.as_secs_f64()),
        );
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram, unit: f64) {
        self.family_of(name, "histogram", help);
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            let _ = writeln!(self.0, "{name}_bucket{{le=\"{}\"}} {below}", rounded(*bound as f64 * unit));
        }
        let count = histogram.count();
        let _ = writeln!(self.0, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "{name}_sum {}\n{name}_count {count}", rounded(histogram.sum as f64 * unit));
    }
}

/// Rounds off binary fractions, for example 0.000049999… to 0.00005.
fn rounded(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}
