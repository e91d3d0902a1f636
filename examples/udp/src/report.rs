//! What all bots saw, together: for people, or as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bot::{Course, Notes};
use crate::json::quoted;

/// All of it.
#[derive(Debug)]
pub struct Report {
    notes: Vec<Notes>,
    round_trips: Vec<Duration>,
}

impl Report {
    /// Of every bot.
    pub fn of(notes: Vec<Notes>) -> Self {
        let mut round_trips: Vec<_> = notes.iter().flat_map(|one| one.round_trips.iter().copied()).collect();
        round_trips.sort_unstable();
        Self { notes, round_trips }
    }

    /// Whether every bot played to the end.
    pub fn is_good(&self) -> bool {
        self.notes.iter().all(|one| one.course == Course::Played)
    }

    /// Names and JSON values, in the order in which they are told.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let sum = |count: fn(&Notes) -> u64| self.notes.iter().map(count).sum::<u64>();
        let is_in = |one: &&Notes| matches!(one.course, Course::Played | Course::Ended(_));
        let lobbies = self.counts(|one| Some(one.lobby_id.clone()).filter(|id| !id.is_empty()));
        let gap = self.notes.iter().map(|one| one.gap).max().unwrap_or_default();
        let best = self.notes.iter().map(|one| one.score).max().unwrap_or_default();
        let here = self.notes.iter().map(|one| one.here).max().unwrap_or_default();
        vec![
            ("bots", self.notes.len().to_string()),
            ("joined", self.notes.iter().filter(is_in).count().to_string()),
            ("played", self.notes.iter().filter(|one| one.course == Course::Played).count().to_string()),
            ("failures", self.counts(failure)),
            ("lobbies", lobbies),
            ("players_here_max", here.to_string()),
            ("score", sum(|one| one.score.into()).to_string()),
            ("score_best", best.to_string()),
            ("states", sum(|one| one.states).to_string()),
            ("states_missed", sum(|one| one.missed).to_string()),
            ("gap_ms_max", milliseconds(gap)),
            ("pings", sum(|one| one.pings).to_string()),
            ("pongs", self.round_trips.len().to_string()),
            ("rtt_ms_p50", self.quantile(0.50)),
            ("rtt_ms_p99", self.quantile(0.99)),
            ("moves", sum(|one| one.moves).to_string()),
        ]
    }

    /// One JSON object.
    pub fn json(&self) -> String {
        let fields: Vec<_> = self.fields().iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        format!("{{{}}}", fields.join(", "))
    }

    /// A line for each field.
    pub fn text(&self) -> String {
        let lines: Vec<_> = self.fields().iter().map(|(name, value)| format!("{name:<17} {value}")).collect();
        lines.join("\n")
    }

    /// How often there is which text, as a JSON object.
    fn counts(&self, name: impl Fn(&Notes) -> Option<String>) -> String {
        let mut counts = BTreeMap::<String, u64>::new();
        for name in self.notes.iter().filter_map(name) {
            *counts.entry(name).or_default() += 1;
        }
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{}: {count}", quoted(name))).collect();
        format!("{{{}}}", counts.join(", "))
    }

    /// The smallest round trip that so many are not above; null when there is none.
    fn quantile(&self, part: f64) -> String {
        let rank = (self.round_trips.len() as f64 * part).ceil() as usize;
        self.round_trips.get(rank.saturating_sub(1)).map_or("null".to_owned(), |time| milliseconds(*time))
    }
}

fn failure(notes: &Notes) -> Option<String> {
    match &notes.course {
        Course::Played => None,
        Course::NotFound(code) => Some(format!("find: {code}")),
        Course::Refused(why) => Some(format!("refused: {why:?}")),
        Course::NotAnswered => Some("no answer".to_owned()),
        Course::Ended(why) => Some(format!("ended: {why:?}")),
        Course::Failed(kind) => Some(format!("failed: {kind}")),
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Value;
    use crate::protocol::Refusal;

    fn notes(course: Course, round_trips_ms: impl IntoIterator<Item = u64>) -> Notes {
        Notes {
            course,
            lobby_id: "a".to_owned(),
            states: 10,
            missed: 1,
            gap: Duration::from_millis(60),
            round_trips: round_trips_ms.into_iter().map(Duration::from_millis).collect(),
            pings: 100,
            score: 3,
            here: 2,
            moves: 0,
        }
    }

    #[test]
    fn a_report_is_json_that_counts_what_the_bots_saw() {
        let played = notes(Course::Played, (1..=100).rev());
        let refused = Notes { score: 0, ..notes(Course::Refused(Refusal::TokenUsed), []) };
        let report = Report::of(vec![played, refused]);
        let told = Value::read(report.json().as_bytes()).unwrap();
        for (name, number) in [
            ("bots", 2.0),
            ("joined", 1.0),
            ("score", 3.0),
            ("states", 20.0),
            ("rtt_ms_p50", 50.0),
            ("rtt_ms_p99", 99.0),
        ] {
            assert_eq!(told.at(&[name]), Some(&Value::Number(number)), "{name}");
        }
        assert_eq!(told.at(&["failures", "refused: TokenUsed"]), Some(&Value::Number(1.0)));
        assert_eq!(told.at(&["lobbies", "a"]), Some(&Value::Number(2.0)));
        assert!(!report.is_good() && report.text().lines().count() == 16);
    }

    #[test]
    fn without_pongs_there_is_no_round_trip() {
        let report = Report::of(vec![notes(Course::Played, [])]);
        assert_eq!(Value::read(report.json().as_bytes()).unwrap().at(&["rtt_ms_p50"]), Some(&Value::Null));
        assert!(report.is_good());
    }
}
