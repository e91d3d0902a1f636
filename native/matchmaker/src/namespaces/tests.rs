//! Namespaces that the configuration replaces.

use super::*;

const NAMESPACE: Id = Id([0x11; 16]);
const OTHER: Id = Id([0x12; 16]);
const TOKEN: Id = Id([0x51; 16]);

fn token(sha256: u8, token_id: Id) -> ServiceToken {
    ServiceToken { sha256: [sha256; 32], token_id, expires_ms: None }
}

fn namespace(id: Id, hosts: &[&str], revoked: Vec<Id>) -> Arc<Namespace> {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    let service_tokens = vec![token(id.0[0], TOKEN)];
    let mut namespace = Namespace { hosts, service_tokens, revoked, ..Namespace::example(id) };
    namespace.sort_revoked();
    Arc::new(namespace)
}

fn with(all: &[Arc<Namespace>]) -> Namespaces {
    let namespaces = Namespaces::default();
    all.iter().for_each(|namespace| namespaces.put(namespace.clone()));
    namespaces
}

fn is_revoked(namespaces: &Namespaces, id: Id, token: Id) -> bool {
    namespaces.get(id).is_some_and(|namespace| namespace.is_token_revoked(token))
}

#[test]
fn revocation_holds_only_in_its_namespace() {
    let namespaces = with(&[namespace(NAMESPACE, &[], vec![TOKEN]), namespace(OTHER, &[], vec![])]);
    assert!(is_revoked(&namespaces, NAMESPACE, TOKEN));
    assert!(!is_revoked(&namespaces, OTHER, TOKEN));
    assert!(!is_revoked(&namespaces, Id([0x13; 16]), TOKEN), "an unknown namespace");
    namespaces.remove(NAMESPACE);
    assert!(!is_revoked(&namespaces, NAMESPACE, TOKEN));
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
    let namespaces = with(&[namespace(NAMESPACE, &[], repeated)]);
    for number in 0..=255 {
        assert_eq!(is_revoked(&namespaces, NAMESPACE, id(number)), number % 3 == 0, "{number}");
    }
}

/// A revoked, an expired and an unknown token have different errors.
#[test]
fn revoked_and_expired_tokens_are_found_by_hash() {
    let mut known = Arc::into_inner(namespace(NAMESPACE, &[], vec![TOKEN])).expect("the only owner");
    known.service_tokens.push(ServiceToken { expires_ms: Some(1), ..token(9, OTHER) });
    let namespaces = with(&[Arc::new(known)]);
    let (found, token) = namespaces.service_token(&[0x11; 32]).expect("a known token");
    assert_eq!((found.id, token.token_id, token.expires_ms), (NAMESPACE, TOKEN, None));
    let (found, token) = namespaces.service_token(&[9; 32]).expect("a known token");
    assert_eq!((found.id, token.token_id, token.expires_ms), (NAMESPACE, OTHER, Some(1)));
    assert!(namespaces.service_token(&[0; 32]).is_none());
}

#[test]
fn host_belongs_to_the_latest_namespace() {
    let namespaces =
        with(&[namespace(NAMESPACE, &["a.example", "b.example"], vec![]), namespace(OTHER, &["b.example"], vec![])]);
    let of_host = |host: &str| namespaces.of_host(host).map(|namespace| namespace.id);
    assert_eq!(
        (of_host("a.example"), of_host("b.example"), of_host("c.example")),
        (Some(NAMESPACE), Some(OTHER), None)
    );
    namespaces.put(namespace(NAMESPACE, &["c.example"], vec![]));
    assert_eq!(
        (of_host("a.example"), of_host("b.example"), of_host("c.example")),
        (None, Some(OTHER), Some(NAMESPACE))
    );
    namespaces.remove(OTHER);
    assert_eq!((of_host("b.example"), of_host("c.example")), (None, Some(NAMESPACE)));
}

#[test]
fn game_mode_allows_its_regions() {
    let mode = |regions: Option<&[&str]>| GameMode {
        max_players: 4,
        max_players_direct: 4,
        max_players_party: 4,
        is_find_enabled: true,
        is_taggable: false,
        is_listable: true,
        is_max_players_dynamic: false,
        regions: regions.map(|regions| regions.iter().map(|region| (*region).to_owned()).collect()),
        create_publicities: HashSet::new(),
        ports: HashMap::new(),
    };
    assert!(mode(None).allows_region("eu"));
    assert!(mode(Some(&["us", "eu"])).allows_region("eu"));
    assert!(!mode(Some(&["us", "eu-1"])).allows_region("eu"));
    assert!(!mode(Some(&[])).allows_region("eu"));
}
