//! Journal with threads on the real file system.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use hosting_journal::{
    Access, Entry, FileHandle, Files, Journal, OpenError, Options, RealFiles, RecoverableState, Stats, open,
};

use crate::world::{Event, KINDS, Memory, SEGMENT};

const PATIENCE: Duration = Duration::from_secs(60);

fn options(folder: &Path) -> Options {
    Options { segment_bytes: SEGMENT, ..Options::new(folder.join("journal"), 1, KINDS) }
}

/// Waits for the journal's signal until an event is durable. Fails if the signal does not arrive.
fn wait_for(journal: &Journal, lsn: u64) {
    let signal = journal.subscribe().unwrap();
    if signal.request(lsn) {
        let mut poll = libc::pollfd { fd: signal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 30_000) }, 1, "no signal; durable {}", journal.durable());
        assert!(journal.durable() >= lsn);
    }
}

fn submit(journal: &Journal, length: u32) -> Event {
    let event = Event { run: 1, lsn: journal.last() + 1, length };
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    journal.submit(event.lsn, 1, &bytes);
    event
}

fn has_credit(journal: &Journal, length: u64) -> bool {
    let credit = journal.credit();
    credit.total.saturating_sub(credit.reserve) >= length + 21
}

#[test]
fn announced_events_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut sent = Vec::new();
    for run in 1..=3 {
        let mut state = Memory::default();
        let (journal, recovered) = open(options(folder.path()), Arc::new(RealFiles), &mut state).unwrap();
        assert_eq!(state.events, sent);
        assert_eq!(recovered.epoch, run);
        for round in 0..200 {
            if !has_credit(&journal, 9_000) {
                // A thread prepares the next segment. The durable position proves that it did.
                submit_from_reserve(&journal, &mut sent);
                continue;
            }
            sent.push(submit(&journal, if round % 5 == 0 { 9_000 } else { 60 }));
            if round % 16 == 0 {
                wait_for(&journal, journal.last());
            }
        }
        wait_for(&journal, journal.last());
        let stats = journal.stats();
        assert_eq!(stats.events, 200);
        assert_eq!(stats.batch_events.sum, 200);
        assert_eq!(stats.sync_ns.count(), stats.batches);
        assert_eq!((stats.durable_lsn, stats.oldest_pending_ns), (journal.last(), 0));
        journal.close();
    }
}

fn submit_from_reserve(journal: &Journal, sent: &mut Vec<Event>) {
    sent.push(submit(journal, 10));
    wait_for(journal, journal.last());
}

/// Writes events until the statistics meet a condition.
fn write_until(journal: &Journal, sent: &mut Vec<Event>, is_met: impl Fn(&Stats) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_met(&journal.stats()) {
        assert!(Instant::now() < deadline, "{:?}", journal.stats());
        if has_credit(journal, 20_000) {
            sent.push(submit(journal, 20_000));
        }
        wait_for(journal, journal.last());
    }
}

#[test]
fn closed_segments_are_compacted_in_the_background() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(options(folder.path()), Arc::new(RealFiles), &mut Memory::default()).unwrap();
    journal.start_compaction(Memory::default).unwrap();
    let mut sent = Vec::new();
    write_until(&journal, &mut sent, |stats| stats.compactions >= 2);
    journal.close();
    let mut state = Memory::default();
    let (journal, recovered) = open(options(folder.path()), Arc::new(RealFiles), &mut state).unwrap();
    assert!(recovered.image_lsn > 0);
    assert_eq!(state.events, sent);
    journal.close();
}

struct PanickingState(Memory);

impl RecoverableState for PanickingState {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.0.load_image(bytes)
    }

    fn apply(&mut self, _first_lsn: u64, _count: u32, _bytes: &[u8], _service_ms: u64) -> Result<(), String> {
        std::panic::resume_unwind(Box::new("a defect"))
    }

    fn write_image(&self, out: &mut dyn Write) -> io::Result<()> {
        self.0.write_image(out)
    }
}

