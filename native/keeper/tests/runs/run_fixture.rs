//! A run folder with its spec, its keeper, and access to everything that the keeper writes.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// User of the program, and of an unprivileged keeper.
pub const USER: u32 = 61_234;

/// Isolation mode of the program, and the kind of user that runs the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub isolation: &'static str,
    pub is_unprivileged: bool,
}

pub const NONE: Mode = Mode { isolation: "none", is_unprivileged: false };

impl Mode {
    pub fn changes_user(self) -> bool {
        ["user", "namespace", "landlock"].contains(&self.isolation)
    }

    pub fn has_pid_namespace(self) -> bool {
        ["user", "namespace", "processes"].contains(&self.isolation)
    }
}

/// Returns the modes that this machine supports, and prints the others.
pub fn available_modes() -> Vec<Mode> {
    let all = ["none", "user", "namespace", "landlock", "processes"];
    let modes =
        all.into_iter().flat_map(|isolation| [false, true].map(|is_unprivileged| Mode { isolation, is_unprivileged }));
    modes
        .filter(|&mode| match (mode.isolation, mode.is_unprivileged) {
            ("user", true) => false,
            ("user", false) => is_root() || skip_mode(mode, "needs root"),
            (_, true) => {
                is_root() && (is_accessible_to_all(KEEPER) || skip_mode(mode, "the binary is not for other users"))
            }
            _ => true,
        })
        .collect()
}

/// Returns the modes that isolate the program.
pub fn isolating_modes() -> Vec<Mode> {
    available_modes().into_iter().filter(|mode| !["none", "processes"].contains(&mode.isolation)).collect()
}

fn skip_mode(mode: Mode, message: &str) -> bool {
    skipped!("{mode:?}: {message}");
    false
}

pub fn needs_root(context: &str) -> bool {
    if !is_root() {
        skipped!("{context}: needs root");
    }
    is_root()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_accessible_to_all(path: &str) -> bool {
    Path::new(path).ancestors().all(|one| fs::metadata(one).is_ok_and(|found| found.mode() & 0o005 == 0o005))
}

pub const KEEPER: &str = env!("CARGO_BIN_EXE_hosting-keeper");

/// Returns the system paths that the service makes visible to every program.
pub fn system_paths() -> impl Iterator<Item = &'static str> {
    let service = include_str!("../../../../pyservice/runtime/node_preparation.py");
    let (_, rest) = service.split_once("SYSTEM_PATHS: Final").expect("the constant");
    rest.split_once("\"\"\"").expect("its docstring").0.split('"').skip(1).step_by(2)
}

/// A run folder. Stops the run on drop.
pub struct Run {
    pub folder: TempDir,
    mode: Mode,
    user: u32,
}

impl Run {
    pub fn of_shell(script: &str) -> Self {
        Self::new(NONE, script, &[])
    }

    pub fn new(mode: Mode, script: &str, more: &[&str]) -> Self {
        Self::with_folder(mode, tempfile::tempdir().expect("a folder"), &["/bin/sh", "-c", script], more)
    }

    /// Starts a run as a separate user, because the kernel counts processes per user.
    pub fn with_user(user: u32, mode: Mode, script: &str) -> Self {
        Self::with_user_and_folder(user, mode, tempfile::tempdir().expect("a folder"), &["/bin/sh", "-c", script], &[])
    }

    pub fn with_folder(mode: Mode, folder: TempDir, command: &[&str], more: &[&str]) -> Self {
        Self::with_user_and_folder(USER, mode, folder, command, more)
    }

