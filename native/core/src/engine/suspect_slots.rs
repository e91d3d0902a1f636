//! Comparison of connected slots with the sessions of edge-guard.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Engine;
use crate::command::{Id, Ms, PortExposure, Source};
use crate::slot::SlotState;

/// Sessions of players with one lobby.
#[derive(Clone, Debug, Default)]
pub struct LobbySessions {
    /// Number of sessions by address.
    pub by_source: Vec<(Source, u32)>,
    /// Sessions of further addresses.
    pub others: u32,
}

#[derive(Default)]
struct SourceSlots {
    connected: u32,
    compared: u32,
}

impl Engine {
    /// Returns the number of connected slots without a session of their player.
    ///
    /// Only slots with a connection time in `connected` are compared. An address with fewer sessions than such slots has
    /// suspect ones. A slot without an address can have any session of an address without slots. So can a suspect one,
    /// because its player may have changed the address.
    ///
    /// Returns None for an unknown or attached lobby, and for a lobby with a port that edge-guard does not serve.
    pub fn suspect_slots(&self, lobby: Id, sessions: &LobbySessions, connected: Range<Ms>) -> Option<u32> {
        let lobby = self.lobbies.live(self.lobbies.number_of(&self.seed, lobby)?)?;
        let ports =
            lobby.managed.as_ref().and_then(|_| self.leases.live(lobby.id)).map(|lease| &lease.definition.ports)?;
        let is_direct = |exposure: &PortExposure| matches!(exposure, PortExposure::Range(..));
        if ports.is_empty() || ports.iter().any(|port| is_direct(&port.exposure)) {
            return None;
        }
        let mut slots: BTreeMap<Source, SourceSlots> = BTreeMap::new();
        for number in 0..lobby.slots.used {
            let Some(slot) = lobby.slots.locate(number).map(|at| self.slots.get(at)) else { continue };
            if slot.state == SlotState::Connected {
                let of_source = slots.entry(slot.source).or_default();
                of_source.connected += 1;
                of_source.compared += u32::from(connected.contains(&slot.time));
            }
        }
        let sessions_of: BTreeMap<Source, u32> = sessions.by_source.iter().copied().collect();
        let missing: u32 = slots
            .iter()
            .map(|(source, slots)| slots.compared.saturating_sub(sessions_of.get(source).copied().unwrap_or_default()))
            .sum();
        let has_connected = |source: &Source| slots.get(source).is_some_and(|slots| slots.connected > 0);
        let foreign = foreign_sessions(&sessions.by_source, has_connected);
        Some(missing.saturating_sub(foreign.saturating_add(sessions.others)))
    }
}

/// Returns the number of sessions of sources without a connected slot. Each can be that of any player, because a player may
/// have changed the address.
pub(super) fn foreign_sessions(sessions: &[(Source, u32)], has_connected: impl Fn(&Source) -> bool) -> u32 {
    let foreign = sessions.iter().filter(|(source, _)| !has_connected(source));
    foreign.fold(0, |sum, (_, count)| sum.saturating_add(*count))
}
