//! Rules of the route set.

use super::route_file::RouteFile;
use super::*;

fn route(owner: &str, port_name: &str, port: u16) -> Route {
    let key = RouteKey { owner: owner.to_owned(), port_name: port_name.to_owned() };
    let backend = Some(SocketAddr::from(([127, 0, 0, 1], 12_000)));
    Route {
        key,
        protocol: Protocol::Tcp,
        port,
        host: String::new(),
        is_tls: false,
        server_name: String::new(),
        sends_proxy_header: false,
        counts_sessions: false,
        requires_slot: false,
        backend,
    }
}

fn complete(epoch: u64, routes: &[Route]) -> RouteUpdate {
    RouteUpdate { epoch, version: 10, is_complete: true, routes: routes.to_vec(), ..RouteUpdate::default() }
}

fn held(set: &RouteSet) -> Vec<&str> {
    set.all().map(|route| route.key.owner.as_str()).collect()
}

fn two() -> RouteSet {
    let mut set = RouteSet::default();
    set.take(&complete(5, &[route("a", "game", 1), route("b", "game", 2)]));
    set
}

#[test]
fn complete_set_removes_missing_owners() {
    let mut set = two();
    let change = set.take(&complete(5, &[route("a", "game", 1)]));
    assert_eq!(change.removed, ["b"]);
    assert_eq!(change.put, [], "an unchanged route is not touched");
    assert_eq!(held(&set), ["a"]);
}

#[test]
fn empty_complete_set_removes_nothing() {
    let mut set = two();
    assert_eq!(set.take(&complete(6, &[])), RouteChange::default());
    assert_eq!(held(&set), ["a", "b"]);
}

fn restored(restore_id: &str, answer: RouteUpdate) -> RouteUpdate {
    RouteUpdate { restore_id: restore_id.to_owned(), ..answer }
}

#[test]
fn first_complete_set_after_a_restore_replaces_all_routes() {
    let mut set = two();
    assert_eq!(set.take(&restored("x", removal(6, 1, &["a"]))).removed, [""; 0], "the complete set is missing");
    assert_eq!(set.take(&restored("x", complete(6, &[]))).removed, ["a", "b"]);
    set.take(&restored("x", complete(6, &[route("c", "game", 1)])));
    assert_eq!(set.take(&restored("x", complete(7, &[]))), RouteChange::default(), "it has lost its data");
    assert_eq!(held(&set), ["c"]);
}

#[test]
fn set_of_a_new_restore_may_have_an_older_epoch() {
    let mut set = two();
    let change = set.take(&restored("x", complete(4, &[route("c", "game", 1)])));
    assert_eq!((change.removed.len(), held(&set)), (2, vec!["c"]));
    assert_eq!(set.take(&restored("x", removal(4, 11, &["c"]))).removed, ["c"], "it is the newest epoch now");
}

#[test]
fn older_copy_of_a_service_is_no_new_restore() {
    let mut set = two();
    set.take(&restored("x", complete(6, &[])));
    set.take(&restored("y", complete(8, &[route("c", "game", 1)])));
    set.take(&restored("x", complete(7, &[])));
    set.take(&complete(5, &[]));
    assert_eq!(held(&set), ["c"]);
    assert_eq!(set.cursor(), ("", 5, 10));
}

#[test]
fn complete_set_of_an_older_epoch_only_adds() {
    let mut set = two();
    let change = set.take(&complete(4, &[route("c", "game", 3)]));
    assert_eq!(change.removed, [""; 0]);
    assert_eq!(held(&set), ["a", "b", "c"]);
    assert_eq!((set.epoch, set.newest_epoch), (4, 5), "it is followed, and what was newer is not forgotten");
    assert_eq!(set.take(&complete(4, &[route("c", "game", 3)])), RouteChange::default());
}

#[test]
fn changes_remove_only_named_owners() {
    let mut set = two();
    let answer = RouteUpdate { epoch: 5, version: 11, routes: vec![route("c", "game", 3)], ..RouteUpdate::default() };
    assert_eq!(set.take(&answer).removed, [""; 0]);
    let answer = RouteUpdate { epoch: 5, version: 12, removed: vec!["a".to_owned()], ..RouteUpdate::default() };
    assert_eq!(set.take(&answer).removed, ["a"]);
    assert_eq!(held(&set), ["b", "c"]);
}

fn removal(epoch: u64, version: u64, owners: &[&str]) -> RouteUpdate {
    let removed = owners.iter().map(|owner| (*owner).to_owned()).collect();
    RouteUpdate { epoch, version, removed, ..RouteUpdate::default() }
}

