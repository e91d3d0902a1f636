//! Checks of a find against the configuration of the namespace.
//!
//! The order of the checks is part of the API: docs/reference/matchmaker.md#error-order.

use crate::contract::Code;
use crate::error::{FieldProblem, ServiceError};
use crate::namespaces::{GameMode, Namespace};
use crate::proto::FindLobbyRequest;
use crate::regions::Regions;

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
        let mode = namespace.modes.get(name).ok_or_else(|| mode_not_found(namespace, name))?;
        modes.push((name, mode));
    }
    let wanted = wanted_regions(regions, request, coordinates)?;
    let mut allowed = Vec::with_capacity(modes.len());
    let mut first_error = None;
    for (name, mode) in modes {
        match check_mode(name, mode, &wanted, request) {
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

fn check_mode(name: &str, mode: &GameMode, regions: &[&str], request: &FindLobbyRequest) -> Result<(), ServiceError> {
    let error = |code: Code, detail: String| Err(ServiceError::from(code).with_detail(detail));
    if !mode.is_find_enabled {
        return error(Code::MatchmakerFindDisabled, format!("Game mode {name} has actions.find disabled."));
    }
    if !regions.iter().any(|region| mode.allows_region(region)) {
        let detail = format!("Game mode {name} is not enabled in {}.", regions.join(", "));
        return error(Code::MatchmakerRegionNotEnabled, detail);
    }
    if !request.tags.is_empty() && !mode.is_taggable {
        return error(Code::MatchmakerTagsDisabled, format!("Game mode {name} is not taggable."));
    }
    if let Some(max_players) = request.max_players {
        if !mode.is_max_players_dynamic {
            let detail = format!("Game mode {name} does not allow max_players to be chosen.");
            return error(Code::MatchmakerDynamicMaxPlayersDisabled, detail);
        }
        if max_players > mode.largest_limit {
            return Err(too_high("max_players", mode.largest_limit));
        }
    }
    // The party must also fit into a new lobby of the mode.
    if request.party_size.unwrap_or(1) > mode.max_players {
        return Err(too_high("party_size", mode.max_players));
    }
    Ok(())
}

fn mode_not_found(namespace: &Namespace, name: &str) -> ServiceError {
    let detail = format!("The version that {} runs has no game mode {name}.", namespace.label);
    ServiceError::from(Code::MatchmakerGameModeNotFound).with_detail(detail)
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
