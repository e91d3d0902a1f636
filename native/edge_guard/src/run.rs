//! From the command line to an edge-guard that serves.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::begin::Begin;
use crate::config::Config;
use crate::folder::Lock;
use crate::life::Life;
use crate::limits::fit_descriptors;
use crate::log;
use crate::parts::Parts;
use crate::tls::Certificates;
use crate::turns;

/// Another process has the folder.
const BUSY: u8 = 75;

/// Something is wrong with the settings.
const SETTINGS: u8 = 78;

/// Runs until it is told to end.
#[must_use]
pub fn run(path: &Path, is_replacing: bool) -> ExitCode {
    let config = match Config::read(path) {
        Ok(config) => config,
        Err(problems) => {
            problems.iter().for_each(|problem| log::say(problem));
            return ExitCode::from(SETTINGS);
        }
    };
    // Threads that begin later have it too.
    turns::take(config.nice);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log::say(&format!("no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(live(config, path.to_owned(), is_replacing));
    // Threads of others end with the process, and nobody waits for them.
    match result {
        Ok(code) => std::process::exit(code.into()),
        Err(problem) => {
            log::say(&problem);
            std::process::exit(1);
        }
    }
}

/// Reads the settings and says what is wrong with them.
#[must_use]
pub fn check(path: &Path) -> ExitCode {
    let read = Config::read(path).and_then(|config| Certificates::read(&config).map(drop));
    match read {
        Ok(()) => ExitCode::SUCCESS,
        Err(problems) => {
            problems.iter().for_each(|problem| log::say(problem));
            ExitCode::from(SETTINGS)
        }
    }
}

async fn live(mut config: Config, path: PathBuf, is_replacing: bool) -> Result<u8, String> {
    let folder = config.folder.clone();
    let lock = Lock::take(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if lock.is_none() && !is_replacing {
        log::say(&format!("{}: another edge-guard has this folder", folder.display()));
        return Ok(BUSY);
    }
    let certificates = match Certificates::read(&config) {
        Ok(certificates) => certificates,
        Err(problems) => {
            problems.iter().for_each(|problem| log::say(problem));
            return Ok(SETTINGS);
        }
    };
    let (limits, descriptors) = fit_descriptors(&config.limits);
    config.limits = limits;
    let parts = Parts::start(config, path, certificates).map_err(|error| format!("cannot start: {error}"))?;
    let begin = match lock {
        Some(lock) => Begin::alone(lock, &parts.shared.config)?,
        None => Begin::after_another(&parts.shared.config)?,
    };
    let life = Life::begin(parts, begin, descriptors);
    log::say("serves");
    Ok(life.until_the_end().await)
}
