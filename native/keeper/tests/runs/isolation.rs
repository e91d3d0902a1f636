//! Isolation of programs: hostile access, given resources, and files of root.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::launcher::{Launcher, reply};
use crate::run_fixture::{
    KEEPER, Mode, NONE, Run, USER, available_modes, is_root, isolating_modes, needs_root, system_paths, wait_until,
};

/// Program that tries forbidden operations and prints each success.
const HOSTILE: &str = r#"
$| = 1;
until (-s "go") { select undef, undef, undef, 0.01 }
open GO, "<", "go"; my ($is_scoped, $is_weak, $is_landlock, $key, $other, $ours, @pids) = split ' ', <GO>;
my @listed = split ' ', <GO>;
my ($ptrace, $mknod, $mount, $socket, $limit, $keys, $ring) =
    `uname -m` =~ /aarch64/ ? (117, 33, 40, 198, 261, 219, 425) : (101, 259, 165, 41, 302, 250, 425);
sub broke { my ($what, $is_so) = @_; print "BROKE $what\n" if $is_so }
sub opens { my ($how, $path) = @_; return open(my $file, $how, $path) ? 1 : 0 }
sub lists { return opendir(my $folder, $_[0]) ? 1 : 0 }
sub sees {
    my ($in) = @_;
    opendir(my $folder, $in) or return;
    my $is_shown = sub { my ($one) = @_; return $one eq $ours || grep { index($_, $one) == 0 } @listed };
    return grep { !/^(\.\.?|scratch)$/ && !$is_shown->("$in/$_") } readdir $folder;
}
for my $path ($key, "$other/state", "$other/spec", "$other/control", "/etc/shadow", "/etc/hostname", "$ours/spec",
              "$ours/state", "$ours/control", "$ours/log/00000000000000000000") {
    broke("reads $path", opens("<", $path) || opens("+<", $path));
}
for my $path ($other, "$other/scratch", "$other/log", $ours, "$ours/log", "/tmp", "/root", "/home", "/etc", "/etc/ssl", "/etc/ssl/private",
              "/var") {
    broke("sees $path/$_", 1) for sees($path);
    next if index($path, "/tmp") == 0 && !$is_landlock; # a part of its scratch folder
    broke("makes $path/new", opens(">", "$path/new") || mkdir "$path/made");
}
for my $path ("/new", "/usr/new", "/usr/bin/sh", "/dev/new", "/proc/sys/kernel/core_pattern",
              "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger") {
    broke("writes $path", opens(">>", $path));
}
symlink $key, "link"; broke("reads by a symlink", opens("<", "link"));
broke("links", link $key, "hard"); broke("removes", unlink $key); broke("renames", rename $key, "taken");
broke("changes a mode", chmod 0777, $key) unless $is_weak;
broke("changes an owner", chown $<, $<, $other) unless $is_weak;
for my $pid (@pids, getppid) {
    for my $name (qw(environ maps mem smaps auxv stack)) {
        broke("reads $name of $pid", open(my $file, "<", "/proc/$pid/$name") && sysread($file, my $got, 1));
    }
    broke("writes mem of $pid", opens("+<", "/proc/$pid/mem"));
    broke("limits $pid", opens(">", "/proc/$pid/oom_score_adj") || opens(">", "/proc/$pid/comm"));
    # That its own first process has some is all that it may learn.
    broke("lists fd of $pid", lists("/proc/$pid/fd")) unless $pid == 1;
    broke("reaches fd $_ of $pid", readlink("/proc/$pid/fd/$_") || opens("+<", "/proc/$pid/fd/$_")) for 0 .. 255;
    broke("goes to $_ of $pid", lists("/proc/$pid/$_") || opens("<", "/proc/$pid/$_$key")) for qw(root cwd);
    broke("traces $pid", syscall($ptrace, 16, $pid, 0, 0) == 0);
    broke("signals $pid", kill 0, $pid) unless $pid == 1;
    my $endless = pack "Q Q", ~0, ~0;
    broke("limits $pid", syscall($limit, $pid, 0, $endless, 0) == 0) unless $pid == 1;
}
broke("signals a group", kill 0, -$pids[0]);
broke("makes a device", syscall($mknod, -100, my $device = "device", 0060666, 0x103) == 0);
broke("mounts", syscall($mount, my $none = "none", my $to = "/proc", my $kind = "tmpfs", 0, 0) == 0);
broke("changes its root", chroot "."); $< = 0; $> = 0; broke("becomes root", $> == 0);
open STATUS, "<", "/proc/self/status"; my $status = join "", <STATUS>;
broke("has capabilities", $status !~ /CapPrm:\s+0+\nCapEff:\s+0+\n/);
broke("has other groups", $status =~ /Groups:.*\b0\b/);
broke("may get privileges", $status !~ /NoNewPrivs:\s+1/);
my ($folder) = $key =~ m{(.*)/};
for my $name ("$folder/stream", "$folder/datagram", ("\0keeper-test-$pids[-1]") x $is_scoped) {
    my $address = pack "S a*", 1, $name; (my $shown = $name) =~ s/\0/@/;
    for my $type (1, 2, 3, 5) {
        my ($new, $one, $two);
        if (socket $new, 1, $type, 0) {
            broke("sends to $shown by $type", defined send $new, "x", 0, $address);
            broke("connects to $shown by $type", connect $new, $address);
        }
        next unless socketpair $one, $two, 1, $type, 0;
        # Where messages have an order the kernel does not look at the address.
        broke("sends to $shown by a pair of $type", defined send $one, "x", 0, $address) unless $type == 5;
        broke("connects to $shown by a pair of $type", connect $one, $address);
        close $two; broke("connects to $shown by half a pair of $type", connect $one, $address);
    }
}
broke("has the other table's socket", syscall($socket + 0x40000000, 1, 1, 0) >= 0);
if ($is_landlock) {
    broke("has a socket of its own", syscall($socket, $_, 02000001, 0) >= 0) for 1, 1 << 32 | 1;
    my $about = "\0" x 120; broke("has a ring", syscall($ring, 1, $about) >= 0);
    broke("has keys", syscall($keys, 0, -4, 1) >= 0);
}
socketpair my $here, my $there, 1, 1, 0 or broke("is kept from its own processes", 1);
my $child = fork // broke("forks not", 1);
unless ($child) { syswrite $there, "child"; sleep 1000; exit }
sysread $here, my $said, 5; broke("does not hear its child", $said ne "child");
broke("does not end its child", !kill(9, $child) || waitpid($child, 0) != $child);
print "over\n";
"#;

