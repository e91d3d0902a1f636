//! Test service: a state that stores every event, a clock under test control, and a ledger of acknowledged events.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hosting_journal::{
    CompactionResult, Journal, Lsn, OpenError, Options, RecoverableState, RecoverySummary, TimeAndRandom, open_stepped,
    write_compacted_image,
};

use crate::disk::Disk;

pub const KINDS: &[(u8, &str)] = &[(1, "Small"), (2, "Large")];
pub const SEGMENT: u64 = 256 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub run: u32,
    pub lsn: Lsn,
    pub length: u32,
}

const EVENT_HEAD: usize = 21;

impl Event {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(if self.length < 1_000 { 1 } else { 2 });
        out.extend_from_slice(&self.run.to_le_bytes());
        out.extend_from_slice(&self.lsn.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&out[start..]).to_le_bytes());
        let seed = self.lsn.wrapping_mul(31).wrapping_add(u64::from(self.run));
        out.resize(start + EVENT_HEAD + self.length as usize, seed as u8);
    }

    fn decode_head(bytes: &mut &[u8]) -> Result<Self, String> {
        let (head, rest) = bytes.split_at_checked(EVENT_HEAD).ok_or("event is cut short")?;
        let field = |range: std::ops::Range<usize>| head[range].iter().rev().fold(0, |sum, &b| sum << 8 | u64::from(b));
        if u64::from(crc32fast::hash(&head[..17])) != field(17..21) {
            return Err("event is damaged".to_owned());
        }
        *bytes = rest;
        Ok(Self { run: field(1..5) as u32, lsn: field(5..13), length: field(13..17) as u32 })
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, String> {
        let event = Self::decode_head(bytes)?;
        let seed = event.lsn.wrapping_mul(31).wrapping_add(u64::from(event.run)) as u8;
        let (filling, rest) = bytes.split_at_checked(event.length as usize).ok_or("event is cut short")?;
        // All bytes are equal if each is equal to the next one. Slices compare faster than single bytes.
        let is_whole =
            filling.first().is_none_or(|&first| first == seed && filling[1..] == filling[..filling.len() - 1]);
        if !is_whole {
            return Err("filling is damaged".to_owned());
        }
        *bytes = rest;
        Ok(event)
    }
}

#[derive(Clone, Default)]
pub struct Memory {
    pub events: Vec<Event>,
    pub unknown: Option<u8>,
    pub last_service_ms: u64,
}

const IMAGE_RECORD: usize = 24 * 1024;

impl RecoverableState for Memory {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        assert!(self.events.is_empty(), "the state is fresh");
        for mut record in bytes.chunks(IMAGE_RECORD) {
            self.events.push(Event::decode_head(&mut record)?);
        }
        Ok(())
    }

    fn apply(&mut self, first_lsn: Lsn, count: u32, mut bytes: &[u8], service_ms: u64) -> Result<(), String> {
        assert!(service_ms >= self.last_service_ms, "service time ran back");
        self.last_service_ms = service_ms;
        for lsn in first_lsn..first_lsn + u64::from(count) {
            if bytes[0] > 2 {
                self.unknown = Some(bytes[0]);
                return Err("unknown kind".to_owned());
            }
            let event = Event::decode(&mut bytes)?;
            if event.lsn != lsn || lsn != self.events.len() as u64 + 1 {
                return Err(format!("{event:?} applied as {lsn} after {} events", self.events.len()));
            }
            self.events.push(event);
        }
        if bytes.is_empty() { Ok(()) } else { Err("bytes are left".to_owned()) }
    }

    fn write_image(&self, out: &mut dyn Write) -> io::Result<()> {
        for event in &self.events {
            let mut record = Vec::new();
            event.encode(&mut record);
            record.resize(IMAGE_RECORD, 0xEE);
            out.write_all(&record)?;
        }
        Ok(())
    }

    fn unknown_kind(&self) -> Option<u8> {
        self.unknown
    }
}

