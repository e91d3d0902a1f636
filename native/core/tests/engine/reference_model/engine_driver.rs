//! Runs commands on the engine and translates its answers into the model's terms.

use hosting_core::{
    Admission, Attach, CommandOutcome, Connect, Context, Create, CreationPolicy, Credit, Disconnect, Engine,
    EngineConfig, EventBuffer, Find, HashKey, Id, Idempotency, ImmediatePlacement, Join, KeyRing, LobbyTemplate, Ms,
    PlayerList, Publicity, Reservation, Source,
};

use super::commands::{AttachArgs, Command, CreateArgs, CreationArgs, FindArgs, JoinArgs, Reply};
use super::effects::Lsns;
use crate::test_engine::image_of;

/// How the driver asks for slots.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With `find` or `join`, as every other command.
    Whole,
    /// With `find_now` or `join_now`, which answered.
    Now,
    /// With `find_now` or `join_now` while the best lobby was starting, and then as a whole.
    WholeAfterStarting,
    /// With `find_now`, which needed a new lobby, and then as a whole.
    WholeAfterNeeded,
}

pub struct CommandRecord {
    pub way: Way,
    /// Result of `recall_now` after a find or join with a key.
    pub recalled: Option<ImmediatePlacement>,
    pub reply: Reply,
    pub wait: u64,
    pub lsns: Lsns,
    pub written: u64,
    pub credit_after: u64,
}

struct Batch {
    first_lsn: u64,
    count: u32,
    bytes: Vec<u8>,
}

pub struct EngineDriver {
    pub engine: Engine,
    journal: Vec<Batch>,
    image: Option<Vec<u8>>,
    pub key_ids: Vec<u16>,
}

pub fn ring(ids: &[u16], ring_seed: u8) -> KeyRing {
    let keys = ids.iter().map(|id| (*id, [(*id as u8) ^ ring_seed; 32])).collect();
    KeyRing::new(keys, ids.last().copied().unwrap_or_default()).expect("the last key is among the keys")
}

pub fn fresh_engine(ids: &[u16], ring_seed: u8) -> Engine {
    Engine::new(EngineConfig::new(1, ring(ids, ring_seed)))
}

pub fn slot_of(token: &str) -> Option<usize> {
    let bytes = base64url(token.strip_prefix("player_")?)?;
    (bytes.len() == 42).then(|| u32::from_le_bytes([bytes[19], bytes[20], bytes[21], 0]) as usize)
}

