//! Lobby facts: recording by events, reading, acknowledging, and encoding in images.

use super::{CreditClass, Engine, has_credit};
use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{Context, EndReason, Lsn, Ms};
use crate::fact_outbox::{Fact, Facts, LobbyAttendance, LobbyDetails, LobbyEnd, LobbyFactKind};
use crate::journal_event::{Event, Field};
use crate::lobby::Lobby;

const MADE: u8 = 1;
const READY: u8 = 2;
const CLOSED: u8 = 3;
const STOPPING: u8 = 4;
const ENDED: u8 = 5;
const TRIAL_MADE: u8 = 6;
const TRIAL_ENDED: u8 = 7;

const BAD_FACT: ApplyError = ApplyError::Malformed("a fact of the image does not add up");

impl Engine {
    /// Returns at most `limit` durable facts after an LSN.
    pub fn read_facts(&self, after: Lsn, durable: Lsn, limit: usize) -> Facts {
        self.outbox.read(after, durable, limit)
    }

    /// Returns the number of stored facts, and the number of facts dropped unread.
    pub fn stored_fact_counts(&self) -> (u64, u64) {
        (self.outbox.iter().len() as u64, self.outbox.lost)
    }

    /// Drops the facts up to an LSN. Callers need not wait until the drop is durable: after a crash, `read_facts`
    /// returns the facts again.
    pub fn acknowledge_facts(&mut self, cx: &mut Context<'_>, up_to: Lsn) {
        self.begin_command(cx);
        if self.outbox.has_up_to(up_to) && has_credit(cx, CreditClass::ExistingSlot, Event::FACTS_ACKNOWLEDGED_LEN) {
            self.emit(cx, &Event::FactsAcknowledged { up_to: up_to.min(self.last_lsn) });
        }
    }

    fn push_fact(&mut self, lsn: Lsn, number: u32, at: Ms, kind: LobbyFactKind) {
        let Some(lobby) = self.lobbies.live(number) else { return };
        self.outbox.push(Fact { lsn, at, lobby: lobby.id, namespace: lobby.namespace_id, kind });
    }

    pub(super) fn change_lobby_with_fact(
        &mut self,
        (lsn, at): (Lsn, Ms),
        number: u32,
        kind: LobbyFactKind,
        change: impl FnOnce(&mut Lobby),
    ) -> Result<u32, ApplyError> {
        self.push_fact(lsn, number, at, kind);
        self.change_lobby(number, change)
    }

    pub(super) fn push_created_fact(&mut self, lsn: Lsn, number: u32) {
        if let Some(lobby) = self.lobbies.live(number) {
            let details = self.details(lobby);
            self.push_fact(lsn, number, 0, LobbyFactKind::Created(Box::new(details)));
        }
    }

    /// Stores the fact that a lobby ended. `players` are its `reserved, connected, kept` slots just before the end.
    pub(super) fn push_ended_fact(
        &mut self,
        lsn: Lsn,
        number: u32,
        at: Ms,
        (reason, exit_code): (EndReason, Option<i32>),
        players: [u32; 3],
    ) {
        if let Some(lobby) = self.lobbies.live(number) {
            let (details, attendance) = (self.details(lobby), lobby.attendance);
            let ended = LobbyEnd { details, reason, exit_code, attendance, players };
            self.push_fact(lsn, number, at, LobbyFactKind::Ended(Box::new(ended)));
        }
    }

    fn details(&self, lobby: &Lobby) -> LobbyDetails {
        LobbyDetails {
            version: lobby.version,
            mode: self.names.text(lobby.mode).into(),
            region: self.names.text(lobby.region).into(),
            is_public: lobby.is_public,
            is_trial: lobby.is_trial(),
            max_players: lobby.limits,
            create_ts_ms: lobby.create_ts_ms,
        }
    }

    pub(super) fn write_outbox(&self, bytes: &mut Vec<u8>, mut flush: impl FnMut(&mut Vec<u8>)) {
        let mut w = Writer { bytes };
        w.u64(self.outbox.lost);
        w.u64(self.outbox.lost_up_to);
        w.u32(self.outbox.iter().len() as u32);
        for fact in self.outbox.iter() {
            write_fact(&mut Writer { bytes }, fact);
            flush(bytes);
        }
    }

