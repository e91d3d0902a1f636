//! Checks of find, create and attach, and the order of their errors.

use std::collections::{HashMap, HashSet};

use hosting_core::Id;

use super::*;
use crate::regions::Region;

fn mode() -> GameMode {
    let create_publicities = publicities(&[PUBLIC, PRIVATE]);
    GameMode { max_players_direct: 8, max_players_party: 16, create_publicities, ..GameMode::example(4) }
}

fn publicities(names: &[&str]) -> HashSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn ports(kinds: &[(&str, PortKind)]) -> HashMap<String, PortKind> {
    kinds.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect()
}

fn namespace() -> Namespace {
    let only = |region: &str| Some(HashSet::from([region.to_owned()]));
    let modes = [
        ("duel", mode()),
        ("large", GameMode { max_players: 64, ..mode() }),
        ("hidden", GameMode { is_find_enabled: false, ..mode() }),
        ("eu-only", GameMode { regions: only("eu"), ..mode() }),
        ("plain", GameMode { is_taggable: false, ..mode() }),
        ("fixed", GameMode { is_max_players_dynamic: false, ..mode() }),
        ("uncreatable", GameMode { create_publicities: publicities(&[]), ..mode() }),
        ("secret", GameMode { create_publicities: publicities(&[PRIVATE]), ..mode() }),
        (
            "ported",
            GameMode {
                is_taggable: false,
                regions: only("eu"),
                ports: ports(&[("game", PortKind::Number), ("web", PortKind::Number)]),
                ..mode()
            },
        ),
        ("ranged", GameMode { ports: ports(&[("media", PortKind::Range)]), ..mode() }),
        // Each check of a mode refuses a request with tags and max_players.
        (
            "worst",
            GameMode {
                is_find_enabled: false,
                is_taggable: false,
                is_listable: true,
                is_max_players_dynamic: false,
                regions: only("eu"),
                create_publicities: publicities(&[]),
                ..mode()
            },
        ),
    ];
    let modes = modes.into_iter().map(|(name, mode)| (name.to_owned(), mode)).collect();
    Namespace { modes, ..Namespace::example(Id([1; 16])) }
}

fn regions() -> Regions {
    Regions::new(vec![Region::example("us", (0.0, 0.0)), Region::example("eu", (50.0, 0.0))])
}

fn find(modes: &[&str], regions: &[&str]) -> FindLobbyRequest {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    FindLobbyRequest { game_modes: texts(modes), regions: texts(regions), ..FindLobbyRequest::default() }
}

/// Returns the modes and regions of a find, or its error.
fn chosen(request: &FindLobbyRequest, at: Option<(f64, f64)>) -> Result<(Vec<String>, Vec<String>), ServiceError> {
    let texts = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
    let regions = regions();
    candidates(&namespace(), &regions, request, at).map(|found| (texts(found.modes), texts(found.regions)))
}

#[track_caller]
fn check_error(request: &FindLobbyRequest, code: Code, detail: &str) {
    assert_eq!(chosen(request, None), Err(ServiceError::from(code).with_detail(detail.to_owned())));
}

#[track_caller]
fn check_problem(request: &FindLobbyRequest, field: &str, reason: &str) {
    let problem = FieldProblem::new(&[field], "too-high", Some(reason));
    assert_eq!(chosen(request, None), Err(ServiceError::from(Code::BodyInvalid).with_problem(problem)));
}

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn candidates_keep_the_requested_order() {
    let found = chosen(&find(&["large", "duel"], &["eu", "us", "eu"]), None);
    assert_eq!(found, Ok((owned(&["large", "duel"]), owned(&["eu", "us"]))));
}

#[test]
fn find_without_regions_takes_the_nearest() {
    let region = |at| chosen(&find(&["duel"], &[]), at).map(|(_, regions)| regions);
    assert_eq!(region(Some((48.0, 2.0))), Ok(owned(&["eu"])));
    assert_eq!(region(Some((1.0, 2.0))), Ok(owned(&["us"])));
    assert_eq!(region(None), Ok(owned(&["us"])), "the first of the operator");
}

#[test]
fn modes_that_the_request_does_not_fit_are_left_out() {
    let request = FindLobbyRequest { party_size: Some(5), ..find(&["hidden", "duel", "large", "eu-only"], &["us"]) };
    assert_eq!(chosen(&request, None), Ok((owned(&["large"]), owned(&["us"]))));
}

