//! A panic while the engine is locked ends the process, because the engine may then differ from the journal.

#![allow(clippy::unwrap_used)]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use hosting_core::{Engine, EngineConfig, KeyRing};
use hosting_shard::Shard;

const CALL: &str = "HOSTING_SHARD_TEST_CALL";
const SIGABRT: i32 = 6;

#[test]
fn child_process_entry() {
    let Ok(call) = std::env::var(CALL) else { return };
    let keys = KeyRing::new(vec![(1, [7; 32])], 1).unwrap();
    let shard = Shard::new(Engine::new(EngineConfig::new(1, keys)), None);
    let _ = std::thread::spawn(move || match call.as_str() {
        "run" => shard.run(|_, _| panic!("a command")),
        _ => {
            let mut engine = shard.engine();
            engine.take_changed_idle_groups();
            panic!("a query");
        }
    })
    .join();
}

#[test]
fn panic_under_the_lock_ends_the_process() {
    for call in ["run", "engine"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "child_process_entry", "--quiet"]).env(CALL, call);
        assert_eq!(child.output().unwrap().status.signal(), Some(SIGABRT), "{call}");
    }
}
