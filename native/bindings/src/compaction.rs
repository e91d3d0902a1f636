//! Journal options and errors, and the compaction that a child process runs.

use std::path::PathBuf;

use hosting_core::{Engine, EngineConfig, KeyRing, KeyRingError, PortRange};
use hosting_journal::{OpenError, Options};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::convert::{KeyBytes, OpenFailed};

/// Lowest public port that the settings allow.
const PUBLIC_PORT_MIN: u16 = 1_024;

pub fn options(dir: PathBuf, boot_id_path: &str, segment_bytes: u64, shard: u16) -> Options {
    Options {
        dir,
        boot_id_path: boot_id_path.into(),
        segment_bytes,
        ..Options::new(PathBuf::new(), shard, Engine::EVENT_KINDS)
    }
}

pub fn key_ring(keys: &[(u16, KeyBytes)], current: u16) -> PyResult<KeyRing> {
    KeyRing::new(keys.iter().map(|(id, key)| (*id, key.0)).collect(), current).map_err(|error| {
        PyValueError::new_err(match error {
            KeyRingError::CurrentMissing => format!("the current key {current} is not in the ring"),
            KeyRingError::DuplicateId(id) => format!("two keys of the ring have the id {id}"),
        })
    })
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

#[pyfunction]
#[pyo3(signature = (journal_dir, *, mac_keys, current_key,
    boot_id_path = "/proc/sys/kernel/random/boot_id", segment_bytes = 67_108_864, shard = 1,
    parent_pid = 0))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
pub fn compact(
    py: Python<'_>,
    journal_dir: PathBuf,
    mac_keys: Vec<(u16, KeyBytes)>,
    current_key: u16,
    boot_id_path: &str,
    segment_bytes: u64,
    shard: u16,
    parent_pid: u32,
) -> PyResult<u64> {
    // The image keeps the quarantine of every port, whatever the range of the service.
    let ports = PortRange { first: PUBLIC_PORT_MIN, last: u16::MAX };
    let config = EngineConfig { ports, ..EngineConfig::new(shard, key_ring(&mac_keys, current_key)?) };
    py.detach(|| {
        if parent_pid != 0 {
            hosting_journal::end_with_parent(parent_pid)?;
        }
        let options = options(journal_dir, boot_id_path, segment_bytes, shard);
        let compacted = hosting_shard::write_compacted_image(Engine::new(config), options);
        compacted.map(|image| image.lsn).map_err(|error| open_failed(&error))
    })
}