    /// Creates the run folder as the service does. The keeper later changes the owner of the scratch folder.
    fn with_user_and_folder(user: u32, mode: Mode, folder: TempDir, command: &[&str], more: &[&str]) -> Self {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let scratch = folder.path().join("scratch");
        fs::DirBuilder::new().mode(0o700).create(&scratch).expect("scratch");
        let place = scratch.display();
        let mut records = vec![
            "id=one".to_owned(),
            format!("isolation={}", mode.isolation),
            format!("uid={user}"),
            format!("gid={user}"),
            format!("workdir={place}"),
            format!("write={place}"),
            "env=PATH=/usr/bin:/bin".to_owned(),
        ];
        records.extend(system_paths().map(|path| format!("read={path}")));
        records.extend(more.iter().map(|&one| one.to_owned()));
        records.extend(command.iter().map(|word| format!("command={word}")));
        fs::write(folder.path().join("spec"), records.join("\0") + "\0").expect("spec");
        if mode.is_unprivileged {
            for path in [folder.path(), &scratch, &folder.path().join("spec")] {
                std::os::unix::fs::chown(path, Some(user), Some(user)).expect("given");
            }
        }
        Self { folder, mode, user }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn keeper(&self) -> Command {
        let mut keeper = Command::new(KEEPER);
        keeper.arg(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.set_keeper_user(&mut keeper);
        keeper
    }

    pub fn set_keeper_user<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if self.mode.is_unprivileged {
            command.uid(self.user).gid(self.user);
        }
        command
    }

    /// Gives a file to the program's user.
    pub fn chown_to_program(&self, name: &str) {
        if self.mode.is_unprivileged || is_root() && self.mode.changes_user() {
            std::os::unix::fs::chown(self.path(name), Some(self.user), Some(self.user)).expect("given");
        }
    }

    pub fn keep(&self) -> Output {
        self.keeper().output().expect("keeper runs")
    }

    pub fn started(self) -> Self {
        let output = self.keep();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self
    }

    pub fn state(&self) -> HashMap<String, String> {
        let text = fs::read_to_string(self.path("state")).unwrap_or_default();
        text.lines().filter_map(|line| line.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect()
    }

    pub fn number(&self, key: &str) -> i32 {
        self.state()[key].parse().expect("a number")
    }

    pub fn has_ended(&self) -> bool {
        self.state().get("status").is_some_and(|status| status == "ended")
    }

    pub fn wait_ended(&self) -> HashMap<String, String> {
        wait_until(|| self.has_ended(), "the run ends");
        self.state()
    }

    pub fn has_stopped_process(&self) -> bool {
        let stat = |pid| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        descendants(self.number("keeper_pid")).into_iter().any(|pid| stat(pid).contains(") T "))
    }

    pub fn send_command(&self, command: &str) {
        let mut control = fs::OpenOptions::new().write(true).open(self.path("control")).expect("control");
        // One write, because a keeper that ends closes its pipe.
        control.write_all(format!("{command}\n").as_bytes()).expect("written");
    }

    /// Returns the size of the log from one directory listing, because segments change between listings.
    pub fn log_bytes(&self) -> u64 {
        let entries = fs::read_dir(self.path("log")).into_iter().flatten().map(|one| one.expect("entry").file_name());
        let mut starts: Vec<u64> = entries.map(|name| name.to_string_lossy().parse().expect("a position")).collect();
        starts.sort_unstable();
        let (Some(first), Some(last)) = (starts.first(), starts.last()) else { return 0 };
        let size = fs::metadata(self.path("log").join(format!("{last:020}"))).map_or(0, |found| found.len());
        last - first + size
    }

    pub fn log(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("log")).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|one| one.expect("entry").path()).collect();
        names.sort();
        // The keeper may remove segments during the read.
        let text: String = names.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
        text.lines().map(|line| line.split_once(' ').expect("a stamp").1.to_owned()).collect()
    }

    pub fn stdout_lines(&self) -> Vec<String> {
        self.log().into_iter().filter_map(|line| line.strip_prefix("o ").map(str::to_owned)).collect()
    }

    pub fn wait_for_line(&self, line: &str) {
        wait_until(|| self.log().iter().any(|one| one == line) || self.has_ended(), line);
        assert!(self.log().iter().any(|one| one == line), "{line}: {:?}, {:?}", self.log(), self.state());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.state().get("status").is_some_and(|status| status != "ended") {
            // Without a reader the open fails at once.
            let open = fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(self.path("control"));
            if let Ok(mut control) = open {
                let _ = writeln!(control, "stop 0");
            }
        }
    }
}

pub fn wait_until(mut is_so: impl FnMut() -> bool, context: &str) {
    let give_up = Instant::now() + WAIT_LIMIT;
    while !is_so() {
        assert!(Instant::now() < give_up, "waited in vain: {context}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub fn descendants(of: i32) -> Vec<i32> {
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten().flatten();
        let below: Vec<i32> = tasks
            .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
            .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        found.extend(below);
        at += 1;
    }
    found.remove(0);
    found
}
