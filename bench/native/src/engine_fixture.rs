//! Engine with lobbies for the measurements, without a journal and with a service time that the caller sets.

use hosting_core::{
    Admission, Attach, CommandOutcome, Connect, Context, Credit, Disconnect, Engine, EngineConfig, EventBuffer,
    HashKey, Id, Idempotency, Join, KeyRing, Ms,
};

use crate::{Failure, failure};

pub const NAMESPACE: Id = Id([0x11; 16]);
pub const VERSION: Id = Id([0x22; 16]);
pub const REGION: &str = "local";

pub fn new_engine() -> Result<Engine, Failure> {
    let keys = KeyRing::new(vec![(1, [7; 32])], 1).map_err(|error| failure(format!("{error:?}")))?;
    Ok(Engine::new(EngineConfig::new(1, keys)))
}

pub fn hash_key() -> HashKey {
    HashKey::new([9; 32])
}

pub fn lobby_id(number: u64) -> Id {
    let mut id = [0_u8; 16];
    let mut rng = crate::seeded_random::SeededRandom::new(number);
    id[2..10].copy_from_slice(&rng.number().to_be_bytes());
    id[10..].copy_from_slice(&rng.number().to_be_bytes()[..6]);
    id[1] = 1;
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    Id(id)
}

/// Parameters of lobbies. All other parameters are the defaults of the service.
#[derive(Clone, Copy)]
pub struct LobbyParameters<'a> {
    pub mode: &'a str,
    /// Limit of the operations find, join and party.
    pub max_players: u32,
    pub tags: &'a [(&'a str, &'a str)],
    pub player_token_ttl_ms: u64,
}

impl<'a> LobbyParameters<'a> {
    /// Returns lobby parameters without tags. The reservations outlive the measurement.
    pub fn with_defaults(mode: &'a str, max_players: u32) -> LobbyParameters<'a> {
        LobbyParameters { mode, max_players, tags: &[], player_token_ttl_ms: 3_600_000 }
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

pub struct EngineFixture {
    pub engine: Engine,
    pub hash: HashKey,
    pub now: Ms,
    pub lobbies: Vec<Id>,
    buffer: EventBuffer,
}

impl EngineFixture {
    pub fn new() -> Result<EngineFixture, Failure> {
        let (engine, hash) = (new_engine()?, hash_key());
        Ok(EngineFixture { engine, hash, now: 1_000_000, lobbies: Vec::new(), buffer: EventBuffer::default() })
    }

    /// Runs one command, and drops its encoded events.
    pub fn execute<T>(
        &mut self,
        command: impl FnOnce(&mut Engine, &mut Context<'_>) -> CommandOutcome<T>,
    ) -> Result<T, Failure> {
        let mut context = Context { now: self.now, credit: Credit::UNLIMITED, events: &mut self.buffer };
        let outcome = command(&mut self.engine, &mut context);
        self.buffer.bytes.clear();
        self.buffer.count = 0;
        outcome.result.map_err(|refusal| failure(format!("refused: {refusal:?}")))
    }

    pub fn advance(&mut self) {
        let mut context = Context { now: self.now, credit: Credit::UNLIMITED, events: &mut self.buffer };
        self.engine.expire_due(&mut context);
        self.buffer.bytes.clear();
        self.buffer.count = 0;
    }

    pub fn add_lobby(&mut self, parameters: &LobbyParameters<'_>) -> Result<Id, Failure> {
        let id = lobby_id(self.lobbies.len() as u64);
        let attached = self.execute(|engine, context| engine.attach(context, &parameters.attach(id)))?;
        if attached.lobby != id {
            return Err(failure("attach made another lobby"));
        }
        self.execute(|engine, context| engine.ready(context, id))?;
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
        match self.execute(|engine, context| engine.join(context, &join))? {
            Admission::Reserved(reservation) if reservation.lobby == lobby => Ok(reservation.tokens),
            other => Err(failure(format!("join gave {other:?}"))),
        }
    }

    pub fn connect(&mut self, lobby: Id, player_token: &str, idempotency: Option<Idempotency>) -> Result<(), Failure> {
        let player = self.engine.keys().verify_player(player_token);
        let connect = Connect { lobby, player, idempotency };
        self.execute(|engine, context| engine.connected(context, &connect))
    }

    pub fn disconnect(
        &mut self,
        lobby: Id,
        player_token: &str,
        idempotency: Option<Idempotency>,
    ) -> Result<(), Failure> {
        let player = self.engine.keys().verify_player(player_token);
        let disconnect = Disconnect { lobby, player, hold_ms: None, idempotency };
        self.execute(|engine, context| engine.disconnected(context, &disconnect))
    }

    /// Checks that every lobby has these slot counts (held, reserved, connected, kept).
    pub fn check_slot_counts(&self, players: [u32; 4]) -> Result<(), Failure> {
        for id in &self.lobbies {
            let players_of_lobby = self.engine.lobby(*id).map(|lobby| lobby.players);
            if players_of_lobby != Some(players) {
                return Err(failure(format!("a lobby has players {players_of_lobby:?}, not {players:?}")));
            }
        }
        match self.engine.ledger_violations() {
            0 => Ok(()),
            violations => Err(failure(format!("{violations} ledger violations"))),
        }
    }
}