#[test]
fn each_error_has_its_sentence() {
    let detail = "The version that duels/live runs has no game mode other.";
    check_error(&find(&["duel", "other"], &["us"]), Code::MatchmakerGameModeNotFound, detail);
    let detail = "Region asia does not exist; GET /matchmaker/regions lists the regions.";
    check_error(&find(&["duel"], &["us", "asia", "moon"]), Code::MatchmakerRegionNotFound, detail);
    let detail = "Game mode hidden has actions.find disabled.";
    check_error(&find(&["hidden"], &["us"]), Code::MatchmakerFindDisabled, detail);
    let detail = "Game mode eu-only is not enabled in us.";
    check_error(&find(&["eu-only"], &["us", "us"]), Code::MatchmakerRegionNotEnabled, detail);
    let tags = [("map".to_owned(), "lake".to_owned())];
    let tagged = FindLobbyRequest { tags: tags.into(), ..find(&["plain"], &["us"]) };
    check_error(&tagged, Code::MatchmakerTagsDisabled, "Game mode plain is not taggable.");
    let limited = |mode, max_players| FindLobbyRequest { max_players: Some(max_players), ..find(&[mode], &["us"]) };
    let detail = "Game mode fixed does not allow max_players to be chosen.";
    check_error(&limited("fixed", 1), Code::MatchmakerDynamicMaxPlayersDisabled, detail);
    assert!(chosen(&limited("duel", 16), None).is_ok());
    check_problem(&limited("duel", 17), "max_players", "must be at most 16");
    let party = |party_size| FindLobbyRequest { party_size: Some(party_size), ..find(&["duel"], &["us"]) };
    assert!(chosen(&party(4), None).is_ok());
    check_problem(&party(5), "party_size", "must be at most 4");
}

/// A request with all errors gets them in this order, as each is removed.
#[test]
fn errors_come_in_the_documented_order() {
    let mut all = FindLobbyRequest {
        tags: [("map".to_owned(), "lake".to_owned())].into(),
        max_players: Some(17),
        party_size: Some(5),
        ..find(&["worst", "other"], &["moon"])
    };
    let code = |request: &FindLobbyRequest| chosen(request, None).expect_err("an error").code;
    assert_eq!(code(&all), Code::MatchmakerGameModeNotFound);
    all.game_modes.pop();
    assert_eq!(code(&all), Code::MatchmakerRegionNotFound);
    all.regions = owned(&["us"]);
    assert_eq!(code(&all), Code::MatchmakerFindDisabled);
    let mut space = namespace();
    let worst = |space: &mut Namespace, change: fn(&mut GameMode)| {
        change(space.modes.get_mut("worst").expect("a mode"));
    };
    let code = |space: &Namespace, request: &FindLobbyRequest| {
        candidates(space, &regions(), request, None).err().map(|error| error.code)
    };
    worst(&mut space, |mode| mode.is_find_enabled = true);
    assert_eq!(code(&space, &all), Some(Code::MatchmakerRegionNotEnabled));
    worst(&mut space, |mode| mode.regions = None);
    assert_eq!(code(&space, &all), Some(Code::MatchmakerTagsDisabled));
    worst(&mut space, |mode| mode.is_taggable = true);
    assert_eq!(code(&space, &all), Some(Code::MatchmakerDynamicMaxPlayersDisabled));
    worst(&mut space, |mode| mode.is_max_players_dynamic = true);
    let problems = [("max_players", "must be at most 16"), ("party_size", "must be at most 4")];
    for (field, reason) in problems {
        let error = candidates(&space, &regions(), &all, None).err();
        let problem = FieldProblem::new(&[field], "too-high", Some(reason));
        assert_eq!(error, Some(ServiceError::from(Code::BodyInvalid).with_problem(problem)));
        all.max_players = None;
    }
    all.party_size = None;
    assert_eq!(code(&space, &all), None);
}

/// The first mode decides the error if the request fits none.
#[test]
fn error_is_that_of_the_first_mode() {
    let code = |modes: &[&str]| chosen(&find(modes, &["us"]), None).map_err(|error| error.code);
    assert_eq!(code(&["hidden", "eu-only"]), Err(Code::MatchmakerFindDisabled));
    assert_eq!(code(&["eu-only", "hidden"]), Err(Code::MatchmakerRegionNotEnabled));
}

fn create<'a>(mode: &'a str) -> CreateCriteria<'a> {
    CreateCriteria {
        mode,
        region: None,
        publicity: None,
        has_tags: false,
        max_players: None,
        party_size: 1,
        coordinates: None,
    }
}

