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
        for lobbies in due.chunks(LOBBIES_PER_REPORT) {
            if !reporter.report(lobbies).await {
                tokio::time::sleep(TICK).await;
            }
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

fn to_wire(lobby: &LobbyReport) -> wire::PlayerSessions {
    let address = |(client, sessions): &(hosting_client_addresses::ClientKey, u32)| wire::AddressSessions {
        client: client.as_bytes().to_vec(),
        sessions: *sessions,
    };
    wire::PlayerSessions { owner_id: lobby.owner.clone(), addresses: lobby.counts.iter().map(address).collect() }
}
