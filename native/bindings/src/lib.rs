//! Python module `pyservice._native`: engine, journal and metrics as frozen classes.
//!
//! `pyservice/_native.pyi` documents the contract. This crate only converts.

#![allow(missing_docs)] // the Python contract is documented in the stub, which stubtest compares with this module

mod clients;
mod convert;
mod engine;
mod errors;
mod facts;
mod files;
mod front;
mod grpc_front;
mod journal;
mod leased_port;
mod log_pattern;
mod matchmaker;
mod metrics;
mod namespaces;
mod public_certificate;
mod rate_limits;
mod routes;
mod servers;

use pyo3::prelude::*;

fn build_profile() -> &'static str {
    match env!("HOSTING_OPT_LEVEL") {
        _ if cfg!(debug_assertions) => "debug",
        "3" => "release",
        _ => "quick",
    }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("build_profile", build_profile())?;
    module.add("version", env!("CARGO_PKG_VERSION"))?;
    module.add("MATCHED_LENGTH", hosting_matchmaker::MATCHED_LENGTH)?;
    module.add("OpenFailed", py.get_type::<convert::OpenFailed>())?;
    module.add("Refused", py.get_type::<convert::Refused>())?;
    module.add_class::<convert::Port>()?;
    module.add_class::<convert::Lobby>()?;
    module.add_class::<convert::Placed>()?;
    module.add_class::<convert::Resolved>()?;
    module.add_class::<engine::Status>()?;
    module.add_class::<facts::Fact>()?;
    module.add_class::<facts::Facts>()?;
    module.add_class::<servers::LobbyTemplate>()?;
    module.add_class::<leased_port::LeasedPort>()?;
    module.add_class::<log_pattern::LogPattern>()?;
    module.add_class::<servers::Route>()?;
    module.add_class::<servers::RouteChanges>()?;
    module.add_class::<servers::EmptyLobby>()?;
    module.add_class::<servers::IdleLobbyGroup>()?;
    module.add_class::<servers::ProcessCommands>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<clients::ConnectionBudget>()?;
    module.add_class::<clients::ConnectionAdmission>()?;
    module.add_class::<clients::TrustedProxies>()?;
    module.add_class::<rate_limits::Buckets>()?;
    module.add_class::<rate_limits::NamedLimits>()?;
    module.add_class::<namespaces::Namespace>()?;
    module.add_class::<namespaces::Namespaces>()?;
    module.add_class::<namespaces::PlayerAddresses>()?;
    module.add_class::<front::FrontCounts>()?;
    module.add_class::<front::FrontRecord>()?;
    module.add_class::<front::FrontMeasurements>()?;
    module.add_class::<front::Front>()?;
    module.add_class::<routes::OperationRoutes>()?;
    module.add_class::<matchmaker::Caller>()?;
    module.add_class::<matchmaker::Decision>()?;
    module.add_class::<matchmaker::Matchmaker>()?;
    module.add_class::<matchmaker::PlacementRequest>()?;
    module.add_class::<matchmaker::Reply>()?;
    module.add_class::<public_certificate::PublicCertificate>()?;
    module.add_function(wrap_pyfunction!(clients::acked_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(clients::coordinates, module)?)?;
    module.add_function(wrap_pyfunction!(clients::packed_client, module)?)?;
    module.add_function(wrap_pyfunction!(errors::grpc_status, module)?)?;
    module.add_function(wrap_pyfunction!(errors::problem_json, module)?)?;
    module.add_function(wrap_pyfunction!(files::change_files, module)?)?;
    module.add_function(wrap_pyfunction!(clients::read_trace, module)?)?;
    module.add_function(wrap_pyfunction!(matchmaker::bearer_token, module)?)?;
    module.add_function(wrap_pyfunction!(matchmaker::broken_rules, module)?)?;
    module.add_function(wrap_pyfunction!(matchmaker::callers_of, module)?)?;
    module.add_function(wrap_pyfunction!(matchmaker::check_idempotency_key, module)?)?;
    module.add_function(wrap_pyfunction!(matchmaker::check_body_form, module)?)?;
    module.add_function(wrap_pyfunction!(matchmaker::mock_placement, module)?)?;
    Ok(())
}
