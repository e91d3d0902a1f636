//! `spec`: command, limits and isolation of a run, written by the service before the start.
//!
//! The file has NUL-terminated `key=value` records. A repeated key is a list. The keeper refuses unknown keys.
//! Otherwise an old keeper would ignore a limit that a newer service has set.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::network::{NetworkRules, parse_ports};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    None,
    User,
    Landlock,
    Namespace,
    /// PID and mount namespaces without isolation, for OCI runtimes. All processes of the run end together.
    Processes,
}

impl Isolation {
    pub fn has_pid_namespace(self) -> bool {
        matches!(self, Self::User | Self::Namespace | Self::Processes)
    }

    /// Reports whether the keeper is the first process of the program's PID namespace.
    ///
    /// This is allowed only if the program cannot signal the keeper.
    pub fn keeper_is_namespace_init(self) -> bool {
        matches!(self, Self::User)
    }
}

/// File system of the scratch folder, which is one of the writable paths.
#[derive(Clone, Debug)]
pub struct ScratchSpec {
    pub path: PathBuf,
    /// Size of a tmpfs. An image has the size of its template.
    pub bytes: u64,
    pub template: Option<PathBuf>,
}

#[derive(Debug)]
pub struct RunSpec {
    pub command: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub workdir: PathBuf,
    /// Time between SIGTERM and SIGKILL for the program if a signal to the keeper ends the run.
    pub kill_timeout: Duration,
    pub log_bytes_max: u64,
    /// Rate limits of the output. 0 is no limit.
    pub log_lines_per_s: u64,
    pub log_bytes_per_s: u64,
    pub reserve_bytes: u64,
    /// FIFO to which the keeper writes lines as notifications.
    pub notify: Option<PathBuf>,
    pub id: String,
    /// Content of `/etc/machine-id`, as the program sees it.
    pub machine_id: String,
    pub isolation: Isolation,
    /// User ID of the program. Applies with `Isolation::User`, and with `Namespace` and `Landlock` if the keeper is
    /// root.
    ///
    /// With `Landlock`, 0 means the user of the keeper.
    pub uid: u32,
    pub gid: u32,
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// `None`: the scratch folder is a folder without a limit.
    pub scratch: Option<ScratchSpec>,
    pub memory_max_bytes: u64,
    /// `tasks` files of control groups of version 1.
    pub cgroups: Vec<PathBuf>,
    /// Folder of the control group of version 2.
    pub cgroup_v2: Option<PathBuf>,
    /// Files of control groups that show the program its own limits: mount point, and path on the machine.
    pub cgroup_views: Vec<(PathBuf, PathBuf)>,
    /// Control group file with an `oom_kill <n>` line: `memory.events` or `memory.oom_control`.
    pub oom_counter: Option<PathBuf>,
    pub nice: i32,
    pub network: NetworkRules,
}