pub fn key_id_of(token: &str) -> Option<u16> {
    let bytes = base64url(token.split_once('_')?.1)?;
    Some(u16::from_le_bytes([*bytes.get(1)?, *bytes.get(2)?]))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub fn base64url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for letter in text.bytes() {
        bits = bits << 6 | ALPHABET.iter().position(|known| *known == letter)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

pub fn to_base64url(bytes: &[u8]) -> String {
    let letters = |chunk: &[u8]| {
        let all = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        (0..=chunk.len()).map(move |i| ALPHABET[(all >> (18 - 6 * i)) as usize & 63] as char).collect::<String>()
    };
    bytes.chunks(3).map(letters).collect()
}

pub fn source(namespace: Id, number: u64) -> Source {
    let address = number.to_be_bytes();
    if number == 0 { 0 } else { HashKey::new([7; 32]).source(namespace, &address) }
}

impl EngineDriver {
    pub fn new() -> Self {
        EngineDriver { engine: fresh_engine(&[1], 0x5A), journal: Vec::new(), image: None, key_ids: vec![1] }
    }

    pub fn call(&mut self, command: &Command, now: Ms, credit: Credit) -> CommandRecord {
        let before = self.engine.last_lsn();
        let mut events = EventBuffer::default();
        let mut context = Context { now, credit, events: &mut events };
        // Each other request for slots is asked at once first, as the matchmaker does.
        let placement = before.is_multiple_of(2).then(|| ask_now(&mut self.engine, &mut context, command)).flatten();
        let (way, done) = match placement {
            Some(ImmediatePlacement::Done(outcome)) => (Way::Now, Some(reserved(outcome))),
            Some(ImmediatePlacement::LobbyStarting) => (Way::WholeAfterStarting, None),
            Some(ImmediatePlacement::LobbyNeeded) => (Way::WholeAfterNeeded, None),
            None => (Way::Whole, None),
        };
        let (reply, wait) = done.unwrap_or_else(|| ask(&mut self.engine, &mut context, command));
        let key = idempotency(command).filter(|_| matches!(command, Command::Find(..) | Command::Join(..)));
        let recalled = key.and_then(|key| self.engine.recall_now(&mut context, &key));
        let credit_after = context.credit.total;
        let written = events.bytes.len() as u64;
        let count = events.count;
        if count > 0 {
            self.journal.push(Batch { first_lsn: before + 1, count, bytes: events.bytes });
        }
        CommandRecord {
            way,
            recalled,
            reply,
            wait,
            lsns: Lsns { before, after: before + u64::from(count) },
            written,
            credit_after,
        }
    }

    pub fn acknowledge(&mut self, up_to: u64, now: Ms) {
        let first_lsn = self.engine.last_lsn() + 1;
        let mut events = EventBuffer::default();
        let mut context = Context { now, credit: Credit::UNLIMITED, events: &mut events };
        self.engine.acknowledge_facts(&mut context, up_to);
        self.journal.push(Batch { first_lsn, count: events.count, bytes: events.bytes });
    }

    pub fn take_image(&mut self) {
        self.image = Some(image_of(&self.engine));
    }

    pub fn replayed(
        &self,
        key_ids: &[u16],
        from_start: bool,
        mut merge: impl FnMut() -> bool,
    ) -> Result<Engine, String> {
        let mut engine = fresh_engine(key_ids, 0x5A);
        if let Some(image) = self.image.as_ref().filter(|_| !from_start) {
            engine.load_image(image).map_err(|error| format!("the image is refused: {error:?}"))?;
        }
        let mut pending: Option<Batch> = None;
        for batch in &self.journal {
            match pending.as_mut().filter(|_| merge()) {
                Some(open) => {
                    open.count += batch.count;
                    open.bytes.extend_from_slice(&batch.bytes);
                }
                None => {
                    apply(&mut engine, pending.take())?;
                    let (first_lsn, count, bytes) = (batch.first_lsn, batch.count, batch.bytes.clone());
                    pending = Some(Batch { first_lsn, count, bytes });
                }
            }
        }
        apply(&mut engine, pending)?;
        Ok(engine)
    }
}

fn apply(engine: &mut Engine, batch: Option<Batch>) -> Result<(), String> {
    let Some(Batch { first_lsn, count, bytes }) = batch else { return Ok(()) };
    engine.apply(first_lsn, count, &bytes).map_err(|error| format!("events from {first_lsn} are refused: {error:?}"))
}

fn reply_of<T>(answer: CommandOutcome<T>, into: impl FnOnce(T) -> Reply) -> (Reply, u64) {
    (answer.result.map_or_else(Reply::Refused, into), answer.wait)
}

pub fn reserved(answer: CommandOutcome<Reservation>) -> (Reply, u64) {
    reply_of(answer, |reserved| Reply::Reserved { lobby: reserved.lobby, tokens: reserved.tokens })
}

fn placed(answer: CommandOutcome<Admission>) -> (Reply, u64) {
    reply_of(answer, |placed| match placed {
        Admission::Reserved(reserved) => Reply::Reserved { lobby: reserved.lobby, tokens: reserved.tokens },
        Admission::Hold(hold) => Reply::Hold(hold),
    })
}

fn idempotency(command: &Command) -> Option<Idempotency> {
    command.key().map(|number| Idempotency { key: [number + 1; 16], message: command.message().to_be_bytes() })
}

fn ask(engine: &mut Engine, cx: &mut Context<'_>, command: &Command) -> (Reply, u64) {
    let done = |_: ()| Reply::Done;
    let idempotency = idempotency(command);
    match command {
        Command::Attach(args, _) => ask_attach(engine, cx, args, idempotency),
        Command::Find(args, _) => ask_find(engine, cx, args, idempotency),
        Command::Create(args, _) => ask_create(engine, cx, args, idempotency),
        Command::Join(args, _) => ask_join(engine, cx, args, idempotency),
        Command::Ready { lobby } => reply_of(engine.ready(cx, *lobby), done),
        Command::ReleaseHold { hold } => {
            engine.release_hold(cx, *hold);
            (Reply::Done, 0)
        }
        Command::Connected { lobby, token, .. } => {
            let player = engine.keys().verify_player(token);
            reply_of(engine.connected(cx, &Connect { lobby: *lobby, player, idempotency }), done)
        }
        Command::Disconnected { lobby, token, hold_ms, .. } => {
            let player = engine.keys().verify_player(token);
            let command = Disconnect { lobby: *lobby, player, hold_ms: *hold_ms, idempotency };
            reply_of(engine.disconnected(cx, &command), done)
        }
        Command::SetClosed { lobby, is_closed } => reply_of(engine.set_closed(cx, *lobby, *is_closed), done),
        Command::SetState { lobby, state } => reply_of(engine.set_state(cx, *lobby, state), done),
        Command::State { namespace, lobby, caller } => {
            reply_of(engine.state(cx, &[*namespace], *lobby, *caller), Reply::State)
        }
        Command::Heartbeat { lobby, tokens } => {
            let list: Option<Vec<&str>> = tokens.as_ref().map(|all| all.iter().map(String::as_str).collect());
            let players = list.map(|list| PlayerList::verify(engine.keys(), &list));
            reply_of(engine.heartbeat(cx, *lobby, players.as_ref()), done)
        }
        Command::Detach { namespace, lobby } => reply_of(engine.detach(cx, &[*namespace], *lobby), Reply::Removed),
        Command::Stop { lobby, only_if_idle } => reply_of(engine.stop(cx, *lobby, *only_if_idle), Reply::Removed),
        Command::End { lobby, reason } => reply_of(engine.end(cx, *lobby, *reason), Reply::Removed),
        Command::Advance => {
            while engine.expire_due(cx) > 0 {}
            (Reply::Done, 0)
        }
    }
}

/// Asks for slots without waiting. Returns None for other commands.
fn ask_now(engine: &mut Engine, cx: &mut Context<'_>, command: &Command) -> Option<ImmediatePlacement> {
    let idempotency = idempotency(command);
    match command {
        Command::Find(args, _) => {
            // The matchmaker knows no template. The engine says whether it needs one.
            let creation = match args.creation {
                CreationArgs::Prevented => CreationPolicy::Prevented,
                _ => CreationPolicy::Impossible { lobby_count_max: 0 },
            };
            Some(with_find(args, idempotency, creation, |find| engine.find_now(cx, find)))
        }
        Command::Join(args, _) => Some(engine.join_now(cx, &join_of(args, idempotency))),
        _ => None,
    }
}

pub fn ask_aside(engine: &mut Engine, command: &Command, now: Ms) -> Reply {
    let mut events = EventBuffer::default();
    ask(engine, &mut Context { now, credit: Credit::UNLIMITED, events: &mut events }, command).0
}

fn pairs(tags: &[(String, String)]) -> Vec<(&str, &str)> {
    tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn strs(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

fn ask_attach(
    engine: &mut Engine,
    cx: &mut Context<'_>,
    args: &AttachArgs,
    idempotency: Option<Idempotency>,
) -> (Reply, u64) {
    let tags = pairs(&args.tags);
    let command = Attach { idempotency, ..attach_of(args, &tags) };
    reply_of(engine.attach(cx, &command), |attached| Reply::Attached {
        lobby: attached.lobby,
        lobby_token: attached.lobby_token,
    })
}

fn attach_of<'a>(args: &'a AttachArgs, tags: &'a [(&'a str, &'a str)]) -> Attach<'a> {
    Attach {
        id: args.id,
        namespace: args.namespace,
        version: args.version,
        mode: &args.mode,
        region: &args.region,
        tags,
        max_players: args.limits[0],
        max_players_direct: args.limits[1],
        max_players_party: args.limits[2],
        player_token_ttl_ms: args.ttl_ms,
        heartbeat_timeout_ms: args.heartbeat_timeout_ms,
        heartbeat_grace_ms: args.heartbeat_grace_ms,
        is_join_enabled: args.is_join_enabled,
        ports: &args.ports,
        create_ts_ms: args.create_ts_ms,
        lobby_count_max: args.lobby_count_max,
        idempotency: None,
    }
}

fn creating<R>(creation: &CreationArgs, run: impl FnOnce(CreationPolicy<'_>) -> R) -> R {
    match creation {
        CreationArgs::Prevented => run(CreationPolicy::Prevented),
        CreationArgs::Impossible { lobby_count_max } => {
            run(CreationPolicy::Impossible { lobby_count_max: *lobby_count_max })
        }
        CreationArgs::Possible(template) => {
            let tags = pairs(&template.lobby.tags);
            let lobby = attach_of(&template.lobby, &tags);
            let publicity = if template.is_public { Publicity::Public } else { Publicity::Private };
            run(CreationPolicy::Possible(&LobbyTemplate {
                lobby,
                publicity,
                lobby_config: None,
                ports: &[],
                random: 0,
                trial_ms: None,
            }))
        }
    }
}

fn placed_or_made(engine: &Engine, creation: &CreationArgs, answer: CommandOutcome<Admission>) -> (Reply, u64) {
    let (reply, wait) = placed(answer);
    if let (Reply::Hold(hold), CreationArgs::Possible(template)) = (&reply, creation)
        && engine.lobby_of_hold(*hold) == Some(template.lobby.id)
    {
        let lobby_token = engine.lobby_token(template.lobby.id).unwrap_or_default();
        return (Reply::Made { hold: *hold, lobby: template.lobby.id, lobby_token }, wait);
    }
    (reply, wait)
}

fn ask_find(
    engine: &mut Engine,
    cx: &mut Context<'_>,
    args: &FindArgs,
    idempotency: Option<Idempotency>,
) -> (Reply, u64) {
    let answer =
        creating(&args.creation, |creation| with_find(args, idempotency, creation, |find| engine.find(cx, find)));
    placed_or_made(engine, &args.creation, answer)
}

fn with_find<R>(
    args: &FindArgs,
    idempotency: Option<Idempotency>,
    creation: CreationPolicy<'_>,
    run: impl FnOnce(&Find<'_>) -> R,
) -> R {
    run(&Find {
        namespace: args.namespace,
        version: args.version,
        modes: &strs(&args.modes),
        regions: &strs(&args.regions),
        tags: &pairs(&args.tags),
        party_size: args.party_size,
        source: args.source,
        source_limit: args.source_limit,
        idempotency,
        channels: &[],
        creation,
    })
}

fn ask_create(
    engine: &mut Engine,
    cx: &mut Context<'_>,
    args: &CreateArgs,
    idempotency: Option<Idempotency>,
) -> (Reply, u64) {
    let CreateArgs { namespace, party_size, source, source_limit, .. } = *args;
    let create = |creation: CreationPolicy<'_>| {
        let channels = &[];
        let command = Create { namespace, creation, party_size, source, source_limit, idempotency, channels };
        engine.create(cx, &command)
    };
    let answer = creating(&args.creation, create);
    placed_or_made(engine, &args.creation, answer)
}

fn ask_join(
    engine: &mut Engine,
    cx: &mut Context<'_>,
    args: &JoinArgs,
    idempotency: Option<Idempotency>,
) -> (Reply, u64) {
    placed(engine.join(cx, &join_of(args, idempotency)))
}

fn join_of(args: &JoinArgs, idempotency: Option<Idempotency>) -> Join<'_> {
    Join {
        namespace: args.namespace,
        lobby: args.lobby,
        party_size: args.party_size,
        rejoin_token: args.rejoin_token.as_deref(),
        source: args.source,
        source_limit: args.source_limit,
        idempotency,
        channels: &[],
    }
}
