//! Test engine with a manual clock. A second engine replays every event and must reach the same state.

use hosting_core::*;

pub const NAMESPACE: Id = Id([0x11; 16]);
pub const OTHER_NAMESPACE: Id = Id([0x12; 16]);
pub const VERSION: Id = Id([0x21; 16]);
pub const NEXT_VERSION: Id = Id([0x22; 16]);
pub const TTL_MS: u64 = 120_000;
/// Name of the node of a single machine.
pub const LOCAL: &str = LOCAL_NODE;
pub const NO_CREDIT: Credit = Credit { total: 0, reserve: 0, largest: u64::MAX };

pub const ONE_PORT: [PortRequest<'_>; 1] = [PortRequest {
    name: "game",
    protocol: Protocol::Tcp,
    exposure: PortExposure::Number(0),
    sends_proxy_header: false,
    counting: SessionCounting::Uncounted,
}];

pub fn keys(ids: &[u16], current: u16) -> KeyRing {
    KeyRing::new(ids.iter().map(|id| (*id, [*id as u8 ^ 0x5a; 32])).collect(), current).unwrap()
}

pub fn fresh_engine() -> Engine {
    Engine::new(EngineConfig::new(1, keys(&[1], 1)))
}

pub fn image_of(engine: &Engine) -> Vec<u8> {
    let mut image = Vec::new();
    engine.write_image(&mut |bytes| image.extend_from_slice(bytes));
    image
}

pub fn from_image(image: &[u8]) -> Engine {
    let mut engine = fresh_engine();
    engine.load_image(image).unwrap();
    engine
}

/// Searches all records and returns the old keys that none needs.
pub fn unused_keys(engine: &mut Engine) -> Vec<u16> {
    engine.start_key_search();
    while engine.continue_key_search() {}
    engine.unused_keys()
}

/// Returns the whole list of a version's lobbies.
pub fn listed(engine: &Engine, namespace: Id, version: Id) -> Vec<ListedLobby> {
    let mut lobbies = Vec::new();
    let mut next = Some(0);
    while let Some(after) = next {
        let page = engine.list(&ListLobbies { namespace, version, after, with_state: true });
        assert!(page.next.is_none_or(|next| next > after), "a part without progress");
        lobbies.extend(page.lobbies);
        next = page.next;
    }
    lobbies
}

pub fn lobby_id(number: u64) -> Id {
    let mut id = Id([0; 16]);
    id.0[1] = 1;
    id.0[6] = 0x40;
    id.0[8..].copy_from_slice(&(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63).to_be_bytes());
    id
}

pub fn key(number: u8) -> Option<Idempotency> {
    Some(Idempotency { key: [number; 16], message: [1; 16] })
}

pub fn same_key_other_message(number: u8) -> Option<Idempotency> {
    Some(Idempotency { key: [number; 16], message: [2; 16] })
}

pub struct TestEngine {
    pub engine: Engine,
    pub replica: Engine,
    pub now: Ms,
    pub credit: Credit,
    pub next_lobby: u64,
    pub written: u32,
    pub log: Vec<(Lsn, u32, Vec<u8>)>,
    /// Sequence number of the desired lobbies after the last command.
    pub desired: u64,
}

impl Default for TestEngine {
    fn default() -> TestEngine {
        TestEngine::new()
    }
}

/// Returns a request for one slot of any lobby.
pub fn find<'a>() -> Find<'a> {
    Find {
        namespace: NAMESPACE,
        version: VERSION,
        modes: &["duel"],
        regions: &["local"],
        tags: &[],
        party_size: 1,
        source: 0,
        source_limit: 256,
        idempotency: None,
        channels: &[],
        creation: CreationPolicy::Prevented,
    }
}

/// Returns a request for one slot of a lobby.
pub fn join<'a>(lobby: Id) -> Join<'a> {
    Join {
        namespace: NAMESPACE,
        lobby,
        party_size: 1,
        rejoin_token: None,
        source: 0,
        source_limit: 256,
        idempotency: None,
        channels: &[],
    }
}

impl TestEngine {
    pub fn new() -> TestEngine {
        TestEngine::with(fresh_engine(), fresh_engine())
    }

