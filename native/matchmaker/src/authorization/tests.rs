//! Credentials of clients and lobby servers.

use super::*;
use crate::namespaces::ServiceToken;

const NAMESPACE: Id = Id([0x11; 16]);
const OTHER: Id = Id([0x12; 16]);
const SECRET: &str = "env_secret";
const TOKEN: Id = Id([0x51; 16]);
const FAR_FUTURE_MS: u64 = 1 << 50;
const ADDRESS: ClientKey = ClientKey::V4([192, 0, 2, 1]);

fn keys(secret: u8) -> KeyRing {
    KeyRing::new(vec![(1, [secret; 32])], 1).expect("one key")
}

fn token(secret: &str, token_id: Id) -> ServiceToken {
    ServiceToken { sha256: Sha256::digest(secret).into(), token_id, expires_ms: None }
}

fn namespace(id: Id, service_tokens: Vec<ServiceToken>, revoked: Vec<Id>) -> Arc<Namespace> {
    let mut namespace = Namespace { service_tokens, revoked, ..Namespace::example(id) };
    namespace.sort_revoked();
    Arc::new(namespace)
}

fn with_hosts(id: Id, hosts: &[&str]) -> Arc<Namespace> {
    let mut with_hosts = Arc::into_inner(namespace(id, vec![], vec![])).expect("the only owner");
    with_hosts.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Arc::new(with_hosts)
}

fn with(all: &[Arc<Namespace>]) -> Namespaces {
    let namespaces = Namespaces::default();
    all.iter().for_each(|namespace| namespaces.put(namespace.clone()));
    namespaces
}

fn authorize(namespaces: &Namespaces, header: Option<&str>, origin: Option<&str>) -> Result<Caller, ServiceError> {
    let (header, origin) = (header.map(str::as_bytes), origin.map(str::as_bytes));
    authorize_client(namespaces, &keys(7), header, origin, ADDRESS)
}

fn of_lobby(keys: &KeyRing, header: Option<&str>) -> Result<Caller, ServiceError> {
    authorize_lobby(&with(&[]), keys, header.map(str::as_bytes), ADDRESS)
}

/// Returns the namespace and the credential for which a client acts.
fn client(namespaces: &Namespaces, token: &str) -> Result<(Id, Credential), Code> {
    match authorize(namespaces, Some(&format!("Bearer {token}")), None) {
        Ok(Caller::Client(client)) => {
            assert_eq!(client.address, ADDRESS);
            Ok((client.namespace.id, client.credential))
        }
        Ok(_) => panic!("no client"),
        Err(error) => Err(error.code),
    }
}

fn origin(namespaces: &Namespaces, origin: &str) -> Option<Id> {
    match authorize(namespaces, None, Some(origin)) {
        Ok(Caller::Client(Client { namespace, credential: Credential::Origin, .. })) => Some(namespace.id),
        Ok(_) => panic!("another caller"),
        Err(error) => {
            assert_eq!(error, Code::TokenMissing.into());
            None
        }
    }
}

fn service(id: Id) -> Credential {
    Credential::Service(id)
}

#[test]
fn service_token_is_found_by_its_hash() {
    let namespaces = with(&[namespace(NAMESPACE, vec![token("env_a", OTHER), token(SECRET, TOKEN)], vec![])]);
    assert_eq!(client(&namespaces, SECRET), Ok((NAMESPACE, service(TOKEN))));
    assert_eq!(client(&namespaces, "env_a"), Ok((NAMESPACE, service(OTHER))));
    for unknown in ["env_secre", "env_secret1", "env_", "ENV_secret", "secret", ""] {
        assert_eq!(client(&namespaces, unknown), Err(Code::TokenInvalid), "{unknown:?}");
    }
}

/// A text with another prefix is no `env_` token, even if a namespace has its hash.
#[test]
fn service_token_needs_its_prefix() {
    for (secret, code) in [
        ("lobby_secret", Code::Forbidden),
        ("cloud_secret", Code::Forbidden),
        ("pub_secret", Code::TokenInvalid),
        ("secret", Code::TokenInvalid),
    ] {
        let namespaces = with(&[namespace(NAMESPACE, vec![token(secret, TOKEN)], vec![])]);
        assert_eq!(client(&namespaces, secret), Err(code), "{secret:?}");
    }
}