#[test]
fn panic_in_a_compaction_is_a_failed_compaction() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(options(folder.path()), Arc::new(RealFiles), &mut Memory::default()).unwrap();
    journal.start_compaction(|| PanickingState(Memory::default())).unwrap();
    let mut sent = Vec::new();
    write_until(&journal, &mut sent, |stats| stats.failed_compactions > 0);
    let failure = journal.stats().last_compaction_failure.unwrap();
    assert!(failure.reason.contains("panicked"), "{failure:?}");
    sent.push(submit(&journal, 60));
    wait_for(&journal, journal.last());
    journal.close();
}

#[test]
fn journal_opens_once_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let open_it = || open(options(folder.path()), Arc::new(RealFiles), &mut Memory::default());
    let (journal, _) = open_it().unwrap();
    let Err(error) = open_it() else { panic!("opened twice") };
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    journal.close();
    open_it().unwrap().0.close();
}

#[test]
fn segments_are_preallocated_and_private() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open(options(folder.path()), Arc::new(RealFiles), &mut Memory::default()).unwrap();
    let path = folder.path().join("journal/seg-000000000001.log");
    let before = std::fs::metadata(&path).unwrap();
    assert_eq!((before.len(), before.blocks() * 512), (SEGMENT, SEGMENT));
    assert_eq!(before.permissions().mode() & 0o777, 0o600);
    submit(&journal, 5_000);
    wait_for(&journal, 1);
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!((after.len(), after.blocks()), (before.len(), before.blocks()));
    journal.close();
}

struct GatedFiles {
    gate: Arc<SyncGate>,
}

#[derive(Default)]
struct SyncGate {
    state: Mutex<(bool, u64)>,
    changed: Condvar,
    /// Name of the only thread of which the gate stops syncs. All threads if there is none.
    stopped_thread: Option<&'static str>,
    /// Name of the thread of which each write panics.
    panicking_thread: Option<&'static str>,
}

impl SyncGate {
    fn set_shut(&self, is_shut: bool) {
        self.state.lock().unwrap().0 = is_shut;
        self.changed.notify_all();
    }

    fn wait_for_sync(&self, after: u64) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |(_, syncs)| *syncs <= after).unwrap());
    }

    fn syncs(&self) -> u64 {
        self.state.lock().unwrap().1
    }

    fn pass(&self) {
        if self.stopped_thread.is_some() && std::thread::current().name() != self.stopped_thread {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |(is_shut, _)| *is_shut).unwrap());
    }
}

/// Opens the gate at its end, also after a failed assertion. Otherwise the end of the journal would wait.
struct ShutGate<'a>(&'a SyncGate);

impl<'a> ShutGate<'a> {
    fn new(gate: &'a SyncGate) -> Self {
        gate.set_shut(true);
        Self(gate)
    }
}

impl Drop for ShutGate<'_> {
    fn drop(&mut self) {
        self.0.set_shut(false);
    }
}

struct GatedFile {
    file: Box<dyn FileHandle>,
    gate: Arc<SyncGate>,
}

impl Files for GatedFiles {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        RealFiles.create_folder(path)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        RealFiles.list(folder)
    }
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn FileHandle>> {
        Ok(Box::new(GatedFile { file: RealFiles.open(path, access)?, gate: Arc::clone(&self.gate) }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFiles.rename(from, to)
    }
    fn unlink(&self, path: &Path) -> io::Result<()> {
        RealFiles.unlink(path)
    }
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        RealFiles.sync_folder(folder)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        RealFiles.lock(path)
    }
    fn physical_block(&self, folder: &Path) -> Option<u64> {
        RealFiles.physical_block(folder)
    }
    fn read_device(&self, path: &Path, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        RealFiles.read_device(path, offset, length)
    }
}

