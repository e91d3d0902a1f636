//! Options and errors of the journal.

use std::path::PathBuf;

use hosting_core::{Engine, KeyRing, KeyRingError};
use hosting_journal::{OpenError, Options};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::convert::{KeyBytes, OpenFailed};

pub fn options(dir: PathBuf, boot_id_path: &str, segment_bytes: u64, shard: u16, first_epoch: u64) -> Options {
    Options {
        dir,
        boot_id_path: boot_id_path.into(),
        segment_bytes,
        first_epoch,
        ..Options::new(PathBuf::new(), shard, Engine::EVENT_KINDS)
    }
}

pub fn key_ring(keys: &[(u16, KeyBytes)], current: u16, restored: &[u16]) -> PyResult<KeyRing> {
    let ring = KeyRing::new(keys.iter().map(|(id, key)| (*id, key.0)).collect(), current);
    let mut ring = ring.map_err(|error| {
        PyValueError::new_err(match error {
            KeyRingError::CurrentMissing => format!("the current key {current} is not in the ring"),
            KeyRingError::DuplicateId(id) => format!("two keys of the ring have the id {id}"),
        })
    })?;
    match restored.iter().find(|id| !ring.mark_restored(**id)) {
        Some(id) => Err(PyValueError::new_err(format!("the restored key {id} is not in the ring, or signs"))),
        None => Ok(ring),
    }
}

/// Converts an error of opening the journal. A full disk or quota becomes an OSError with ENOSPC, other errors become
/// `OpenFailed`.
pub fn open_failed(error: &OpenError) -> PyErr {
    if error.is_no_space() {
        PyOSError::new_err((libc::ENOSPC, error.to_string()))
    } else {
        OpenFailed::new_err(error.to_string())
    }
}