pub struct FixedTimeAndRandom {
    pub boot_ms: AtomicU64,
    pub wall_ms: AtomicU64,
    salt: AtomicU64,
}

impl FixedTimeAndRandom {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            boot_ms: AtomicU64::new(5_000),
            wall_ms: AtomicU64::new(1_700_000_000_000),
            salt: AtomicU64::new(1),
        })
    }

    pub fn pass(&self, ms: u64) {
        self.boot_ms.fetch_add(ms, Ordering::Relaxed);
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl TimeAndRandom for FixedTimeAndRandom {
    fn boot_ms(&self) -> u64 {
        self.boot_ms.load(Ordering::Relaxed)
    }

    fn wall_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::Relaxed)
    }

    fn elapsed_ns(&self) -> u64 {
        self.boot_ms() * 1_000_000
    }

    fn random(&self) -> io::Result<u64> {
        Ok(self.salt.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed))
    }
}

struct SimulatedCrash;

fn die(_reason: &str) -> ! {
    std::panic::resume_unwind(Box::new(SimulatedCrash))
}

pub struct World {
    pub disk: Disk,
    pub time_and_random: Arc<FixedTimeAndRandom>,
    pub options: Options,
    boot_id: Arc<tempfile::NamedTempFile>,
    run: u32,
    journal: Option<Journal>,
    /// Acknowledged events, which must survive.
    pub acknowledged: Vec<Event>,
    /// Later submissions. Any prefix of them may survive.
    pub submitted: Vec<Event>,
}

impl World {
    pub fn new(disk: Disk) -> Self {
        let boot_id = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(boot_id.path(), "0f9d3a52-57c4-4d62-9f3c-6c8b8f4b1b11\n").unwrap();
        Self::with_boot_id(disk, Arc::new(boot_id))
    }

    fn with_boot_id(disk: Disk, boot_id: Arc<tempfile::NamedTempFile>) -> Self {
        let options = Options {
            boot_id_path: boot_id.path().to_owned(),
            segment_bytes: SEGMENT,
            on_fatal: die,
            ..Options::new("/journal", 1, KINDS)
        };
        Self {
            disk,
            time_and_random: FixedTimeAndRandom::new(),
            options,
            boot_id,
            run: 0,
            journal: None,
            acknowledged: Vec::new(),
            submitted: Vec::new(),
        }
    }

    pub fn fork(&self, seed: u64) -> Self {
        assert!(self.journal.is_none());
        let mut world = Self::with_boot_id(self.disk.fork(seed), Arc::clone(&self.boot_id));
        world.time_and_random.pass(self.time_and_random.boot_ms());
        world.time_and_random.salt.store(self.time_and_random.salt.load(Ordering::Relaxed), Ordering::Relaxed);
        world.run = self.run;
        world.acknowledged = self.acknowledged.clone();
        world.submitted = self.submitted.clone();
        world
    }

    pub fn reboot(&self, boot_id: &str, boot_ms: u64) {
        std::fs::write(self.boot_id.path(), boot_id).unwrap();
        self.time_and_random.boot_ms.store(boot_ms, Ordering::Relaxed);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        Path::new("/journal").join(name)
    }

    pub fn journal(&self) -> &Journal {
        self.journal.as_ref().unwrap()
    }

    pub fn try_open(&mut self, state: &mut Memory) -> Result<RecoverySummary, OpenError> {
        self.journal = None;
        self.run += 1;
        let files = Arc::new(self.disk.clone());
        let time_and_random = Arc::clone(&self.time_and_random) as Arc<dyn TimeAndRandom>;
        let (journal, recovered) = open_stepped(self.options.clone(), files, time_and_random, state)?;
        self.journal = Some(journal);
        Ok(recovered)
    }

