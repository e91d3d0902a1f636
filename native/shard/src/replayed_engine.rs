//! Adapter through which a journal loads an engine: its image and the events after it.

use std::borrow::BorrowMut;
use std::io::{self, Write};
use std::sync::Arc;

use hosting_core::{ApplyError, Engine};
use hosting_journal::{CompactionResult, OpenError, Options, RealFiles, RecoverableState};

/// An engine or a reference to one.
pub struct ReplayedEngine<E> {
    engine: E,
    unknown_kind: Option<u8>,
}

impl<E: BorrowMut<Engine>> ReplayedEngine<E> {
    pub fn new(engine: E) -> ReplayedEngine<E> {
        ReplayedEngine { engine, unknown_kind: None }
    }
}

impl<E: BorrowMut<Engine>> RecoverableState for ReplayedEngine<E> {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.engine.borrow_mut().load_image(bytes).map_err(|error| error.to_string())
    }

    fn apply(&mut self, first_lsn: u64, count: u32, bytes: &[u8], _service_ms: u64) -> Result<(), String> {
        self.engine.borrow_mut().apply(first_lsn, count, bytes).map_err(|error| {
            if let ApplyError::UnknownKind(kind) = error {
                self.unknown_kind = Some(kind);
            }
            error.to_string()
        })
    }

    fn unknown_kind(&self) -> Option<u8> {
        self.unknown_kind
    }

    fn write_image(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut result = Ok(());
        self.engine.borrow().write_image(&mut |bytes: &[u8]| {
            if result.is_ok() {
                result = out.write_all(bytes);
            }
        });
        result
    }
}

/// Replays the closed segments of a journal into an empty engine, and writes the engine's state as an image.
pub fn write_compacted_image(engine: Engine, options: Options) -> Result<CompactionResult, OpenError> {
    hosting_journal::write_compacted_image(options, Arc::new(RealFiles), &mut ReplayedEngine::new(engine))
}