/// A process outside of the run that has a secret.
struct ForeignProcess(Child);

impl ForeignProcess {
    /// Starts the process with the program's user if possible, because isolation is hardest then.
    fn spawn(mode: Mode) -> Self {
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").env("SECRET", "secret").stdin(Stdio::null());
        if mode.is_unprivileged || needs_root("another user's process") {
            command.uid(USER).gid(USER);
        }
        Self(command.process_group(0).spawn().expect("sleeps"))
    }
}

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn secret_folder(mode: u32) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("secret"), "secret").expect("key");
    // Only the modes of the files would allow access.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("mode");
    fs::set_permissions(folder.path().join("secret"), fs::Permissions::from_mode(mode & 0o666)).expect("mode");
    folder
}

/// Creates a Unix socket with a mode that allows every user to connect.
fn unix_listener(folder: &TempDir, name: &str) -> UnixListener {
    let listener = UnixListener::bind(folder.path().join(name)).expect("bound");
    fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o777)).expect("mode");
    listener
}

fn unix_datagram(folder: &TempDir, name: &str) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.path().join(name)).expect("bound");
    socket.set_nonblocking(true).expect("does not wait");
    fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o777)).expect("mode");
    socket
}

fn has_abstract_socket_scope() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().expect("a version"), numbers.next().unwrap_or_default());
    if version < (6, 12) {
        skipped!("abstract sockets: the kernel is older than 6.12");
    }
    version >= (6, 12)
}

