//! The rules of the set, one by one.

use super::*;

fn route(owner: &str, port_name: &str, port: u16) -> Route {
    let key = Key { owner: owner.to_owned(), port_name: port_name.to_owned() };
    let backend = Some(SocketAddr::from(([127, 0, 0, 1], 12_000)));
    Route { key, protocol: Protocol::Tcp, port, host: String::new(), is_tls: false, backend }
}

fn complete(epoch: u64, routes: &[Route]) -> Answer {
    Answer { epoch, version: 10, is_complete: true, routes: routes.to_vec(), ..Answer::default() }
}

fn held(set: &Set) -> Vec<&str> {
    set.all().map(|route| route.key.owner.as_str()).collect()
}

fn two() -> Set {
    let mut set = Set::default();
    set.take(&complete(5, &[route("a", "game", 1), route("b", "game", 2)]));
    set
}

#[test]
fn a_complete_set_removes_whom_it_does_not_have() {
    let mut set = two();
    let change = set.take(&complete(5, &[route("a", "game", 1)]));
    assert_eq!(change.removed, ["b"]);
    assert_eq!(change.put, [], "what is as it was is not touched");
    assert_eq!(held(&set), ["a"]);
}

#[test]
fn an_empty_complete_set_removes_nothing() {
    let mut set = two();
    assert_eq!(set.take(&complete(6, &[])), Change::default());
    assert_eq!(held(&set), ["a", "b"]);
}

#[test]
fn a_complete_set_of_an_older_epoch_removes_nothing_and_still_adds() {
    let mut set = two();
    let change = set.take(&complete(4, &[route("c", "game", 3)]));
    assert_eq!(change.removed, [""; 0]);
    assert_eq!(held(&set), ["a", "b", "c"]);
    assert_eq!((set.epoch, set.newest_epoch), (4, 5), "it is followed, and what was newer is not forgotten");
    assert_eq!(set.take(&complete(4, &[route("c", "game", 3)])), Change::default());
}

#[test]
fn changes_remove_only_whom_they_name() {
    let mut set = two();
    let answer = Answer { epoch: 5, version: 11, routes: vec![route("c", "game", 3)], ..Answer::default() };
    assert_eq!(set.take(&answer).removed, [""; 0]);
    let answer = Answer { epoch: 5, version: 12, removed: vec!["a".to_owned()], ..Answer::default() };
    assert_eq!(set.take(&answer).removed, ["a"]);
    assert_eq!(held(&set), ["b", "c"]);
}

fn gone(epoch: u64, version: u64, owners: &[&str]) -> Answer {
    let removed = owners.iter().map(|owner| (*owner).to_owned()).collect();
    Answer { epoch, version, removed, ..Answer::default() }
}

#[test]
fn an_older_epoch_removes_nobody_by_name_and_the_same_one_does() {
    let mut set = two();
    let mut older = complete(4, &[route("c", "game", 3)]);
    older.removed = vec!["a".to_owned()];
    assert_eq!(set.take(&older).removed, [""; 0]);
    assert_eq!(set.take(&gone(4, 11, &["b"])).removed, [""; 0]);
    assert_eq!(held(&set), ["a", "b", "c"]);
    set.take(&complete(5, &[route("a", "game", 1), route("b", "game", 2)]));
    assert_eq!(set.take(&gone(5, 12, &["a"])).removed, ["a"]);
    assert_eq!(held(&set), ["b"]);
}

#[test]
fn an_older_epoch_removes_by_name_what_it_brought_itself() {
    let mut set = two();
    set.take(&complete(4, &[route("a", "game", 9), route("c", "game", 3)]));
    assert_eq!(set.take(&gone(4, 11, &["a", "c", "z"])).removed, ["c", "z"]);
    assert_eq!(held(&set), ["a", "b"]);
    set.take(&Answer { epoch: 4, version: 12, routes: vec![route("d", "game", 4)], ..Answer::default() });
    set.take(&complete(5, &[route("a", "game", 1), route("d", "game", 4)]));
    assert_eq!(set.take(&gone(4, 13, &["d"])).removed, [""; 0], "the newest one has it now");
}

#[test]
fn changes_of_a_new_epoch_remove_nobody_before_its_complete_set() {
    let mut set = two();
    assert_eq!(set.take(&gone(6, 1, &["a"])).removed, [""; 0]);
    assert!(!set.is_whole(), "all of it has to be asked for");
    assert_eq!(set.take(&gone(6, 2, &["a"])).removed, [""; 0], "a second change is no complete set either");
    set.take(&complete(6, &[]));
    assert_eq!(held(&set), ["a", "b"]);
    assert_eq!(set.take(&gone(6, 11, &["a"])).removed, ["a"], "whoever has no routes left may say who ended");
    assert_eq!(held(&set), ["b"]);
}

#[test]
fn the_end_of_an_owner_that_is_not_here_is_told_too() {
    let mut set = two();
    let answer = Answer { epoch: 5, version: 11, removed: vec!["z".to_owned()], ..Answer::default() };
    assert_eq!(set.take(&answer).removed, ["z"]);
}

#[test]
fn one_port_of_an_owner_that_stays_can_go() {
    let mut set = Set::default();
    set.take(&complete(1, &[route("a", "game", 1), route("a", "query", 2)]));
    let change = set.take(&complete(1, &[route("a", "game", 1)]));
    assert_eq!((change.removed.len(), change.dropped.len()), (0, 1));
    assert_eq!(change.dropped[0].port_name, "query");
}

#[test]
fn a_route_that_cannot_be_read_takes_nothing_away() {
    let mut set = two();
    let mut answer = complete(5, &[route("a", "game", 1)]);
    answer.unreadable.push((Key { owner: "b".to_owned(), port_name: "game".to_owned() }, 2, "new words".to_owned()));
    assert_eq!(set.take(&answer), Change::default());
    assert_eq!(held(&set), ["a", "b"]);
}

#[test]
fn what_is_kept_comes_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(folder.path());
    assert_eq!(disk.load().unwrap(), Set::default());
    let set = two();
    disk.keep(&set).unwrap();
    assert_eq!(disk.load().unwrap(), set);
}

#[test]
fn a_damaged_file_is_an_error_and_not_an_empty_set() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("routes"), "{\"epoch\": 1").unwrap();
    assert!(Disk::new(folder.path()).load().is_err());
}

#[test]
fn routes_are_read_with_their_problems() {
    let sent = |protocol: &str, port, host: &str, address: &str, backend_port| wire::Route {
        owner_id: "a".into(),
        port_name: "game".into(),
        protocol: protocol.into(),
        port,
        host: host.into(),
        is_tls: false,
        backend_address: address.into(),
        backend_port,
    };
    let ok = Route::from_wire(sent("udp", 26_000, "", "::1", 7)).unwrap();
    assert_eq!(ok.backend, Some("[::1]:7".parse().unwrap()));
    assert_eq!(Route::from_wire(sent("https", 0, "A-Game.Lobby.X", "", 0)).unwrap().host, "a-game.lobby.x");
    for (bad, why) in [
        (sent("quic", 1, "", "", 0), "not known"),
        (sent("tcp", 0, "h", "", 0), "are needed"),
        (sent("tcp", 70_000, "", "", 0), "is none"),
        (sent("tcp", 1, "", "localhost", 1), "no IP address"),
        (sent("tcp", 1, "", "127.0.0.1", 0), "no port"),
    ] {
        let (_, problem) = Route::from_wire(bad).unwrap_err();
        assert!(problem.contains(why), "{problem}");
    }
}
