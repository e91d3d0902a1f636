//! Checks of find, create and attach against the configuration of the namespace.
//!
//! The order of the checks is part of the API: docs/reference/matchmaker.md#error-order.

use std::collections::BTreeSet;

use crate::contract::Code;
use crate::error::{FieldProblem, ServiceError};
use crate::namespaces::{GameMode, Namespace, PortKind};
use crate::proto::FindLobbyRequest;
use crate::regions::Regions;

const PUBLIC: &str = "public";
const PRIVATE: &str = "private";

/// Game modes and regions that a find may use, in the requested order.
pub struct Candidates<'a> {
    pub modes: Vec<&'a str>,
    pub regions: Vec<&'a str>,
}

/// Returns the candidates of a find. A mode that the request does not fit is left out. If none remains, the error is that
/// of the first mode.
pub fn candidates<'a>(
    namespace: &Namespace,
    regions: &'a Regions,
    request: &'a FindLobbyRequest,
    coordinates: Option<(f64, f64)>,
) -> Result<Candidates<'a>, ServiceError> {
    let mut modes: Vec<(&str, &GameMode)> = Vec::with_capacity(request.game_modes.len());
    for name in &request.game_modes {
        modes.push((name, mode(namespace, name)?));
    }
    let wanted = wanted_regions(regions, request, coordinates)?;
    let mut allowed = Vec::with_capacity(modes.len());
    let mut first_error = None;
    for (name, mode) in modes {
        match check_find(name, mode, &wanted, request) {
            Ok(()) => allowed.push(name),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) if allowed.is_empty() => Err(error),
        _ => Ok(Candidates { modes: allowed, regions: wanted }),
    }
}

fn wanted_regions<'a>(
    regions: &'a Regions,
    request: &'a FindLobbyRequest,
    coordinates: Option<(f64, f64)>,
) -> Result<Vec<&'a str>, ServiceError> {
    if request.regions.is_empty() {
        return Ok(regions.nearest(coordinates).into_iter().collect());
    }
    let mut wanted: Vec<&str> = Vec::with_capacity(request.regions.len());
    for region in &request.regions {
        if !wanted.contains(&&**region) {
            wanted.push(region);
        }
    }
    match wanted.iter().find(|region| !regions.contains(region)) {
        Some(unknown) => Err(region_not_found(unknown)),
        None => Ok(wanted),
    }
}

fn check_find(name: &str, mode: &GameMode, regions: &[&str], request: &FindLobbyRequest) -> Result<(), ServiceError> {
    if !mode.is_find_enabled {
        let detail = format!("Game mode {name} has actions.find disabled.");
        return Err(ServiceError::from(Code::MatchmakerFindDisabled).with_detail(detail));
    }
    check_regions(name, mode, regions)?;
    check_tags(name, mode, !request.tags.is_empty())?;
    check_max_players(name, mode, request.max_players)?;
    // The party must also fit into a new lobby of the mode.
    check_party(request.party_size.unwrap_or(1), mode.max_players)
}

/// Fields of a create that the configuration limits.
pub struct CreateCriteria<'a> {
    pub mode: &'a str,
    pub region: Option<&'a str>,
    pub publicity: Option<&'a str>,
    pub has_tags: bool,
    pub max_players: Option<u32>,
    pub party_size: u32,
    pub coordinates: Option<(f64, f64)>,
}

/// Returns the region and the publicity of a new lobby.
pub fn create_target(
    namespace: &Namespace,
    regions: &Regions,
    request: &CreateCriteria<'_>,
) -> Result<(String, String), ServiceError> {
    let (name, mode) = (request.mode, mode(namespace, request.mode)?);
    let region = region(regions, request.region, request.coordinates)?;
    if mode.create_publicities.is_empty() {
        let detail = format!("Game mode {name} has actions.create disabled.");
        return Err(ServiceError::from(Code::MatchmakerCreateDisabled).with_detail(detail));
    }
    check_regions(name, mode, &[region])?;
    check_tags(name, mode, request.has_tags)?;
    check_max_players(name, mode, request.max_players)?;
    let usual = if mode.create_publicities.contains(PUBLIC) { PUBLIC } else { PRIVATE };
    let publicity = request.publicity.unwrap_or(usual);
    if !mode.create_publicities.contains(publicity) {
        let detail = format!("Lobbies of game mode {name} cannot be created {publicity}.");
        return Err(ServiceError::from(Code::MatchmakerPublicityDisabled).with_detail(detail));
    }
    let of_mode = if request.party_size == 1 { mode.max_players_direct } else { mode.max_players_party };
    check_party(request.party_size, request.max_players.unwrap_or(of_mode))?;
    Ok((region.to_owned(), publicity.to_owned()))
}

