//! `hosting-keeper <folder>`: runs the one game server of a run folder, stores its log, and records its end.
//!
//! The run folder is the only interface. `spec` describes the program and its limits. `state` has the state of the run,
//! and is locked while the keeper runs. `control` takes commands, and `log/` has the output. A folder is never used for
//! a second run.
//!
//! Exit status:
//! - 0: The run has started, or its failed start is recorded.
//! - 64: Wrong usage.
//! - 70: The keeper was killed before the run started.
//! - 74: Disk error.
//! - 75: The folder is in use or had a run before.
//! - 78: Invalid `spec`.
//!
//! `hosting-keeper --nursery <folder of runs>` is the keeper launcher: it forks a keeper for each requested folder.
//! `hosting-keeper --build-sandbox` starts the process that reads an uploaded build: see `isolation/build_sandbox.rs`.
//! `hosting-keeper --container <program> [arguments]` is the main process of a container: see `container_main.rs`.
//! `hosting-keeper --version` prints the version. As a static program it runs in any image, and shows that a node has the
//! image.

mod clock;
mod container_main;
mod control_fifo;
mod disk_writer;
mod isolation;
mod launcher;
mod log_lines;
mod log_rate;
mod log_segments;
mod network;
mod process_title;
mod process_tree;
mod processes;
mod program;
mod run_loop;
mod run_spec;
mod run_start;
mod run_state;
mod signals;
mod start_reply;
mod stop_signals;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use isolation::ExecError;
use isolation::build_sandbox::BuildSandbox;
use run_start::StartError;

const WRONG_USAGE: u8 = 64;

fn main() -> ExitCode {
    program::restore_ignored_signals();
    process_tree::limit_malloc_arenas();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (folder, done) = match &arguments[..] {
        [flag] if flag == "--version" => {
            println!("hosting-keeper {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        [flag, words @ ..] if flag == "--build-sandbox" => return enter_build_sandbox(words),
        [flag, program, words @ ..] if flag == container_main::FLAG => return run_in_container(program, words),
        [flag, runs] if flag == "--nursery" => {
            (Path::new(runs), launcher::serve(Path::new(runs)).map_err(StartError::Disk))
        }
        [folder] => (Path::new(folder), run_start::run_keeper(Path::new(folder))),
        _ => {
            eprintln!("usage: hosting-keeper <folder>, or hosting-keeper --nursery <folder of runs>");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            ExitCode::from(error.status())
        }
    }
}

fn run_in_container(program: &OsString, arguments: &[OsString]) -> ExitCode {
    match container_main::run(program, arguments) {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            eprintln!("{}: {error}", program.display());
            ExitCode::from(StartError::Disk(error).status())
        }
    }
}

fn enter_build_sandbox(words: &[OsString]) -> ExitCode {
    let Some(sandbox) = BuildSandbox::parse(words) else {
        eprintln!("usage: hosting-keeper --build-sandbox uid=<uid> [read=|list=|write=<path>] [-- <program>]");
        return ExitCode::from(WRONG_USAGE);
    };
    match sandbox.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(ExecError(reason)) => {
            eprintln!("{reason}");
            ExitCode::from(processes::EXIT_CODE_NOT_STARTED as u8)
        }
    }
}
