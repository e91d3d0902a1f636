//! `Engine` class: argument conversion for the commands of a `Shard`. Short commands keep the GIL, because releasing the
//! GIL takes longer. Methods with work in proportion to the data release the GIL.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use hosting_core::{
    Attach, ChannelId, CommandOutcome, Context, Create, EngineConfig, HashKey, HoldId, Id, LobbySessions,
    Port as CorePort, PortRange,
};
use hosting_journal::DurableSignal;
use hosting_matchmaker::wall_ms;
use hosting_shard::Shard;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::{
    self, IdBytes, IdempotencyBytes, KeyBytes, Lobby, Placed, Resolved, ids, resolve_lsn, resolve_outcome, tag_pairs,
};
use crate::facts::{self, Facts};
use crate::metrics::{RecoveryMetrics, StateCounts};
use crate::servers::{Creation, ProcessCommands};
use crate::{journal, metrics};

#[pyclass(frozen, module = "pyservice._native")]
pub struct Engine {
    pub(crate) shard: Arc<Shard>,
    /// Wakes Python's event loop when an event for which it waits is durable. None without a journal.
    durable_signal: Option<DurableSignal>,
    /// Wakes Python's event loop when a change that it follows is durable. None without a journal.
    change_signal: Option<DurableSignal>,
    pub(crate) hash: Arc<HashKey>,
    pub(crate) shard_number: u16,
    /// Offset of the change numbers that `counts` returns. Lower numbers belong to an earlier process.
    first_generation: u64,
    /// Result of the recovery, or `None` without a journal.
    recovered: Option<RecoveryMetrics>,
    /// Physical block and alignment of the journal, if two batches can share a block.
    uncovered_block: Option<(u64, u64)>,
}

/// State of the journal and the engine.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Status {
    epoch: u64,
    durable: u64,
    last: u64,
    credit_bytes: u64,
    reserve_bytes: u64,
}

/// Channel event: time in Unix milliseconds, lobby id and player token.
type ChannelEvent = (u64, IdBytes, String);

type PortArgument = (String, String, u16, bool);
type CountRow = (IdBytes, u64, u64);