#[test]
fn hostile_program_is_isolated() {
    let name = SocketAddr::from_abstract_name(format!("keeper-test-{}", std::process::id())).expect("a name");
    let _listens = UnixListener::bind_addr(&name).expect("bound");
    for mode in isolating_modes() {
        assert_isolated(mode, Run::started);
        if mode.isolation == "user" {
            let runs = tempfile::tempdir().expect("a folder");
            let mut launcher = Launcher::new(runs.path());
            assert_isolated(mode, |run| {
                assert_eq!(launcher.start(run.folder.path()), reply("0", run.folder.path(), ""));
                run
            });
        }
    }
}

fn assert_isolated(mode: Mode, mut begin: impl FnMut(Run) -> Run) {
    let key = secret_folder(0o777);
    let (_stream, datagram) = (unix_listener(&key, "stream"), unix_datagram(&key, "datagram"));
    if mode.is_unprivileged {
        chown(key.path(), Some(USER), Some(USER)).expect("given");
        chown(key.path().join("secret"), Some(USER), Some(USER)).expect("given");
    }
    let foreign_process = ForeignProcess::spawn(mode);
    let other = begin(Run::new(mode, "echo up; sleep 1000", &[]));
    other.wait_for_line("o up");
    let run = Run::new(mode, "exec perl hostile", &[]);
    fs::write(run.path("scratch/hostile"), HOSTILE).expect("program");
    fs::set_permissions(run.path("scratch/hostile"), fs::Permissions::from_mode(0o644)).expect("mode");
    let run = begin(run);
    let pids =
        [foreign_process.0.id() as i32, run.number("keeper_pid"), other.number("keeper_pid"), other.number("pid")];
    let pids = pids.map(|pid| pid.to_string()).join(" ");
    // Landlock does not restrict modes and owners of files of the own user.
    let is_weak = u8::from(mode.isolation == "landlock" && (mode.is_unprivileged || !is_root()));
    let is_scoped = u8::from(has_abstract_socket_scope());
    let is_landlock = u8::from(mode.isolation == "landlock");
    let invented = (mode.isolation != "landlock").then_some("/etc/machine-id");
    let (folder, other_folder) = (run.folder.path().display(), other.folder.path().display());
    fs::write(
        run.path("scratch/go"),
        format!(
            "{is_scoped} {is_weak} {is_landlock} {} {other_folder} {folder} {pids} {}\n{}\n",
            key.path().join("secret").display(),
            std::process::id(),
            system_paths().chain(invented).collect::<Vec<_>>().join(" ")
        ),
    )
    .expect("written");
    let state = run.wait_ended();
    assert_eq!(run.log(), ["o over"], "{mode:?}: {state:?}");
    for outside in [run.path("new"), run.path("made"), other.path("new"), "/tmp/new".into(), "/tmp/made".into()] {
        assert!(!outside.exists(), "{mode:?}: {}", outside.display());
    }
    assert_eq!(fs::read(key.path().join("secret")).expect("still there"), b"secret");
    assert!(datagram.recv(&mut [0]).is_err(), "{mode:?}: the message was received");
    other.send_command("stop 0");
    other.wait_ended();
}

