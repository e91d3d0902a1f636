//! A namespace with a service token, and the rate limits of its clients.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

use hosting_core::Id;
use hosting_matchmaker::{Buckets, ClientLimits, GameMode, Namespace, ServiceToken, monotonic_s};
use sha2::{Digest as _, Sha256};

use crate::shard::{self, NAMESPACE, VERSION};

pub const SERVICE_TOKEN: &str = "env_secret";
const SERVICE_TOKEN_ID: Id = Id([0x51; 16]);
const GROUP: Id = Id([0x33; 16]);
pub const CLIENT_ADDRESS: [u8; 4] = Ipv4Addr::LOCALHOST.octets();
/// Small enough to count the tokens of a bucket.
pub const BURST: u32 = 20;

/// Host name of the namespace's web page.
pub const HOST: &str = "game.example";
const PUBLIC_TOKEN_ID: Id = Id([0x61; 16]);

pub fn development_token() -> String {
    shard::keys(7).sign_development(NAMESPACE, Id([0x63; 16]), 1 << 50)
}

pub fn public_token() -> String {
    shard::keys(7).sign_public(NAMESPACE, PUBLIC_TOKEN_ID)
}

fn mode() -> GameMode {
    GameMode {
        max_players: 8,
        max_players_direct: 8,
        max_players_party: 8,
        is_find_enabled: true,
        is_taggable: true,
        is_listable: true,
        is_max_players_dynamic: true,
        regions: None,
        create_publicities: HashSet::new(),
        ports: HashMap::new(),
    }
}

pub fn namespace() -> Namespace {
    Namespace {
        id: NAMESPACE,
        label: "duels/live".into(),
        version: VERSION,
        group: GROUP,
        source_limit: 8,
        needs_admission: false,
        modes: HashMap::from([("duel".into(), mode()), ("solo".into(), mode())]),
        hosts: vec![HOST.into()],
        service_tokens: vec![ServiceToken {
            sha256: Sha256::digest(SERVICE_TOKEN).into(),
            token_id: SERVICE_TOKEN_ID,
            expires_ms: None,
        }],
        revoked: Vec::new(),
    }
}

/// Returns the tokens left in each bucket of the client, first of its `env_` token and last of its group.
pub fn tokens_left(limits: &ClientLimits) -> [usize; 4] {
    let (identity, now) = ([NAMESPACE.0, SERVICE_TOKEN_ID.0].concat(), monotonic_s());
    let buckets: [(&Buckets, &[u8]); 4] = [
        (&limits.tokens, &identity),
        (&limits.token_addresses, &CLIENT_ADDRESS),
        (&limits.client_addresses, &CLIENT_ADDRESS),
        (&limits.groups, &GROUP.0),
    ];
    buckets.map(|(buckets, key)| {
        let count = (0..2 * BURST).take_while(|_| buckets.take(key, now) == 0.0).count();
        (0..count).for_each(|_| buckets.put_back(key));
        count
    })
}
