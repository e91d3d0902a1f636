//! Readable transcript of a failing sequence, and shrinking to a short one.

use std::collections::BTreeMap;

use hosting_core::{Credit, Id, ResolvedHold};

use super::commands::{Command, Reply};
use super::engine_driver::{CommandRecord, slot_of};
use super::step_generator::Step;

#[derive(Default)]
pub struct Transcript {
    pub is_recording: bool,
    pub lines: Vec<String>,
    names: BTreeMap<String, String>,
    lobbies: usize,
    tokens: usize,
}

impl Transcript {
    pub fn recording() -> Self {
        Transcript { is_recording: true, ..Transcript::default() }
    }

    pub fn name_ids(&mut self, letter: char, ids: &[Id]) {
        let names = ids.iter().enumerate().map(|(index, id)| (format!("{id:?}"), format!("{letter}{index}")));
        self.names.extend(names);
    }

    pub fn record(&mut self, line: impl FnOnce() -> String) {
        if self.is_recording {
            let line = self.named(&line());
            self.lines.push(line);
        }
    }

    pub fn record_command(&mut self, command: &Command, credit: Credit, command_record: &CommandRecord, now: u64) {
        if !self.is_recording {
            return;
        }
        self.learn(&command_record.reply);
        let credit = if credit == Credit::UNLIMITED { String::new() } else { format!(" with {credit:?}") };
        let lsns =
            format!("wait {} of {}..={}", command_record.wait, command_record.lsns.before, command_record.lsns.after);
        let line = format!("{now} {command:?}{credit}\n      -> {:?}, {lsns}", command_record.reply);
        let line = self.named(&line);
        self.lines.push(line);
    }

    pub fn record_resolved(&mut self, resolved: &[ResolvedHold]) {
        if !self.is_recording {
            return;
        }
        for one in resolved {
            if let Ok(reserved) = &one.outcome.result {
                self.learn(&Reply::Reserved { lobby: reserved.lobby, tokens: reserved.tokens.clone() });
            }
            let line = self.named(&format!("      => {one:?}"));
            self.lines.push(line);
        }
    }

    fn learn(&mut self, reply: &Reply) {
        match reply {
            Reply::Attached { lobby, lobby_token } | Reply::Made { lobby, lobby_token, .. }
                if !self.names.contains_key(lobby_token) =>
            {
                self.names.insert(format!("{lobby:?}"), format!("L{}", self.lobbies));
                self.names.insert(lobby_token.clone(), format!("token of L{}", self.lobbies));
                self.lobbies += 1;
            }
            Reply::Reserved { tokens, .. } => {
                for token in tokens {
                    if self.names.contains_key(token) {
                        continue;
                    }
                    let slot = slot_of(token).map_or("unknown".to_owned(), |slot| slot.to_string());
                    self.names.insert(token.clone(), format!("T{}[slot {slot}]", self.tokens));
                    self.tokens += 1;
                }
            }
            _ => {}
        }
    }

    pub fn named(&self, line: &str) -> String {
        self.names.iter().fold(line.to_owned(), |line, (long, short)| line.replace(long.as_str(), short))
    }
}

pub fn shrink(steps: &[Step], most: usize, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut steps = steps.to_vec();
    let mut run = steps.len() / 2;
    let mut tries = 0;
    while run > 0 {
        let mut at = 0;
        while at < steps.len() && tries < most {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + run).min(steps.len()));
            tries += 1;
            if fails(&fewer) {
                steps = fewer;
            } else {
                at += run;
            }
        }
        run /= 2;
    }
    steps
}
