//! A folder with a spec, its keeper, and what can be seen of it.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub const PATIENCE: Duration = Duration::from_secs(30);
/// Who the program is, and who the keeper is where it is not us.
pub const USER: u32 = 61_234;

/// How a program is kept apart, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub isolation: &'static str,
    pub is_ordinary: bool,
}

pub const NONE: Way = Way { isolation: "none", is_ordinary: false };

impl Way {
    /// Whether the program is another user where the keeper is root.
    pub fn is_other_user(self) -> bool {
        ["user", "namespace", "landlock"].contains(&self.isolation)
    }

    /// Whether ending the first process ends all others.
    pub fn has_own_processes(self) -> bool {
        ["user", "namespace", "processes"].contains(&self.isolation)
    }
}

/// All that this machine can do, each as root and as an ordinary user; what it cannot is told.
pub fn possible() -> Vec<Way> {
    let all = ["none", "user", "namespace", "landlock", "processes"];
    let ways = all.into_iter().flat_map(|isolation| [false, true].map(|is_ordinary| Way { isolation, is_ordinary }));
    ways.filter(|&way| match (way.isolation, way.is_ordinary) {
        ("user", true) => false,
        ("user", false) => is_root() || skips(way, "needs root"),
        (_, true) => is_root() && (is_for_all(KEEPER) || skips(way, "the binary is not for other users")),
        _ => true,
    })
    .collect()
}

/// The same but for those that keep nothing apart.
pub fn apart() -> Vec<Way> {
    possible().into_iter().filter(|way| !["none", "processes"].contains(&way.isolation)).collect()
}

fn skips(way: Way, why: &str) -> bool {
    skipped!("{way:?}: {why}");
    false
}

/// Visible where a test cannot be run at all.
pub fn needs_root(what: &str) -> bool {
    if !is_root() {
        skipped!("{what}: needs root");
    }
    is_root()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_for_all(path: &str) -> bool {
    Path::new(path).ancestors().all(|one| fs::metadata(one).is_ok_and(|found| found.mode() & 0o005 == 0o005))
}

pub const KEEPER: &str = env!("CARGO_BIN_EXE_hosting-keeper");

/// What every program may read, as the driver itself has it.
pub fn system_paths() -> impl Iterator<Item = &'static str> {
    let driver = include_str!("../../../../pyservice/app/runtime.py");
    let (_, rest) = driver.split_once("SYSTEM_PATHS: Final").expect("it has some");
    rest.split_once("\"\"\"").expect("it says what they are").0.split('"').skip(1).step_by(2)
}

/// A folder with a spec, and what can be seen of it.
pub struct Run {
    pub folder: TempDir,
    way: Way,
    user: u32,
}

impl Run {
    pub fn of_shell(script: &str) -> Self {
        Self::new(NONE, script, &[])
    }

    pub fn new(way: Way, script: &str, more: &[&str]) -> Self {
        Self::of(way, tempfile::tempdir().expect("a folder"), &["/bin/sh", "-c", script], more)
    }

    /// Whose processes are counted: with those of all other tests where it is the same user.
    pub fn of_user(user: u32, way: Way, script: &str) -> Self {
        Self::made(user, way, tempfile::tempdir().expect("a folder"), &["/bin/sh", "-c", script], &[])
    }

    pub fn of(way: Way, folder: TempDir, command: &[&str], more: &[&str]) -> Self {
        Self::made(USER, way, folder, command, more)
    }

    /// As the driver makes it: the scratch folder is its own until the keeper gives it away.
    fn made(user: u32, way: Way, folder: TempDir, command: &[&str], more: &[&str]) -> Self {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let scratch = folder.path().join("scratch");
        fs::DirBuilder::new().mode(0o700).create(&scratch).expect("scratch");
        let place = scratch.display();
        let mut records = vec![
            "id=one".to_owned(),
            format!("isolation={}", way.isolation),
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
        if way.is_ordinary {
            for path in [folder.path(), &scratch, &folder.path().join("spec")] {
                std::os::unix::fs::chown(path, Some(user), Some(user)).expect("given");
            }
        }
        Self { folder, way, user }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn keeper(&self) -> Command {
        let mut keeper = Command::new(KEEPER);
        keeper.arg(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.as_keepers_user(&mut keeper);
        keeper
    }

    pub fn as_keepers_user<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if self.way.is_ordinary {
            command.uid(self.user).gid(self.user);
        }
        command
    }

    /// To whom the program is, where that is somebody else.
    pub fn give(&self, name: &str) {
        if self.way.is_ordinary || is_root() && self.way.is_other_user() {
            std::os::unix::fs::chown(self.path(name), Some(self.user), Some(self.user)).expect("given");
        }
    }

    pub fn keep(&self) -> Output {
        self.keeper().output().expect("keeper runs")
    }

    pub fn begun(self) -> Self {
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

    pub fn is_over(&self) -> bool {
        self.state().get("status").is_some_and(|status| status == "ended")
    }

    pub fn ended(&self) -> HashMap<String, String> {
        until(|| self.is_over(), "the run ends");
        self.state()
    }

    pub fn is_any_suspended(&self) -> bool {
        let stat = |pid| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        descendants(self.number("keeper_pid")).into_iter().any(|pid| stat(pid).contains(") T "))
    }

    pub fn tell(&self, command: &str) {
        let mut control = fs::OpenOptions::new().write(true).open(self.path("control")).expect("control");
        writeln!(control, "{command}").expect("told");
    }

    /// Bytes of its log on disk now, from one look at the folder: segments come and go meanwhile.
    pub fn log_bytes(&self) -> u64 {
        let entries = fs::read_dir(self.path("log")).into_iter().flatten().map(|one| one.expect("entry").file_name());
        let mut starts: Vec<u64> = entries.map(|name| name.to_string_lossy().parse().expect("a position")).collect();
        starts.sort_unstable();
        let (Some(first), Some(last)) = (starts.first(), starts.last()) else { return 0 };
        let size = fs::metadata(self.path("log").join(format!("{last:020}"))).map_or(0, |found| found.len());
        last - first + size
    }

    pub fn log(&self) -> Vec<String> {
        // Of who said nothing there is none.
        let entries = fs::read_dir(self.path("log")).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|one| one.expect("entry").path()).collect();
        names.sort();
        // Segments go while they are read.
        let text: String = names.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
        text.lines().map(|line| line.split_once(' ').expect("a stamp").1.to_owned()).collect()
    }

    /// What it said on its standard output.
    pub fn said(&self) -> Vec<String> {
        self.log().into_iter().filter_map(|line| line.strip_prefix("o ").map(str::to_owned)).collect()
    }

    pub fn says(&self, line: &str) {
        until(|| self.log().iter().any(|one| one == line) || self.is_over(), line);
        assert!(self.log().iter().any(|one| one == line), "{line}: {:?}, {:?}", self.log(), self.state());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.state().get("status").is_some_and(|status| status != "ended") {
            // Where nobody reads any more it is refused at once.
            let open = fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(self.path("control"));
            if let Ok(mut control) = open {
                let _ = writeln!(control, "stop 0");
            }
        }
    }
}

pub fn until(mut is_so: impl FnMut() -> bool, what: &str) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
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
