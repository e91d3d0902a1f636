//! Workload parameters drawn from the seed: few namespaces, modes and sources, small limits.

use hosting_core::{Id, Ms, Port};

use super::commands::{AttachArgs, CreationArgs, FindArgs, TemplateArgs};
use super::model_state::Model;
use crate::random::Random;

pub struct Workload {
    pub namespaces: Vec<Id>,
    pub versions: Vec<Id>,
    pub modes: Vec<&'static str>,
    pub regions: Vec<&'static str>,
    pub sources: u64,
    pub source_limit: u32,
    pub lobby_count_max: u32,
    pub capacity_max: u32,
    ttls_ms: Vec<Ms>,
    heartbeat_timeouts_ms: Vec<Ms>,
    heartbeat_graces_ms: Vec<Ms>,
    pub join_disabled_percent: u64,
    pub scarce_credit_percent: u64,
    pub key_percent: u64,
    pub keys: u64,
    pub late_timer_percent: u64,
}

const TAGS: [(&str, &str); 3] = [("map", "lake"), ("map", "moor"), ("rank", "7")];

impl Workload {
    pub fn draw(random: &mut Random) -> Self {
        let few = |random: &mut Random, most: u64| random.between(1, most) as usize;
        let ids = |random: &mut Random, count: usize| (0..count).map(|_| Id(random.id())).collect::<Vec<_>>();
        let (namespaces, versions) = (few(random, 2), few(random, 2));
        let (modes, regions) = (few(random, 3), few(random, 2));
        let choose =
            |random: &mut Random, all: &[Ms]| -> Vec<Ms> { (0..2).filter_map(|_| random.pick(all).copied()).collect() };
        Workload {
            namespaces: ids(random, namespaces),
            versions: ids(random, versions),
            modes: ["duel", "ffa", "coop"][..modes].to_vec(),
            regions: ["east", "west"][..regions].to_vec(),
            sources: random.between(1, 4),
            source_limit: [1, 3, 6, 1_000][random.below(4) as usize],
            lobby_count_max: [1, 2, 3, 4, 6, 100][random.below(6) as usize],
            capacity_max: [1, 2, 3, 5, 5][random.below(5) as usize],
            ttls_ms: choose(random, &[5_000, 5_000, 20_000, 120_000, 700_000, 3_600_000]),
            heartbeat_timeouts_ms: choose(random, &[0, 0, 0, 7_000, 30_000, 99_000]),
            heartbeat_graces_ms: choose(random, &[0, 1, 10_000]),
            join_disabled_percent: [0, 0, 10][random.below(3) as usize],
            scarce_credit_percent: [0, 0, 8, 25][random.below(4) as usize],
            key_percent: [0, 30, 60, 90][random.below(4) as usize],
            keys: random.between(2, 8),
            late_timer_percent: [0, 30, 60, 100][random.below(4) as usize],
        }
    }

    pub fn tags(&self, random: &mut Random, most: u64) -> Vec<(String, String)> {
        let mut tags: Vec<(String, String)> = Vec::new();
        for _ in 0..random.below(most + 1) {
            let (name, value) = TAGS[random.below(3) as usize];
            if tags.iter().all(|(known, _)| known != name) {
                tags.push((name.to_owned(), value.to_owned()));
            }
        }
        tags.sort();
        tags
    }

    pub fn some_of(&self, random: &mut Random, all: &[&str]) -> Vec<String> {
        let mut rest: Vec<&str> = all.to_vec();
        let count = random.between(1, all.len() as u64);
        (0..count).map(|_| rest.remove(random.below(rest.len() as u64) as usize).to_owned()).collect()
    }

    pub fn source(&self, random: &mut Random) -> u64 {
        random.below(self.sources + 1)
    }

    pub fn key(&self, random: &mut Random) -> Option<u8> {
        random.chance(self.key_percent).then(|| random.below(self.keys) as u8)
    }

    pub fn attach(&self, random: &mut Random, model: &Model) -> AttachArgs {
        let capacity = random.between(1, u64::from(self.capacity_max));
        let limit =
            |random: &mut Random| if random.chance(40) { capacity as u32 } else { random.between(1, capacity) as u32 };
        let ports = ["game", "voice"][..random.below(3) as usize].iter().map(|name| Port {
            name: (*name).to_owned(),
            address: "192.0.2.7".to_owned(),
            port: 7_000 + random.below(100) as u16,
            is_tls: random.chance(50),
        });
        let one_of = |random: &mut Random, all: &[Ms]| random.pick(all).copied().unwrap_or_default();
        AttachArgs {
            ports: ports.collect(),
            id: lobby_id(random),
            namespace: random.pick(&self.namespaces).copied().unwrap_or_default(),
            version: random.pick(&self.versions).copied().unwrap_or_default(),
            mode: random.pick(&self.modes).copied().unwrap_or_default().to_owned(),
            region: random.pick(&self.regions).copied().unwrap_or_default().to_owned(),
            tags: self.tags(random, 2),
            limits: [limit(random), limit(random), limit(random)],
            ttl_ms: one_of(random, &self.ttls_ms),
            heartbeat_timeout_ms: one_of(random, &self.heartbeat_timeouts_ms),
            heartbeat_grace_ms: one_of(random, &self.heartbeat_graces_ms),
            is_join_enabled: !random.chance(self.join_disabled_percent),
            create_ts_ms: 1_700_000_000_000 + model.now,
            lobby_count_max: self.lobby_count_max,
        }
    }
}

impl Workload {
    pub fn creation(&self, random: &mut Random, model: &Model, args: &FindArgs) -> CreationArgs {
        if random.chance(45) {
            return CreationArgs::Prevented;
        }
        let mut lobby = self.attach(random, model);
        (lobby.namespace, lobby.version, lobby.tags) = (args.namespace, args.version, args.tags.clone());
        lobby.mode.clone_from(&args.modes[0]);
        lobby.region.clone_from(&args.regions[0]);
        self.possible(random, lobby, true)
    }

    pub fn possible(&self, random: &mut Random, mut lobby: AttachArgs, is_public: bool) -> CreationArgs {
        lobby.ports.clear();
        if random.chance(15) {
            return CreationArgs::Impossible { lobby_count_max: lobby.lobby_count_max };
        }
        CreationArgs::Possible(Box::new(TemplateArgs { lobby, is_public }))
    }
}

pub fn lobby_id(random: &mut Random) -> Id {
    let mut bytes = random.id();
    bytes[..2].copy_from_slice(&[0, 1]);
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Id(bytes)
}
