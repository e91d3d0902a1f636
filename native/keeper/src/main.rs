//! `hosting-keeper <folder>`: runs the one game server of a folder, keeps its log, and records its end.
//!
//! The folder is the whole interface: `spec` says what to run, `state` says how it is and is locked as long as it may
//! run, `control` takes commands, `log/` has what it wrote. Nothing else is needed: the service may stop, crash and be
//! replaced meanwhile. One folder is one run, ever.
//!
//! Ends with 0 when the run has begun, or could not begin and that is recorded; 64 when it is called wrongly, 70 when
//! the keeper was killed before the run had begun, 74 when the disk fails, 75 when the folder is somebody else's or was
//! run before, 78 when `spec` cannot be used.
//!
//! `hosting-keeper --nursery <folder of runs>` does the same for each folder that it is told, without a program to load.

mod control;
mod inherited;
mod isolation;
mod keeper;
mod lines;
mod log;
mod memory;
mod numbers;
mod nursery;
mod processes;
mod program;
mod reserve;
mod run;
mod scribe;
mod spec;
mod state;
mod templates;
mod times;
mod title;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use keeper::Refusal;

#[global_allocator]
static HEAP: inherited::Heap = inherited::Heap;

fn main() -> ExitCode {
    program::heed_signals();
    memory::share_one_heap();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [word, runs] if word == "--nursery" => match nursery::serve(Path::new(runs)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{}: {error}", Path::new(runs).display());
                ExitCode::from(Refusal::Disk(error).status())
            }
        },
        [folder] => match keeper::keep(Path::new(folder)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(refusal) => {
                eprintln!("{}: {refusal}", Path::new(folder).display());
                ExitCode::from(refusal.status())
            }
        },
        _ => {
            eprintln!("usage: hosting-keeper <folder>, or hosting-keeper --nursery <folder of runs>");
            ExitCode::from(64)
        }
    }
}
