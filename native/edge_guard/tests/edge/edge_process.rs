//! An edge-guard process in a folder of its own, and access to everything that it reports.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http_client::get;
use crate::route_source::RouteSource;
use crate::wait::{LONG, wait_for};
use crate::wire::Route;

pub struct EdgeProcess {
    pub test_folder: TempDir,
    pub source: RouteSource,
    settings: Value,
    pub child: Child,
}

impl EdgeProcess {
    pub fn start() -> Self {
        Self::start_with(json!({}))
    }

    pub fn start_with(settings: Value) -> Self {
        let mut guard = Self::start_without_source(settings);
        guard.source.start();
        guard
    }

    pub fn start_without_source(changes: Value) -> Self {
        Self::start_in_folder(tempfile::tempdir().unwrap(), changes)
    }

    pub fn start_in_folder(test_folder: TempDir, changes: Value) -> Self {
        let source = RouteSource::new(&test_folder.path().join("source.sock"));
        let mut settings = json!({
            "folder": test_folder.path().join("edge"),
            "source": test_folder.path().join("source.sock"),
            "workers": 2,
        });
        for (name, value) in changes.as_object().unwrap() {
            settings[name] = value.clone();
        }
        let config = test_folder.path().join("config.json");
        std::fs::write(&config, settings.to_string()).unwrap();
        let child = Self::spawn(&config, &[]);
        let guard = Self { test_folder, source, settings, child };
        guard.wait_until_ready();
        guard
    }

    fn spawn(config: &std::path::Path, arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_hosting-edge-guard")).arg(config).args(arguments).spawn().unwrap()
    }

    /// Starts another edge-guard in the same folder.
    pub fn another(&self, arguments: &[&str]) -> Child {
        Self::spawn(&self.config(), arguments)
    }

    pub fn config(&self) -> PathBuf {
        self.test_folder.path().join("config.json")
    }

    pub fn set(&mut self, name: &str, value: Value) {
        self.settings[name] = value;
        std::fs::write(self.config(), self.settings.to_string()).unwrap();
    }

    pub fn folder(&self) -> PathBuf {
        self.test_folder.path().join("edge")
    }

    #[track_caller]
    pub fn wait_until_ready(&self) {
        let pid = self.child.id();
        wait_for("edge-guard is ready", || {
            let body = self.try_ask("GET", "/readyz?verbose")?;
            (serde_json::from_str::<Value>(&body).ok()?["pid"] == pid).then_some(())
        });
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.child = Self::spawn(&self.config(), &[]);
        self.wait_until_ready();
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub fn ask(&self, method: &str, path: &str) -> String {
        self.try_ask(method, path).unwrap()
    }

    fn try_ask(&self, method: &str, path: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.folder().join("admin.sock")).ok()?;
        stream.set_read_timeout(Some(LONG)).ok()?;
        write!(stream, "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer.split_once("\r\n\r\n")?.1.to_owned())
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.ask("GET", "/readyz?verbose")).unwrap()
    }

    pub fn listener(&self, name: &str) -> SocketAddr {
        self.status()[name].as_str().unwrap().parse().unwrap()
    }

    #[track_caller]
    pub fn figure(&self, name: &str) -> u64 {
        figure_in(&self.ask("GET", "/metrics"), name)
    }

    /// Opens a persistent connection to the administration socket.
    pub fn connect_metrics(&self) -> MetricsConnection {
        let stream = UnixStream::connect(self.folder().join("admin.sock")).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut connection = MetricsConnection(stream);
        // A response shows that the connection was accepted, and is not queued.
        connection.figure("routes_kept");
        connection
    }

    #[track_caller]
    pub fn wait_for_figure(&self, name: &str, is_expected: impl Fn(u64) -> bool) {
        wait_for(name, || is_expected(self.figure(name)).then_some(()));
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Waits until the process has at most this number of descriptors.
    pub fn has_at_most(&self, descriptors: usize) {
        wait_for("no more are open", || (self.descriptors() <= descriptors).then_some(()));
    }

    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

pub struct MetricsConnection(UnixStream);

impl MetricsConnection {
    #[track_caller]
    pub fn figure(&mut self, name: &str) -> u64 {
        figure_in(&get(&mut self.0, "edge", "/metrics").text(), name)
    }
}

#[track_caller]
fn figure_in(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("hosting_edge_{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}

impl Drop for EdgeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a free port outside of the ephemeral range.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = u16::try_from(std::process::id() % 40).unwrap() * 150;
    loop {
        let port = 20_000 + (own + NEXT.fetch_add(1, Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub fn route(owner: &str, protocol: &str, port: u16, backend: Option<SocketAddr>) -> Route {
    Route {
        owner_id: owner.to_owned(),
        port_name: "game".to_owned(),
        protocol: protocol.to_owned(),
        port: port.into(),
        host: String::new(),
        is_tls: false,
        server_name: String::new(),
        sends_proxy_header: false,
        counts_sessions: false,
        requires_slot: false,
        backend_address: backend.map(|backend| backend.ip()).as_ref().map(IpAddr::to_string).unwrap_or_default(),
        backend_port: backend.map_or(0, |backend| backend.port().into()),
    }
}
