//! Service time: boot time plus an offset, which the log carries over restarts and reboots.
//! The wall clock counts only after a reboot, for the time that the machine was down.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::OpenError;
use crate::time_and_random::TimeAndRandom;

/// Readings of all clocks at one instant. Every batch and every image contains a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockRecord {
    pub boot_id: [u8; 16],
    pub boot_ms: u64,
    pub wall_ms: u64,
    pub service_ms: u64,
}

/// Service clock in milliseconds. Service time never decreases, not even over restarts and reboots.
pub struct ServiceClock {
    time_and_random: Arc<dyn TimeAndRandom>,
    boot_id: [u8; 16],
    base_service_ms: u64,
    base_boot_ms: u64,
    /// Highest service time so far, so that service time never follows a boot clock that steps back.
    highest_ms: AtomicU64,
}

impl ServiceClock {
    /// Returns a clock that continues from the log's last record. Without a record, service time begins as boot time.
    pub(crate) fn resume(
        time_and_random: Arc<dyn TimeAndRandom>,
        boot_id: [u8; 16],
        last: Option<&ClockRecord>,
    ) -> Self {
        let boot_ms = time_and_random.boot_ms();
        let service_ms = match last {
            None => boot_ms,
            Some(last) => {
                let downtime_ms = if last.boot_id == boot_id {
                    boot_ms.saturating_sub(last.boot_ms)
                } else {
                    time_and_random.wall_ms().saturating_sub(last.wall_ms)
                };
                last.service_ms.saturating_add(downtime_ms)
            }
        };
        let highest_ms = AtomicU64::new(service_ms);
        Self { time_and_random, boot_id, base_service_ms: service_ms, base_boot_ms: boot_ms, highest_ms }
    }

    pub fn service_ms(&self) -> u64 {
        self.at(self.time_and_random.boot_ms())
    }

    fn at(&self, boot_ms: u64) -> u64 {
        let now = self.base_service_ms.saturating_add(boot_ms.saturating_sub(self.base_boot_ms));
        // Relaxed: the value orders no other data. The plain load avoids the write in the common case.
        if self.highest_ms.load(Ordering::Relaxed) >= now {
            return self.highest_ms.load(Ordering::Relaxed);
        }
        self.highest_ms.fetch_max(now, Ordering::Relaxed).max(now)
    }

    pub(crate) fn record(&self) -> ClockRecord {
        let boot_ms = self.time_and_random.boot_ms();
        ClockRecord {
            boot_id: self.boot_id,
            boot_ms,
            wall_ms: self.time_and_random.wall_ms(),
            service_ms: self.at(boot_ms),
        }
    }
}

pub(crate) fn read_boot_id(path: &Path) -> Result<[u8; 16], OpenError> {
    let refuse = |reason: String| OpenError::BootId { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(value) if digits.len() == 32 => Ok(value.to_be_bytes()),
        _ => Err(refuse("not a UUID".to_owned())),
    }
}