#[test]
fn public_token_names_its_namespace() {
    let namespaces = with(&[namespace(NAMESPACE, vec![], vec![])]);
    let public = keys(7).sign_public(NAMESPACE, TOKEN);
    assert_eq!(client(&namespaces, &public), Ok((NAMESPACE, Credential::Public)));
    assert_eq!(client(&namespaces, &keys(7).sign_public(OTHER, TOKEN)), Err(Code::TokenInvalid), "unknown namespace");
    assert_eq!(client(&namespaces, &keys(8).sign_public(NAMESPACE, TOKEN)), Err(Code::TokenInvalid), "another key");
    for malformed in ["pub_", "pub_a", &public[..40]] {
        assert_eq!(client(&namespaces, malformed), Err(Code::TokenInvalid), "{malformed}");
    }
}

#[test]
fn development_token_is_valid_until_its_end() {
    let namespaces = with(&[namespace(NAMESPACE, vec![], vec![OTHER])]);
    let asked = |header: String| {
        let of_client = authorize(&namespaces, Some(&header), None);
        let of_server = authorize_lobby(&namespaces, &keys(7), Some(header.as_bytes()), ADDRESS);
        let credential = |caller: Result<Caller, ServiceError>| match caller {
            Ok(Caller::Development(client)) => Ok((client.namespace.id, client.credential)),
            Ok(_) => panic!("another caller"),
            Err(error) => Err(error.code),
        };
        let (of_client, of_server) = (credential(of_client), credential(of_server));
        assert_eq!(of_client, of_server);
        of_client
    };
    let token = |key, namespace, id, end| format!("Bearer {}", keys(key).sign_development(namespace, id, end));
    assert_eq!(asked(token(7, NAMESPACE, TOKEN, FAR_FUTURE_MS)), Ok((NAMESPACE, Credential::Development(TOKEN))));
    assert_eq!(asked(token(7, NAMESPACE, TOKEN, 1)), Err(Code::TokenExpired));
    assert_eq!(asked(token(7, NAMESPACE, OTHER, 1)), Err(Code::TokenRevoked));
    assert_eq!(asked(token(7, OTHER, TOKEN, FAR_FUTURE_MS)), Err(Code::TokenInvalid), "unknown namespace");
    assert_eq!(asked(token(8, NAMESPACE, TOKEN, FAR_FUTURE_MS)), Err(Code::TokenInvalid), "another key");
    assert_eq!(asked("Bearer dev_".to_owned()), Err(Code::TokenInvalid));
}

#[test]
fn operators_have_tokens_of_back_ends_and_developers() {
    let namespaces = with(&[namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![])]);
    let asked = |token: &str| authorize_operator(&namespaces, Some(format!("Bearer {token}").as_bytes()), ADDRESS);
    assert!(matches!(asked(SECRET), Ok(Caller::Client(client)) if client.credential == service(TOKEN)));
    assert!(matches!(asked("cloud_x"), Ok(Caller::Cloud)));
    let Err(error) = asked("pub_x") else { panic!("accepted") };
    assert_eq!(error, forbidden("pub", "env_ or cloud_"));
}

#[test]
fn token_of_another_kind_is_forbidden() {
    let detail = |kinds: &str, kind: &str| format!("This operation takes {kinds} tokens, not a {kind}_ token.");
    for kind in ["cloud", "lobby", "player", "link"] {
        let Err(error) = authorize(&with(&[]), Some(&format!("Bearer {kind}_x")), None) else { panic!("{kind}") };
        assert_eq!((error.code, error.detail()), (Code::Forbidden, &*detail("pub_, env_ or dev_", kind)));
    }
    for kind in ["cloud", "pub", "env", "player", "link"] {
        let header = format!("Bearer {kind}_x");
        let Err(error) = of_lobby(&keys(7), Some(&header)) else { panic!("{kind}") };
        assert_eq!((error.code, error.detail()), (Code::Forbidden, &*detail("the lobby's lobby_ or dev_", kind)));
    }
}

