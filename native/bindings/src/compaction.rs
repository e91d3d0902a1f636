//! Journal state of the engine: replay at open, and the image that a child process writes.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use hosting_core::{ApplyError, Engine, EngineConfig, KeyRing, KeyRingError};
use hosting_journal::{Files, OpenError, Options, RealFiles, State};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::convert::{OpenFailed, key32};

pub fn files() -> Arc<dyn Files> {
    Arc::new(RealFiles)
}

pub fn options(dir: PathBuf, boot_id_path: &str, segment_bytes: u64, shard: u16) -> Options {
    Options {
        dir,
        boot_id_path: boot_id_path.into(),
        segment_bytes,
        ..Options::new(PathBuf::new(), shard, Engine::EVENT_KINDS)
    }
}

pub fn key_ring(keys: &[(u16, Vec<u8>)], current: u16) -> PyResult<KeyRing> {
    let keys = keys.iter().map(|(id, key)| Ok((*id, key32(key)?))).collect::<PyResult<Vec<_>>>()?;
    KeyRing::new(keys, current).map_err(|error| {
        PyValueError::new_err(match error {
            KeyRingError::CurrentMissing => format!("the current key {current} is not in the ring"),
            KeyRingError::DuplicateId(id) => format!("two keys of the ring have the id {id}"),
        })
    })
}

/// Engine state for the journal: loads images, applies events and writes images.
pub struct Replay<'a> {
    pub engine: &'a mut Engine,
    unknown_kind: Option<u8>,
}

impl Replay<'_> {
    pub fn into(engine: &mut Engine) -> Replay<'_> {
        Replay { engine, unknown_kind: None }
    }
}

impl State for Replay<'_> {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.engine.load_image(bytes).map_err(|error| error.to_string())
    }

    fn apply(&mut self, first_lsn: u64, count: u32, bytes: &[u8], _service_ms: u64) -> Result<(), String> {
        self.engine.apply(first_lsn, count, bytes).map_err(|error| {
            if let ApplyError::UnknownKind(kind) = error {
                self.unknown_kind = Some(kind);
            }
            error.to_string()
        })
    }

    fn unknown_kind(&self) -> Option<u8> {
        self.unknown_kind
    }

    fn write_image(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut result = Ok(());
        self.engine.write_image(&mut |bytes: &[u8]| {
            if result.is_ok() {
                result = out.write_all(bytes);
            }
        });
        result
    }
}

/// Converts an open error. A full disk becomes an OSError with ENOSPC, other errors become `OpenFailed`.
pub fn open_failed(error: &OpenError) -> PyErr {
    match error {
        OpenError::Io { source, .. } if source.raw_os_error() == Some(libc::ENOSPC) => {
            PyOSError::new_err((libc::ENOSPC, error.to_string()))
        }
        _ => OpenFailed::new_err(error.to_string()),
    }
}

#[pyfunction]
#[pyo3(signature = (journal_dir, *, mac_keys, current_key,
    boot_id_path = "/proc/sys/kernel/random/boot_id", segment_bytes = 67_108_864, shard = 1,
    parent_pid = 0))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
pub fn compact(
    py: Python<'_>,
    journal_dir: PathBuf,
    mac_keys: Vec<(u16, Vec<u8>)>,
    current_key: u16,
    boot_id_path: &str,
    segment_bytes: u64,
    shard: u16,
    parent_pid: u32,
) -> PyResult<u64> {
    let config = EngineConfig::new(shard, key_ring(&mac_keys, current_key)?);
    py.detach(|| {
        if parent_pid != 0 {
            hosting_journal::end_with_parent(parent_pid)?;
        }
        let mut engine = Engine::new(config);
        let options = options(journal_dir, boot_id_path, segment_bytes, shard);
        let compacted = hosting_journal::compact(options, files(), &mut Replay::into(&mut engine));
        compacted.map(|done| done.lsn).map_err(|error| open_failed(&error))
    })
}