impl RunSpec {
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let mut spec = Self {
            command: Vec::new(),
            env: Vec::new(),
            workdir: PathBuf::new(),
            kill_timeout: Duration::from_secs(30),
            log_bytes_max: 64 << 20,
            log_lines_per_s: 0,
            log_bytes_per_s: 0,
            reserve_bytes: 0,
            notify: None,
            id: String::new(),
            machine_id: String::new(),
            isolation: Isolation::None,
            uid: 0,
            gid: 0,
            read: Vec::new(),
            write: Vec::new(),
            scratch: None,
            memory_max_bytes: 0,
            cgroups: Vec::new(),
            cgroup_v2: None,
            cgroup_views: Vec::new(),
            oom_counter: None,
            nice: 0,
            network: NetworkRules::default(),
        };
        let Some(content) = content.strip_suffix(b"\0") else {
            return Err("spec is incomplete: it does not end with NUL".to_owned());
        };
        for record in content.split(|&byte| byte == 0) {
            let Some(at) = record.iter().position(|&byte| byte == b'=') else {
                return Err(format!("spec: no '=' in {:?}", OsStr::from_bytes(record)));
            };
            spec.set(&record[..at], OsStr::from_bytes(&record[at + 1..]))?;
        }
        spec.check()
    }

    fn set(&mut self, key: &[u8], value: &OsStr) -> Result<(), String> {
        match key {
            b"command" => self.command.push(value.to_owned()),
            b"env" => self.env.push(variable(value)?),
            b"workdir" => self.workdir = value.into(),
            b"kill_timeout_ms" => self.kill_timeout = Duration::from_millis(number(key, value)?),
            b"log_bytes_max" => self.log_bytes_max = number(key, value)?,
            b"log_lines_per_s" => self.log_lines_per_s = number(key, value)?,
            b"log_bytes_per_s" => self.log_bytes_per_s = number(key, value)?,
            b"reserve_bytes" => self.reserve_bytes = number(key, value)?,
            b"notify" => self.notify = Some(value.into()),
            b"id" => self.id = value.to_string_lossy().into_owned(),
            b"machine_id" => self.machine_id = value.to_string_lossy().into_owned(),
            b"isolation" => self.isolation = isolation(value)?,
            b"uid" => self.uid = number(key, value)?,
            b"gid" => self.gid = number(key, value)?,
            b"read" => self.read.push(value.into()),
            b"write" => self.write.push(value.into()),
            b"scratch" => {
                self.scratch = Some(ScratchSpec { path: value.into(), bytes: 0, template: None });
            }
            b"scratch_bytes" => self.scratch_of(key)?.bytes = number(key, value)?,
            b"scratch_template" => self.scratch_of(key)?.template = Some(value.into()),
            b"memory_max_bytes" => self.memory_max_bytes = number(key, value)?,
            b"cgroup" => self.cgroups.push(value.into()),
            b"cgroup_v2" => self.cgroup_v2 = Some(value.into()),
            b"cgroup_view" => self.cgroup_views.push(view(value)?),
            b"oom_counter" => self.oom_counter = Some(value.into()),
            b"nice" => self.nice = number(key, value)?,
            b"network_group" => self.network.group = Some(value.into()),
            b"network_sockets_max" => self.network.sockets_max = number(key, value)?,
            b"network_own_port_sockets_max" => self.network.own_port_sockets_max = number(key, value)?,
            b"network_connections_max" => self.network.connections_max = number(key, value)?,
            b"network_port" => self.network.own_ports.push(parse_ports(&value.to_string_lossy())?),
            b"network_allow" => self.network.allowed.push(value.to_string_lossy().parse()?),
            b"network_refuse" => self.network.refused.push(value.to_string_lossy().parse()?),
            b"network_allows_others" => self.network.allows_others = number::<u8>(key, value)? != 0,
            b"note" => {}
            _ => return Err(format!("spec: unknown key {:?}", OsStr::from_bytes(key))),
        }
        Ok(())
    }

    fn scratch_of(&mut self, key: &[u8]) -> Result<&mut ScratchSpec, String> {
        let name = String::from_utf8_lossy(key);
        self.scratch.as_mut().ok_or_else(|| format!("spec: {name} must follow scratch"))
    }

    fn check(self) -> Result<Self, String> {
        if self.command.is_empty() {
            return Err("spec: no command".to_owned());
        }
        if !self.workdir.is_absolute() {
            return Err("spec: workdir must be an absolute path".to_owned());
        }
        if self.isolation == Isolation::User && (self.uid == 0 || self.gid == 0) {
            return Err("spec: isolation=user needs uid and gid that are not root's".to_owned());
        }
        if self.isolation == Isolation::Landlock && (self.uid == 0) != (self.gid == 0) {
            return Err("spec: isolation=landlock needs both of uid and gid, or none".to_owned());
        }
        if [self.uid, self.gid].contains(&u32::MAX) {
            return Err("spec: uid and gid must be below 4294967295".to_owned());
        }
        self.network.check()?;
        if let Some(scratch) = &self.scratch {
            if !self.isolation.has_pid_namespace() {
                return Err("spec: scratch needs isolation=user, namespace or processes".to_owned());
            }
            if !scratch.path.is_absolute() || scratch.bytes == 0 {
                return Err("spec: scratch needs an absolute path and scratch_bytes above 0".to_owned());
            }
        }
        let files = self
            .cgroups
            .iter()
            .chain(&self.cgroup_v2)
            .chain(&self.notify)
            .chain(&self.oom_counter)
            .chain(&self.network.group);
        if let Some(path) = self.read.iter().chain(&self.write).chain(files).find(|path| !path.is_absolute()) {
            return Err(format!("spec: {} must be an absolute path", path.display()));
        }
        Ok(self)
    }
}