#[test]
fn lobby_token_names_its_lobby() {
    let lobby = |keys: &KeyRing, token: &str| match of_lobby(keys, Some(&format!("Bearer {token}"))) {
        Ok(Caller::Lobby(lobby)) => Ok(lobby),
        Ok(_) => panic!("no lobby"),
        Err(error) => Err(error.code),
    };
    let signed = keys(7).sign_lobby(1, OTHER).expect("a key");
    assert_eq!(lobby(&keys(7), &signed), Ok(OTHER));
    assert_eq!(lobby(&keys(8), &signed), Err(Code::TokenInvalid));
    assert_eq!(lobby(&keys(7), "lobby_x"), Err(Code::TokenInvalid));
}

#[test]
fn unusable_headers_name_their_problem() {
    let namespaces = with(&[with_hosts(NAMESPACE, &["game.example"])]);
    for (header, code, detail) in [
        (None, Code::TokenMissing, None),
        (Some(""), Code::TokenMissing, None),
        (Some("Basic abc"), Code::TokenInvalid, Some("Send Authorization: Bearer <token>.")),
        (Some("Bearer x"), Code::TokenInvalid, None),
    ] {
        let detail = detail.unwrap_or(code.row().detail);
        let of_lobby = of_lobby(&keys(7), header);
        for result in [authorize(&namespaces, header, None), of_lobby] {
            let Err(error) = result else { panic!("{header:?}") };
            assert_eq!((error.code, error.detail()), (code, detail), "{header:?}");
        }
    }
    // A wrong token is not replaced by the origin.
    let Err(error) = authorize(&namespaces, Some("Bearer env_x"), Some("https://game.example")) else { panic!() };
    assert_eq!(error.code, Code::TokenInvalid);
}

#[test]
fn origin_gives_access_without_a_token() {
    let namespaces = with(&[with_hosts(NAMESPACE, &["game.example", "b\u{e4}r.example", "2001:db8::1"])]);
    for known in [
        "https://game.example",
        "http://game.example",
        "HTTPS://Game.Example",
        "https://game.example:8443",
        "https://game.example.",
        "https://user@game.example/path?query#fragment",
        "https://B\u{c4}R.example",
        "http://[2001:db8::1]:80",
    ] {
        assert_eq!(origin(&namespaces, known), Some(NAMESPACE), "{known}");
    }
    for unknown in [
        "null",
        "",
        "game.example",
        "https://",
        "https://:80",
        "ftp://game.example",
        "https://other.example",
        "https://game.example.evil.example",
        "https://evil.example/game.example",
        "https://[2001:db8::1",
    ] {
        assert_eq!(origin(&namespaces, unknown), None, "{unknown}");
    }
    let not_text = authorize_client(&namespaces, &keys(7), None, Some(b"https://\xff"), ADDRESS);
    assert!(matches!(not_text, Err(error) if error.code == Code::TokenMissing));
}

#[test]
fn token_counts_more_than_the_origin() {
    let namespaces =
        with(&[namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![]), with_hosts(OTHER, &["game.example"])]);
    let header = format!("Bearer {SECRET}");
    let Ok(Caller::Client(client)) = authorize(&namespaces, Some(&header), Some("https://game.example")) else {
        panic!("a client")
    };
    assert_eq!((client.namespace.id, client.credential), (NAMESPACE, service(TOKEN)));
}

#[test]
fn revoked_tokens_are_refused() {
    let public = keys(7).sign_public(NAMESPACE, TOKEN);
    let namespaces =
        with(&[namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![TOKEN]), namespace(OTHER, vec![], vec![])]);
    assert_eq!(client(&namespaces, SECRET), Err(Code::TokenRevoked));
    assert_eq!(client(&namespaces, &public), Err(Code::TokenRevoked));
    let elsewhere = keys(7).sign_public(OTHER, TOKEN);
    assert_eq!(client(&namespaces, &elsewhere), Ok((OTHER, Credential::Public)), "revoked in another namespace");
    namespaces.put(namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![]));
    assert!(client(&namespaces, SECRET).is_ok() && client(&namespaces, &public).is_ok());
}