/// Fields of an attach that the configuration limits.
pub struct AttachCriteria<'a> {
    pub mode: &'a str,
    pub region: Option<&'a str>,
    pub has_tags: bool,
    pub ports: BTreeSet<&'a str>,
}

/// Returns the region of a server that becomes a lobby.
pub fn attach_region(
    namespace: &Namespace,
    regions: &Regions,
    request: &AttachCriteria<'_>,
) -> Result<String, ServiceError> {
    let (name, mode) = (request.mode, mode(namespace, request.mode)?);
    let region = region(regions, request.region, None)?;
    check_regions(name, mode, &[region])?;
    check_tags(name, mode, request.has_tags)?;
    let names: BTreeSet<&str> = mode.ports.keys().map(String::as_str).chain(request.ports.iter().copied()).collect();
    let problem = |port: &str| match (mode.ports.get(port), request.ports.contains(port)) {
        (None, _) => Some(port_problem(port, "not-found", Some("is not a port of the game mode"))),
        (Some(PortKind::Range), _) => {
            Some(port_problem(port, "not-allowed", Some("is a range and cannot be attached")))
        }
        (Some(PortKind::Number), false) => Some(port_problem(port, "required", None)),
        (Some(PortKind::Number), true) => None,
    };
    let problems: Vec<FieldProblem> = names.into_iter().filter_map(problem).collect();
    if problems.is_empty() {
        return Ok(region.to_owned());
    }
    Err(problems.into_iter().fold(Code::BodyInvalid.into(), ServiceError::with_problem))
}

fn port_problem(port: &str, word: &'static str, reason: Option<&str>) -> FieldProblem {
    FieldProblem::new(&["ports", port], word, reason)
}

/// Returns an error if the version of the namespace has no such game mode.
pub fn check_mode(namespace: &Namespace, name: &str) -> Result<(), ServiceError> {
    mode(namespace, name).map(|_| ())
}

fn mode<'a>(namespace: &'a Namespace, name: &str) -> Result<&'a GameMode, ServiceError> {
    namespace.modes.get(name).ok_or_else(|| {
        let detail = format!("The version that {} runs has no game mode {name}.", namespace.label);
        ServiceError::from(Code::MatchmakerGameModeNotFound).with_detail(detail)
    })
}

/// Returns a requested region, or the nearest one.
fn region<'a>(
    regions: &'a Regions,
    wanted: Option<&'a str>,
    coordinates: Option<(f64, f64)>,
) -> Result<&'a str, ServiceError> {
    let region = wanted.or_else(|| regions.nearest(coordinates)).unwrap_or_default();
    if regions.contains(region) { Ok(region) } else { Err(region_not_found(region)) }
}

fn check_regions(name: &str, mode: &GameMode, regions: &[&str]) -> Result<(), ServiceError> {
    if regions.iter().any(|region| mode.allows_region(region)) {
        return Ok(());
    }
    let detail = format!("Game mode {name} is not enabled in {}.", regions.join(", "));
    Err(ServiceError::from(Code::MatchmakerRegionNotEnabled).with_detail(detail))
}

fn check_tags(name: &str, mode: &GameMode, has_tags: bool) -> Result<(), ServiceError> {
    if !has_tags || mode.is_taggable {
        return Ok(());
    }
    Err(ServiceError::from(Code::MatchmakerTagsDisabled).with_detail(format!("Game mode {name} is not taggable.")))
}

fn check_max_players(name: &str, mode: &GameMode, max_players: Option<u32>) -> Result<(), ServiceError> {
    let Some(max_players) = max_players else { return Ok(()) };
    if !mode.is_max_players_dynamic {
        let detail = format!("Game mode {name} does not allow max_players to be chosen.");
        return Err(ServiceError::from(Code::MatchmakerDynamicMaxPlayersDisabled).with_detail(detail));
    }
    if max_players > mode.largest_limit() { Err(too_high("max_players", mode.largest_limit())) } else { Ok(()) }
}

fn check_party(party_size: u32, limit: u32) -> Result<(), ServiceError> {
    if party_size > limit { Err(too_high("party_size", limit)) } else { Ok(()) }
}

fn region_not_found(region: &str) -> ServiceError {
    let detail = format!("Region {region} does not exist; GET /matchmaker/regions lists the regions.");
    ServiceError::from(Code::MatchmakerRegionNotFound).with_detail(detail)
}

fn too_high(field: &str, limit: u32) -> ServiceError {
    let reason = format!("must be at most {limit}");
    ServiceError::from(Code::BodyInvalid).with_problem(FieldProblem::new(&[field], "too-high", Some(&reason)))
}

#[cfg(test)]
mod tests;