    /// Opens the journal and compares the recovered events with the ledger.
    pub fn open(&mut self) -> Result<RecoverySummary, OpenError> {
        let mut state = Memory::default();
        let recovered = self.try_open(&mut state)?;
        let known = self.acknowledged.iter().chain(&self.submitted).copied().collect::<Vec<_>>();
        let count = state.events.len();
        assert!(count >= self.acknowledged.len(), "lost: {count} of {} acknowledged", self.acknowledged.len());
        assert!(count <= known.len(), "invented: {count} of {} submitted", known.len());
        assert_eq!(state.events, known[..count], "changed");
        assert_eq!(recovered.last_lsn, count as u64);
        assert_eq!(self.journal().durable(), count as u64);
        assert_eq!(self.journal().last(), count as u64);
        self.acknowledged = state.events;
        self.submitted.clear();
        Ok(recovered)
    }

    pub fn submit(&mut self, length: u32) -> bool {
        let lsn = self.journal().last() + 1;
        let event = Event { run: self.run, lsn, length };
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        let credit = self.journal().credit();
        if credit.total.saturating_sub(credit.reserve) < bytes.len() as u64 {
            return false;
        }
        self.journal().submit(lsn, 1, &bytes);
        self.submitted.push(event);
        true
    }

    /// Writes all batches, and prepares the segments for which they wait.
    pub fn commit(&mut self) {
        loop {
            let before = self.journal().durable();
            let was_written = self.journal().step_commit();
            let after = self.journal().durable();
            assert!(after >= before && after <= self.journal().last());
            let count = (after as usize) - self.acknowledged.len();
            self.acknowledged.extend(self.submitted.drain(..count));
            let is_blocked = !was_written && after < self.journal().last();
            let is_prepared = is_blocked && self.prepare_awaited();
            if !was_written && !is_prepared {
                return;
            }
        }
    }

    /// Prepares the segment for which events wait. The thread of the journal repeats a failed attempt until the machine stops.
    fn prepare_awaited(&self) -> bool {
        let prepare = || self.journal().step_prepare();
        match prepare() {
            Ok(is_prepared) => is_prepared,
            Err(_) if self.disk.is_off() => die("the disk is off"),
            Err(_) => matches!(prepare(), Ok(true)),
        }
    }

    pub fn compact(&self) -> Result<CompactionResult, OpenError> {
        let mut state = Memory::default();
        let done = write_compacted_image(self.options.clone(), Arc::new(self.disk.clone()), &mut state)?;
        assert!(state.events.len() <= self.acknowledged.len());
        assert_eq!(state.events, self.acknowledged[..state.events.len()]);
        Ok(done)
    }

    pub fn run_background_work(&self) {
        let _ = self.journal().step_prepare();
        if self.journal().compaction_due() {
            match self.compact() {
                Ok(_) => drop(self.journal().image_written()),
                Err(error) => self.journal().image_failed(&error.to_string(), error.is_no_space()),
            }
        }
    }

    pub fn shut_down(&mut self) {
        let journal = self.journal.take().unwrap();
        journal.shutdown();
        // Events that wait for a segment are lost if it cannot be prepared. They are not acknowledged.
        assert!(journal.durable() == journal.last() || self.disk.has_failed());
        let count = journal.durable() as usize - self.acknowledged.len();
        self.acknowledged.extend(self.submitted.drain(..count));
    }

    pub fn drop_journal(&mut self) {
        self.journal = None;
    }

    pub fn write(&mut self, count: usize, length: u32) {
        for _ in 0..count {
            while !self.submit(length) {
                self.run_background_work();
                assert!(self.journal().stats().stall_reason.is_none());
            }
            self.commit();
            self.run_background_work();
        }
    }

    /// Runs a scenario. Returns false if a fault ended the service before the end of the scenario.
    pub fn run_until_crash(
        &mut self,
        life: impl FnOnce(&mut Self) -> Result<(), OpenError>,
    ) -> Result<bool, OpenError> {
        let result = catch_unwind(AssertUnwindSafe(|| life(self)));
        match result {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(error),
            Err(payload) if payload.is::<SimulatedCrash>() => Ok(false),
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }
}
