//! Engine and journal, joined as in the service (`native/bindings/src/shard.rs`) but on one thread.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use hosting_core::{Answer, Context, Credit, Engine, EventBuffer, Lsn};
use hosting_journal::{Journal, Options, RealFiles, Recovered, State};

use crate::hall::new_engine;
use crate::{Failure, wrong};

pub struct Shard {
    pub engine: Engine,
    pub journal: Journal,
    buffer: EventBuffer,
}

/// Time of an open by its parts, in milliseconds.
#[derive(Clone, Copy, Default)]
pub struct Split {
    pub image_read_ms: f64,
    pub image_load_ms: f64,
    pub log_read_ms: f64,
    pub apply_ms: f64,
    pub derive_ms: f64,
    pub total_ms: f64,
}

/// Engine as the state of the journal, with time measurement.
struct Replay<'a> {
    engine: &'a mut Engine,
    began: Instant,
    split: Split,
}

impl State for Replay<'_> {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.split.image_read_ms = ms_since(self.began);
        let began = Instant::now();
        let loaded = self.engine.load_image(bytes).map_err(|error| format!("{error:?}"));
        self.split.image_load_ms = ms_since(began);
        loaded
    }

    fn apply(&mut self, first_lsn: u64, count: u32, bytes: &[u8], _service_ms: u64) -> Result<(), String> {
        let began = Instant::now();
        let applied = self.engine.apply(first_lsn, count, bytes).map_err(|error| format!("{error:?}"));
        self.split.apply_ms += ms_since(began);
        applied
    }

    fn write_image(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let mut result = Ok(());
        self.engine.write_image(&mut |bytes: &[u8]| {
            if result.is_ok() {
                result = out.write_all(bytes);
            }
        });
        result
    }
}

fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn options(folder: &Path) -> Options {
    Options::new(folder, 1, Engine::EVENT_KINDS)
}

impl Shard {
    pub fn open(folder: &Path) -> Result<(Shard, Recovered, Split), Failure> {
        let mut engine = new_engine()?;
        let began = Instant::now();
        let mut replay = Replay { engine: &mut engine, began, split: Split::default() };
        let (journal, recovered) = hosting_journal::open(options(folder), Arc::new(RealFiles), &mut replay)?;
        let mut split = replay.split;
        let opened_ms = ms_since(began);
        let deriving = Instant::now();
        engine.finish_recovery(journal.clock().service_ms());
        split.derive_ms = ms_since(deriving);
        split.log_read_ms = opened_ms - split.image_read_ms - split.image_load_ms - split.apply_ms;
        split.total_ms = ms_since(began);
        Ok((Shard { engine, journal, buffer: EventBuffer::default() }, recovered, split))
    }

    pub fn settle(&self) {
        while self.journal.stats().segments_ready < 2 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub fn run<R>(&mut self, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> R) -> R {
        let credit = self.journal.credit();
        let first = self.engine.last_lsn() + 1;
        let mut context = Context {
            now: self.journal.clock().service_ms(),
            credit: Credit { total: credit.total, reserve: credit.reserve, largest: credit.largest },
            events: &mut self.buffer,
        };
        let result = command(&mut self.engine, &mut context);
        if self.buffer.count > 0 {
            self.journal.submit(first, self.buffer.count, &self.buffer.bytes);
            self.buffer.bytes.clear();
            self.buffer.count = 0;
        }
        result
    }

    /// Runs one command that must succeed. Returns its value and its LSN.
    pub fn ask<T>(
        &mut self,
        command: impl FnOnce(&mut Engine, &mut Context<'_>) -> Answer<T>,
    ) -> Result<(T, Lsn), Failure> {
        let answer = self.run(command);
        answer.result.map(|value| (value, answer.wait)).map_err(|refusal| wrong(format!("refused: {refusal:?}")))
    }

    pub fn wait(&self) {
        let mut poll = libc::pollfd { fd: self.journal.wake_fd(), events: libc::POLLIN, revents: 0 };
        let mut counter = [0_u8; 8];
        // SAFETY: both calls get pointers to live values with their lengths.
        unsafe {
            if libc::poll(&mut poll, 1, 100) > 0 {
                libc::read(poll.fd, counter.as_mut_ptr().cast(), counter.len());
            }
        }
    }

    pub fn flush(&self) {
        while self.journal.durable() < self.journal.last() {
            self.wait();
        }
    }
}

pub fn compact(folder: &Path) -> Result<u64, Failure> {
    let mut engine = new_engine()?;
    let mut replay = Replay { engine: &mut engine, began: Instant::now(), split: Split::default() };
    let compacted = hosting_journal::compact(options(folder), Arc::new(RealFiles), &mut replay)?;
    Ok(compacted.lsn)
}