fn variable(value: &OsStr) -> Result<(OsString, OsString), String> {
    let bytes = value.as_bytes();
    match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) if at > 0 => Ok((OsStr::from_bytes(&bytes[..at]).into(), OsStr::from_bytes(&bytes[at + 1..]).into())),
        _ => Err(format!("spec: env {value:?} is not NAME=VALUE")),
    }
}

fn view(value: &OsStr) -> Result<(PathBuf, PathBuf), String> {
    let words = value.to_str().and_then(|text| text.split_once(' '));
    match words {
        Some((to, from)) if to.starts_with('/') && from.starts_with('/') => Ok((to.into(), from.into())),
        _ => Err(format!("spec: cgroup_view {value:?} is not two absolute paths")),
    }
}

fn number<T: std::str::FromStr>(key: &[u8], value: &OsStr) -> Result<T, String> {
    value
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("spec: {} is not a number in range: {value:?}", String::from_utf8_lossy(key)))
}

fn isolation(value: &OsStr) -> Result<Isolation, String> {
    match value.as_bytes() {
        b"none" => Ok(Isolation::None),
        b"user" => Ok(Isolation::User),
        b"landlock" => Ok(Isolation::Landlock),
        b"namespace" => Ok(Isolation::Namespace),
        b"processes" => Ok(Isolation::Processes),
        _ => Err(format!("spec: isolation {value:?} is none, user, landlock, namespace or processes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL_SPEC: &[u8] = b"command=/bin/game\0command=--x=1\0workdir=/srv\0";

    fn parse_with(extra: &[u8]) -> Result<RunSpec, String> {
        RunSpec::parse(&[MINIMAL_SPEC, extra].concat())
    }

    #[test]
    fn values_keep_all_bytes_except_nul() {
        let spec = parse_with(b"env=A=b=c\nd\0env=EMPTY=\0kill_timeout_ms=250\0").expect("good");
        assert_eq!(spec.command, ["/bin/game", "--x=1"]);
        assert_eq!(spec.env, [("A".into(), "b=c\nd".into()), ("EMPTY".into(), "".into())]);
        assert_eq!(spec.kill_timeout, Duration::from_millis(250));
    }

    #[test]
    fn invalid_specs_are_refused() {
        for (extra, expected_text) in [
            (&b"nice=3"[..], "incomplete"),
            (b"niceness=3\0", "unknown key"),
            (b"nice=low\0", "is not a number"),
            (b"uid=-1\0", "is not a number"),
            (b"env==x\0", "not NAME=VALUE"),
            (b"isolation=some\0", "none, user"),
            (b"isolation=user\0", "needs uid"),
            (b"isolation=landlock\0uid=7\0", "needs both"),
            (b"isolation=user\0uid=4294967295\0gid=1\0", "below 4294967295"),
            (b"read=usr\0", "absolute"),
            (b"scratch_bytes=1\0", "must follow scratch"),
            (b"scratch=/s\0scratch_bytes=1\0", "needs isolation"),
            (b"isolation=namespace\0scratch=/s\0", "above 0"),
            (b"notify=fifo\0", "absolute"),
            (b"cgroup_view=/sys\0", "two absolute paths"),
            (b"network_group=/g\0", "network_sockets_max above 0"),
            (b"network_group=/g\0network_sockets_max=1\0", "network_own_port_sockets_max above 0"),
            (b"\0", "no '='"),
        ] {
            let error = parse_with(extra).expect_err("refused");
            assert!(error.contains(expected_text), "{error}");
        }
        assert!(RunSpec::parse(b"workdir=/srv\0").expect_err("refused").contains("no command"));
        assert!(RunSpec::parse(b"command=x\0").expect_err("refused").contains("workdir"));
    }
}