    pub(super) fn load_outbox(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        let (lost, lost_up_to) = (r.u64()?, r.u64()?);
        let mut last = lost_up_to;
        for _ in 0..r.u32()? {
            let fact = load_fact(r)?;
            if fact.lsn <= last || fact.lsn > self.last_lsn {
                return Err(BAD_FACT);
            }
            last = fact.lsn;
            self.outbox.push(fact);
        }
        (self.outbox.lost, self.outbox.lost_up_to) = (lost, lost_up_to);
        Ok(())
    }
}

pub(super) fn write_attendance(w: &mut Writer<'_>, attendance: &LobbyAttendance) {
    w.u64(attendance.player_ms);
    w.u32(attendance.peak_players);
    w.u32(attendance.connections);
}

pub(super) fn load_attendance(r: &mut Reader<'_>) -> Result<LobbyAttendance, ApplyError> {
    Ok(LobbyAttendance { player_ms: r.u64()?, peak_players: r.u32()?, connections: r.u32()? })
}

fn write_fact(w: &mut Writer<'_>, fact: &Fact) {
    w.u64(fact.lsn);
    w.u64(fact.at);
    w.id(fact.lobby);
    w.id(fact.namespace);
    match &fact.kind {
        LobbyFactKind::Created(details) => {
            w.u8(if details.is_trial { TRIAL_MADE } else { MADE });
            write_details(w, details);
        }
        LobbyFactKind::Ready => w.u8(READY),
        LobbyFactKind::Closed(is_closed) => {
            w.u8(CLOSED);
            w.flag(*is_closed);
        }
        LobbyFactKind::Stopping => w.u8(STOPPING),
        LobbyFactKind::Ended(ended) => {
            w.u8(if ended.details.is_trial { TRIAL_ENDED } else { ENDED });
            write_details(w, &ended.details);
            ended.reason.write(w);
            w.flag(ended.exit_code.is_some());
            w.u32(ended.exit_code.unwrap_or_default() as u32);
            write_attendance(w, &ended.attendance);
            ended.players.iter().for_each(|count| w.u32(*count));
        }
    }
}

fn load_fact(r: &mut Reader<'_>) -> Result<Fact, ApplyError> {
    let (lsn, at, lobby, namespace) = (r.u64()?, r.u64()?, r.id()?, r.id()?);
    let kind = match r.u8()? {
        kind @ (MADE | TRIAL_MADE) => LobbyFactKind::Created(Box::new(load_details(r, kind == TRIAL_MADE)?)),
        READY => LobbyFactKind::Ready,
        CLOSED => LobbyFactKind::Closed(r.flag()?),
        STOPPING => LobbyFactKind::Stopping,
        kind @ (ENDED | TRIAL_ENDED) => {
            let (details, reason) = (load_details(r, kind == TRIAL_ENDED)?, Field::read(r)?);
            let (has_code, code) = (r.flag()?, r.u32()? as i32);
            let (attendance, players) = (load_attendance(r)?, [r.u32()?, r.u32()?, r.u32()?]);
            LobbyFactKind::Ended(Box::new(LobbyEnd {
                details,
                reason,
                exit_code: has_code.then_some(code),
                attendance,
                players,
            }))
        }
        _ => return Err(BAD_FACT),
    };
    Ok(Fact { lsn, at, lobby, namespace, kind })
}

fn write_details(w: &mut Writer<'_>, details: &LobbyDetails) {
    w.id(details.version);
    w.short_bytes(details.mode.as_bytes());
    w.short_bytes(details.region.as_bytes());
    w.flag(details.is_public);
    details.max_players.iter().for_each(|limit| w.u32(*limit));
    w.u64(details.create_ts_ms);
}

fn load_details(r: &mut Reader<'_>, is_trial: bool) -> Result<LobbyDetails, ApplyError> {
    Ok(LobbyDetails {
        version: r.id()?,
        mode: r.text()?.into(),
        region: r.text()?.into(),
        is_public: r.flag()?,
        is_trial,
        max_players: [r.u32()?, r.u32()?, r.u32()?],
        create_ts_ms: r.u64()?,
    })
}