    pub fn with(engine: Engine, replica: Engine) -> TestEngine {
        let (credit, log) = (Credit::UNLIMITED, Vec::new());
        TestEngine { engine, replica, now: 1_000_000, credit, next_lobby: 0, written: 0, log, desired: 0 }
    }

    pub fn run<T>(&mut self, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> T) -> T {
        let mut events = EventBuffer::default();
        let first = self.engine.last_lsn() + 1;
        let desired = self.engine.desired_lobbies_since(self.desired).sequence;
        let marks = self.engine.change_marks();
        let mut cx = Context { now: self.now, credit: self.credit, events: &mut events };
        let result = command(&mut self.engine, &mut cx);
        let left = cx.credit.total;
        self.desired = self.engine.desired_lobbies_since(desired).sequence;
        let is_news = self.engine.change_marks().is_newer(marks);
        assert!(is_news || self.desired == desired, "a change of the desired lobbies has a fact");
        let written = events.bytes.len() as u64;
        assert!(self.credit.total >= written, "a command writes no more than its credit");
        assert_eq!(left, self.credit.total - written, "credit goes down by what was written");
        assert_eq!(self.engine.last_lsn(), first - 1 + u64::from(events.count));
        self.written = events.count;
        if events.count > 0 {
            self.replica.apply(first, events.count, &events.bytes).unwrap();
            self.log.push((first, events.count, events.bytes));
        }
        assert_eq!(self.engine.durable_hash(), self.replica.durable_hash(), "replay gives the same state");
        assert_eq!(self.engine.ledger_violations(), 0);
        result
    }

    /// Continues with an engine from an image, as after a restart.
    pub fn restart(&mut self) {
        self.restart_as(fresh_engine());
    }

    /// Continues with `engine`, which must be empty.
    pub fn restart_as(&mut self, mut engine: Engine) {
        engine.load_image(&image_of(&self.engine)).unwrap();
        assert_eq!(engine.durable_hash(), self.engine.durable_hash());
        engine.finish_recovery(self.now);
        assert_eq!(engine.durable_hash(), self.engine.durable_hash());
        self.engine = engine;
    }

    pub fn pass(&mut self, ms: u64) {
        self.now += ms;
        while self.engine.next_deadline().is_some_and(|at| at <= self.now) && self.run(|e, cx| e.expire_due(cx)) > 0 {}
    }

    pub fn pass_unnoticed(&mut self, ms: u64) {
        self.now += ms;
    }

    fn new_lobby<'a>(&mut self) -> Attach<'a> {
        self.next_lobby += 1;
        Attach {
            id: lobby_id(self.next_lobby),
            namespace: NAMESPACE,
            version: VERSION,
            mode: "duel",
            region: "local",
            tags: &[],
            max_players: 4,
            max_players_direct: 4,
            max_players_party: 4,
            player_token_ttl_ms: TTL_MS,
            heartbeat_timeout_ms: 0,
            heartbeat_grace_ms: 10_000,
            is_join_enabled: true,
            ports: &[],
            create_ts_ms: 1_700_000_000_000,
            lobby_count_max: 512,
            idempotency: None,
        }
    }

