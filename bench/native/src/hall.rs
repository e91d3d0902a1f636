//! Engine with lobbies for the measurements, without a journal and with a service time that the caller sets.

use hosting_core::{
    Admission, Attach, CommandOutcome, Connect, Context, Credit, Disconnect, Engine, EngineConfig, EventBuffer,
    HashKey, Id, Idempotency, Join, KeyRing, Ms,
};

use crate::{Failure, wrong};

pub const NAMESPACE: Id = Id([0x11; 16]);
pub const VERSION: Id = Id([0x22; 16]);
pub const REGION: &str = "local";

pub fn new_engine() -> Result<Engine, Failure> {
    let keys = KeyRing::new(vec![(1, [7; 32])], 1).map_err(|error| wrong(format!("{error:?}")))?;
    Ok(Engine::new(EngineConfig::new(1, keys)))
}

pub fn hash_key() -> HashKey {
    HashKey::new([9; 32])
}

pub fn lobby_id(number: u64) -> Id {
    let mut id = [0_u8; 16];
    let mut chance = crate::chance::Chance::new(number);
    id[2..10].copy_from_slice(&chance.number().to_be_bytes());
    id[10..].copy_from_slice(&chance.number().to_be_bytes()[..6]);
    id[1] = 1;
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    Id(id)
}

/// Parameters of lobbies. All other parameters are the defaults of the service.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    pub mode: &'a str,
    /// Limit of the operations find, join and party.
    pub max_players: u32,
    pub tags: &'a [(&'a str, &'a str)],
    pub player_token_ttl_ms: u64,
}

impl<'a> Kind<'a> {
    /// Returns lobby parameters without tags. The reservations outlive the measurement.
    pub fn of(mode: &'a str, max_players: u32) -> Kind<'a> {
        Kind { mode, max_players, tags: &[], player_token_ttl_ms: 3_600_000 }
    }

    pub fn attach(&self, id: Id) -> Attach<'a> {
        Attach {
            id,
            namespace: NAMESPACE,
            version: VERSION,
            mode: self.mode,
            region: REGION,
            tags: self.tags,
            max_players: self.max_players,
            max_players_direct: self.max_players,
            max_players_party: self.max_players,
            player_token_ttl_ms: self.player_token_ttl_ms,
            heartbeat_timeout_ms: 0,
            heartbeat_grace_ms: 10_000,
            is_join_enabled: true,
            ports: &[],
            create_ts_ms: 0,
            lobby_count_max: u32::MAX,
            idempotency: None,
        }
    }
}

pub struct Hall {
    pub engine: Engine,
    pub hash: HashKey,
    pub now: Ms,
    pub lobbies: Vec<Id>,
    buffer: EventBuffer,
}

impl Hall {
    pub fn new() -> Result<Hall, Failure> {
        let (engine, hash) = (new_engine()?, hash_key());
        Ok(Hall { engine, hash, now: 1_000_000, lobbies: Vec::new(), buffer: EventBuffer::default() })
    }

    /// Runs one command, and drops its encoded events.
    pub fn ask<T>(
        &mut self,
        command: impl FnOnce(&mut Engine, &mut Context<'_>) -> CommandOutcome<T>,
    ) -> Result<T, Failure> {
        let mut context = Context { now: self.now, credit: Credit::UNLIMITED, events: &mut self.buffer };
        let answer = command(&mut self.engine, &mut context);
        self.buffer.bytes.clear();
        self.buffer.count = 0;
        answer.result.map_err(|refusal| wrong(format!("refused: {refusal:?}")))
    }

    pub fn advance(&mut self) {
        let mut context = Context { now: self.now, credit: Credit::UNLIMITED, events: &mut self.buffer };
        self.engine.expire_due(&mut context);
        self.buffer.bytes.clear();
        self.buffer.count = 0;
    }

    pub fn add_lobby(&mut self, kind: &Kind<'_>) -> Result<Id, Failure> {
        let id = lobby_id(self.lobbies.len() as u64);
        let made = self.ask(|engine, context| engine.attach(context, &kind.attach(id)))?;
        if made.lobby != id {
            return Err(wrong("attach made another lobby"));
        }
        self.ask(|engine, context| engine.ready(context, id))?;
        self.lobbies.push(id);
        Ok(id)
    }

    pub fn join(
        &mut self,
        lobby: Id,
        party_size: u32,
        address: u32,
        idempotency: Option<Idempotency>,
    ) -> Result<Vec<String>, Failure> {
        let source = self.hash.source(NAMESPACE, &address.to_be_bytes());
        let join = Join {
            namespace: NAMESPACE,
            lobby,
            party_size,
            rejoin_token: None,
            source,
            source_limit: u32::MAX,
            idempotency,
            channels: &[],
        };
        match self.ask(|engine, context| engine.join(context, &join))? {
            Admission::Reserved(places) if places.lobby == lobby => Ok(places.tokens),
            other => Err(wrong(format!("join gave {other:?}"))),
        }
    }

    pub fn connect(&mut self, lobby: Id, player_token: &str, idempotency: Option<Idempotency>) -> Result<(), Failure> {
        let connect = Connect { lobby, player_token, idempotency };
        self.ask(|engine, context| engine.connected(context, &connect))
    }

    pub fn disconnect(
        &mut self,
        lobby: Id,
        player_token: &str,
        idempotency: Option<Idempotency>,
    ) -> Result<(), Failure> {
        let disconnect = Disconnect { lobby, player_token, hold_ms: None, idempotency };
        self.ask(|engine, context| engine.disconnected(context, &disconnect))
    }

    /// Checks that every lobby has these slot counts (held, reserved, connected, kept).
    pub fn check(&self, players: [u32; 4]) -> Result<(), Failure> {
        for id in &self.lobbies {
            let found = self.engine.lobby(*id).map(|lobby| lobby.players);
            if found != Some(players) {
                return Err(wrong(format!("a lobby has players {found:?}, not {players:?}")));
            }
        }
        match self.engine.ledger_violations() {
            0 => Ok(()),
            violations => Err(wrong(format!("{violations} ledger violations"))),
        }
    }
}
