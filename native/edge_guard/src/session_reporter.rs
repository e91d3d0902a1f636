//! Reports of the sessions at counted ports to the data plane, repeated until it answers.
//!
//! Each report has the whole set of a lobby. So a lost, repeated or late report does no harm, and the end of a session
//! is kept here until the data plane has it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::transport::Channel;

use crate::player_sessions::{GRACE, PlayerSessionTable, PlayerSessions, SessionCounts};
use crate::route_client::connect_lazy;
use crate::wire;
use crate::wire::routes_client::RoutesClient;

/// Interval in which grace periods are checked.
const TICK: Duration = Duration::from_millis(250);

/// Shortest time between two reports, so that many new sessions share one.
const PAUSE: Duration = Duration::from_millis(20);

/// Interval after which an unchanged set is reported again. The data plane may have lost it.
const REFRESH: Duration = Duration::from_secs(5);

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const LOBBIES_PER_REPORT: usize = 1_000;

/// Addresses after which a report takes no further lobby. So a flood of addresses cannot make a report too large.
const ADDRESSES_PER_REPORT: usize = 20_000;

struct LobbyReport {
    owner: String,
    sessions: Arc<PlayerSessions>,
    counts: SessionCounts,
}

struct Reporter {
    client: RoutesClient<Channel>,
    instance: String,
    started: Instant,
    questions: u64,
    reported: HashMap<String, (SessionCounts, Instant)>,
}

/// Reports sessions until the process ends, also those that remain after a handover.
pub async fn report_sessions(socket: &Path, instance: String, table: Arc<PlayerSessionTable>) {
    let client = RoutesClient::new(connect_lazy(socket));
    let mut reporter = Reporter { client, instance, started: Instant::now(), questions: 0, reported: HashMap::new() };
    loop {
        let _ = tokio::time::timeout(TICK, table.changed.notified()).await;
        let all = table.all();
        reporter.reported.retain(|owner, _| all.binary_search_by(|(known, _)| known.cmp(owner)).is_ok());
        let due: Vec<_> = all.into_iter().filter_map(|(owner, sessions)| reporter.due(owner, sessions)).collect();
        let mut left = &due[..];
        while !left.is_empty() {
            let (lobbies, following) = left.split_at(lobbies_of_one_report(left));
            if !reporter.report(lobbies).await {
                tokio::time::sleep(TICK).await;
            }
            left = following;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Reporter {
    fn due(&self, owner: String, sessions: Arc<PlayerSessions>) -> Option<LobbyReport> {
        let (counts, has_pending) = sessions.counts(Instant::now());
        let is_known = self
            .reported
            .get(&owner)
            .is_some_and(|(reported, at)| *reported == counts && at.elapsed() < REFRESH && !has_pending);
        (!is_known).then_some(LobbyReport { owner, sessions, counts })
    }

    /// Returns false if the data plane did not answer.
    async fn report(&mut self, lobbies: &[LobbyReport]) -> bool {
        self.questions += 1;
        let request = wire::CountSessionsRequest {
            instance: self.instance.clone(),
            question: self.questions,
            // Players of an older process may reconnect until then.
            is_settled: self.started.elapsed() >= GRACE,
            lobbies: lobbies.iter().map(to_wire).collect(),
            // As in a request for routes.
            node: String::new(),
        };
        let Ok(Ok(answer)) = tokio::time::timeout(ANSWER_TIMEOUT, self.client.count_sessions(request)).await else {
            return false;
        };
        let now = Instant::now();
        for (lobby, admissions) in lobbies.iter().zip(answer.into_inner().lobbies) {
            lobby.sessions.answer(&lobby.counts, &admissions.has_slot, now);
            self.reported.insert(lobby.owner.clone(), (lobby.counts.clone(), now));
        }
        true
    }
}

/// Returns the number of lobbies in the next report, at least one.
fn lobbies_of_one_report(due: &[LobbyReport]) -> usize {
    let mut addresses = 0;
    let fits = |lobby: &&LobbyReport| {
        let has_room = addresses < ADDRESSES_PER_REPORT;
        addresses += lobby.counts.len();
        has_room
    };
    due.iter().take(LOBBIES_PER_REPORT).take_while(fits).count()
}

fn to_wire(lobby: &LobbyReport) -> wire::PlayerSessions {
    let address = |(client, sessions): &(hosting_client_addresses::ClientKey, u32)| wire::AddressSessions {
        client: client.as_bytes().to_vec(),
        sessions: *sessions,
    };
    wire::PlayerSessions { owner_id: lobby.owner.clone(), addresses: lobby.counts.iter().map(address).collect() }
}

#[cfg(test)]
mod tests {
    use hosting_client_addresses::ClientKey;

    use super::*;

    #[test]
    fn report_of_a_flood_is_bounded() {
        let lobby = |addresses: usize| LobbyReport {
            owner: String::new(),
            sessions: PlayerSessionTable::default().of_owner("a", true),
            counts: vec![(ClientKey::V4([0; 4]), 1); addresses],
        };
        assert_eq!(lobbies_of_one_report(&[lobby(ADDRESSES_PER_REPORT * 2), lobby(1)]), 1);
        let large: Vec<_> = (0..30).map(|_| lobby(4_000)).collect();
        assert_eq!(lobbies_of_one_report(&large), 5);
        let empty: Vec<_> = (0..2 * LOBBIES_PER_REPORT).map(|_| lobby(0)).collect();
        assert_eq!(lobbies_of_one_report(&empty), LOBBIES_PER_REPORT);
    }
}