#[test]
fn expired_service_token_is_refused() {
    let now = wall_ms();
    for (expires_ms, is_valid) in [(0, false), (now - 1_000, false), (now, false), (now + 600_000, true)] {
        let token = ServiceToken { expires_ms: Some(expires_ms), ..token(SECRET, TOKEN) };
        let namespaces = with(&[namespace(NAMESPACE, vec![token.clone()], vec![])]);
        let expected = if is_valid { Ok((NAMESPACE, service(TOKEN))) } else { Err(Code::TokenExpired) };
        assert_eq!(client(&namespaces, SECRET), expected, "{expires_ms}");
        namespaces.put(namespace(NAMESPACE, vec![token], vec![TOKEN]));
        assert_eq!(client(&namespaces, SECRET), Err(Code::TokenRevoked), "revoked and expired");
    }
}

#[test]
fn replaced_namespace_has_only_its_new_tokens() {
    let namespaces = with(&[namespace(NAMESPACE, vec![token("env_a", OTHER), token("env_b", TOKEN)], vec![])]);
    namespaces.put(namespace(NAMESPACE, vec![token("env_c", OTHER), token("env_a", TOKEN)], vec![]));
    assert_eq!(client(&namespaces, "env_a"), Ok((NAMESPACE, service(TOKEN))));
    assert_eq!(client(&namespaces, "env_b"), Err(Code::TokenInvalid));
    assert_eq!(client(&namespaces, "env_c"), Ok((NAMESPACE, service(OTHER))));
}

#[test]
fn removed_namespace_has_no_clients() {
    let removed = Arc::new(Namespace {
        hosts: vec!["game.example".into()],
        ..Arc::into_inner(namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![TOKEN])).expect("the only owner")
    });
    let namespaces = with(&[removed.clone(), namespace(OTHER, vec![], vec![])]);
    assert_eq!(origin(&namespaces, "https://game.example"), Some(NAMESPACE));
    namespaces.remove(NAMESPACE);
    let public = keys(7).sign_public(NAMESPACE, OTHER);
    assert_eq!(client(&namespaces, SECRET), Err(Code::TokenInvalid));
    assert_eq!(client(&namespaces, &public), Err(Code::TokenInvalid));
    assert_eq!(origin(&namespaces, "https://game.example"), None);
    assert!(client(&namespaces, &keys(7).sign_public(OTHER, TOKEN)).is_ok());
    namespaces.put(removed);
    assert_eq!(client(&namespaces, &public), Ok((NAMESPACE, Credential::Public)));
}

#[test]
fn service_token_of_two_namespaces_belongs_to_the_latest() {
    let namespaces = with(&[
        namespace(NAMESPACE, vec![token(SECRET, TOKEN)], vec![]),
        namespace(OTHER, vec![token("env_a", TOKEN), token(SECRET, OTHER)], vec![]),
    ]);
    let of_other = Ok((OTHER, service(OTHER)));
    assert_eq!(client(&namespaces, SECRET), of_other);
    namespaces.put(namespace(NAMESPACE, vec![token("env_b", TOKEN)], vec![]));
    assert_eq!(client(&namespaces, SECRET), of_other, "another namespace no longer has the token");
    namespaces.remove(NAMESPACE);
    assert_eq!(client(&namespaces, SECRET), of_other, "another namespace ends");
    namespaces.remove(OTHER);
    assert_eq!(client(&namespaces, SECRET), Err(Code::TokenInvalid));
}

#[test]
fn identity_is_that_of_the_token_or_of_the_address() {
    let identity = |id: Id, credential| {
        Client { namespace: namespace(id, vec![], vec![]), credential, address: ADDRESS }.identity()
    };
    assert_eq!(identity(NAMESPACE, service(TOKEN)), [NAMESPACE.0, TOKEN.0].concat());
    assert_ne!(identity(OTHER, service(TOKEN)), identity(NAMESPACE, service(TOKEN)));
    for credential in [Credential::Public, Credential::Origin] {
        assert_eq!(identity(NAMESPACE, credential), [&NAMESPACE.0[..], &[192, 0, 2, 1]].concat());
    }
}