#[test]
fn only_the_newest_epoch_removes_named_owners() {
    let mut set = two();
    let mut older = complete(4, &[route("c", "game", 3)]);
    older.removed = vec!["a".to_owned()];
    assert_eq!(set.take(&older).removed, [""; 0]);
    assert_eq!(set.take(&removal(4, 11, &["b"])).removed, [""; 0]);
    assert_eq!(held(&set), ["a", "b", "c"]);
    set.take(&complete(5, &[route("a", "game", 1), route("b", "game", 2)]));
    assert_eq!(set.take(&removal(5, 12, &["a"])).removed, ["a"]);
    assert_eq!(held(&set), ["b"]);
}

#[test]
fn older_epoch_removes_owners_that_it_added() {
    let mut set = two();
    set.take(&complete(4, &[route("a", "game", 9), route("c", "game", 3)]));
    assert_eq!(set.take(&removal(4, 11, &["a", "c", "z"])).removed, ["c", "z"]);
    assert_eq!(held(&set), ["a", "b"]);
    set.take(&RouteUpdate { epoch: 4, version: 12, routes: vec![route("d", "game", 4)], ..RouteUpdate::default() });
    set.take(&complete(5, &[route("a", "game", 1), route("d", "game", 4)]));
    assert_eq!(set.take(&removal(4, 13, &["d"])).removed, [""; 0], "the newest one has it now");
}

#[test]
fn new_epoch_removes_nothing_before_its_complete_set() {
    let mut set = two();
    assert_eq!(set.take(&removal(6, 1, &["a"])).removed, [""; 0]);
    assert!(!set.is_complete(), "the complete set must be requested");
    assert_eq!(set.take(&removal(6, 2, &["a"])).removed, [""; 0], "a second change is not a complete set either");
    set.take(&complete(6, &[]));
    assert_eq!(held(&set), ["a", "b"]);
    assert_eq!(set.take(&removal(6, 11, &["a"])).removed, ["a"], "an unknown owner may be removed");
    assert_eq!(held(&set), ["b"]);
}

#[test]
fn removal_of_an_unknown_owner_is_reported() {
    let mut set = two();
    let answer = RouteUpdate { epoch: 5, version: 11, removed: vec!["z".to_owned()], ..RouteUpdate::default() };
    assert_eq!(set.take(&answer).removed, ["z"]);
}

#[test]
fn single_port_of_an_owner_can_be_removed() {
    let mut set = RouteSet::default();
    set.take(&complete(1, &[route("a", "game", 1), route("a", "query", 2)]));
    let change = set.take(&complete(1, &[route("a", "game", 1)]));
    assert_eq!((change.removed.len(), change.dropped.len()), (0, 1));
    assert_eq!(change.dropped[0].port_name, "query");
}

#[test]
fn invalid_route_removes_nothing() {
    let mut set = two();
    let mut answer = complete(5, &[route("a", "game", 1)]);
    answer.unreadable.push((
        RouteKey { owner: "b".to_owned(), port_name: "game".to_owned() },
        2,
        "new words".to_owned(),
    ));
    assert_eq!(set.take(&answer), RouteChange::default());
    assert_eq!(held(&set), ["a", "b"]);
}

#[test]
fn saved_set_loads_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RouteFile::new(folder.path());
    assert_eq!(disk.load().unwrap(), RouteSet::default());
    let set = two();
    disk.save(&set).unwrap();
    assert_eq!(disk.load().unwrap(), set);
}

#[test]
fn damaged_route_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("routes"), "{\"epoch\": 1").unwrap();
    assert!(RouteFile::new(folder.path()).load().is_err());
}

#[test]
fn invalid_routes_are_reported_with_reasons() {
    let sent = |protocol: &str, port, host: &str, address: &str, backend_port| wire::Route {
        owner_id: "a".into(),
        port_name: "game".into(),
        protocol: protocol.into(),
        port,
        host: host.into(),
        is_tls: false,
        server_name: String::new(),
        sends_proxy_header: false,
        counts_sessions: false,
        requires_slot: false,
        backend_address: address.into(),
        backend_port,
    };
    let ok = Route::from_wire(sent("udp", 26_000, "", "::1", 7)).unwrap();
    assert_eq!(ok.backend, Some("[::1]:7".parse().unwrap()));
    assert_eq!(Route::from_wire(sent("https", 0, "A-Game.Lobby.X", "", 0)).unwrap().host, "a-game.lobby.x");
    for (bad, why) in [
        (sent("quic", 1, "", "", 0), "not known"),
        (sent("tcp", 0, "h", "", 0), "needs an owner"),
        (sent("tcp", 70_000, "", "", 0), "greater than 65535"),
        (sent("tcp", 1, "", "localhost", 1), "no IP address"),
        (sent("tcp", 1, "", "127.0.0.1", 0), "backend has no port"),
    ] {
        let (_, problem) = Route::from_wire(bad).unwrap_err();
        assert!(problem.contains(why), "{problem}");
    }
}