    pub fn attach_with<'a>(&mut self, change: impl FnOnce(&mut Attach<'a>)) -> CommandOutcome<Attached> {
        let mut command = self.new_lobby();
        change(&mut command);
        self.run(|e, cx| e.attach(cx, &command))
    }

    pub fn starting<'a>(&mut self, change: impl FnOnce(&mut Attach<'a>)) -> Id {
        self.attach_with(change).result.unwrap().lobby
    }

    pub fn start_idle<'a>(&mut self, change: impl FnOnce(&mut LobbyTemplate<'a>)) -> CommandOutcome<Id> {
        let mut template = self.own_lobby();
        change(&mut template);
        self.run(|e, cx| e.start_idle(cx, &template))
    }

    pub fn own_lobby<'a>(&mut self) -> LobbyTemplate<'a> {
        let lobby = self.new_lobby();
        let random = self.next_lobby.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let publicity = Publicity::Public;
        LobbyTemplate { lobby, publicity, lobby_config: None, ports: &ONE_PORT, random, trial_ms: None }
    }

    pub fn lobby<'a>(&mut self, change: impl FnOnce(&mut Attach<'a>)) -> Id {
        let lobby = self.starting(change);
        self.ready(lobby).unwrap();
        lobby
    }

    pub fn ready(&mut self, lobby: Id) -> Result<(), Refusal> {
        self.run(|e, cx| e.ready(cx, lobby)).result
    }

    pub fn find_with<'a>(&mut self, change: impl FnOnce(&mut Find<'a>)) -> CommandOutcome<Admission> {
        let mut command = find();
        change(&mut command);
        self.run(|e, cx| e.find(cx, &command))
    }

    pub fn join_with<'a>(&mut self, lobby: Id, change: impl FnOnce(&mut Join<'a>)) -> CommandOutcome<Admission> {
        let mut command = join(lobby);
        change(&mut command);
        self.run(|e, cx| e.join(cx, &command))
    }

    pub fn join(&mut self, lobby: Id) -> Result<String, Refusal> {
        self.join_with(lobby, |_| {}).result.map(one_token)
    }

    pub fn rejoin(&mut self, lobby: Id, token: &str) -> Result<String, Refusal> {
        self.join_with(lobby, |c| c.rejoin_token = Some(token)).result.map(one_token)
    }

    pub fn find(&mut self) -> Result<Id, Refusal> {
        self.find_with(|_| {}).result.map(|placed| reservation(placed).lobby)
    }

    pub fn connect(&mut self, lobby: Id, player_token: &str) -> Result<(), Refusal> {
        self.connect_with(lobby, player_token, None).result
    }

    pub fn connect_with(
        &mut self,
        lobby: Id,
        player_token: &str,
        idempotency: Option<Idempotency>,
    ) -> CommandOutcome<()> {
        self.run(|e, cx| {
            let player = e.keys().verify_player(player_token);
            e.connected(cx, &Connect { lobby, player, idempotency })
        })
    }

    pub fn disconnect(&mut self, lobby: Id, player_token: &str, hold_ms: Option<u64>) -> Result<(), Refusal> {
        self.disconnect_with(lobby, player_token, hold_ms, None).result
    }

    pub fn disconnect_with(
        &mut self,
        lobby: Id,
        player_token: &str,
        hold_ms: Option<u64>,
        idempotency: Option<Idempotency>,
    ) -> CommandOutcome<()> {
        self.run(|e, cx| {
            let player = e.keys().verify_player(player_token);
            e.disconnected(cx, &Disconnect { lobby, player, hold_ms, idempotency })
        })
    }

    pub fn close(&mut self, lobby: Id, is_closed: bool) -> Result<(), Refusal> {
        self.run(|e, cx| e.set_closed(cx, lobby, is_closed)).result
    }

    pub fn heartbeat(&mut self, lobby: Id, tokens: Option<&[&str]>) -> Result<(), Refusal> {
        let players = tokens.map(|tokens| PlayerList::verify(self.engine.keys(), tokens));
        self.run(|e, cx| e.heartbeat(cx, lobby, players.as_ref())).result
    }

    pub fn detach(&mut self, lobby: Id) -> Result<bool, Refusal> {
        self.run(|e, cx| e.detach(cx, &[NAMESPACE], lobby)).result
    }

    pub fn players(&self, lobby: Id) -> [u32; 4] {
        self.engine.lobby(lobby).unwrap().players
    }

    pub fn resolved(&mut self) -> Vec<ResolvedHold> {
        self.engine.take_resolved_holds()
    }
}

pub fn reservation(placed: Admission) -> Reservation {
    match placed {
        Admission::Reserved(reservation) => reservation,
        Admission::Hold(hold) => panic!("held as {hold:?}"),
    }
}

pub fn one_token(placed: Admission) -> String {
    let mut tokens = reservation(placed).tokens;
    assert_eq!(tokens.len(), 1);
    tokens.remove(0)
}

pub fn hold(placed: Admission) -> HoldId {
    match placed {
        Admission::Hold(hold) => hold,
        Admission::Reserved(reservation) => panic!("reserved in {:?}", reservation.lobby),
    }
}
