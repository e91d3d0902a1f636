//! Tokens of clients, and namespaces that the configuration replaces.

use super::*;

const NAMESPACE: Id = Id([0x11; 16]);
const OTHER: Id = Id([0x12; 16]);
const SECRET: &str = "env_secret";
const TOKEN: Id = Id([0x51; 16]);
const FAR_FUTURE_MS: u64 = 1 << 50;

fn keys(secret: u8) -> KeyRing {
    KeyRing::new(vec![(1, [secret; 32])], 1).expect("one key")
}

fn token(secret: &str, token_id: Id) -> ServiceToken {
    ServiceToken { sha256: Sha256::digest(secret).into(), token_id, expires_ms: None }
}

fn namespace(id: Id, service_tokens: Vec<ServiceToken>, revoked: Vec<Id>) -> Arc<Namespace> {
    let mut namespace = Namespace {
        id,
        version: Id([0x22; 16]),
        group: Id([0x33; 16]),
        source_limit: 4,
        needs_admission: false,
        modes: HashMap::new(),
        service_tokens,
        revoked,
    };
    namespace.sort_revoked();
    Arc::new(namespace)
}

fn with(all: &[Arc<Namespace>]) -> Namespaces {
    let namespaces = Namespaces::default();
    all.iter().for_each(|namespace| namespaces.put(namespace.clone()));
    namespaces
}

/// Returns the namespace and the id of the token for which a client acts.
fn client(namespaces: &Namespaces, token: &str) -> Option<(Id, Option<Id>)> {
    namespaces.client(&keys(7), token).map(|client| (client.namespace.id, client.service_token))
}

#[test]
fn service_token_is_found_by_its_hash() {
    let namespaces = with(&[namespace(NAMESPACE, vec![token("env_a", Id([1; 16])), token(SECRET, TOKEN)], vec![])]);
    assert_eq!(client(&namespaces, SECRET), Some((NAMESPACE, Some(TOKEN))));
    assert_eq!(client(&namespaces, "env_a"), Some((NAMESPACE, Some(Id([1; 16])))));
    for unknown in ["env_secre", "env_secret1", "env_", "env_secret ", "ENV_secret", "secret", ""] {
        assert_eq!(client(&namespaces, unknown), None, "{unknown:?}");
    }
}

/// A text with another prefix is no `env_` token, even if a namespace has its hash.
#[test]
fn service_token_needs_its_prefix() {
    for secret in ["dev_secret", "lobby_secret", "pub_secret", "secret", ""] {
        let namespaces = with(&[namespace(NAMESPACE, vec![token(secret, TOKEN)], vec![])]);
        assert_eq!(client(&namespaces, secret), None, "{secret:?}");
    }
}

#[test]
fn public_token_names_its_namespace() {
    let namespaces = with(&[namespace(NAMESPACE, vec![], vec![])]);
    assert_eq!(client(&namespaces, &keys(7).sign_public(NAMESPACE, TOKEN)), Some((NAMESPACE, None)));
    assert_eq!(client(&namespaces, &keys(7).sign_public(OTHER, TOKEN)), None, "an unknown namespace");
    assert_eq!(client(&namespaces, &keys(8).sign_public(NAMESPACE, TOKEN)), None, "another key");
    for malformed in ["pub_", "pub_a", &keys(7).sign_public(NAMESPACE, TOKEN)[..40]] {
        assert_eq!(client(&namespaces, malformed), None, "{malformed}");
    }
}

#[test]
fn tokens_of_other_kinds_have_no_client() {
    let namespaces = with(&[namespace(NAMESPACE, vec![], vec![])]);
    let tokens = [keys(7).sign_lobby(1, NAMESPACE), Some(keys(7).sign_development(NAMESPACE, TOKEN, FAR_FUTURE_MS))];
    for token in tokens.into_iter().flatten() {
        assert_eq!(client(&namespaces, &token), None, "{token}");
    }
}

#[test]
fn revoked_tokens_have_no_client() {
    let public = keys(7).sign_public(NAMESPACE, TOKEN);
    let namespaces = with(&[namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![TOKEN])]);
    assert_eq!((client(&namespaces, SECRET), client(&namespaces, &public)), (None, None));
    namespaces.put(namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![]));
    assert!(client(&namespaces, SECRET).is_some() && client(&namespaces, &public).is_some());
}

#[test]
fn revocation_holds_only_in_its_namespace() {
    let namespaces = with(&[namespace(NAMESPACE, vec![], vec![TOKEN]), namespace(OTHER, vec![], vec![])]);
    assert!(namespaces.is_revoked(NAMESPACE, TOKEN));
    assert!(!namespaces.is_revoked(OTHER, TOKEN));
    assert!(!namespaces.is_revoked(Id([0x13; 16]), TOKEN), "an unknown namespace");
    assert!(client(&namespaces, &keys(7).sign_public(OTHER, TOKEN)).is_some());
}