#[pymethods]
impl Engine {
    #[staticmethod]
    #[pyo3(signature = (journal_dir, *, mac_keys, current_key, hash_key,
        boot_id_path = "/proc/sys/kernel/random/boot_id", segment_bytes = 67_108_864, shard = 1,
        start_limit_ms = 300_000, port_quarantine_ms = 60_000, public_ports = (26_000, 31_999),
        restored_keys = vec![], first_epoch = 1, binds_ports_later = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn open(
        py: Python<'_>,
        journal_dir: Option<PathBuf>,
        mac_keys: Vec<(u16, KeyBytes)>,
        current_key: u16,
        hash_key: KeyBytes,
        boot_id_path: &str,
        segment_bytes: u64,
        shard: u16,
        start_limit_ms: u64,
        port_quarantine_ms: u64,
        public_ports: (u16, u16),
        restored_keys: Vec<u16>,
        first_epoch: u64,
        binds_ports_later: bool,
    ) -> PyResult<Engine> {
        let hash = Arc::new(HashKey::new(hash_key.0));
        let usual = EngineConfig::new(shard, journal::key_ring(&mac_keys, current_key, &restored_keys)?);
        let ports = PortRange { first: public_ports.0, last: public_ports.1 };
        let config = EngineConfig { start_limit_ms, port_quarantine_ms, ports, binds_ports_later, ..usual };
        let engine = hosting_core::Engine::new(config);
        let started = Instant::now();
        let (opened, recovered) = py.detach(|| -> PyResult<_> {
            let Some(dir) = journal_dir else { return Ok((Shard::new(engine, None), None)) };
            let options = journal::options(dir, boot_id_path, segment_bytes, shard, first_epoch);
            let (opened, recovered) = Shard::open(engine, options).map_err(|error| journal::open_failed(&error))?;
            Ok((opened, Some(recovered)))
        })?;
        let uncovered_block =
            recovered.as_ref().and_then(|journal| Some((journal.uncovered_block?, journal.alignment)));
        let recovered = recovered.map(|journal| RecoveryMetrics {
            events: journal.events,
            torn_bytes: journal.torn_bytes,
            took: started.elapsed(),
        });
        let change_signal = opened.subscribe_changes()?;
        let durable_signal = opened.journal().map(hosting_journal::Journal::subscribe).transpose()?;
        opened.start_expiry_thread()?;
        opened.start_compaction().map_err(|error| journal::open_failed(&error))?;
        let first_generation = wall_ms() << 20;
        let shard_number = shard;
        Ok(Engine {
            shard: opened,
            durable_signal,
            change_signal,
            hash,
            shard_number,
            first_generation,
            recovered,
            uncovered_block,
        })
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.shard.close());
    }

    fn uncovered_block(&self) -> Option<(u64, u64)> {
        self.uncovered_block
    }

    fn wake_fd(&self) -> i32 {
        self.durable_signal.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn request_wake(&self, lsn: u64) -> bool {
        self.durable_signal.as_ref().is_some_and(|signal| signal.request(lsn))
    }

    fn change_fd(&self) -> i32 {
        self.change_signal.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn durable(&self) -> u64 {
        self.shard.durable()
    }

    fn take_resolved(&self, py: Python<'_>) -> PyResult<Vec<Resolved>> {
        let resolved = self.shard.engine().take_resolved_holds();
        resolved.into_iter().map(|one| Resolved::of(py, one)).collect()
    }

    fn public_token(&self, namespace: IdBytes, token_id: IdBytes) -> String {
        self.shard.keys().sign_public(namespace.0, token_id.0)
    }

    fn development_token(&self, namespace: IdBytes, token_id: IdBytes, expires_ms: u64) -> String {
        self.shard.keys().sign_development(namespace.0, token_id.0, expires_ms)
    }

    fn mock_player_token(&self, namespace: IdBytes, token_id: IdBytes, nonce: [u8; 16]) -> String {
        self.shard.run(|engine, context| engine.mock_player_token(context, namespace.0, token_id.0, &nonce))
    }

    fn consume_mock(&self, group: IdBytes, namespace: IdBytes, token_id: IdBytes, player_token: &str) -> PyResult<u64> {
        resolve_lsn(self.shard.execute(|engine, context| {
            engine.consume_mock_token(context, group.0, namespace.0, token_id.0, player_token)
        }))
    }

    fn add_key(&self, key_id: u16, secret: KeyBytes) -> PyResult<()> {
        let known = |_| PyValueError::new_err(format!("the ring has a key {key_id}"));
        self.shard.add_key(key_id, &secret.0).map_err(known)
    }

    fn drop_key(&self, py: Python<'_>, key_id: u16) -> bool {
        py.detach(|| self.shard.drop_key(key_id))
    }

    fn key_ids(&self) -> Vec<u16> {
        self.shard.keys().ids()
    }

    fn unused_keys(&self, py: Python<'_>) -> Vec<u16> {
        py.detach(|| {
            self.shard.engine().start_key_search();
            // Each step locks the engine anew, so that other commands run between two steps.
            while self.shard.engine().continue_key_search() {}
            self.shard.engine().unused_keys()
        })
    }

    fn channel(&self, secret: &[u8]) -> [u8; 16] {
        self.hash.channel(secret)
    }

    fn channel_events(&self, channel: [u8; 16]) -> PyResult<(Vec<ChannelEvent>, u64)> {
        let (events, wait) =
            resolve_outcome(self.shard.execute(|engine, context| engine.channel_events(context, &channel)))?;
        Ok((events.into_iter().map(|event| (event.ts_ms, IdBytes(event.lobby), event.token)).collect(), wait))
    }

    fn take_delivered(&self) -> Vec<ChannelId> {
        let durable = self.shard.durable();
        self.shard.engine().take_notified_channels(durable)
    }

    fn standing(&self, namespace: IdBytes, address: &[u8]) -> (Option<u64>, u32) {
        let source = self.source(namespace, address);
        let status = self.shard.run(|engine, context| engine.captcha_status(context, source));
        (status.passed_ago_ms, status.requests_since)
    }

    fn note_human(&self, namespace: IdBytes, address: &[u8]) -> PyResult<u64> {
        let source = self.source(namespace, address);
        resolve_lsn(self.shard.execute(|engine, context| engine.record_captcha_pass(context, source)))
    }

    fn note_request(&self, namespace: IdBytes, address: &[u8]) {
        let source = self.source(namespace, address);
        self.shard.run(|engine, context| engine.count_captcha_request(context, source));
    }

    fn idempotency(&self, caller: &[u8], key: &[u8], operation: &str, message: &[u8]) -> IdempotencyBytes {
        IdempotencyBytes(self.hash.idempotency(caller, key, operation, message))
    }

    #[pyo3(signature = (namespace, version, creation, *, party_size = 1, source = 0, source_limit = 4_294_967_295,
        idempotency = None, channels = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn create(
        &self,
        namespace: IdBytes,
        version: IdBytes,
        creation: Creation,
        party_size: u32,
        source: u64,
        source_limit: u32,
        idempotency: Option<IdempotencyBytes>,
        channels: Option<Vec<ChannelId>>,
    ) -> PyResult<Placed> {
        let (namespace, version) = (namespace.0, version.0);
        let idempotency = idempotency.map(|key| key.0);
        let channels = channels.unwrap_or_default();
        Creation::with(Some(&creation), self.shard_number, namespace, version, |creation| {
            let channels = channels.as_slice();
            let create = Create { namespace, creation, party_size, source, source_limit, idempotency, channels };
            self.place(channels, |engine, context| engine.create(context, &create))
        })?
    }

    fn servers(&self) -> ProcessCommands {
        ProcessCommands { shard: self.shard.clone(), shard_number: self.shard_number, hash: self.hash.clone() }
    }

    fn recall(&self, idempotency: IdempotencyBytes) -> PyResult<Option<Placed>> {
        let mut starting = None;
        let answer = self.shard.execute(|engine, context| {
            let answer = engine.recall_admission(context, &idempotency.0);
            if let Ok(Some(hosting_core::Admission::Hold(hold))) = &answer.result {
                starting = engine.lobby_of_hold(*hold);
            }
            answer
        });
        let (placed, wait) = resolve_outcome(answer)?;
        Ok(placed.map(|placed| Placed::of(placed, starting, wait)))
    }

    fn recall_attach(&self, idempotency: IdempotencyBytes) -> PyResult<Option<(IdBytes, String, u64)>> {
        let answer = self.shard.execute(|engine, context| engine.recall_attach(context, &idempotency.0));
        let (attached, wait) = resolve_outcome(answer)?;
        Ok(attached.map(|attached| (IdBytes(attached.lobby), attached.lobby_token, wait)))
    }

    fn release_hold(&self, hold: u64) {
        self.shard.run(|engine, context| engine.release_hold(context, HoldId(hold)));
    }

    #[pyo3(signature = (namespaces, lobby, speaker = None))]
    fn state(
        &self,
        namespaces: Vec<IdBytes>,
        lobby: IdBytes,
        speaker: Option<IdBytes>,
    ) -> PyResult<(Option<Vec<u8>>, u64)> {
        let (namespaces, speaker) = (ids(namespaces), speaker.map(|lobby| lobby.0));
        resolve_outcome(self.shard.execute(|engine, context| engine.state(context, &namespaces, lobby.0, speaker)))
    }

    #[pyo3(signature = (namespace, version, mode, region, ports, *, tags = None, max_players,
        player_token_ttl_ms, heartbeat_timeout_ms, heartbeat_grace_ms, is_join_enabled, create_ts_ms,
        lobby_count_max, idempotency = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn attach(
        &self,
        namespace: IdBytes,
        version: IdBytes,
        mode: &str,
        region: &str,
        ports: Vec<PortArgument>,
        tags: Option<Vec<(String, String)>>,
        max_players: (u32, u32, u32),
        player_token_ttl_ms: u64,
        heartbeat_timeout_ms: u64,
        heartbeat_grace_ms: u64,
        is_join_enabled: bool,
        create_ts_ms: u64,
        lobby_count_max: u32,
        idempotency: Option<IdempotencyBytes>,
    ) -> PyResult<(IdBytes, String, u64)> {
        let ports: Vec<CorePort> =
            ports.into_iter().map(|(name, address, port, is_tls)| CorePort { name, address, port, is_tls }).collect();
        let attach = Attach {
            id: convert::random_lobby_id(self.shard_number)?,
            namespace: namespace.0,
            version: version.0,
            mode,
            region,
            tags: &tag_pairs(tags.as_deref().unwrap_or_default()),
            max_players: max_players.0,
            max_players_direct: max_players.1,
            max_players_party: max_players.2,
            player_token_ttl_ms,
            heartbeat_timeout_ms,
            heartbeat_grace_ms,
            is_join_enabled,
            ports: &ports,
            create_ts_ms,
            lobby_count_max,
            idempotency: idempotency.map(|key| key.0),
        };
        let (attached, wait) = resolve_outcome(self.shard.execute(|engine, context| engine.attach(context, &attach)))?;
        Ok((IdBytes(attached.lobby), attached.lobby_token, wait))
    }

    fn detach(&self, namespaces: Vec<IdBytes>, lobby: IdBytes) -> PyResult<(bool, u64)> {
        resolve_outcome(self.shard.execute(|engine, context| engine.detach(context, &ids(namespaces), lobby.0)))
    }

    fn lobby(&self, lobby: IdBytes) -> Option<Lobby> {
        self.shard.engine().lobby(lobby.0).map(|inner| Lobby { inner })
    }

    fn lobbies_to_drain(&self, py: Python<'_>, limit: usize) -> (Vec<Lobby>, usize) {
        let (lobbies, count) = py.detach(|| self.shard.engine().lobbies_to_drain(limit));
        (lobbies.into_iter().map(|inner| Lobby { inner }).collect(), count)
    }

    fn suspect_slots(
        &self,
        lobby: IdBytes,
        sessions: Vec<(u64, u32)>,
        other_sessions: u32,
        ages_ms: (u64, u64),
    ) -> Option<u32> {
        let sessions = LobbySessions { by_source: sessions, others: other_sessions };
        let now = self.shard.now();
        let connected = now.saturating_sub(ages_ms.1)..now.saturating_sub(ages_ms.0);
        self.shard.engine().suspect_slots(lobby.0, &sessions, connected)
    }

    fn namespace_that_had(&self, lobby: IdBytes) -> Option<IdBytes> {
        self.shard.engine().namespace_of_lobby(lobby.0).map(IdBytes)
    }

    fn live_versions(&self, py: Python<'_>, namespace: IdBytes) -> Vec<IdBytes> {
        let versions = py.detach(|| self.shard.engine().live_versions(namespace.0));
        versions.into_iter().map(IdBytes).collect()
    }

    fn read_facts(&self, py: Python<'_>, after_lsn: u64, limit: usize) -> PyResult<Facts> {
        facts::read_facts(py, &self.shard, after_lsn, limit)
    }

    fn acknowledge_facts(&self, lsn: u64) {
        self.shard.run(|engine, context| engine.acknowledge_facts(context, lsn));
    }

    fn counts(&self, after_generation: u64) -> (u64, bool, Vec<CountRow>) {
        // A generation of an earlier engine becomes 0, which reports all counts.
        let after = after_generation.saturating_sub(self.first_generation);
        let presence = self.shard.engine().presence_since(after);
        let row = |(id, players, lobbies)| (IdBytes(id), players, lobbies);
        (
            self.first_generation + presence.generation,
            presence.is_all,
            presence.namespaces.into_iter().map(row).collect(),
        )
    }

    fn status(&self) -> Status {
        let last = self.shard.engine().last_lsn();
        let credit = self.shard.journal().map(hosting_journal::Journal::credit);
        Status {
            epoch: self.shard.journal().map_or(1, hosting_journal::Journal::epoch),
            durable: self.shard.durable().min(last),
            last,
            credit_bytes: credit.map_or(u64::MAX, |credit| credit.total),
            reserve_bytes: credit.map_or(0, |credit| credit.reserve),
        }
    }

    fn render_metrics<'py>(
        &self,
        py: Python<'py>,
        namespace_labels: HashMap<[u8; 16], String>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let labels: HashMap<Id, String> =
            namespace_labels.into_iter().map(|(namespace, label)| (Id(namespace), label)).collect();
        let text = py.detach(|| metrics::render(&self.shard, self.recovered.as_ref(), &labels));
        Ok(PyBytes::new(py, text.as_bytes()))
    }

    fn state_counts(&self) -> (StateCounts, StateCounts, BTreeMap<&'static str, StateCounts>) {
        metrics::state_counts(&self.shard)
    }

    fn failed_compactions(&self) -> (u64, String, u64) {
        let Some(stats) = self.shard.journal().map(hosting_journal::Journal::stats) else { return Default::default() };
        let (reason, retry_s) =
            stats.last_compaction_failure.map(|last| (last.reason, last.retry_s)).unwrap_or_default();
        (stats.failed_compactions, reason, retry_s)
    }
}

impl Engine {
    fn source(&self, namespace: IdBytes, address: &[u8]) -> u64 {
        self.hash.source(namespace.0, address)
    }

    /// Runs a command that reserves slots. If the command returns a hold, the result names the starting lobby.
    fn place(
        &self,
        channels: &[ChannelId],
        command: impl FnOnce(&mut hosting_core::Engine, &mut Context<'_>) -> CommandOutcome<hosting_core::Admission>,
    ) -> PyResult<Placed> {
        let mut starting = None;
        let answer = self.shard.execute(|engine, context| {
            if !channels.is_empty() {
                engine.set_wall_clock(wall_ms());
            }
            let answer = command(engine, context);
            if let Ok(hosting_core::Admission::Hold(hold)) = &answer.result {
                starting = engine.lobby_of_hold(*hold);
            }
            answer
        });
        let (placed, wait) = resolve_outcome(answer)?;
        Ok(Placed::of(placed, starting, wait))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shard.close();
    }
}
