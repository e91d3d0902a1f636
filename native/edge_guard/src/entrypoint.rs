//! Entry points of the program: serve players, and check the settings.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hosting_tls::Findings;

use crate::config::Config;
use crate::connection_limits::fit_descriptors;
use crate::folder_lock::FolderLock;
use crate::lifecycle::EdgeGuard;
use crate::operator_log;
use crate::process_context::ProcessContext;
use crate::startup::Startup;
use crate::tls::Certificates;

const EXIT_FOLDER_IN_USE: u8 = 75;

const EXIT_INVALID_SETTINGS: u8 = 78;

/// Serves until the process is stopped or replaced, then exits. Returns only if the settings cannot be read, or the
/// runtime cannot start.
#[must_use]
pub fn run(path: &Path, is_replacing: bool) -> ExitCode {
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(problems) => {
            problems.iter().for_each(|problem| operator_log::write_line(problem));
            return ExitCode::from(EXIT_INVALID_SETTINGS);
        }
    };
    // Before any thread starts: threads inherit the attributes.
    if let Err(error) = hosting_scheduling::raise_priority(config.nice) {
        let nice = config.nice;
        operator_log::write_line(&format!("nice {nice}: {error}; edge-guard runs without a higher priority"));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            operator_log::write_line(&format!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(serve(config, path.to_owned(), is_replacing));
    // Ends without waiting for the other threads.
    match result {
        Ok(code) => std::process::exit(code.into()),
        Err(problem) => {
            operator_log::write_line(&problem);
            std::process::exit(1);
        }
    }
}

/// Logs all problems of the settings file and its certificates. The other findings have a prefix.
#[must_use]
pub fn check_config(path: &Path) -> ExitCode {
    let certificates = Config::read(path).and_then(|config| Certificates::read(&config));
    let Findings { problems, invalid_now, warnings } = certificates
        .map_or_else(|problems| Findings { problems, ..Findings::default() }, |certificates| certificates.findings());
    problems.iter().for_each(|problem| operator_log::write_line(problem));
    for (prefix, texts) in [("invalid now", &invalid_now), ("warning", &warnings)] {
        texts.iter().for_each(|text| operator_log::write_line(&format!("{prefix}: {text}")));
    }
    let is_accepted = problems.is_empty() && invalid_now.is_empty();
    if is_accepted { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INVALID_SETTINGS) }
}

async fn serve(mut config: Config, path: PathBuf, is_replacing: bool) -> Result<u8, String> {
    let folder = config.folder.clone();
    let lock = FolderLock::take(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if lock.is_none() && !is_replacing {
        operator_log::write_line(&format!("{}: another edge-guard has this folder", folder.display()));
        return Ok(EXIT_FOLDER_IN_USE);
    }
    let certificates = match Certificates::read(&config) {
        Ok(certificates) => certificates,
        Err(problems) => {
            problems.iter().for_each(|problem| operator_log::write_line(problem));
            return Ok(EXIT_INVALID_SETTINGS);
        }
    };
    // Other certificates and plain ports still serve players, so the start goes on.
    let Findings { problems, invalid_now, .. } = certificates.findings();
    problems.iter().chain(&invalid_now).for_each(|problem| operator_log::write_line(problem));
    let (limits, descriptors) = fit_descriptors(&config.limits);
    config.limits = limits;
    let context =
        ProcessContext::start(config, path, certificates).map_err(|error| format!("cannot start: {error}"))?;
    let startup = match lock {
        Some(lock) => Startup::start_alone(lock, &context.shared.config)?,
        None => Startup::take_over(&context.shared.config)?,
    };
    let edge_guard = EdgeGuard::start(context, startup, descriptors);
    operator_log::write_line("serving");
    Ok(edge_guard.run().await)
}