#[test]
fn revoked_ids_may_come_in_any_order() {
    let id = |number: u8| {
        let mut id = Id([0; 16]);
        // The order of ids is not that of these numbers.
        (id.0[0], id.0[15]) = (number.wrapping_mul(77), number);
        id
    };
    let revoked: Vec<_> = (0..=255).filter(|number| number % 3 == 0).map(id).collect();
    let repeated = [&revoked[..], &revoked[..10]].concat();
    let namespaces = with(&[namespace(NAMESPACE, vec![], repeated)]);
    for number in 0..=255 {
        assert_eq!(namespaces.is_revoked(NAMESPACE, id(number)), number % 3 == 0, "{number}");
    }
}

#[test]
fn expired_service_token_has_no_client() {
    let now = unix_ms();
    for (expires_ms, is_valid) in [(0, false), (now - 1_000, false), (now, false), (now + 600_000, true)] {
        let token = ServiceToken { expires_ms: Some(expires_ms), ..token(SECRET, TOKEN) };
        let namespaces = with(&[namespace(NAMESPACE, vec![token], vec![])]);
        assert_eq!(client(&namespaces, SECRET).is_some(), is_valid, "{expires_ms}");
    }
}

/// Python answers for these tokens, and needs their ids and expiry.
#[test]
fn revoked_and_expired_tokens_are_still_found_by_hash() {
    let expired = ServiceToken { expires_ms: Some(1), ..token(SECRET, TOKEN) };
    let sha256 = expired.sha256;
    let namespaces = with(&[namespace(NAMESPACE, vec![token("env_a", OTHER), expired], vec![TOKEN])]);
    let (namespace, found) = namespaces.service_token(&sha256).expect("a known token");
    assert_eq!((namespace.id, found.token_id, found.expires_ms), (NAMESPACE, TOKEN, Some(1)));
    assert!(namespaces.service_token(&[0; 32]).is_none());
}

#[test]
fn replaced_namespace_has_only_its_new_tokens() {
    let namespaces = with(&[namespace(NAMESPACE, vec![token("env_a", Id([1; 16])), token("env_b", TOKEN)], vec![])]);
    namespaces.put(namespace(NAMESPACE, vec![token("env_c", Id([3; 16])), token("env_a", Id([2; 16]))], vec![]));
    assert_eq!(client(&namespaces, "env_a"), Some((NAMESPACE, Some(Id([2; 16])))));
    assert_eq!(client(&namespaces, "env_b"), None);
    assert_eq!(client(&namespaces, "env_c"), Some((NAMESPACE, Some(Id([3; 16])))));
}

#[test]
fn removed_namespace_has_no_clients() {
    let all = [namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![TOKEN]), namespace(OTHER, vec![], vec![])];
    let namespaces = with(&all);
    namespaces.remove(NAMESPACE);
    namespaces.remove(Id([0x13; 16]));
    assert_eq!(client(&namespaces, SECRET), None);
    assert_eq!(client(&namespaces, &keys(7).sign_public(NAMESPACE, OTHER)), None);
    assert!(!namespaces.is_revoked(NAMESPACE, TOKEN));
    assert!(client(&namespaces, &keys(7).sign_public(OTHER, TOKEN)).is_some());
    namespaces.put(all[0].clone());
    assert_eq!(client(&namespaces, &keys(7).sign_public(NAMESPACE, OTHER)), Some((NAMESPACE, None)));
}

#[test]
fn service_token_of_two_namespaces_belongs_to_the_latest() {
    let namespaces = with(&[
        namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![]),
        namespace(OTHER, vec![token("env_a", TOKEN), token(SECRET, OTHER)], vec![]),
    ]);
    assert_eq!(client(&namespaces, SECRET), Some((OTHER, Some(OTHER))));
    namespaces.put(namespace(NAMESPACE, vec![token("env_b", TOKEN)], vec![]));
    assert_eq!(client(&namespaces, SECRET), Some((OTHER, Some(OTHER))), "another namespace no longer has the token");
    namespaces.remove(NAMESPACE);
    assert_eq!(client(&namespaces, SECRET), Some((OTHER, Some(OTHER))), "another namespace ends");
    namespaces.remove(OTHER);
    assert_eq!(client(&namespaces, SECRET), None);
}

#[test]
fn identity_differs_by_namespace_and_token() {
    let tokens = || vec![token(SECRET, TOKEN)];
    let client = |id: Id| with(&[namespace(id, tokens(), vec![])]).client(&keys(7), SECRET).expect("a client");
    let identity = client(NAMESPACE).identity().expect("an env_ token");
    assert_eq!(identity[..], [NAMESPACE.0, TOKEN.0].concat());
    assert_ne!(client(OTHER).identity(), Some(identity));
    let public = with(&[namespace(NAMESPACE, vec![], vec![])])
        .client(&keys(7), &keys(7).sign_public(NAMESPACE, TOKEN))
        .expect("a client");
    assert_eq!(public.identity(), None);
}

#[test]
fn game_mode_allows_its_regions() {
    let mode = |regions: Option<&[&str]>| GameMode {
        max_players: 4,
        is_find_enabled: true,
        regions: regions.map(|regions| regions.iter().map(|region| (*region).to_owned()).collect()),
    };
    assert!(mode(None).allows_region("eu"));
    assert!(mode(Some(&["us", "eu"])).allows_region("eu"));
    assert!(!mode(Some(&["us", "eu-1"])).allows_region("eu"));
    assert!(!mode(Some(&[])).allows_region("eu"));
}