fn created(criteria: &CreateCriteria<'_>) -> Result<(String, String), Code> {
    create_target(&namespace(), &regions(), criteria).map_err(|error| error.code)
}

#[test]
fn create_has_defaults() {
    let target = |region: &str, publicity: &str| Ok((region.to_owned(), publicity.to_owned()));
    let nearest = regions().nearest(None).expect("a region").to_owned();
    assert_eq!(created(&create("duel")), target(&nearest, PUBLIC));
    assert_eq!(created(&create("secret")), target(&nearest, PRIVATE));
    assert_eq!(created(&CreateCriteria { region: Some("eu"), ..create("duel") }), target("eu", PUBLIC));
    let private = CreateCriteria { publicity: Some(PRIVATE), ..create("duel") };
    assert_eq!(created(&private), target(&nearest, PRIVATE));
}

/// Each request also has the problems of all later rows.
#[test]
fn order_of_the_errors_of_create() {
    let far = "us";
    let worst = |mode, region| CreateCriteria {
        mode,
        region: Some(region),
        publicity: Some(PUBLIC),
        has_tags: true,
        max_players: Some(17),
        party_size: 64,
        coordinates: None,
    };
    let rows = [
        (worst("nothing", "nowhere"), Code::MatchmakerGameModeNotFound),
        (worst("worst", "nowhere"), Code::MatchmakerRegionNotFound),
        (worst("worst", far), Code::MatchmakerCreateDisabled),
        (worst("ported", far), Code::MatchmakerRegionNotEnabled),
        (worst("plain", far), Code::MatchmakerTagsDisabled),
        (worst("fixed", far), Code::MatchmakerDynamicMaxPlayersDisabled),
        (worst("secret", far), Code::BodyInvalid),
        (CreateCriteria { max_players: Some(16), ..worst("secret", far) }, Code::MatchmakerPublicityDisabled),
        (CreateCriteria { max_players: Some(16), ..worst("duel", far) }, Code::BodyInvalid),
    ];
    for (criteria, code) in rows {
        assert_eq!(created(&criteria), Err(code), "{}", criteria.mode);
    }
}

#[test]
fn party_of_a_create_fits_into_the_lobby() {
    let party =
        |party_size, max_players| created(&CreateCriteria { party_size, max_players, ..create("duel") }).is_ok();
    assert!(party(16, None), "the limit of parties");
    assert!(!party(17, None));
    assert!(party(3, Some(3)), "a limit of the request replaces that of the mode");
    assert!(!party(4, Some(3)));
}

fn attached(mode: &str, region: Option<&str>, has_tags: bool, ports: &[&str]) -> Result<String, ServiceError> {
    let criteria = AttachCriteria { mode, region, has_tags, ports: ports.iter().copied().collect() };
    attach_region(&namespace(), &regions(), &criteria)
}

#[test]
fn order_of_the_errors_of_attach() {
    let rows = [
        ("nothing", "nowhere", true, Code::MatchmakerGameModeNotFound),
        ("ported", "nowhere", true, Code::MatchmakerRegionNotFound),
        ("ported", "us", true, Code::MatchmakerRegionNotEnabled),
        ("ported", "eu", true, Code::MatchmakerTagsDisabled),
        ("ported", "eu", false, Code::BodyInvalid),
    ];
    for (mode, region, has_tags, code) in rows {
        let error = attached(mode, Some(region), has_tags, &[]).expect_err(mode);
        assert_eq!(error.code, code, "{mode} {region}");
    }
}

#[test]
fn attach_requires_exactly_the_ports_of_the_mode() {
    assert_eq!(attached("ported", Some("eu"), false, &["web", "game"]), Ok("eu".to_owned()));
    assert_eq!(attached("duel", None, false, &[]), Ok(regions().nearest(None).expect("a region").to_owned()));
    let rows: [(&str, &[&str], &[&str]); 5] = [
        ("ported", &[], &["ports.game.required", "ports.web.required"]),
        ("ported", &["game", "web", "x"], &["ports.x.not-found"]),
        ("ported", &["game", "x"], &["ports.web.required", "ports.x.not-found"]),
        ("ranged", &["media"], &["ports.media.not-allowed"]),
        ("ranged", &[], &["ports.media.not-allowed"]),
    ];
    for (mode, ports, problems) in rows {
        let error = attached(mode, Some("eu"), false, ports).expect_err(mode);
        let paths: Vec<String> = error.problems().iter().map(|problem| problem.path().join(".")).collect();
        assert_eq!(paths, problems, "{mode} {ports:?}");
    }
}