/// Returns a 32-bit program that opens a Unix socket and exits with its descriptor as the status.
#[cfg(target_arch = "x86_64")]
fn x86_32_program() -> Vec<u8> {
    let code: [&[u8]; 8] = [
        &[0xb8, 0x67, 0x01, 0, 0], // mov eax, 359: socket
        &[0xbb, 1, 0, 0, 0],       // mov ebx, 1: AF_UNIX
        &[0xb9, 1, 0, 0, 0],       // mov ecx, 1: SOCK_STREAM
        &[0x31, 0xd2],             // xor edx, edx
        &[0xcd, 0x80],             // int 0x80
        &[0x89, 0xc3],             // mov ebx, eax
        &[0xb8, 1, 0, 0, 0],       // mov eax, 1: exit
        &[0xcd, 0x80],             // int 0x80
    ];
    let code = code.concat();
    let (start, headers) = (0x0804_8000_u32, 84_u32);
    let size = headers + code.len() as u32;
    let words = |all: &[u32]| all.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    [
        b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0".to_vec(),
        words(&[1, start + headers, 52, 0, 0]),
        [52, 32, 1, 0, 0, 0].iter().flat_map(|half: &u16| half.to_le_bytes()).collect(),
        words(&[1, 0, start, start, size, size, 5, 0x1000]),
        code,
    ]
    .concat()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn seccomp_filter_kills_programs_of_another_architecture() {
    for mode in available_modes().into_iter().filter(|mode| mode.isolation != "processes") {
        let run = Run::new(mode, "exec ./foreign", &[]);
        fs::write(run.path("scratch/foreign"), x86_32_program()).expect("program");
        fs::set_permissions(run.path("scratch/foreign"), fs::Permissions::from_mode(0o755)).expect("mode");
        run.chown_to_program("scratch/foreign");
        let state = run.started().wait_ended();
        match state["exit_code"].as_str() {
            "126" => skipped!("{mode:?}: the kernel runs no 32-bit programs"),
            code => assert_eq!(code, if mode.isolation == "none" { "3" } else { "159" }, "{mode:?}"),
        }
    }
}

#[test]
fn program_has_only_the_given_descriptors_variables_and_files() {
    for mode in available_modes() {
        let script = "set -- /proc/self/fd/*; echo $#; env; echo fine > mine; cat mine; echo through > /dev/null; \
                      [ -w . ] && umask";
        let run = Run::new(mode, script, &["env=A=b c"]).started();
        assert_eq!(run.wait_ended()["exit_code"], "0", "{mode:?}: {:?}", run.log());
        let mut output = run.stdout_lines();
        // Three streams and the listed folder. The shell sets some variables itself.
        assert_eq!(output.remove(0), "4", "{mode:?}");
        output.retain(|line| !["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|start| line.starts_with(start)));
        output.sort();
        assert_eq!(output, ["0022", "A=b c", "PATH=/usr/bin:/bin", "fine"], "{mode:?}");
    }
}

#[test]
fn program_is_independent_of_the_keepers_umask() {
    for mode in available_modes() {
        let run = Run::new(mode, "echo up; echo x > /dev/null && echo y > scratched && cat scratched", &[]);
        let mut careful = Command::new("/bin/sh");
        careful.args(["-c", "umask 077; exec \"$0\" \"$1\"", KEEPER]).arg(run.folder.path());
        if mode.is_unprivileged {
            careful.uid(USER).gid(USER);
        }
        assert!(careful.status().expect("keeper runs").success());
        let state = run.wait_ended();
        assert_eq!(run.stdout_lines(), ["up", "y"], "{mode:?}: {state:?}");
    }
}

#[test]
fn program_starts_with_default_signal_actions() {
    for mode in available_modes() {
        let script =
            "while read line; do case $line in SigBlk*|SigIgn*) echo \"$line\"; esac; done < /proc/self/status";
        let run = Run::new(mode, script, &[]);
        let mut keeper_command = Command::new("/bin/sh");
        keeper_command.args(["-c", "trap '' HUP INT QUIT USR1 PIPE TERM XFSZ; exec \"$0\" \"$1\"", KEEPER]);
        assert!(run.set_keeper_user(keeper_command.arg(run.folder.path())).status().expect("keeper runs").success());
        let state = run.wait_ended();
        let output_lines = run.stdout_lines();
        let masks = output_lines.iter().filter_map(|line| u64::from_str_radix(line.split_once(":\t")?.1, 16).ok());
        // The C library reserves two signals.
        let masks: Vec<u64> = masks.map(|mask| mask & !(0b11 << 31)).collect();
        assert_eq!(masks, [0, 0], "{mode:?}: {state:?} {output_lines:?}");
    }
}

#[test]
fn program_cannot_see_the_keepers_mounts() {
    if !needs_root("a mount") {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    let none = MountFlags::empty();
    mount("tmpfs", place.path(), "tmpfs", none, Some(c"mode=755,size=1m")).expect("mounted");
    let name = place.path().file_name().expect("a name").to_string_lossy().into_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(mounts.contains(&name), "there is something to be seen");
    let script = "echo first $(cat /proc/1/mountinfo /proc/1/mounts /proc/1/mountstats /proc/1/cgroup 2> /dev/null); \
                  echo all $(cat /proc/[0-9]*/mountinfo); echo own $(ls /proc/self/fd | wc -l)";
    for mode in isolating_modes().into_iter().filter(|mode| mode.has_pid_namespace()) {
        let runs = tempfile::tempdir().expect("a folder");
        let mut launcher = Launcher::new(runs.path());
        for is_forked in [false, true] {
            let run = Run::new(mode, script, &[]);
            let run = if is_forked && !mode.is_unprivileged {
                assert_eq!(launcher.start(run.folder.path()), reply("0", run.folder.path(), ""));
                run
            } else {
                run.started()
            };
            let state = run.wait_ended();
            let output_lines = run.stdout_lines();
            assert_eq!(output_lines.len(), 3, "{mode:?}: {state:?} {output_lines:?}");
            assert!(!output_lines.iter().any(|line| line.contains(&name)), "{mode:?}: {output_lines:?}");
            assert_eq!(output_lines[2], "own 4", "{mode:?}: its own is seen");
            if mode.isolation == "user" {
                assert_eq!(output_lines[0], "first", "its keeper is there, and nothing of it");
            }
        }
    }
    unmount(place.path(), UnmountFlags::DETACH).expect("unmounted");
}

#[test]
fn files_of_the_keeper_are_private() {
    let run = Run::of_shell("echo up").started();
    run.wait_ended();
    for (name, mode) in [("state", 0o600), ("control", 0o600), ("log", 0o700)] {
        let found = fs::metadata(run.path(name)).expect("there").permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }
    let segment = run.path("log").join(format!("{:020}", 0));
    assert_eq!(fs::metadata(segment).expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn read_paths_are_read_only_including_nested_mounts() {
    if !needs_root("a disk below another") {
        return;
    }
    for mode in isolating_modes() {
        let build = tempfile::tempdir().expect("a folder");
        fs::set_permissions(build.path(), fs::Permissions::from_mode(0o777)).expect("mode");
        let below = build.path().join("below");
        fs::create_dir(&below).expect("below");
        mount("tmpfs", &below, "tmpfs", MountFlags::empty(), Some(c"mode=777,size=1m")).expect("mounted");
        fs::write(below.join("asset"), "asset\n").expect("asset");
        let place = below.display();
        let script =
            format!("cat {place}/asset; echo x > {place}/new && echo wrote; echo x > {place}/../new && echo wrote");
        let run = Run::new(mode, &script, &[&format!("read={}", build.path().display())]).started();
        run.wait_ended();
        unmount(&below, UnmountFlags::DETACH).expect("unmounted");
        assert_eq!(run.stdout_lines(), ["asset"], "{mode:?}: {:?}", run.log());
    }
}

#[test]
fn only_write_paths_inside_the_run_folder_change_owner() {
    if !needs_root("giving away") {
        return;
    }
    let shared = tempfile::tempdir().expect("a folder");
    let owner = |path: &std::path::Path| std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).expect("there"));
    for mode in isolating_modes().into_iter().filter(|mode| !mode.is_unprivileged) {
        let run = Run::new(mode, "echo up", &[&format!("write={}", shared.path().display())]).started();
        run.wait_ended();
        assert_eq!((owner(&run.path("scratch")), owner(shared.path()), owner(run.folder.path())), (USER, 0, 0));
    }
}

#[test]
fn root_under_landlock_has_no_capabilities() {
    if !needs_root("root's powers") {
        return;
    }
    let mode = Mode { isolation: "landlock", is_unprivileged: false };
    let run = Run::new(mode, "while read line; do echo $line; done < /proc/self/status", &["uid=0", "gid=0"]).started();
    run.wait_ended();
    let output_lines = run.stdout_lines();
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert!(output_lines.contains(&format!("{name} 0000000000000000")), "{name} {output_lines:?}");
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

fn root_modes() -> impl Iterator<Item = Mode> {
    isolating_modes().into_iter().filter(|mode| !mode.is_unprivileged)
}

#[test]
fn root_only_files_stay_unreadable() {
    if !needs_root("what is root's alone") {
        return;
    }
    let shown = tempfile::tempdir().expect("a folder");
    mode(shown.path(), 0o755);
    for (name, of_file) in [("key", 0o600), ("certificate", 0o644)] {
        fs::write(shown.path().join(name), format!("{name}\n")).expect("a file");
        mode(&shown.path().join(name), of_file);
    }
    let place = shown.path().display();
    let script = format!("cat {place}/key; cat {place}/certificate");
    for mode in root_modes() {
        let run = Run::new(mode, &script, &[&format!("read={place}")]).started();
        run.wait_ended();
        assert_eq!(run.stdout_lines(), ["certificate"], "{mode:?}");
    }
}

#[test]
fn programs_of_a_root_keeper_have_another_user() {
    if !needs_root("users of runs") {
        return;
    }
    let script = "echo made > mine; while read name rest; do case $name in Uid:|Gid:|Groups:) echo $name $rest; \
                  esac; done < /proc/self/status; exec sleep 1000";
    for mode in root_modes() {
        let run = Run::new(mode, script, &[]).started();
        wait_until(|| run.stdout_lines().len() == 3, "it prints its user");
        let inside = if mode.isolation == "namespace" { 65_534 } else { USER };
        let [uid, gid] = ["Uid:", "Gid:"].map(|name| format!("{name} {inside} {inside} {inside} {inside}"));
        assert_eq!(run.stdout_lines(), [uid.as_str(), gid.as_str(), "Groups:"], "{mode:?}");
        let own_file = fs::metadata(run.path("scratch/mine")).expect("made");
        assert_eq!((own_file.uid(), own_file.gid()), (USER, USER), "{mode:?}");
        let program = fs::metadata(format!("/proc/{}/stat", run.number("pid"))).expect("runs");
        assert!(program.uid() == USER || mode.isolation == "namespace", "{mode:?}");
    }
}

#[test]
fn parents_of_listed_paths_may_be_inaccessible() {
    if !needs_root("folders of root") {
        return;
    }
    for mode in root_modes().filter(|mode| mode.isolation != "landlock") {
        let above = tempfile::tempdir().expect("a folder, closed to others");
        let (folder, build) = (above.path().join("run"), above.path().join("build"));
        fs::create_dir(&folder).expect("a folder");
        fs::create_dir(&build).expect("a build");
        fs::write(build.join("asset"), "asset\n").expect("an asset");
        let inner = tempfile::tempdir_in(&folder).expect("a folder");
        let script = format!("cat {}/asset; echo x > mine && cat mine", build.display());
        let run = Run::with_folder(mode, inner, &["/bin/sh", "-c", &script], &[&format!("read={}", build.display())])
            .started();
        let state = run.wait_ended();
        assert_eq!(run.stdout_lines(), ["asset", "x"], "{mode:?}: {state:?}");
    }
}

#[test]
fn namespace_mode_refuses_root_outside() {
    if !needs_root("root's programs") {
        return;
    }
    let mode = Mode { isolation: "namespace", ..NONE };
    let state = Run::new(mode, "echo up", &["uid=0", "gid=0"]).started().wait_ended();
    assert_eq!(state["reason"], "exec_failed");
    assert!(state["message"].contains("no user of its own"), "{}", state["message"]);
}