impl FileHandle for GatedFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let thread = std::thread::current();
        assert!(thread.name().is_none() || thread.name() != self.gate.panicking_thread, "a defect");
        self.file.write_at(bytes, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync_data()
    }
    fn allocate(&self, length: u64) -> io::Result<bool> {
        self.file.allocate(length)
    }
}

#[test]
fn submissions_during_a_stalled_sync_share_the_next_sync() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(SyncGate::default());
    let files = Arc::new(GatedFiles { gate: Arc::clone(&gate) });
    let (journal, _) = open(options(folder.path()), files, &mut Memory::default()).unwrap();
    // Waits for the last segment of the thread that prepares segments. All later syncs belong to batches.
    while journal.stats().segments_ready < 2 {
        std::thread::yield_now();
    }
    gate.set_shut(true);
    let before = gate.syncs();
    submit(&journal, 100);
    gate.wait_for_sync(before);
    for _ in 0..50 {
        submit(&journal, 100);
    }
    let stats = journal.stats();
    assert_eq!((stats.durable_lsn, stats.last_lsn), (0, 51));
    assert!(stats.oldest_pending_ns > 0);
    assert!(journal.credit().total > 0);
    journal.heartbeat();
    gate.set_shut(false);
    wait_for(&journal, 51);
    assert_eq!(gate.syncs(), before + 2, "one for the first, one for the fifty that waited");
    assert_eq!(journal.stats().batches, 3);
    journal.close();
}

/// The sync of a new segment can take seconds, if other programs write to the same file system.
#[test]
fn sync_of_a_new_segment_delays_events_and_refuses_none() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(SyncGate { stopped_thread: Some("journal-segments"), ..SyncGate::default() });
    let files = Arc::new(GatedFiles { gate: Arc::clone(&gate) });
    let (journal, _) = open(options(folder.path()), files, &mut Memory::default()).unwrap();
    while journal.stats().segments_ready < 2 {
        std::thread::yield_now();
    }
    let shut = ShutGate::new(&gate);
    // Uses up the current segment and both prepared ones.
    while journal.stats().segments_ready > 0 || journal.durable() == journal.last() {
        if journal.durable() == journal.last() {
            assert!(has_credit(&journal, 20_000), "{:?}", journal.stats());
            submit(&journal, 20_000);
        }
        std::thread::yield_now();
    }
    // Events of almost one segment wait for the next one.
    for _ in 0..(SEGMENT / 20_021 - 2) {
        assert!(has_credit(&journal, 20_000), "{:?}", journal.stats());
        submit(&journal, 20_000);
    }
    assert!(!journal.stats().is_stalled);
    drop(shut);
    wait_for(&journal, journal.last());
    journal.close();
}

static FATAL: (Mutex<Vec<String>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

fn record_fatal(reason: &str) -> ! {
    FATAL.0.lock().unwrap().push(reason.to_owned());
    FATAL.1.notify_all();
    // The real function ends the process. This one ends the thread, without a second message.
    std::panic::resume_unwind(Box::new(()))
}

#[test]
fn panic_in_a_journal_thread_is_fatal() {
    for thread in ["journal-writer", "journal-segments"] {
        let folder = tempfile::tempdir().unwrap();
        let gate = Arc::new(SyncGate { panicking_thread: Some(thread), ..SyncGate::default() });
        let options = Options { on_fatal: record_fatal, ..options(folder.path()) };
        let (journal, _) = open(options, Arc::new(GatedFiles { gate }), &mut Memory::default()).unwrap();
        submit(&journal, 100);
        let reasons = FATAL.0.lock().unwrap();
        let is_missing = |reasons: &mut Vec<String>| reasons.is_empty();
        let (mut reasons, wait) = FATAL.1.wait_timeout_while(reasons, Duration::from_secs(30), is_missing).unwrap();
        assert!(!wait.timed_out(), "{thread} ended without a word");
        assert!(reasons.pop().unwrap().contains(thread));
        drop(reasons);
        drop(journal);
    }
}
